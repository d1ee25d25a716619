"""Reading rates: a rate or a half-life, one number, a spread, or one per pair and head."""

import math
from typing import Any, cast

from torch import Tensor

from eigenclock.clocks import CLOCKS, Clock, Index, duration, is_duration
from eigenclock.encodings.parameter import as_numbers
from eigenclock.errors import ConfigError, GrowthError, ShapeError
from eigenclock.registry import nearest
from eigenclock.schedules import Schedule, half_lives

Numbers = Any  # a number, a duration string, (lo, hi), a sequence, an array, a tensor or a schedule


def clock_or_index(clock: Clock | None) -> Clock:
    """The clock given, or the index clock.

    Raises: ConfigError where it is no clock, with the nearest known name where it is text.
    """
    if clock is None:
        return Index()
    if isinstance(clock, Clock):
        return clock
    hint = f". Names work in specs only, as in 'rope(clock=index)'; {nearest(clock, CLOCKS)}" if isinstance(clock, str) else ""
    raise ConfigError(f"got clock={clock!r}; expected a Clock such as ec.Index() or ec.Timestamps('ns'){hint}")


def read_rates(rate: Numbers, half_life: Numbers, columns: int, clock: Clock | None, name: str = "rate") -> Tensor | None:
    """Rates in float64, (1,), (columns,) or (heads, columns); None where neither is given.

    rate = ln 2 / half-life. ``rate`` may be a schedule, which gives one rate per column. ``half_life`` takes durations such as "30min"
    or timedeltas where the clock has a unit, and (lo, hi) spreads the half-lives geometrically over the columns, the fastest first.

    Raises: ConfigError where both are given or a number is not one; GrowthError where a rate is negative.
    """
    unit = clock_or_index(clock).unit
    if rate is not None and half_life is not None:
        raise ConfigError("got both rate and half_life; expected one of them (rate = ln 2 / half_life)")
    if rate is not None:
        rates = scheduled(rate, columns, name) if callable(rate) else as_numbers(rate, name)
        if bool((rates < 0).any()):
            raise GrowthError(
                f"got {name}={float(rates.min()):g}; expected rates >= 0 (exp(-rate * t)): a snippet's alpha <= 0 is minus this rate"
            )
        return rates.reshape(1) if rates.ndim == 0 else rates
    if half_life is None:
        return None
    if isinstance(half_life, tuple) and len(half_life) == 2:
        return half_lives(*(duration(h, unit) for h in half_life))(columns).values
    lives = as_numbers(_durations(half_life, unit), "half_life")
    if bool((lives <= 0).any()):
        raise ConfigError(f"got half_life={float(lives.min()):g}; expected times above 0")
    rates = math.log(2) / lives
    return rates.reshape(1) if rates.ndim == 0 else rates


def given_as(half_life: Numbers) -> str:
    """What the caller named who gave decays: "half_life" or "rate"."""
    return "rate" if half_life is None else "half_life"


def scheduled(schedule: Any, columns: int, what: str) -> Tensor:
    """The values of a schedule where nothing can carry an amplitude.

    Raises: ConfigError where the schedule asks for one.
    """
    spectrum = cast(Schedule, schedule)(columns)
    if spectrum.attention_scale != 1:
        raise ConfigError(
            f"got {what}={schedule}, which puts an amplitude of {spectrum.attention_scale:.6g} on queries and keys; "
            "expected it as freq= of rope or damped_rope, which carry it, or a schedule without one"
        )
    return spectrum.values


def durations(value: Any, clock: Clock | None) -> Any:
    """A value in which durations such as "30min" have become numbers in the unit of the clock; anything else stays as it is."""
    return _durations(value, clock_or_index(clock).unit)


def _durations(value: Any, unit: str | None) -> Any:
    if isinstance(value, list | tuple):
        return [_durations(v, unit) for v in value]
    return duration(value, unit) if is_duration(value) else value


def fit_rows(numbers: Tensor, columns: int, rows: tuple[int, ...], what: str, expand: bool) -> Tensor:
    """Numbers checked against (columns,) or (heads, columns), one column standing for all; grown to full size where ``expand``.

    ``rows`` are the allowed numbers of heads, the first one is used when growing.
    """
    if numbers.shape[-1] not in (1, columns) or (numbers.ndim == 2 and numbers.shape[0] not in (1, *rows)):
        expected = f"(), ({columns},) or ({rows[0]}, {columns})"
        raise ShapeError(
            f"got {what} of shape {tuple(numbers.shape)}; expected {expected}: one value, one per block, or one per head and block"
        )
    if numbers.ndim == 2 and numbers.shape[0] == 1:
        numbers = numbers[0]
    if expand and not (numbers.ndim == 1 and rows[0] == 1):
        return numbers.expand(rows[0] if numbers.ndim == 1 else numbers.shape[0], columns).clone()
    return numbers.expand(*numbers.shape[:-1], columns).clone() if columns > 1 else numbers


def read_learn(learn: str | tuple[str, ...] | list[str], names: tuple[str, ...]) -> tuple[str, ...]:
    """The names in ``learn``, each checked against the parameters the recipe has.

    Raises: ConfigError where a name is unknown.
    """
    chosen = (learn,) if isinstance(learn, str) else tuple(learn)
    for name in chosen:
        if name not in names:
            raise ConfigError(
                f"got learn={name!r}; expected {' or '.join(repr(n) for n in names) if names else 'nothing: this encoding has no numbers'}"
            )
    return chosen


def even(width: int, what: str) -> int:
    """The number of pairs in a rotary width.

    Raises: ShapeError where it is odd, at construction and by name.
    """
    if width % 2 or width < 0:
        raise ShapeError(f"got {what}={width}; expected an even width: rotations act on pairs of channels")
    return width // 2


__all__ = ["Numbers", "clock_or_index", "durations", "even", "fit_rows", "given_as", "read_learn", "read_rates", "scheduled"]
