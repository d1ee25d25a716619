"""Units of time and durations such as "30min"."""

import re
from fractions import Fraction

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
_DURATION = re.compile(r"^\s*([0-9.eE+-]+)\s*([a-zA-Z]+)\s*$")


def seconds(unit: str) -> Fraction:
    """Seconds in one unit, exactly.

    Raises: ConfigError where the unit is unknown.

    >>> seconds("min")
    Fraction(60, 1)
    """
    if unit not in SECONDS:
        raise ConfigError(f"got the time unit {unit!r}; {nearest(unit, SECONDS)}")
    return SECONDS[unit]


def duration(value: "float | str", unit: str | None) -> float:
    """A duration in the unit of a clock, as :func:`exact_duration` reads it, rounded once.

    >>> duration("30min", "s"), duration("1000 shares", "shares")
    (1800.0, 1000.0)
    """
    return float(exact_duration(value, unit)) if isinstance(value, str) else float(value)


def exact_duration(value: "float | str", unit: str | None) -> Fraction:
    """A duration in the unit of a clock: numbers are taken as they are, "30min" is converted, and "0.1s" is a tenth of a second.

    Where the clock counts something other than time, text may name that unit and no other: "1000 shares".

    Raises: ConfigError where the text is no duration, or the clock counts steps and has no unit, or counts something else.

    >>> exact_duration("100ms", "s")
    Fraction(1, 10)
    """
    if not isinstance(value, str):
        return Fraction(value)
    match = _DURATION.match(value)
    try:
        number = Fraction(match[1]) if match else None
    except ValueError:
        number = None
    if not match or number is None:
        raise ConfigError(
            f"got the duration {value!r}; expected a number and a unit, such as '30min' or '1.5h' (units: {', '.join(SECONDS)})"
        )
    if unit is None:
        raise ConfigError(
            f"got the duration {value!r} for a clock that counts steps; "
            "give a number of steps, or a clock with a unit such as Timestamps('ns')"
        )
    if unit not in SECONDS:
        if match[2] == unit:
            return number
        raise ConfigError(
            f"got the duration {value!r} for a clock that counts {unit}; expected a number of {unit}, such as 1000 or '1000 {unit}'"
        )
    return number * seconds(match[2]) / seconds(unit)
