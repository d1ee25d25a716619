"""Stamps as users hold them, read exactly: numbers, datetime64, columns of pandas and polars, datetimes, ISO text."""

import datetime as dt
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eigenclock.clocks.units import NUMPY, OURS, SECONDS
from eigenclock.errors import ClockError

_ISO = re.compile(r"^(\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?)?)\s*(Z|[+-]\d\d:?\d\d)?$")
EXPECTED = (
    "expected integers or floats, datetime64, datetimes, ISO text such as '2024-05-01T09:30:00+02:00', or a column of these (of pandas: "
    "int64 nanoseconds by .astype('int64'))"
)


def as_times(times: Any, unit: str | None, device: torch.device | None = None) -> Tensor:
    """Times as a tensor: numbers as they are, timestamps as int64 counts of ``unit`` since 1970.

    Stamps with a time zone are instants, so an hour that a zone repeats counts as an hour; those without one are read as UTC.

    Raises: ClockError where the clock counts no time (``unit`` None), a stamp is missing, no whole count of the unit or beyond it, some
        have a zone and others none, or the type is none of :data:`EXPECTED`.

    >>> as_times(["2024-05-01T09:30:00+02:00", "2024-05-01T07:31Z"], "s").diff().tolist()
    [60]
    """
    if isinstance(times, Tensor):
        return times.to(device=device)
    array = _array(times)
    if array is None:
        return _numbers(times, device)
    if array.dtype.kind in "MOUT" and unit is None:
        raise ClockError(
            f"got timestamps ({type(times).__name__}) for a clock that counts no time; expected numbers, or a clock that reads stamps, "
            "such as Timestamps('ns')"
        )
    if array.dtype.kind == "M":
        return counted(array, str(unit)).to(device=device)
    if array.dtype.kind in "OUT":
        return _elements(array, str(unit)).to(device=device)
    if array.dtype.kind == "m":
        raise ClockError("got durations for times; expected the stamps themselves: add the durations to a start")
    if array.dtype.kind not in "biuf":
        raise ClockError(f"got times of {array.dtype}; {EXPECTED}")
    return _numbers(array, device)


def _array(times: Any) -> np.ndarray | None:
    """What holds many times as one array; None for what torch reads itself.

    Raises: ClockError for columns that cannot be read as one.
    """
    if isinstance(times, np.ndarray | np.generic):
        return np.asarray(times)
    zone, resolution = (getattr(getattr(times, "dtype", None), name, None) for name in ("tz", "unit"))
    try:
        if zone is not None and resolution is not None:  # pandas, whose own array of instants is one of objects
            return np.asarray(times, dtype=f"datetime64[{resolution}]")
        if callable(getattr(times, "to_numpy", None)):
            return np.asarray(times.to_numpy())
        flat = list(_flat(times)) if isinstance(times, list | tuple) else [times]
        if any(isinstance(x, Tensor) for x in flat) or all(isinstance(x, int | float) for x in flat):
            return None
        return np.array(times, dtype=object if any(not isinstance(x, int | float | np.number) for x in flat) else None)
    except (TypeError, ValueError) as error:
        raise ClockError(f"got times of type {type(times).__name__}, which cannot be read ({error}); {EXPECTED}") from None


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def _numbers(times: Any, device: torch.device | None) -> Tensor:
    """Numbers as torch reads them; Python floats in float64.

    Raises: ClockError for anything else.
    """
    try:
        if isinstance(times, list | tuple | float) and all(isinstance(x, int | float) for x in _flat([times])):
            return torch.as_tensor(np.array(times), device=device)
        if isinstance(times, np.ndarray) and not times.flags.writeable:  # columns lend their memory; torch warns of that
            times = times.copy()
        return torch.as_tensor(times, device=device)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ClockError(f"got times of type {type(times).__name__}, which cannot be read ({error}); {EXPECTED}") from None


def counted(times: np.ndarray, unit: str) -> Tensor:
    """datetime64 of any resolution as int64 counts of ``unit`` since 1970, so that queries, keys and pieces may differ in it.

    Raises: ClockError where a stamp is NaT, no whole count of the unit, or beyond what int64 counts of it reach.

    >>> counted(np.array(["1970-01-02", "1970-01-03T12"], dtype="datetime64[h]"), "min")
    tensor([1440, 3600])
    """
    if bool(np.isnat(times).any()):
        raise _missing()
    stamps = times.astype(f"datetime64[{NUMPY.get(unit, unit)}]")
    if not bool((stamps.astype(times.dtype) == times).all()):
        raise _no_count(str(times.dtype), unit)
    return torch.from_numpy(np.ascontiguousarray(stamps.astype(np.int64)))


def _missing() -> ClockError:
    return ClockError("got NaT among the times; expected a timestamp for every token: drop those rows or fill them")


def _no_count(what: str, unit: str) -> ClockError:
    return ClockError(
        f"got {what} stamps that are no whole counts of {unit!r}, or beyond its range; "
        "expected a clock whose unit holds them: unit='ns' for the years 1678 to 2262, unit='us' for any"
    )


def _elements(array: np.ndarray, unit: str) -> Tensor:
    """Stamps one by one as int64 counts of ``unit`` since 1970."""
    zones: set[bool] = set()
    counts = []
    for value in array.flat:
        stamp, zone = _stamp(value)
        zones |= set() if zone is None else {zone}
        if len(zones) > 1:
            raise ClockError("got stamps with a time zone beside stamps without one; expected a zone in all of them, or UTC in all")
        counts.append(_count(stamp, unit))
    return torch.tensor(counts, dtype=torch.int64).reshape(array.shape)


def _count(stamp: np.datetime64, unit: str) -> int:
    if np.isnat(stamp):
        raise _missing()
    name, step = np.datetime_data(stamp.dtype)
    length = SECONDS.get(OURS.get(name, name))
    count = Fraction(1, 2) if length is None else int(stamp.astype(np.int64)) * step * length / SECONDS[unit]
    if count.denominator != 1 or not -(2**63) <= count < 2**63:
        raise _no_count(str(stamp), unit)
    return int(count)


def _stamp(value: Any) -> tuple[np.datetime64, bool | None]:
    """A stamp in UTC, and whether it came with a zone (None where its type has none to give).

    Raises: ClockError for what is no stamp.
    """
    if isinstance(value, np.datetime64):
        return value, None
    if callable(getattr(value, "to_datetime64", None)):  # pandas, with its nanoseconds
        return value.to_datetime64(), getattr(value, "tzinfo", None) is not None
    if isinstance(value, dt.datetime):
        zone = value.utcoffset() is not None
        plain = value.astimezone(dt.UTC).replace(tzinfo=None) if zone else value.replace(tzinfo=None)
        return np.datetime64(plain, "us"), zone
    if isinstance(value, dt.date):
        return np.datetime64(value, "D"), None
    match = _ISO.match(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ClockError(f"got the time {value!r} of type {type(value).__name__}; {EXPECTED}")
    try:
        stamp = np.datetime64(match[1])
    except ValueError:
        raise ClockError(f"got the time {value!r}, which is no date and time; {EXPECTED}") from None
    zone = match[2]
    if zone is None or zone == "Z":
        return stamp, zone is not None
    minutes = int(zone[1:3]) * 60 + int(zone[-2:])
    return stamp - np.timedelta64(minutes if zone[0] == "+" else -minutes, "m"), True
