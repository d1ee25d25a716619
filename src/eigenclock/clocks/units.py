"""Units of time and durations such as "30min"."""

import datetime as dt
import re
from fractions import Fraction
from typing import Any

import numpy as np

from eigenclock.errors import ConfigError
from eigenclock.registry import nearest

SECONDS: dict[str, Fraction] = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
    "w": Fraction(7 * 86400),
}
NUMPY = {"min": "m", "d": "D", "w": "W"}
"""Units that numpy calls otherwise."""
OURS = {theirs: ours for ours, theirs in NUMPY.items()}
_PART = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Z]+)")
_DURATION = re.compile(rf"^\s*(?:{_PART.pattern}\s*)+$")


def seconds(unit: str) -> Fraction:
    """Seconds in one unit, exactly.

    Raises: ConfigError where the unit is unknown.

    >>> seconds("min")
    Fraction(60, 1)
    """
    if unit not in SECONDS:
        raise ConfigError(f"got the time unit {unit!r}; {nearest(unit, SECONDS)}")
    return SECONDS[unit]


Lapse = str | dt.timedelta | np.timedelta64
"""A duration that names its own unit: text such as "30min" or "1h30min", or a timedelta of Python, numpy or pandas."""
Duration = float | int | Lapse
"""The same, or a number in the unit of a clock."""


def is_duration(value: Any) -> bool:
    """Whether a value is a duration that names its own unit, and no plain number.

    >>> is_duration("30min"), is_duration(dt.timedelta(minutes=30)), is_duration(30)
    (True, True, False)
    """
    return isinstance(value, str | dt.timedelta | np.timedelta64)


def duration(value: Duration, unit: str | None) -> float:
    """A duration in the unit of a clock, as :func:`exact_duration` reads it, rounded once.

    >>> duration("1h30min", "s"), duration("1000 shares", "shares")
    (5400.0, 1000.0)
    """
    return float(exact_duration(value, unit)) if is_duration(value) else float(value)  # type: ignore[arg-type]


def exact_duration(value: Duration, unit: str | None) -> Fraction:
    """A duration in the unit of a clock: numbers are taken as they are, "30min" is converted, and "0.1s" is a tenth of a second.

    Parts of a duration add up ("1h30min"). Where the clock counts something other than time, text may name that unit and no other:
    "1000 shares".

    Raises: ConfigError where the text is no duration, or the clock counts steps and has no unit, or counts something else.

    >>> exact_duration("100ms", "s"), exact_duration(dt.timedelta(minutes=1), "h")
    (Fraction(1, 10), Fraction(1, 60))
    """
    if isinstance(value, int | float):
        return Fraction(value)
    if not is_duration(value):
        raise ConfigError(
            f"got the duration {value!r} of type {type(value).__name__}; expected a number, text such as '30min' or a timedelta"
        )
    if not isinstance(value, str):
        return _in_unit(value, _elapsed(value), unit)
    parts = _parts(value)
    if parts is None:
        raise ConfigError(
            f"got the duration {value!r}; expected a number and a unit, such as '30min', '1.5h' or '1h30min' (units: {', '.join(SECONDS)})"
        )
    if len(parts) == 1 and unit is not None and unit not in SECONDS and parts[0][1] == unit:
        return parts[0][0]
    if unit is None or unit not in SECONDS:
        return _in_unit(value, Fraction(0), unit)
    return _in_unit(value, sum((number * seconds(name) for number, name in parts), Fraction(0)), unit)


def _parts(text: str) -> list[tuple[Fraction, str]] | None:
    """The numbers and units of a duration; None where the text is none."""
    if not _DURATION.match(text):
        return None
    try:
        parts = [(Fraction(number), name) for number, name in _PART.findall(text)]
    except ValueError:
        return None
    return None if len(parts) > 1 and any(number < 0 for number, _ in parts) else parts


def _elapsed(value: dt.timedelta | np.timedelta64) -> Fraction:
    """Seconds, exactly, of a duration of Python, numpy or pandas (whose own has nanoseconds)."""
    convert = getattr(value, "to_timedelta64", None)
    if convert is not None:
        value = convert()
    if isinstance(value, dt.timedelta):
        return value.days * SECONDS["d"] + value.seconds + Fraction(value.microseconds, 10**6)
    if np.isnat(value):
        raise ConfigError("got NaT for a duration; expected a finite one")
    name, count = np.datetime_data(value.dtype)
    known = OURS.get(name, name)
    if known not in SECONDS:
        raise ConfigError(f"got the duration {value!r} in {name!r}, which has no fixed length here; expected one in {', '.join(SECONDS)}")
    return int(value.astype(np.int64)) * count * SECONDS[known]


def _in_unit(value: Any, length: Fraction, unit: str | None) -> Fraction:
    if unit is None:
        raise ConfigError(
            f"got the duration {value!r} for a clock that counts steps; "
            "give a number of steps, or a clock with a unit such as Timestamps('ns')"
        )
    if unit not in SECONDS:
        raise ConfigError(
            f"got the duration {value!r} for a clock that counts {unit}; expected a number of {unit}, such as 1000 or '1000 {unit}'"
        )
    return length / seconds(unit)


def duration_text(value: dt.timedelta | np.timedelta64) -> str:
    """A duration as text that reads back exactly, in the longest unit that counts it whole.

    >>> duration_text(dt.timedelta(minutes=90)), duration_text(np.timedelta64(1500, "us"))
    ('90min', '1500us')
    """
    length = _elapsed(value)
    counts = ((length / SECONDS[name], name) for name in reversed(SECONDS))
    count, name = next((count, name) for count, name in counts if count.denominator == 1)  # nanoseconds count every one of them
    return f"{count}{name}"
