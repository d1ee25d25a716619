"""Stamps and durations as users hold them: read exactly, or refused in one line of ours."""

import datetime as dt
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch

import eigenclock as ec
from eigenclock.clocks import CLOCKS, duration, exact_duration
from eigenclock.clocks.stamps import as_times
from eigenclock.errors import ClockError, ConfigError, EigenclockError
from eigenclock.theory.numbers import spacing

START = dt.datetime(2024, 5, 1, 9, 30, tzinfo=dt.UTC)
SECONDS = [0, 1, 3, 60, 86_400]
COUNTS = [int(START.timestamp()) + s for s in SECONDS]
AWARE = [START + dt.timedelta(seconds=s) for s in SECONDS]
NAIVE = [x.replace(tzinfo=None) for x in AWARE]
AMSTERDAM = [x.astimezone(ZoneInfo("Europe/Amsterdam")) for x in AWARE]

PLAIN = {
    "datetimes with a zone": AWARE,
    "in another zone": AMSTERDAM,
    "without a zone": NAIVE,
    "a tuple": tuple(AWARE),
    "an array of objects": np.array(AWARE, dtype=object),
    "ISO text": [x.isoformat() for x in AMSTERDAM],
    "ISO text, Z": [x.isoformat() + "Z" for x in NAIVE],
    "ISO text, no zone": np.array([str(x) for x in NAIVE]),
    "datetime64[s]": np.array(NAIVE, dtype="datetime64[s]"),
    "datetime64[ns]": np.array(NAIVE, dtype="datetime64[ns]"),
    "a list of datetime64": [np.datetime64(x) for x in NAIVE],
    "counts": COUNTS,
    "an array of counts": np.array(COUNTS),
    "counts of 32 bits": np.array(COUNTS, dtype=np.int32),
    "a tensor of counts": torch.tensor(COUNTS),
    "floats": [float(x) for x in COUNTS],
}


def columns() -> dict[str, object]:
    """The same held by pandas and polars, where those are installed."""
    found: dict[str, object] = {}
    try:
        import pandas as pd

        index = pd.DatetimeIndex(AMSTERDAM)
        found |= {
            "pandas index with a zone": index,
            "pandas index": pd.DatetimeIndex(NAIVE),
            "pandas series with a zone": pd.Series(index),
            "pandas series": pd.Series(NAIVE),
            "pandas, shuffled labels": pd.Series(NAIVE, index=[4, 3, 2, 1, 0]),
            "a list of pandas timestamps": list(index),
            "an array of pandas timestamps": index.to_numpy(),
            "pandas nanoseconds": pd.Series(NAIVE).astype("datetime64[ns]"),
            "pandas counts": pd.Series(COUNTS),
            "pandas text": pd.Series([x.isoformat() for x in AWARE]),
        }
    except ImportError:
        pass
    try:
        import polars as pl

        found |= {
            "polars": pl.Series(NAIVE),
            "polars with a zone": pl.Series(AWARE).dt.convert_time_zone("Europe/Amsterdam"),
            "polars nanoseconds": pl.Series(NAIVE, dtype=pl.Datetime("ns")),
            "polars counts": pl.Series(COUNTS),
        }
    except ImportError:
        pass
    return found


HELD = PLAIN | columns()


@pytest.mark.parametrize("name", HELD)
def test_every_container_reads_the_same(name):
    ticks = ec.Timestamps("s")(HELD[name]).ticks
    assert ticks.tolist() == SECONDS
    stamps = as_times(HELD[name], "s")
    assert stamps.tolist() == COUNTS


@pytest.mark.parametrize("other", HELD)
def test_queries_and_keys_may_be_held_differently(other):
    """datetime64 of any resolution beside counts of the clock's unit, on both sides and from one piece to the next."""
    enc = ec.decay_bias(4, heads=1, half_life="10s", clock=ec.Timestamps("s"))
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 5, 4, dtype=torch.float64, generator=random) for _ in range(3))
    wanted = ec.attention(q, k, v, enc, times=COUNTS, key_times=COUNTS)
    assert torch.equal(ec.attention(q, k, v, enc, times=HELD[other], key_times=COUNTS), wanted)
    assert torch.equal(ec.attention(q, k, v, enc, times=COUNTS, key_times=HELD[other]), wanted)
    first, last = (slice(0, 3), slice(3, 5))
    held = HELD[other] if hasattr(HELD[other], "dtype") else list(HELD[other])
    cut = held.iloc[3:] if hasattr(held, "iloc") else held[3:]
    _, cache = ec.cached_attention(q[:, :, first], k[:, :, first], v[:, :, first], enc, times=COUNTS[:3])
    out, _ = ec.cached_attention(q[:, :, last], k[:, :, last], v[:, :, last], enc, cache=cache, times=cut)
    torch.testing.assert_close(out, ec.attention(q, k, v, enc, times=COUNTS)[:, :, 3:], rtol=0, atol=1e-12)
    gain = ec.decay(4, heads=1, half_life="10s", clock=ec.Timestamps("s"))
    _, state = ec.linear_attention(q[:, :, first], k[:, :, first], v[:, :, first], gain, times=COUNTS[:3])
    out, _ = ec.linear_attention(q[:, :, last], k[:, :, last], v[:, :, last], gain, state=state, times=cut)
    torch.testing.assert_close(out, ec.linear_attention(q, k, v, gain, times=COUNTS)[0][:, :, 3:], rtol=0, atol=1e-12)


def test_nanoseconds_of_text_and_pandas_survive():
    text = ["2024-05-01T09:30:00.000000001Z", "2024-05-01 11:30:00.000000003+02:00"]
    assert ec.Timestamps("ns", per="ns")(text).ticks.tolist() == [0, 2]
    pd = pytest.importorskip("pandas")
    assert ec.Timestamps("ns", per="ns")([pd.Timestamp(x) for x in text]).ticks.tolist() == [0, 2]


def test_rows_and_a_repeated_hour():
    local = [dt.datetime(2022, 10, 30, 2, 0, tzinfo=ZoneInfo("Europe/Amsterdam"), fold=fold) for fold in (0, 1)]
    assert ec.Timestamps("s", per="h")(local).ticks.tolist() == [0, 1]
    assert ec.Timestamps("s")([AWARE, AMSTERDAM]).ticks.tolist() == [SECONDS, SECONDS]


MISSING = {
    "NaT in datetime64": np.array(["2024-01-01", "NaT"], dtype="datetime64[s]"),
    "NaT in a list": [np.datetime64("2024-01-01"), np.datetime64("NaT")],
    "None in a list": [AWARE[0], None],
    "half of them with a zone": [AWARE[0], NAIVE[1]],
    "text that is no time": ["2024-01-01", "soon"],
    "a month of 13": ["2024-13-01"],
    "durations": np.array([1, 2], dtype="timedelta64[s]"),
    "no whole seconds": [START + dt.timedelta(microseconds=5)],
    "no whole seconds, datetime64": np.array(["2024-01-01T00:00:00.5", "2024-01-02"], dtype="datetime64[ms]"),
    "a set": {1, 2},
    "a dict": {"a": 1},
    "objects": [object(), object()],
    "ragged": [[1, 2], [3]],
    "complex": np.array([1j, 2]),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_cannot_be_read_is_refused_in_one_line(name):
    with pytest.raises(EigenclockError) as caught:
        ec.Timestamps("s")(MISSING[name])
    assert "\n" not in str(caught.value) and "expected" in str(caught.value)


def test_missing_stamps_of_pandas_and_polars():
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    columns = [
        pd.Series([NAIVE[0], None]), pd.DatetimeIndex([AMSTERDAM[0], pd.NaT]), [pd.Timestamp(NAIVE[0]), pd.NaT],
        pl.Series([NAIVE[0], None]), pl.Series([1, None]), pd.Series([1, None], dtype="Int64"), pd.Series(["a", "b"]),
        pd.Series([1, 2]).astype("category"),
    ]  # fmt: skip
    for column in columns[:-1]:
        with pytest.raises(EigenclockError, match="expected"):
            ec.Timestamps("s")(column)
    assert ec.Timestamps("s")(columns[-1]).ticks.tolist() == [0, 1]


@pytest.mark.parametrize("clock", [ec.Index(), ec.Column("shares"), ec.Axes(("row", "column"))])
def test_clocks_that_count_no_time_refuse_stamps(clock):
    for held in (AWARE, np.array(NAIVE, dtype="datetime64[s]"), ["2024-05-01"]):
        with pytest.raises(ClockError, match="counts no time"):
            clock(held)


def test_every_clock_that_takes_times_reads_lists_of_numbers_in_float64():
    read = [ec.Index(), ec.Column("shares"), ec.Timestamps("s"), ec.Sessions("00:00-24:00", unit="s")]
    assert {type(clock).__name__.lower() for clock in read} <= set(CLOCKS)
    for clock in read:
        monday = 1e9 + 2 * 86_400.0
        assert clock([monday, monday + 1 / 128]).ticks.diff().tolist() == [1 / 128]  # float32 would have lost it


# --- durations ------------------------------------------------------------------------------------------------------------------------

DURATIONS = ["1h30min", "90min", "1.5h", dt.timedelta(minutes=90), np.timedelta64(90, "m"), np.timedelta64(5400, "s"), 5400]


@pytest.mark.parametrize("held", DURATIONS, ids=repr)
def test_durations(held):
    assert exact_duration(held, "s") == 5400 and duration(held, "s") == 5400.0
    enc = ec.decay_bias(4, heads=1, half_life=held, clock=ec.Timestamps("s"))
    q = torch.ones(1, 1, 1, 4, dtype=torch.float64)
    lag = ec.scores(q, q, enc, times=[5400], key_times=[0]) - ec.scores(q, q, enc, times=[0], key_times=[0])
    torch.testing.assert_close(lag.flatten(), -torch.tensor([2.0], dtype=torch.float64).log())
    assert str(ec.encoding(str(enc))) == str(enc)


@pytest.mark.parametrize("held", [held for held in DURATIONS if held != 5400], ids=repr)
def test_windows(held):
    enc = ec.rope(4, clock=ec.Timestamps("s"))
    q = torch.randn(1, 1, 8, 4, generator=torch.Generator().manual_seed(0))
    times = torch.arange(8) * 900
    out, cache = ec.cached_attention(q, q, q, enc, times=times, window=held)
    assert torch.equal(out, ec.attention(q, q, q, enc, times=times, window=held))
    assert torch.equal(out, ec.attention(q, q, q, enc, times=times, window="90min"))
    assert len(cache.evict(held)) == len(cache.evict("90min")) == 6


def test_durations_of_pandas():
    pd = pytest.importorskip("pandas")
    assert exact_duration(pd.Timedelta("1h30min"), "s") == 5400
    assert exact_duration(pd.Timedelta(5, "ns"), "ns") == 5
    with pytest.raises(ConfigError, match="NaT"):
        exact_duration(pd.NaT, "s")


@pytest.mark.parametrize("wrong", ["1h30", "h", "1h -5min", "1 fortnight", np.timedelta64("NaT"), np.timedelta64(1, "M"), [1], None])
def test_what_is_no_duration(wrong):
    with pytest.raises(ConfigError):
        exact_duration(wrong, "s")
    with pytest.raises(ConfigError):
        exact_duration(dt.timedelta(1), None)


# --- float32 spacing --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "step"), [(472_223.0, 0.03125), (1_764_547_200.0, 128.0), (1.0, 2.0**-23), (0.75, 2.0**-24)])
def test_spacing_is_that_of_the_dtype(value, step):
    assert spacing(value, torch.float32) == step
    one = torch.tensor(value, dtype=torch.float32)
    assert float(torch.nextafter(one, one + 1e10)) - float(one) == step


def test_refusals_name_the_spacing_of_the_dtype():
    """0.03125 at 472,223, where one part in 2^23 would be 0.0563; a gap of 100 times that passes, a smaller one does not."""
    with pytest.raises(ClockError, match=r"neighbouring numbers are 0.0312 apart"):
        ec.Timestamps("s")(torch.tensor([472_220.0, 472_221.5, 472_223.0]))
    ec.Timestamps("s")(torch.tensor([472_216.5, 472_219.75, 472_223.0]))  # 0.01 of 3.25 is above 0.03125, and below 0.0563
    with pytest.raises(ClockError, match=r"neighbouring numbers are 128 apart"):
        ec.Timestamps("s")(torch.tensor([1_764_547_200.0, 1_764_547_968.0, 1_764_548_992.0]))


# --- messages ---------------------------------------------------------------------------------------------------------------------------

DECAYS = [ec.decay, ec.decay_bias, ec.damped_rope, ec.hyperbolic, ec.jordan_rope]


@pytest.mark.parametrize("recipe", DECAYS, ids=lambda recipe: recipe.__name__)
def test_errors_name_what_was_given(recipe):
    for wrong in (0, -1, float("nan"), float("inf"), [1.0] * 7, {}):
        with pytest.raises(EigenclockError) as caught:
            recipe(8, heads=2, half_life=wrong)
        assert "half_life" in str(caught.value) or recipe is ec.hyperbolic
        assert "rate of shape" not in str(caught.value)
    with pytest.raises(EigenclockError, match="got rate"):
        recipe(8, heads=2, rate=[0.1] * 7)
    with pytest.raises(EigenclockError, match="got c of shape"):
        ec.jordan_rope(8, heads=2, length=10, c=[1.0] * 7)
