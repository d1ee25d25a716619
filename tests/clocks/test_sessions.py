"""Trading time against the wall clock, one minute after the other, through changes of the clock, holidays and early closes."""

import copy
import datetime as dt
import itertools
import json
import pickle
import zoneinfo
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import eigenclock as ec
from eigenclock.testing import check_clock

F64 = torch.float64
SECOND = 10**9
MINUTE = 60 * SECOND
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
WEEK = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def stamp(text: str, zone: str = "UTC", fold: int = 0) -> int:
    """Nanoseconds since 1970 of a local time."""
    moment = dt.datetime.fromisoformat(text).replace(tzinfo=zoneinfo.ZoneInfo(zone), fold=fold)
    return (moment - EPOCH) // dt.timedelta(microseconds=1) * 1000


# --- the longhand: which minutes are open, by looking at the wall clock ---------------------------------------------------------------


def is_open(wall: dt.datetime, rules, holidays=(), half_days=()) -> bool:
    """Whether the wall clock is inside a session. ``rules`` are (weekdays on which it opens, hour, length in hours)."""
    for back in (0, 1):
        date = wall.date() - dt.timedelta(days=back)
        for days, hour, length in rules:
            opening = dt.datetime.combine(date, dt.time()) + dt.timedelta(hours=hour)
            closing = opening + dt.timedelta(hours=length)
            trade_date = closing.date().isoformat()
            if WEEK[date.weekday()] not in days or trade_date in holidays or not opening <= wall < closing:
                continue
            early = dict(half_days).get(trade_date)
            return early is None or wall < dt.datetime.fromisoformat(f"{trade_date}T{early}")
    return False


def open_minutes(start: str, days: int, zone, rules, **closures) -> np.ndarray:
    """One flag for each UTC minute of some days."""
    first = dt.datetime.fromisoformat(start).replace(tzinfo=dt.UTC)
    return np.array(
        [is_open((first + dt.timedelta(minutes=m)).astimezone(zone).replace(tzinfo=None), rules, **closures) for m in range(days * 1440)]
    )


def longhand(flags: np.ndarray, start: int, stamps: torch.Tensor) -> list[int]:
    """Open nanoseconds between ``start`` and each stamp, in Python's integers."""
    out = []
    for value in stamps.tolist():
        minute, rest = divmod(value - start, MINUTE)
        out.append(int(flags[:minute].sum()) * MINUTE + (rest if flags[minute] else 0))
    return out


WORKDAYS = WEEK[:5]
NYSE = ("09:30-16:00", "America/New_York", [(WORKDAYS, 9.5, 6.5)])
GLOBEX = ("sun-thu 18:00-17:00", "America/New_York", [(("sun", *WORKDAYS[:4]), 18, 23)])
CLOSURES = {"holidays": ["2026-11-26", "2026-12-25"], "half_days": {"2026-11-27": "13:00", "2026-12-24": "13:00"}}
CASES = {
    "New York, clocks forward": (*NYSE, "2026-03-04", {}),
    "New York, clocks back": (*NYSE, "2026-10-28", {}),
    "New York, Thanksgiving": (*NYSE, "2026-11-23", CLOSURES),
    "London, clocks forward": ("08:00-16:30", "Europe/London", [(WORKDAYS, 8, 8.5)], "2026-03-25", {}),
    "London, clocks back": ("08:00-16:30", "Europe/London", [(WORKDAYS, 8, 8.5)], "2026-10-21", {}),
    "futures, clocks forward": (*GLOBEX, "2026-03-05", {}),
    "futures, clocks back": (*GLOBEX, "2026-10-29", {}),
    "futures, Christmas": (*GLOBEX, "2026-12-22", CLOSURES),
    "Tokyo, a lunch break": (
        ("mon-fri 09:00-11:30", "12:30-15:30"), "Asia/Tokyo", [(WORKDAYS, 9, 2.5), (WORKDAYS, 12.5, 3)], "2026-05-01",
        {"holidays": ["2026-05-04", "2026-05-05", "2026-05-06"]},
    ),
    "a lunch break on a half day": (
        ("09:00-12:00", "13:00-16:00"), "+08:00", [(WORKDAYS, 9, 3), (WORKDAYS, 13, 3)], "2026-02-13",
        {"half_days": {"2026-02-16": "12:00"}},
    ),
    "a shop, Sundays too": (
        ("mon-fri 08:00-20:00", "sat,sun 10:00-02:00"), "Asia/Kolkata", [(WORKDAYS, 8, 12), (("sat", "sun"), 10, 16)], "2026-06-05", {},
    ),
    "an airport, always": ("mon-sun 00:00-24:00", "Australia/Lord_Howe", [(WEEK, 0, 24)], "2026-04-02", {}),
    "nights through both changes": ("mon-sun 22:00-06:00", "America/New_York", [(WEEK, 22, 8)], "2026-03-06", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_minute(name):
    """Random nanoseconds of ten days, and every edge: exactly the minutes on which the wall clock is inside a session."""
    hours, zone, rules, start, closures = CASES[name]
    days = 10
    clock = ec.Sessions(hours, zone, per="ns", **closures)
    flags = open_minutes(start, days, clock.calendar.zone, rules, **closures)
    first = stamp(start)
    random = torch.Generator().manual_seed(0)
    edges = torch.tensor(np.flatnonzero(np.diff(flags)) + 1) * MINUTE
    inside = torch.randint(0, days * 1440 * MINUTE, (200,), generator=random)
    stamps = torch.cat([torch.zeros(1, dtype=torch.int64), inside, edges - 1, edges, edges + 1]).sort().values + first
    assert clock(stamps).ticks.tolist() == longhand(flags, first, stamps)
    if name != "an airport, always":
        assert 0.05 < flags.mean() < 0.9 and len(edges) >= 8
    # a fraction of the rest
    part = ec.Sessions(hours, zone, per="ns", closed=0.25, **closures)(stamps).ticks
    expected = [(3 * o + (s - first)) / 4 for o, s in zip(longhand(flags, first, stamps), stamps.tolist(), strict=True)]
    torch.testing.assert_close(part, torch.tensor(expected, dtype=F64), rtol=1e-15, atol=0.25)


@pytest.mark.parametrize(
    ("hours", "zone", "start", "stop", "expected"),
    [
        # Clocks skip 01:00 to 02:00 in London on 29 March 2026, and 02:00 to 03:00 in New York on 8 March: that hour is closed up.
        ("sun 01:30-03:00", "Europe/London", "2026-03-29", "2026-03-30", 60),
        ("sun 01:15-01:45", "Europe/London", "2026-03-29", "2026-03-30", 0),
        ("sun 00:30-01:30", "Europe/London", "2026-03-29", "2026-03-30", 30),
        ("sun 02:30-04:00", "America/New_York", "2026-03-08", "2026-03-09", 60),
        ("sun 00:00-24:00", "America/New_York", "2026-03-08", "2026-03-10", 23 * 60),
        # They show 01:00 to 02:00 twice in London on 25 October and in New York on 1 November: the first showing opens and closes.
        ("sun 01:30-03:00", "Europe/London", "2026-10-25", "2026-10-26", 150),
        ("sun 01:30-03:00", "America/New_York", "2026-11-01", "2026-11-02", 150),
        ("sun 00:30-01:30", "America/New_York", "2026-11-01", "2026-11-02", 60),
        ("sun 00:00-24:00", "America/New_York", "2026-11-01", "2026-11-03", 25 * 60),
        # Half an hour in Lord Howe, and a whole Friday, 30 December 2011, in Apia.
        ("sun 00:00-24:00", "Australia/Lord_Howe", "2026-04-04", "2026-04-06", 24 * 60 + 30),
        ("mon-fri 09:00-17:00", "Pacific/Apia", "2011-12-26", "2012-01-01", 4 * 8 * 60),
        ("09:00-17:00", "Asia/Kathmandu", "1985-12-30", "1986-01-04", 5 * 8 * 60),
    ],
)
def test_hours_that_clocks_skip_or_repeat(hours, zone, start, stop, expected):
    clock = ec.Sessions(hours, zone, per="min")
    stamps = torch.tensor([stamp(start), stamp(stop) + 12 * 60 * MINUTE])
    assert clock(stamps).ticks[1] == expected


def test_the_skipped_hour_to_the_second():
    """02:30 does not exist: the session opens at the jump, 07:00 UTC."""
    clock = ec.Sessions("sun 02:30-04:00", "America/New_York")
    jump = stamp("2026-03-08T07:00")
    assert clock(torch.tensor([jump - 5 * SECOND, jump, jump + 1, jump + 3 * SECOND])).ticks.tolist() == [0, 0, 1e-9, 3]


# --- years ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/London", "Africa/Casablanca", "Asia/Tokyo", "Antarctica/Troll", "+01:00"])
@pytest.mark.parametrize(
    "year", [1066, 1398, 1500, 1700, 1799, 1800, 1883, 1918, 1987, 2026, 2099, 2100, 2101, 2400, 2500, 2501, 3000, 9000]
)
def test_any_year(zone, year):
    """One week of early shifts in any year, each opening asked of the time zone directly."""
    clock = ec.Sessions("mon-sun 05:00-07:00", zone, unit="s", per="s")
    tz = clock.calendar.zone
    for month in (1, 3, 7, 11):
        begin = dt.datetime(year, month, 20, tzinfo=dt.UTC)
        openings = [dt.datetime(year, month, 20 + d, 5, tzinfo=tz) for d in range(-2, 8)]
        origin = (begin - EPOCH) // dt.timedelta(seconds=1)
        spans = [((o - EPOCH) // dt.timedelta(seconds=1), (o + dt.timedelta(hours=2) - EPOCH) // dt.timedelta(seconds=1)) for o in openings]
        stamps = [origin + 4999 * k for k in range(100)]
        expected = [sum(max(0, min(s, b) - max(origin, a)) for a, b in spans) for s in stamps]
        assert clock(torch.tensor(stamps)).ticks.tolist() == expected


@pytest.mark.parametrize("zone", ["America/New_York", "Pacific/Auckland"])
@pytest.mark.parametrize("start", [-(10**11), -(4 * 10**10), 10**11, 4 * 10**12])
def test_eras_repeat(zone, start):
    """Far from every rule that changes, 400 years later is the same, and reading on from one into the next is too."""
    clock = ec.Sessions("sun-thu 18:00-17:00", zone, unit="s")
    era = 146_097 * 86_400
    stamps = torch.arange(0, 40 * 86_400, 1000) + start
    assert torch.equal(clock(stamps).ticks, clock(stamps + era).ticks)
    lengths = clock(torch.tensor([start, start + era, start + 2 * era])).ticks.diff()
    assert lengths[0] == lengths[1]
    assert abs(float(lengths[0]) / era - 5 * 23 / 168) < 1e-4


def test_eras_before_clocks_were_changed():
    """Local mean time has no summer: 20871 Sundays in 400 years, two and a half hours each. Later eras skip and repeat some of that."""
    clock = ec.Sessions("sun 00:00-02:30", "America/New_York", unit="s", per="min")
    era = 146_097 * 86_400
    past, future = (clock(torch.tensor([start, start + era])).ticks[1] for start in (-(6 * 10**10), 6 * 10**10))
    assert past == 20_871 * 150
    assert future == 20_871 * 150 + 400 * (60 - 30)  # each autumn repeats 60 minutes of the session, each spring skips 30


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_new_year_whatever_was_read_before(zone):
    """Sessions of the local year before and after lie in a UTC year; a clock that read other years already knows them, too."""
    hours = stamp("2027-12-31T12:00") + torch.arange(24) * 60 * MINUTE
    tz = zoneinfo.ZoneInfo(zone)
    walls = [(EPOCH + dt.timedelta(microseconds=t // 1000)).astimezone(tz).replace(tzinfo=None) for t in hours.tolist()]
    open_hours = [is_open(wall, [(WEEK, 20, 4), (WEEK, 2, 4)]) for wall in walls]
    old, new = hours[:12], hours[12:]
    for before in ([], ["2026-06-01"], ["2029-06-01"], ["2029-06-01", "2026-06-01"]):
        for part, flags in ((old, open_hours[:12]), (new, open_hours[12:]), (hours, open_hours)):
            clock = ec.Sessions(("mon-sun 20:00-24:00", "mon-sun 02:00-06:00"), zone, per="h")
            for text in before:
                clock(torch.tensor([stamp(text)]))
            assert clock(part).ticks.tolist() == [sum(flags[:k]) for k in range(len(part))]
    assert sum(open_hours) == 8


@given(st.lists(st.integers(-(2**63) + 1, 2**63 - 1), min_size=2, max_size=20), st.sampled_from([0.0, 0.1]))
@settings(max_examples=30)
def test_any_stamp_at_all(values, closed):
    """The whole of int64 in nanoseconds: in order, never faster than real time, each as it is alone."""
    stamps = sorted(values)
    ticks = SHARED[closed](torch.tensor(stamps)).ticks
    assert bool((ticks.diff() >= 0).all())
    for k in range(1, len(stamps)):
        real = Fraction(stamps[k] - stamps[0], SECOND)
        assert float(ticks[k]) <= float(real) * (1 + 1e-15)
    alone = SHARED[closed](torch.tensor([stamps[0], stamps[-1]])).ticks
    assert torch.equal(alone, ticks[[0, -1]])


# --- properties ----------------------------------------------------------------------------------------------------------------------

SHARED = {closed: ec.Sessions(*NYSE[:2], closed=closed, **CLOSURES) for closed in (0.0, 0.1, 1.0)}
FULL = {unit: [ec.Sessions(*NYSE[:2], closed=1, unit=unit, per=per) for per in ("s", "ms", "h")] for unit in ("ns", "us", "ms")}
COUNTED = ec.Sessions(*GLOBEX[:2], per="ns", **CLOSURES)
# 102 days, of which float64 holds every nanosecond
AUTUMN = st.integers(stamp("2026-09-20"), stamp("2026-12-31"))


@given(st.lists(AUTUMN, min_size=3, max_size=40))
def test_order_and_additivity(values):
    """Nondecreasing, and the time from a to c is that from a to b plus that from b to c, to the nanosecond."""
    stamps = sorted(values)
    ticks = COUNTED(torch.tensor(stamps)).ticks
    assert bool((ticks.diff() >= 0).all())
    steps = [int(COUNTED(torch.tensor(pair)).ticks[1]) for pair in itertools.pairwise(stamps)]
    reading = COUNTED(torch.tensor(stamps[:1]))
    together = [int(COUNTED(torch.tensor([s]), origin=reading.origin).ticks[0]) for s in stamps[1:]]
    assert together == [sum(steps[: k + 1]) for k in range(len(steps))]
    assert together == ticks[1:].tolist()


@pytest.mark.parametrize("unit", ["ns", "us", "ms"])
@given(values=st.lists(st.integers(-(2**61), 2**61), min_size=1, max_size=20))
@settings(max_examples=25)
def test_closed_at_full_speed_is_timestamps(unit, values):
    """To the last bit, whatever ``per`` is."""
    stamps = torch.tensor(values)
    for clock in FULL[unit]:
        assert torch.equal(clock(stamps).ticks, ec.Timestamps(unit, per=clock.per)(stamps).ticks)


@pytest.mark.parametrize("unit", ["s", "min", "h", "d", "w"])
def test_closed_at_full_speed_is_timestamps_in_long_units(unit):
    stamps = torch.arange(2000, 2100)
    for given_stamps in (stamps, stamps.double() + 0.25):
        ticks = ec.Sessions(*NYSE[:2], closed=1, unit=unit, per="min")(given_stamps).ticks
        torch.testing.assert_close(ticks, ec.Timestamps(unit, per="min")(given_stamps).ticks, rtol=1e-14, atol=0)


@given(st.lists(AUTUMN, min_size=2, max_size=20))
def test_a_fraction_lies_between(values):
    stamps = torch.tensor(sorted(values))
    none, some, full = (SHARED[closed](stamps).ticks for closed in (0.0, 0.1, 1.0))
    torch.testing.assert_close(some, 0.9 * none + 0.1 * full)
    assert bool((none <= full).all())


def test_weekends_are_ties_and_a_tenth_is_a_tenth():
    close, reopen = stamp("2026-03-06T16:00", "America/New_York"), stamp("2026-03-09T09:30", "America/New_York")
    stamps = torch.tensor([close - SECOND, close, close + 1, (close + reopen) // 2, reopen - 1, reopen, reopen + SECOND])
    assert ec.Sessions(*NYSE[:2])(stamps).ticks.tolist() == [0, 1, 1, 1, 1, 1, 2]
    gap = (reopen - close) / SECOND
    assert gap == 64.5 * 3600  # 65.5 h on the wall, less the hour that is skipped
    tenth = ec.Sessions(*NYSE[:2], closed=0.1)(stamps).ticks
    assert float(tenth[-2] - tenth[1]) == pytest.approx(gap / 10, rel=1e-12)


# --- shapes, dtypes, units -----------------------------------------------------------------------------------------------------------


def ticks_2026(*shape: int, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(stamp("2026-02-20"), stamp("2026-04-01"), shape, generator=random).sort(-1).values


@pytest.mark.parametrize("shape", [(30,), (3, 30), (2, 3, 30)], ids=str)
def test_rows_read_as_they_do_alone(shape):
    clock = ec.Sessions(*GLOBEX[:2], per="min")
    stamps = ticks_2026(*shape)
    whole = clock(stamps)
    assert whole.ticks.shape == shape and torch.equal(whole.origin, stamps[..., :1])
    for row, ticks in zip(stamps.reshape(-1, 30), whole.ticks.reshape(-1, 30), strict=True):
        assert torch.equal(clock(row).ticks, ticks)
    first, second = clock(stamps[..., :10]), stamps[..., 10:]
    assert torch.equal(torch.cat([first.ticks, clock(second, origin=first.origin).ticks], -1), whole.ticks)


def test_an_origin_of_other_rank():
    """Keys per row and queries for all rows: (B, T) never becomes (H, T)."""
    clock = ec.Sessions(*NYSE[:2])
    keys, queries = ticks_2026(3, 8), ticks_2026(5, seed=1)
    reading = clock(keys)
    ticks = clock(queries, origin=reading.origin).ticks
    assert ticks.shape == (3, 1, 5)
    for row in range(3):
        assert torch.equal(ticks[row, 0], clock(queries, origin=reading.origin[row]).ticks)
    by_head = clock(ticks_2026(3, 2, 8)).origin
    ticks = clock(keys, origin=by_head).ticks
    assert ticks.shape == (3, 2, 8)
    for row, head in itertools.product(range(3), range(2)):
        assert torch.equal(ticks[row, head], clock(keys[row], origin=by_head[row, head]).ticks)


@pytest.mark.parametrize("unit", ["ns", "us", "ms", "s", "min"])
def test_units_and_dtypes_agree(unit):
    """Whole minutes in any unit, as integers, floats and datetime64."""
    size = {"ns": 1, "us": 1000, "ms": 10**6, "s": SECOND, "min": MINUTE}[unit]
    stamps = ticks_2026(100) // MINUTE * MINUTE
    expected = ec.Sessions(*NYSE[:2], per="h", **CLOSURES)(stamps).ticks
    clock = ec.Sessions(*NYSE[:2], unit=unit, per="h", **CLOSURES)
    torch.testing.assert_close(clock(stamps // size).ticks, expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(clock((stamps // size).double()).ticks, expected, rtol=1e-9, atol=1e-9)
    for resolution in ("m", "s", "ns"):
        times = stamps.numpy().astype("datetime64[ns]").astype(f"datetime64[{resolution}]")
        assert torch.equal(clock(times).ticks, clock(stamps // size).ticks)


def test_datetimes_of_two_resolutions_share_an_origin():
    clock = ec.Sessions(*NYSE[:2])
    keys = np.array(["2026-03-05T15:00", "2026-03-06T20:00"], dtype="datetime64[s]")
    queries = np.array(["2026-03-06T20:00:00.000000001"], dtype="datetime64[ns]")
    reading = clock(keys)
    assert clock(queries, origin=reading.origin).ticks[0] - reading.ticks[1] == pytest.approx(1e-9, rel=1e-2)
    with pytest.raises(ec.ClockError, match="whole counts of 's'"):
        ec.Sessions(*NYSE[:2], unit="s")(queries)
    with pytest.raises(ec.ClockError, match="unit='us'"):
        clock(np.array(["2500-01-01"], dtype="datetime64[s]"))
    assert ec.Sessions(*NYSE[:2], unit="us")(np.array(["2500-01-01", "2500-01-02"], dtype="datetime64[s]")).ticks[1] == 6.5 * 3600


def test_float_stamps_have_gradients():
    """Slope 1 while open and ``closed`` while closed, per ``per``."""
    noon, night = (stamp(f"2026-03-05T{t}", "America/New_York") / SECOND for t in ("12:00", "22:00"))
    for closed in (0.0, 0.25):
        stamps = torch.tensor([noon - 60, noon, night], dtype=F64, requires_grad=True)
        ec.Sessions(*NYSE[:2], unit="s", per="min", closed=closed)(
            stamps, origin=torch.tensor([noon - 60], dtype=F64)
        ).ticks.sum().backward()
        torch.testing.assert_close(stamps.grad, torch.tensor([1.0, 1.0, closed], dtype=F64) / 60)


@pytest.mark.parametrize("closed", [0.0, 0.3])
def test_laws(closed):
    inside = [
        stamp(f"2026-03-{day}T{time}", "America/New_York")
        for day, time in (("05", "10:00"), ("06", "12:00"), ("06", "15:00"), ("09", "11:00"))
    ]
    check_clock(ec.Sessions(*NYSE[:2], closed=closed, **CLOSURES), torch.tensor(inside))
    check_clock(ec.Sessions(*GLOBEX[:2], closed=closed, unit="s", per="h", decreasing="sort"), torch.tensor(inside) // SECOND)


def test_copies():
    stamps = ticks_2026(20)
    clock = ec.Sessions(*NYSE[:2], **CLOSURES)
    expected = clock(stamps).ticks
    for other in (copy.deepcopy(clock), pickle.loads(pickle.dumps(clock)), copy.deepcopy(clock).half()):
        assert torch.equal(other(stamps).ticks, expected)
    assert not clock.state_dict()


# --- specs ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "clock",
    [
        ec.Sessions("09:30-16:00"),
        ec.Sessions(("mon-thu 09:30-16:00", "fri 09:30-13:00"), "Asia/Jerusalem", unit="us", per="h", decreasing="sort"),
        ec.Sessions(*GLOBEX[:2], closed=0.1, **CLOSURES),
    ],
    ids=["plain", "two texts", "everything"],
)
def test_specs(clock):
    enc = ec.damped_rope(8, heads=2, half_life="30min", clock=clock)
    for spec in (str(enc), enc.spec, json.loads(json.dumps(enc.spec))):
        again = ec.encoding(spec)
        assert again.clock.spec() == clock.spec() and str(again) == str(enc)
        stamps = ticks_2026(50) // (1000 if clock.stamp_unit == "us" else 1)
        assert torch.equal(again.clock(stamps).ticks, clock(stamps).ticks)


def test_one_spec_for_dates_of_any_kind():
    dates = ["2026-12-25", dt.date(2026, 12, 25), dt.datetime(2026, 12, 25, 7), np.datetime64("2026-12-25T07")]
    specs = [ec.Sessions("09:30-16:00", holidays=[day], half_days={dt.date(2026, 12, 24): "13:00"}).spec() for day in dates]
    assert all(spec == specs[0] for spec in specs)
    assert specs[0]["holidays"] == ["2026-12-25"]
    assert specs[0] == ec.Sessions("09:30-16:00", holidays=dates, half_days=["2026-12-24 13:00"]).spec()


# --- in attention --------------------------------------------------------------------------------------------------------------------

RECIPES = {
    "damped_rope": lambda clock: ec.damped_rope(8, heads=4, half_life="30min", clock=clock),
    "decay_bias": lambda clock: ec.decay_bias(8, heads=4, half_life="30min", clock=clock),
}


def qkv(length: int, batch: int = 2) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    return [torch.randn(batch, 4, length, 8, dtype=F64, generator=random) for _ in range(3)]


@pytest.mark.parametrize("window", [None, "2h"])
@pytest.mark.parametrize("shape", [(150,), (2, 150)], ids=str)
@pytest.mark.parametrize("recipe", RECIPES)
def test_attention_equals_the_oracle(recipe, shape, window):
    """Stamps at any hour of six weeks, most of them closed, and so ties; the oracle gets trading time spelt out as plain numbers."""
    q, k, v = qkv(150)
    enc, stamps = RECIPES[recipe](ec.Sessions(*NYSE[:2], **CLOSURES)), ticks_2026(*shape)
    z = ec.scores(q, k, enc, times=stamps, window=window)
    torch.testing.assert_close(ec.attention(q, k, v, enc, times=stamps, window=window), z.softmax(-1) @ v, rtol=0, atol=1e-10)
    flags = open_minutes("2026-02-20", 41, zoneinfo.ZoneInfo("America/New_York"), NYSE[2])
    rows = [[o / SECOND for o in longhand(flags, stamp("2026-02-20"), row)] for row in stamps.reshape(-1, 150)]
    plain = torch.tensor(rows, dtype=F64).reshape(shape)
    assert 0.5 < float((plain.diff() == 0).double().mean()) < 0.95
    spelt = ec.scores(q, k, RECIPES[recipe](ec.Timestamps("s")), times=plain, window=window)
    torch.testing.assert_close(z, spelt, rtol=0, atol=1e-9)


def test_half_an_hour_of_trading():
    """Friday 15:45 to Monday 09:45 is one half-life of 30 minutes, whatever the clocks did in between."""
    times = torch.tensor([stamp("2026-03-06T15:45", "America/New_York"), stamp("2026-03-09T09:45", "America/New_York")])
    q = torch.ones(1, 1, 2, 4, dtype=F64)
    z = ec.scores(q, q, ec.decay(4, half_life="30min", clock=ec.Sessions(*NYSE[:2])), times=times)[0, 0]
    assert float(z[1, 0] / z[1, 1]) == pytest.approx(0.5, rel=1e-12)
    z = ec.scores(q, q, ec.decay_bias(4, heads=1, half_life="30min", clock=ec.Sessions(*NYSE[:2])), times=times)[0, 0]
    assert float(z[1, 1] - z[1, 0]) == pytest.approx(np.log(2), rel=1e-12)
    real = ec.scores(q, q, ec.decay(4, half_life="30min", clock=ec.Timestamps("ns")), times=times)[0, 0]
    assert float(real[1, 0] / real[1, 1]) == pytest.approx(0.5 ** ((64.5 + 0.5) * 2), rel=1e-9)


@pytest.mark.parametrize("recipe", RECIPES)
def test_one_query_against_a_cache(recipe):
    q, k, v = qkv(100)
    stamps = ticks_2026(2, 100)
    enc = RECIPES[recipe](ec.Sessions(*GLOBEX[:2], closed=0.1))
    whole = ec.attention(q, k, v, enc, times=stamps)
    step = ec.attention(q[:, :, -1:], k, v, enc, times=stamps[:, -1:], key_times=stamps)
    torch.testing.assert_close(step, whole[:, :, -1:], rtol=0, atol=1e-11)


def test_what_a_query_sees_of_its_own_closed_period():
    """A weekend is one moment where closed=0, so that times alone cannot say what came first in it; a fraction can."""
    times = torch.tensor([stamp(f"2026-03-{day}T12:00") for day in ("06", "07", "08")])
    q = torch.zeros(1, 1, 3, 4)
    for closed, seen in ((0.0, True), (0.001, False)):
        enc = ec.decay(4, half_life="30min", clock=ec.Sessions(*NYSE[:2], closed=closed))
        z = ec.scores(q, q, enc, times=times, key_times=times)[0, 0]
        assert bool(z[1, 2] > -torch.inf) == seen
        assert bool(z[2, 1] > -torch.inf) and not bool(z[0, 1] > -torch.inf)
        by_index = ec.scores(q, q, enc, times=times)[0, 0]
        assert not bool(by_index[1, 2] > -torch.inf)


# --- refusals ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: ec.Sessions(("mon-fri 09:00-12:00", "wed 11:00-13:00")), ["overlap on wed", "mon-fri 09:00-12:00", "wed 11:00-13:00"]),
        (lambda: ec.Sessions(("sun 20:00-10:00", "mon 09:00-12:00")), ["overlap on mon"]),
        (lambda: ec.Sessions(("mon 08:00-09:00", "sun 20:00-08:30")), ["overlap on mon"]),
        (lambda: ec.Sessions("mon-fri,wed 09:00-12:00"), ["overlap on wed"]),
        (lambda: ec.Sessions("10:00-10:00"), ["empty session", "00:00-24:00"]),
        (lambda: ec.Sessions(()), ["no hours"]),
        (lambda: ec.Sessions(9), ["hours=9"]),
        (lambda: ec.Sessions("half past nine"), ["half past nine", "09:30-16:00"]),
        (lambda: ec.Sessions("mon-thr 09:00-12:00"), ["'thr'", "did you mean 'thu'"]),
        (lambda: ec.Sessions("09:00-25:00"), ["25:00"]),
        (lambda: ec.Sessions("09:00-12:60"), ["12:60"]),
        (lambda: ec.Sessions("09:00-12:00", "America/NewYork"), ["America/NewYork", "did you mean 'America/New_York'"]),
        (lambda: ec.Sessions("09:00-12:00", "+25:00"), ["+25:00"]),
        (lambda: ec.Sessions("09:00-12:00", holidays="2026-12-25"), ["holidays='2026-12-25'", "list"]),
        (lambda: ec.Sessions("09:00-12:00", holidays=["25.12.2026"]), ["25.12.2026"]),
        (lambda: ec.Sessions("09:00-12:00", holidays=["2226-12-25"]), ["2226-12-25", "2099"]),
        (lambda: ec.Sessions("09:00-12:00", half_days=["2026-11-27"]), ["2026-11-27", "13:00"]),
        (lambda: ec.Sessions("09:00-12:00", half_days={"2026-11-27": "noon"}), ["noon"]),
        (lambda: ec.Sessions("09:00-12:00", half_days=["2026-11-27 11:00", "2026-11-27 10:00"]), ["twice"]),
        (lambda: ec.Sessions("09:00-12:00", holidays=["2026-11-27"], half_days=["2026-11-27 11:00"]), ["2026-11-27", "as a holiday and"]),
        (lambda: ec.Sessions("09:00-12:00", closed=1.5), ["closed=1.5"]),
        (lambda: ec.Sessions("09:00-12:00", closed=True), ["closed=True"]),
        (lambda: ec.Sessions("09:00-12:00", unit="fortnight"), ["fortnight"]),
        (lambda: ec.Sessions("09:00-12:00", decreasing="reverse"), ["reverse"]),
        (lambda: ec.encoding("rope(clock=sessions(hours='09:00-12:00', zones='UTC'))", head_dim=8), ["zones", "did you mean 'zone'"]),
    ],
)  # fmt: skip
def test_refusals(build, words):
    with pytest.raises(ec.ConfigError) as error:
        build()
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (None, "no times"),
        (torch.tensor([0.0, torch.nan], dtype=F64), "NaN"),
        (torch.tensor([1.7e9, 1.7e9 + 1]), "float32"),
        (np.array(["2026-01-01", "NaT"], dtype="datetime64[s]"), "NaT"),
        (torch.tensor([-(2**63), 0]), "beyond"),
        (torch.tensor([1e300, 0.0], dtype=F64), "beyond"),
        (torch.tensor([True, False]), "boolean"),
    ],
)
def test_refused_times(times, words):
    with pytest.raises(ec.ClockError, match=words):
        ec.Sessions("09:30-16:00", unit="s")(times)


def test_touching_sessions_are_one():
    stamps = ticks_2026(50)
    parts = ec.Sessions(("mon-sun 00:00-12:00", "mon-sun 12:00-24:00"), "America/New_York")
    assert torch.equal(parts(stamps).ticks, ec.Timestamps("ns")(stamps).ticks)
