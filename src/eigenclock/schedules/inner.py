"""What schedules that change another schedule share: the inner spectrum, its choice by length, and the checks of their options."""

from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, Self, cast

import numpy as np
from torch import Tensor

from eigenclock.errors import ConfigError
from eigenclock.schedules.geometric import geometric
from eigenclock.schedules.spectrum import Schedule, Spectrum
from eigenclock.theory.numbers import exact

Base = float | tuple[float, ...] | Schedule


class Inner:
    """A schedule that changes the frequencies of another one: those of a base ``theta``, or of an inner schedule in its place.

    ``length_dependent``: whether its frequencies are chosen by the length of the sequence, so that keys turned for another length do not
    match. Then ``at(length)`` is the choice for a length, and keys turned at one length serve another exactly where the two choices are
    equal: ``schedule.at(a) == schedule.at(b)``.
    """

    theta: Base  # a field of every schedule built on this class

    def __post_init__(self) -> None:
        if not callable(self.theta):
            check_base(self.theta)

    @property
    def length_dependent(self) -> bool:
        """Whether the frequencies are chosen by the length of the sequence."""
        return bool(getattr(self.theta, "length_dependent", False))

    def at(self, length: float) -> Self:
        """The same schedule for a sequence of this length."""
        return replace(cast(Any, self), theta=at_length(self.theta, length)) if self.length_dependent else self

    def before(self, n: int) -> Spectrum:
        """The spectrum that is changed."""
        return self.theta(n) if callable(self.theta) else geometric(self.theta)(n)


def changed(spectrum: Spectrum, factors: Any, scale: float = 1.0) -> Spectrum:
    """A spectrum whose frequencies are multiplied by factors, (n,) or (heads, n), and its amplitude by ``scale``."""
    return Spectrum(exact(spectrum.values.numpy() * np.asarray(factors)), spectrum.attention_scale * scale)


def at_length(schedule: Any, length: float) -> Any:
    """A schedule chosen for a length; one that has no choice to make stays as it is."""
    return schedule.at(length) if getattr(schedule, "length_dependent", False) else schedule


def rows_by_length(schedule: Schedule, lengths: Sequence[float] | Tensor) -> dict[Schedule, list[int]]:
    """The rows of a batch that share a choice: schedule -> row numbers, each row chosen by its own length and by no other.

    A batch whose rows need different frequencies is one call for each choice, so that a row gives the same result as alone.

    Args:
        schedule: any schedule; one that does not depend on the length keeps all rows together.
        lengths: the length of each row, without its padding.
    Raises: ConfigError where a length is not above 0.

    >>> from eigenclock.schedules import longrope
    >>> searched = longrope((1.0, 1.1), (1.0, 8.0), original_length=16, factor=4)
    >>> {chosen.use: rows for chosen, rows in rows_by_length(searched, [10, 40, 16, 17]).items()}
    {'short': [0, 2], 'long': [1, 3]}
    """
    rows: dict[Schedule, list[int]] = {}
    for row, length in enumerate(lengths.tolist() if isinstance(lengths, Tensor) else lengths):
        rows.setdefault(at_length(schedule, check_length(length, "the length of a row")), []).append(row)
    return rows


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def check_base(theta: Any) -> None:
    """Refuse a base that is no number above 0, nor one per head."""
    if not all(_is_number(base) and base > 0 for base in (theta if isinstance(theta, tuple) else (theta,))):
        raise ConfigError(f"got theta={theta!r}; expected a base above 0 such as 10000, one per head, or an inner schedule")


def check_factor(factor: Any) -> None:
    """Refuse a factor of extension that is missing, below 1 or not finite."""
    if not _is_number(factor) or not 1 <= factor < float("inf"):
        raise ConfigError(f"got factor={factor!r}; expected how many times longer the context becomes, at least 1")


def check_length(length: Any, name: str = "original_length") -> float:
    """A length above 0, in the unit of the clock; refused by name where it is missing."""
    if not _is_number(length) or not 0 < length < float("inf"):
        of = " of the model before its extension (original_max_position_embeddings)" if name == "original_length" else ""
        raise ConfigError(f"got {name}={length!r}; expected a length above 0{of}")
    return length


def check_positive(value: Any, name: str) -> float:
    """A number above 0, refused by name where it is missing."""
    if not _is_number(value) or not 0 < value < float("inf"):
        raise ConfigError(f"got {name}={value!r}; expected a number above 0")
    return value
