"""Case 19: nanoseconds since 1970, irregular steps: the origin is taken off in integers, before any cast."""

import math

import numpy as np
import pytest
import torch

import eigenclock as ec


def encoding(case, unit="ns", per="s", factor=1.0):
    given = case["given"]
    return ec.damped_rope(
        2, freq=[given["angular_frequency"] * factor], rate=given["decay_rate"] * factor, clock=ec.Timestamps(unit, per=per)
    )


def score_row(case, enc, times, dtype=torch.float32):
    given = case["given"]
    n = len(given["timestamps"])
    q, k = (torch.tensor(given[name], dtype=dtype).expand(1, 1, n, 2) for name in "qk")
    return ec.scores(q, k, enc, times=times, scale=1.0)[0, 0, -1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_of_the_case(case, dtype):
    given, expect = case["given"], case["expect"]
    z = score_row(case, encoding(case), torch.tensor(given["timestamps"]), dtype)
    assert torch.allclose(z, torch.tensor(expect["scores"], dtype=torch.float64), rtol=0, atol=expect["abs_tol"])
    differences = [(given["timestamps"][-1] - t) / given["units_per_time_unit"] for t in given["timestamps"]]
    assert differences == pytest.approx(expect["differences_in_time_units"], abs=1e-12)


@pytest.mark.parametrize("backend", ["auto", "reference", "tiled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_of_the_case_in_attention(case, attend, backend, dtype):
    """The weights themselves, through an identity for the values, and the log-sum-exp."""
    given, expect = case["given"], case["expect"]
    q, k = (torch.tensor(given[name], dtype=dtype).expand(1, 1, 5, 2) for name in "qk")
    expected = torch.tensor(expect["scores"], dtype=torch.float64)
    out, lse = attend(
        q,
        k,
        torch.eye(5, dtype=dtype)[None, None],
        encoding(case),
        times=torch.tensor(given["timestamps"]),
        scale=1.0,
        return_lse=True,
        backend=backend,
    )
    assert torch.allclose(out[0, 0, -1].double(), expected.softmax(0), rtol=0, atol=expect["abs_tol"])
    assert lse[0, 0, -1].item() == pytest.approx(expected.logsumexp(0).item(), abs=expect["abs_tol"])


@pytest.mark.parametrize("shift", [1, -1_700_000_000_000_000_000, 10**15 + 7, -(10**9)])
@pytest.mark.parametrize("backend", ["auto", "reference", "tiled"])
def test_any_integer_shift_changes_no_bit(case, attend, shift, backend):
    times, enc = torch.tensor(case["given"]["timestamps"]), encoding(case)
    assert torch.equal(score_row(case, enc, times), score_row(case, enc, times + shift))
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 5, 2) for _ in range(3))
    assert torch.equal(attend(q, k, v, enc, times=times, backend=backend), attend(q, k, v, enc, times=times + shift, backend=backend))


@pytest.mark.parametrize(("unit", "per"), [("ns", "s"), ("ns", "ms"), ("ns", "min"), ("ns", "h"), ("us", "s"), ("us", "ms")])
def test_another_unit_with_rates_rescaled_is_the_same(case, unit, per):
    given, expect = case["given"], case["expect"]
    seconds = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}[per]
    times = torch.tensor(given["timestamps"])
    if unit == "us":  # the last stamp is not a whole number of microseconds: half a unit, exact in float64 once near the origin
        times = (times - times[0]).double() / 1000
    z = score_row(case, encoding(case, unit, per, seconds), times)
    assert torch.allclose(z, torch.tensor(expect["scores"], dtype=torch.float64), rtol=0, atol=expect["abs_tol"])


def test_numpy_datetimes_are_timestamps(case):
    given, expect = case["given"], case["expect"]
    stamps = np.array(given["timestamps"], dtype="datetime64[ns]")
    z = score_row(case, encoding(case), stamps)
    assert torch.allclose(z, torch.tensor(expect["scores"], dtype=torch.float64), rtol=0, atol=expect["abs_tol"])
    coarse = stamps[:4].astype("datetime64[ms]")
    q = torch.ones(1, 1, 4, 2)
    one = ec.scores(q, q, encoding(case, "ms"), times=coarse)
    other = ec.scores(q, q, encoding(case), times=torch.tensor(given["timestamps"][:4]))
    assert torch.allclose(one, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("unit", ["ns", "us", "s"])
def test_stamps_that_already_lost_their_differences_are_refused(case, unit):
    scale = {"ns": 1, "us": 1000, "s": 10**9}[unit]
    times = torch.tensor([t / scale for t in case["given"]["timestamps"]], dtype=torch.float32)
    with pytest.raises(ec.ClockError, match="(?i)float32"):
        score_row(case, encoding(case, unit), times)


@pytest.mark.parametrize("base", [1_700_000_000.0, 4.0e9])
def test_float64_unix_seconds_are_fine(base):
    """Float64 steps by 2.4e-7 s at 1.7e9: enough for rates per second."""
    enc = ec.damped_rope(8, half_life=1.5, clock=ec.Timestamps("s"))
    torch.manual_seed(0)
    steps = torch.tensor([0.0, 0.25, 0.75, 2.0, 2.5], dtype=torch.float64)
    q, k = torch.randn(1, 1, 5, 8), torch.randn(1, 1, 5, 8)
    assert torch.allclose(ec.scores(q, k, enc, times=steps + base), ec.scores(q, k, enc, times=steps), rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["auto", "reference", "tiled"])
@pytest.mark.parametrize("duration", ["250ms", "30min", "2h"])
def test_half_lives_in_words_at_the_scale_of_real_stamps(attend, duration, backend):
    """Two weeks of irregular ticks: a key one half-life back scores half."""
    seconds = {"250ms": 0.25, "30min": 1800.0, "2h": 7200.0}[duration]
    enc = ec.decay(4, half_life=duration, clock=ec.Timestamps("ns", per="s"))
    origin, step = 1_700_000_000_000_000_000, round(seconds * 1e9)
    times = torch.tensor([origin, origin + 14 * 86_400 * 10**9, origin + 14 * 86_400 * 10**9 + step])
    q = torch.ones(1, 1, 3, 4)
    z = ec.scores(q, q, enc, times=times, scale=1.0)[0, 0]
    assert z[2, 1].item() == pytest.approx(2.0, abs=1e-6) and z[2, 2].item() == pytest.approx(4.0)
    assert z[2, 0].item() == pytest.approx(4 * 0.5 ** (1 + 14 * 86_400 / seconds), abs=1e-9)
    out = attend(q, q, torch.eye(3)[None, None], enc, times=times, scale=1.0, backend=backend)[0, 0, 2]
    weights = [math.exp(x) for x in z[2].tolist()]
    assert out.tolist() == pytest.approx([w / sum(weights) for w in weights], abs=1e-6)


def test_padding_is_not_the_origin():
    """Left padding with time 0 beside nanoseconds since 1970: neighbours stay a nanosecond apart."""
    stamps = torch.arange(6) + 1_700_000_000_000_000_000
    stamps[:2] = 0
    mask = torch.tensor([[False, False, True, True, True, True]])
    enc = ec.damped_rope(8, half_life=3.0, clock=ec.Timestamps("ns", per="ns"))
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 6, 8, dtype=torch.float64)
    out = ec.attention(q, k, v, enc, times=stamps[None], mask=mask)
    expected = ec.attention(q[:, :, 2:], k[:, :, 2:], v[:, :, 2:], enc, times=stamps[None, 2:])
    assert torch.allclose(out[:, :, 2:], expected, rtol=0, atol=1e-12)


def test_sentinels_wrap_silently_nowhere():
    """The smallest int64 as padding is no time; unmasked it is refused."""
    stamps = torch.arange(5) + 1_700_000_000_000_000_000
    stamps[0] = torch.iinfo(torch.int64).min
    enc = ec.decay(4, half_life=2.0, clock=ec.Timestamps("ns", per="ns"))
    torch.manual_seed(0)
    q = torch.randn(1, 1, 5, 4, dtype=torch.float64)
    with pytest.raises(ec.ClockError, match="64 bits"):
        ec.attention(q, q, q, enc, times=stamps)
    out = ec.attention(q, q, q, enc, times=stamps, mask=torch.arange(5)[None] > 0)
    assert torch.allclose(out[:, :, 1:], ec.attention(*[q[:, :, 1:]] * 3, enc, times=stamps[1:]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("keys", ["s", "ms", "ns", "h"])
def test_resolutions_of_datetime64_may_differ(keys):
    """Keys to the hour, a query to the nanosecond: one hour is one hour."""
    clock = ec.Timestamps("ns", per="min")
    hours = np.array(["2026-01-05T09", "2026-01-05T10"], dtype=f"datetime64[{keys}]")
    query = np.array(["2026-01-05T11"], dtype="datetime64[ns]")
    reading = clock(hours)
    assert reading.ticks.tolist() == [0, 60]
    assert clock(query, origin=reading.origin).ticks.tolist() == [120]


def test_datetimes_beyond_nanoseconds_are_refused():
    with pytest.raises(ec.ClockError, match="2262"):
        ec.Timestamps()(np.array(["1500-01-01", "2026-01-01"], dtype="datetime64[D]"))
