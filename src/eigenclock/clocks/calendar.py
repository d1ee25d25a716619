"""Opening hours as intervals of UTC seconds: weekly hours, holidays, half days and a time zone, for any year."""

import datetime as dt
import re
from calendar import isleap
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int64

from eigenclock.errors import ConfigError
from eigenclock.registry import nearest

DAY = 86400
ERA = 146097 * DAY  # 400 years: the calendar repeats after them, weekdays included
# Years that are asked of the time zone one by one. Outside, the zone repeats one rule, and only the kind of year matters: whether it
# is a leap year, and its first weekday. Explicit transitions lie between 1834 and 2087 in every zone.
YEARS = range(1800, 2100)
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EPOCH = dt.datetime(1970, 1, 1)
FAR = 2**62  # seconds, beyond every stamp

_CLOCK_TIME = r"(\d{1,2}:\d\d(?::\d\d)?)"
_HOURS = re.compile(rf"(?:([a-z]{{3}}(?:[,-][a-z]{{3}})*)\s+)?{_CLOCK_TIME}\s*-\s*{_CLOCK_TIME}")
_OFFSET = re.compile(r"([+-])(\d\d):(\d\d)")

Intervals = tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]


class Calendar:
    """When something is open: intervals between UTC seconds.

    A wall-clock time stands for the first instant at which the clocks of the zone show it or a later time. So an hour that clocks skip
    is closed up, and an hour that they show twice begins with the first showing.

    >>> opens, closes = Calendar(["mon-fri 09:30-16:00"], "America/New_York", [], {}).year(2026)
    >>> (len(opens), int(closes[0] - opens[0]))
    (261, 23400)
    """

    def __init__(self, hours: Iterable[str], zone: str, holidays: Iterable[dt.date], half_days: Mapping[dt.date, str]):
        self.week = read_hours(hours)
        self.zone = read_zone(zone)
        self.holidays = {_checked(day).toordinal() for day in holidays}
        self.half_days = {_checked(day).toordinal(): _seconds(close) for day, close in half_days.items()}
        both = sorted(self.holidays & self.half_days.keys())
        if both:
            raise ConfigError(f"got {dt.date.fromordinal(both[0])} as a holiday and as a half day; expected one of them")
        self._years: dict[int, Intervals] = {}
        self._eras: dict[int, int] = {}

    def year(self, year: int) -> Intervals:
        """Opening and closing times of the sessions that open in a local year, in seconds since New Year UTC of that year.

        A session belongs to the date it ends on: it falls away where that is a holiday, and ends early where that is a half day.
        """
        source = _alike(year)
        if source not in self._years:
            first, stop = (dt.date(y, 1, 1).toordinal() for y in (source, source + 1))
            noons = [_offset(self.zone, dt.datetime.fromordinal(day) + dt.timedelta(hours=12)) for day in range(first - 1, stop + 2)]
            pairs = []
            for day in range(first, stop):
                around = noons[day - first : day - first + 4]
                # No zone changes its clocks twice in less than three days: where all four noons agree, nothing changed between them.
                offset = around[0] if len(set(around)) == 1 else None
                for opening, closing in self.week[(day - 1) % 7]:  # ordinal 1 is a Monday
                    late = closing > DAY
                    if day + late in self.holidays:
                        continue
                    closing = min(closing, self.half_days.get(day + late, DAY) + late * DAY)
                    if opening < closing:
                        pairs.append((self._instant(day, opening, offset), self._instant(day, closing, offset)))
            table = np.array(pairs, dtype=np.int64).reshape(-1, 2) - new_year(source)
            self._years[source] = (table[:, 0], table[:, 1])
        return self._years[source]

    def table(self, first: int, last: int) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """All intervals of the local years ``first`` to ``last`` in UTC seconds since 1970: opens, closes, open seconds before each.

        Row 0 is empty and lies before everything, so that every stamp has an interval at or before it.
        """
        years = [(new_year(y), *self.year(y)) for y in range(first, last + 1)]
        opens = np.concatenate([[-FAR], *(start + o for start, o, _ in years)])
        closes = np.concatenate([[-FAR], *(start + c for start, _, c in years)])
        total = (closes - opens).cumsum()
        return opens, closes, total - (closes - opens)

    def open_in_era(self, first: int) -> int:
        """Open seconds in 400 years from ``first``, all of them outside the years that are asked one by one."""
        if first not in self._eras:
            self._eras[first] = sum(int((closes - opens).sum()) for opens, closes in map(self.year, range(first, first + 400)))
        return self._eras[first]

    def _instant(self, day: int, seconds: int, offset: int | None) -> int:
        """The first UTC second at which the wall clock shows a time, counted from midnight of a day, or a later one.

        ``offset`` is that of the zone on the days around, None where it changes.
        """
        local = (day - EPOCH.toordinal()) * DAY + seconds
        if offset is not None:
            return local - offset
        wall = EPOCH + dt.timedelta(seconds=local)
        before, after = (_offset(self.zone, wall.replace(fold=fold)) for fold in (0, 1))
        if before >= after:
            return local - before
        low, high = local - after, local - before  # the clocks skip this time: find the second at which they jump
        while high - low > 1:
            middle = (low + high) // 2
            moment = (EPOCH + dt.timedelta(seconds=middle)).replace(tzinfo=dt.UTC).astimezone(self.zone)
            low, high = (middle, high) if _offset(self.zone, moment.replace(tzinfo=None)) == before else (low, middle)
        return high


def new_year(year: int) -> int:
    """UTC seconds between 1970 and the beginning of a year."""
    return (dt.date(year, 1, 1).toordinal() - EPOCH.toordinal()) * DAY


def _offset(zone: dt.tzinfo, wall: dt.datetime) -> int:
    offset = zone.utcoffset(wall)
    return 0 if offset is None else offset // dt.timedelta(seconds=1)


def _alike(year: int) -> int:
    """The year itself, or outside ``YEARS`` one of the same kind near it."""
    if year in YEARS:
        return year
    start = 1772 if year < YEARS.start else 2104  # 28 years in which leap years come every fourth year hold every kind
    kind = isleap(year), dt.date(year, 1, 1).weekday()
    return next(y for y in range(start, start + 28) if (isleap(y), dt.date(y, 1, 1).weekday()) == kind)


def read_zone(zone: str) -> dt.tzinfo:
    """A time zone from its IANA name, or from an offset such as "+05:30".

    Raises: ConfigError where it is unknown, with the nearest known one.

    >>> read_zone("+05:30").utcoffset(None)
    datetime.timedelta(seconds=19800)
    """
    if zone == "UTC":
        return dt.UTC
    match = _OFFSET.fullmatch(str(zone))
    if match and int(match[2]) < 24 and int(match[3]) < 60:
        return dt.timezone(int(match[1] + "1") * dt.timedelta(hours=int(match[2]), minutes=int(match[3])))
    import zoneinfo  # reads the configuration of the interpreter, which plain imports should not wait for

    try:
        return zoneinfo.ZoneInfo(zone)
    except (KeyError, ValueError, TypeError, OSError):
        known = sorted(zoneinfo.available_timezones())
        hint = nearest(str(zone), known).partition(" Known:")[0] if known else "this machine has no time zones: install the package tzdata"
        hint = "" if hint.startswith("Known") else f" ({hint})"
        raise ConfigError(
            f"got zone={zone!r}; expected an IANA name such as 'America/New_York', or an offset such as '+09:00'{hint}"
        ) from None


def read_hours(hours: Iterable[str]) -> list[list[tuple[int, int]]]:
    """The sessions that open on each weekday, Monday first, in seconds since its midnight; beyond 86400 on the next day.

    Raises: ConfigError where the text is unreadable, a session is empty, or two overlap.

    >>> read_hours(["mon-fri 09:30-16:00", "sun 18:00-02:00"])[6]
    [(64800, 93600)]
    """
    week: list[tuple[int, int, str]] = []
    for text in hours:
        match = _HOURS.fullmatch(text.strip().lower()) if isinstance(text, str) else None
        if not match:
            raise ConfigError(f"got hours {text!r}; expected text such as '09:30-16:00', 'mon-thu 09:30-16:00' or 'sat,sun 22:00-06:00'")
        opening, closing = _seconds(match[2]), _seconds(match[3])
        if opening in (closing, DAY):
            raise ConfigError(f"got hours {text!r}, an empty session; expected it to close after it opens (a whole day is '00:00-24:00')")
        # A close before the opening time is on the next day; midnight is the end of its own day.
        closing = closing or DAY
        length = closing - opening if closing > opening else closing + DAY - opening
        week += [(day * DAY + opening, length, text) for day in _weekdays(match[1] or "mon-fri", text)]
    if not week:
        raise ConfigError("got no hours; expected at least one session, such as hours='mon-fri 09:30-16:00'")
    week.sort()
    for (opening, length, text), (following, _, other) in zip(week, [*week[1:], (week[0][0] + 7 * DAY, *week[0][1:])], strict=True):
        if opening + length > following:
            day = WEEKDAYS[following // DAY % 7]
            raise ConfigError(f"got hours {text!r} and {other!r}, which overlap on {day}; expected sessions apart from each other")
    return [[(o - day * DAY, o - day * DAY + n) for o, n, _ in week if o // DAY == day] for day in range(7)]


def _weekdays(names: str, text: str) -> list[int]:
    """ "mon-thu,sun" as numbers, Monday being 0; ranges may run over the weekend."""
    days: list[int] = []
    for part in names.split(","):
        ends = part.split("-")
        for name in ends:
            if name not in WEEKDAYS:
                raise ConfigError(f"got the weekday {name!r} in hours {text!r}; {nearest(name, list(WEEKDAYS))}")
        first, last = WEEKDAYS.index(ends[0]), WEEKDAYS.index(ends[-1])
        days += [(first + k) % 7 for k in range((last - first) % 7 + 1)]
    return days


def _seconds(clock_time: Any) -> int:
    """ "09:30" or "09:30:15" as seconds since midnight."""
    if isinstance(clock_time, dt.time):
        clock_time = clock_time.isoformat("seconds")
    match = re.fullmatch(_CLOCK_TIME, clock_time.strip()) if isinstance(clock_time, str) else None
    hours, minutes, seconds = map(int, [*match[1].split(":"), "0"][:3]) if match else (99, 0, 0)
    if hours * 3600 + minutes * 60 + seconds > DAY or minutes > 59 or seconds > 59:
        raise ConfigError(f"got the time of day {clock_time!r}; expected '00:00' to '24:00', such as '09:30'")
    return hours * 3600 + minutes * 60 + seconds


def read_date(day: Any) -> dt.date:
    """A date from "2026-12-25", a date, a datetime or a numpy datetime64.

    Raises: ConfigError where it is none.

    >>> read_date(np.datetime64("2026-12-25"))
    datetime.date(2026, 12, 25)
    """
    if isinstance(day, dt.datetime):
        return day.date()
    if isinstance(day, dt.date):
        return day
    try:
        return dt.date.fromisoformat(str(day.astype("datetime64[D]")) if isinstance(day, np.datetime64) else day)
    except (ValueError, TypeError):
        raise ConfigError(f"got the date {day!r}; expected text such as '2026-12-25', or a date") from None


def _checked(day: dt.date) -> dt.date:
    if not YEARS.start < day.year < YEARS.stop:  # a year away from the years that stand for all others
        raise ConfigError(f"got the date {day}; expected holidays and half days between {YEARS.start + 1} and {YEARS.stop - 1}")
    return day
