"""The clock of opening hours: nights, weekends and holidays count nothing, or a fraction."""

import datetime as dt
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from eigenclock.clocks.calendar import ERA, FAR, YEARS, Calendar, new_year, read_date
from eigenclock.clocks.clock import Clock, Reading, check_decreasing, exact_times, last_given
from eigenclock.clocks.stamps import as_times
from eigenclock.clocks.units import seconds
from eigenclock.errors import ClockError, ConfigError

# Eras of 400 years that stand for all before and after them. One year lies between these and the years that the zone is asked about.
_EARLY, _LATE = YEARS.start - 401, YEARS.stop + 1
_FIRST, _END = new_year(_EARLY), new_year(_LATE + 400)


class Sessions(Clock):
    """Trading time: time counts in full while it is open, and ``closed`` times as fast while it is not.

    tau = open time + closed * closed time since the first stamp of the row, in ``per``. Stamps are counts of ``unit`` since 1970 in
    UTC. They and the hours are integers until the last step. half_life="30min" is thirty minutes of trading; "1d" is 24 hours of
    trading, so name a trading day by its hours, "6.5h".

    With closed=0, all stamps of one closed period are ties, and time cannot order them. A query of cross attention or against a cache,
    which sees the keys up to its own time, then also sees the later ones of its own closed period, and sorting leaves that period as it
    is: give ``closed`` a small number where that is not wanted.

    Args:
        hours: the sessions of a week in local time, one text or several: "09:30-16:00" (Monday to Friday), "sat,sun 10:00-18:00",
            ("mon-fri 09:00-11:30", "mon-fri 12:30-15:00"). Weekdays say when a session opens; it closes on the next day where its
            close is the earlier time: "sun-thu 18:00-17:00" runs from Sunday to Friday with a break of an hour each day. "24:00" ends a
            day.
        zone: an IANA name ("America/New_York"; changes of the clock are followed) or a fixed offset ("+09:00"). UTC also fits stamps
            that are local time already.
        holidays: dates without sessions. A session belongs to the date on which it closes, as trade dates do.
        half_days: {date: time of an early close}, or texts "2026-11-27 13:00".
        closed: how fast time runs while closed, 0 to 1; 1 is the clock Timestamps.
        unit: what one count of an int64 or float64 stamp is: ns, us, ms, s, min, h, d or w. numpy datetime64 is brought to it.
        per: the unit of rates, frequencies and durations.
        decreasing: "refuse" (default) or "sort" where stamps go back; sorting is stable, and results come back in the order given.
    Shape: times (T,), (B, T) or (B, H, T).
    Units: rates and frequencies are per ``per`` of trading.
    Raises: ConfigError where hours are empty, overlap or cannot be read, and where a zone or date is unknown; ClockError where times are
        missing, NaN, or too coarse for their own differences.

    >>> clock = Sessions("09:30-16:00", "America/New_York", unit="s", per="min")
    >>> friday, saturday, monday = "2026-03-06T20:59", "2026-03-07T12:00", "2026-03-09T13:31"  # clocks change on the 8th
    >>> clock(np.array([friday, saturday, monday], dtype="datetime64[s]")).ticks
    tensor([0., 1., 2.], dtype=torch.float64)
    """

    stamp_unit: str

    def __init__(
        self,
        hours: str | Iterable[str],
        zone: str = "UTC",
        *,
        holidays: Iterable[str | dt.date | np.datetime64] = (),
        half_days: Mapping[str | dt.date, str] | Iterable[str] = (),
        closed: float = 0.0,
        unit: str = "ns",
        per: str = "s",
        decreasing: str = "refuse",
    ):
        super().__init__()
        for name in (unit, per):
            seconds(name)  # refuses an unknown unit here, not in the first call
        if isinstance(closed, bool) or not isinstance(closed, int | float) or not 0 <= closed <= 1:
            raise ConfigError(f"got closed={closed!r}; expected how fast time runs while closed, a number from 0 to 1")
        self.hours = (hours,) if isinstance(hours, str) else tuple(_listed(hours, "hours"))
        self.zone, self.closed = zone, float(closed)
        self.holidays = tuple(sorted({read_date(day) for day in _listed(holidays, "holidays")}))
        self.half_days = dict(sorted(_half_days(half_days).items()))
        self.calendar = Calendar(self.hours, zone, self.holidays, self.half_days)
        self.stamp_unit, self.per, self.decreasing = unit, per, check_decreasing(decreasing)
        self.unit = per
        self._table: tuple[range, tuple[Tensor, ...]] = (range(0), ())

    def spec(self) -> dict[str, Any]:
        lists = {"holidays": [str(day) for day in self.holidays], "half_days": [f"{day} {close}" for day, close in self.half_days.items()]}
        return (
            {"name": "sessions", "hours": self.hours[0] if len(self.hours) == 1 else list(self.hours), "zone": self.zone}
            | {name: entries for name, entries in lists.items() if entries}
            | ({"closed": self.closed} if self.closed else {})
            | {"unit": self.stamp_unit, "per": self.per}
            | ({"decreasing": self.decreasing} if self.decreasing != "refuse" else {})
        )

    def forward(
        self,
        times: Any = None,
        *,
        length: int | None = None,
        origin: Tensor | None = None,
        documents: Tensor | None = None,
        mask: Tensor | None = None,
        x: Tensor | None = None,
        since: Tensor | None = None,
        device: torch.device | None = None,
    ) -> Reading:
        if times is None:
            raise ClockError("got no times; the Sessions clock has no count of its own: pass times= of shape (T,), (B, T) or (B, H, T)")
        stamps, first = exact_times(as_times(times, self.stamp_unit, device), origin, mask)
        if not stamps.numel():
            return Reading(stamps.double(), first, last_given(stamps, mask, since), stamps)
        (now, part), (start, start_part) = self._split(stamps), self._split(first)
        low, high = (int(end) for end in torch.aminmax(torch.cat([now.flatten(), start.flatten()])))
        table = self._intervals(low, high, stamps.device)
        far = low < _FIRST or high >= _END
        (open_now, open_part), (open_start, open_start_part) = self._open(now, part, table, far), self._open(start, start_part, table, far)
        passed = self._counts(open_now - open_start, open_part - open_start_part)
        ticks = self._in_per(passed)
        if self.closed:
            in_all = self._counts(now - start, part - start_part)
            ticks = self.closed * self._in_per(in_all) + (1 - self.closed) * ticks
            passed = self._weighed(in_all, passed)
        counts = (self._counts(start, start_part) * self._share.denominator + passed).detach()
        return Reading(ticks, first, last_given(stamps, mask, since), counts)

    @property
    def resolution(self) -> Fraction:
        return 1 / (self._scale * seconds(self.per) * self._share.denominator)

    @property
    def _scale(self) -> int:
        """Counts in a second; 1 where the unit is a second or longer."""
        return seconds(self.stamp_unit).denominator

    @property
    def _share(self) -> Fraction:
        """``closed`` as the short fraction that it was written as; 0 where there is none, and counts are then floating."""
        share = Fraction(repr(self.closed))
        return share if share.denominator <= 10_000 else Fraction(0)

    def _weighed(self, in_all: Tensor, opened: Tensor) -> Tensor:
        """closed * all + (1 - closed) * open, times the denominator of ``closed``: whole where that is a short fraction."""
        share, whole = self._share, not (in_all.is_floating_point() or opened.is_floating_point())
        if whole and share and int(in_all.abs().max()) < 2**62 // share.denominator:
            return share.numerator * in_all + (share.denominator - share.numerator) * opened
        return share.denominator * (self.closed * in_all.double() + (1 - self.closed) * opened.double())

    def _split(self, stamps: Tensor) -> tuple[Int[Tensor, "*clock T"], Tensor]:
        """Whole UTC seconds, and the rest: counts of the unit for integers, a fraction with its gradient for floats."""
        unit = seconds(self.stamp_unit)
        exact = stamps * float(unit.numerator) / float(unit.denominator) if stamps.is_floating_point() else stamps
        limit = FAR // 2 if stamps.is_floating_point() else int(FAR // 2 / unit)
        if limit < FAR and not bool(((exact >= -limit) & (exact <= limit)).all()):
            raise ClockError(f"got times beyond {FAR // 2:.1e} seconds; expected counts of {self.stamp_unit!r} since 1970")
        if stamps.is_floating_point():
            whole = exact.detach().floor()
            return whole.long(), exact - whole
        if unit >= 1:
            return stamps * unit.numerator, torch.zeros_like(stamps)
        whole = stamps.div(unit.denominator, rounding_mode="floor")
        return whole, stamps - whole * unit.denominator

    def _intervals(self, low: int, high: int, device: torch.device) -> tuple[Tensor, ...]:
        """The intervals of every local year that moments between two can lie in, grown as they are asked for."""
        if high >= _END:  # moments beyond an era are looked up in it
            low, high = min(low, new_year(_LATE)), _END - 1
        if low < _FIRST:
            low, high = _FIRST, max(high, new_year(_EARLY + 400))
        first, last = (int(np.datetime64(end, "s").astype("datetime64[Y]").astype(np.int64)) + 1970 for end in (low, high))
        years, table = self._table
        if first - 1 not in years or last + 1 not in years:  # sessions may begin or end in the neighbouring year
            years = range(min(first - 1, years.start), max(last + 2, years.stop)) if years else range(first - 1, last + 2)
            table = tuple(map(torch.from_numpy, self.calendar.table(years[0], years[-1])))
            self._table = (years, table)
        return tuple(column.to(device) for column in table)

    def _open(self, now: Tensor, part: Tensor, table: tuple[Tensor, ...], far: bool) -> tuple[Int[Tensor, "*clock T"], Tensor]:
        """Whole open seconds from a common reference to each moment, and what counts of the rest."""
        opens, closes, before = table
        beyond = torch.zeros_like(now)
        if far:
            past = (now - _FIRST).div(ERA, rounding_mode="floor").clamp_max(0)
            future = (now - new_year(_LATE)).div(ERA, rounding_mode="floor").clamp_min(0)
            now = now - (past + future) * ERA
            beyond = past * self.calendar.open_in_era(_EARLY) + future * self.calendar.open_in_era(_LATE)
        at = torch.searchsorted(opens, now, right=True) - 1
        end = closes[at]
        return beyond + before[at] + torch.minimum(now, end) - opens[at], torch.where(now < end, part, torch.zeros_like(part))

    def _counts(self, whole: Int[Tensor, "*clock T"], rest: Tensor) -> Tensor:
        """Whole seconds and the rest in counts: whole ones of the unit, or seconds' worth of them for floating stamps."""
        scale = self._scale
        if rest.is_floating_point():
            return (whole.double() + rest) * scale
        borrow = rest < 0
        whole, rest = whole - borrow.long(), torch.where(borrow, rest + scale, rest)
        # Nanoseconds in int64 reach 292 years; over a longer time, whole seconds are far more than float64 can tell apart.
        fits = whole.abs() < (2**63 - 1) // scale
        counts = whole * scale + rest
        return counts if bool(fits.all()) else torch.where(fits, counts.double(), whole.double() * scale)

    def _in_per(self, counts: Tensor) -> Tensor:
        """Counts in ``per``, rounded once."""
        ratio = 1 / (self._scale * seconds(self.per))
        return counts.double() * float(ratio.numerator) / float(ratio.denominator)


def _listed(days: Any, what: str) -> list[Any]:
    if isinstance(days, str) or not isinstance(days, Iterable):
        raise ConfigError(f"got {what}={days!r}; expected a list or a tuple")
    return list(days)


def _half_days(given: Any) -> dict[dt.date, str]:
    """{date: close} from a mapping, or from texts "2026-11-27 13:00"."""
    if isinstance(given, Mapping):
        pairs: list[Any] = list(given.items())
    else:
        pairs = [tuple(text.split()) if isinstance(text, str) else (text,) for text in _listed(given, "half_days")]
    for pair in pairs:
        if len(pair) != 2:
            raise ConfigError(f"got the half day {' '.join(map(str, pair))!r}; expected a date and its close, such as '2026-11-27 13:00'")
    days = {read_date(day): close if isinstance(close, str) else str(close) for day, close in pairs}
    if len(days) != len(pairs):
        raise ConfigError("got a half day twice; expected each date once")
    return days
