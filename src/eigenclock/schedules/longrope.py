"""LongRoPE: a searched divisor for every pair, one list for short sequences and one for long ones."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from eigenclock.errors import ConfigError, ShapeError
from eigenclock.schedules.inner import Base, Inner, changed, check_factor, check_length, check_positive
from eigenclock.schedules.spectrum import Spectrum


@dataclass(frozen=True)
class longrope(Inner):
    """w_i' = w_i / short_factor_i for sequences up to L, w_i / long_factor_i for longer ones; amplitude sqrt(1 + ln s / ln L) for both.

    The list follows the length of the sequence itself: not the capacity of a cache, and not the longest row of a batch
    (:func:`rows_by_length` sorts the rows). Keys turned before a sequence outgrows L do not match queries turned after it: choose by the
    final length, or cache keys that are not turned. The paper also leaves the first tokens unscaled; released models do not.

    Args:
        short_factor, long_factor: a divisor above 0 for each of the n pairs.
        original_length: L, the length the model was trained on.
        factor: s, how many times longer the context becomes (max_position_embeddings / original_max_position_embeddings).
        attention_factor: the amplitude itself, in place of the one of ``factor``.
        use: "short" or "long", the list this value has chosen; ``at(length)`` sets it.
        theta: the base: a number, one per head, or an inner schedule whose frequencies are divided.
    Units: radians per unit of the clock; lengths in that unit.
    Raises: ShapeError where a list is not one number per pair; ConfigError where a number in it is not above 0, factor and attention_factor
        are both missing, the factor is below 1, the original length is missing, or theta is not above 0.
    Source: Ding et al. (LongRoPE), 2402.13753; the amplitude is that of the authors' code.

    >>> schedule = longrope((1.0, 1.0, 1.05, 1.1), (1.0, 2.0, 4.0, 8.0), original_length=16, factor=4)
    >>> schedule.at(17)(4).values
    tensor([1.0000e+00, 5.0000e-02, 2.5000e-03, 1.2500e-04], dtype=torch.float64)
    >>> round(schedule.at(10)(4).attention_scale, 4)
    1.2247
    """

    short_factor: Sequence[float]
    long_factor: Sequence[float]
    original_length: float | None = None
    factor: float | None = None
    attention_factor: float | None = None
    use: str | None = None
    theta: Base = 10000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("short_factor", "long_factor"):
            object.__setattr__(self, name, _divisors(getattr(self, name), name))
        length = check_length(self.original_length)
        if self.use not in (None, "short", "long"):
            raise ConfigError(f"got use={self.use!r}; expected 'short' or 'long', or .at(length), which chooses")
        if self.factor is None and self.attention_factor is None:
            raise ConfigError("got neither factor nor attention_factor; expected the factor of extension: the amplitude follows from it")
        if self.factor is not None:
            check_factor(self.factor)
        if self.attention_factor is None and length <= 1:
            raise ConfigError(f"got original_length={length}; expected a length above 1, or attention_factor: the amplitude has ln L in it")
        check_positive(self.amplitude, "attention_factor")

    @property
    def amplitude(self) -> float:
        """The amplitude on the rotated channels of queries and of keys."""
        if self.attention_factor is not None:
            return self.attention_factor
        return math.sqrt(1 + math.log(self.factor or 1.0) / math.log(check_length(self.original_length)))

    @property
    def length_dependent(self) -> bool:
        """Always: there is one list up to the original length, and one beyond."""
        return True

    def at(self, length: float) -> Self:
        """The schedule with the list for a sequence of this length."""
        short = check_length(length, "length") <= check_length(self.original_length)
        return replace(super().at(length), use="short" if short else "long")

    def __call__(self, n: int) -> Spectrum:
        if self.use is None:
            raise ConfigError(
                "got longrope without a choice of its list; expected .at(length): the list follows the length of the sequence"
            )
        name = f"{self.use}_factor"
        divisors = getattr(self, name)
        for given, numbers in (("short_factor", self.short_factor), ("long_factor", self.long_factor)):
            if len(numbers) != n:
                raise ShapeError(f"got {given} with {len(numbers)} numbers; expected {n}, one for each pair of the rotary width {2 * n}")
        return changed(self.before(n), 1 / np.asarray(divisors, dtype=np.float64), self.amplitude)


def _divisors(given: Any, name: str) -> tuple[float, ...]:
    """A list of divisors as a tuple, each checked."""
    try:
        numbers = tuple(given)
    except TypeError:
        raise ConfigError(f"got {name}={given!r}; expected a list with a divisor for each pair") from None
    for number in numbers:
        check_positive(number, name)
    return numbers
