"""Rounding and range: 32 and 16 bits, fast rates, far origins, long silences, steps after many tokens."""

import math
import warnings

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from cache.conftest import F64, B, D, H, close, full, in_pieces, inputs, irregular

BUILD = {
    "rope": lambda: ec.rope(D),
    "damped_rope": lambda: ec.damped_rope(D, heads=H, half_life=(1.0, 1e4)),
    "decay, fast": lambda: ec.decay(D, rate=[0.0, 0.01, 0.4, 5.0, 1.0, 0.1, 40.0, 0.002]),
    "alibi": lambda: ec.alibi(D, heads=H),
    "rope * alibi": lambda: ec.rope(D) * ec.alibi(D, heads=H),
    "jordan_rope": lambda: ec.jordan_rope(D, heads=H, eta=0.02, half_life=50.0),
    "transformer_xl": lambda: ec.transformer_xl(D, heads=H),
    "gaussian_bias": lambda: ec.gaussian_bias(D, heads=H, sigma=(5.0, 300.0)),
    "two_sided": lambda: ec.two_sided(ec.decay(D, half_life=40.0)),
    "kerple_log": lambda: ec.kerple_log(D, heads=H),
}
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1.2e-2, torch.float16: 2e-3}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", BUILD)
def test_rounding_is_that_of_one_pass(name, dtype):
    """Against the specification on the same rounded tensors: the error of the dtype, not more with every chunk."""
    enc, tensors, times = BUILD[name](), inputs(600, dtype=dtype), irregular(600)
    keywords = {} if enc.breaks else {"times": times}
    with torch.no_grad():
        out, lse, _ = in_pieces(tensors, enc, [300, 1, 1, 290, *[1] * 8], **keywords)
        expected, expected_lse = full(tensors, enc, **keywords)
    assert out.dtype == dtype and lse.dtype == torch.float32
    close(out, expected, TOLERANCE[dtype])
    close(lse, expected_lse, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", [1e-6, 0.1, 1.0, 30.0, 1e4])
def test_no_rate_overflows(rate, dtype):
    enc, tensors = ec.damped_rope(D, rate=rate), inputs(520, dtype=dtype)
    with torch.no_grad():
        out = in_pieces(tensors, enc, [515, 1, 1, 3])[0]
    close(out, full(tensors, enc)[0], TOLERANCE[dtype])


def formula(q: Tensor, k: Tensor, v: Tensor, lag: Tensor, rates: Tensor, freqs: Tensor) -> Tensor:
    """sum_s softmax(q^T e^(-rate lag) R(freq lag) k / sqrt(D)) v, one pair of channels after another, in float64, for the last query."""
    q, k, v = q.double(), k.double(), v.double()
    z = torch.zeros(k.shape[:3], dtype=F64)
    for i in range(D // 2):
        a, b = q[..., 2 * i], q[..., 2 * i + 1]  # (B, H, 1)
        c, d = k[..., 2 * i], k[..., 2 * i + 1]  # (B, H, S)
        turn = freqs[i] * lag
        z = z + torch.exp(-rates[i] * lag) * (turn.cos() * (a * c + b * d) - turn.sin() * (b * c - a * d))
    return (z / math.sqrt(D)).softmax(-1).unsqueeze(2) @ v


def test_nanoseconds_after_a_long_silence():
    """int64 stamps today, gaps of nanoseconds and one of a week, by the formula itself."""
    rates, freqs = torch.tensor([1e-6, 1e-3, 0.5, 300.0], dtype=F64), torch.tensor([1e3, 7.0, 0.1, 1e-5], dtype=F64)
    enc = ec.damped_rope(D, freq=freqs.tolist(), rate=rates.tolist(), clock=ec.Timestamps("ns"))
    length = 400
    steps = torch.randint(1, 1000, (length,), generator=torch.Generator().manual_seed(3))
    steps[100], steps[300] = 7 * 86400 * 10**9, 3 * 10**9
    times = steps.cumsum(0) + 1_700_000_000_000_000_000
    q, k, v = inputs(length, dtype=torch.float32)
    with torch.no_grad():
        out = in_pieces((q, k, v), enc, [99, 1, 1, 150, *[1] * 149], times=times)[0]
    for n in (99, 100, 101, 257, 300, 399):
        lag = (times[n] - times[: n + 1]).double() * 1e-9
        expected = formula(q[:, :, n : n + 1], k[:, :, : n + 1], v[:, :, : n + 1], lag, rates, freqs)
        close(out[:, :, n : n + 1], expected, 3e-6)


@pytest.mark.parametrize("name", ["rope", "damped_rope", "alibi", "rope * alibi"])
def test_late_steps_are_as_exact_as_early_ones(name):
    """A step after 20 000 tokens, in float32, against the specification."""
    enc = BUILD[name]()
    with torch.no_grad():
        q, k, v = inputs(20_001, rows=1, dtype=torch.float32)
        cache = ec.KVCache.of(k[:, :, :-1], v[:, :, :-1], enc)
        (out, lse), _ = ec.cached_attention(q[:, :, -1:], k[:, :, -1:], v[:, :, -1:], enc, cache=cache, return_lse=True)
        expected, expected_lse = full((q[:, :, -1:], k, v), enc)
    close(out, expected, 3e-6)
    close(lse, expected_lse, 3e-6)


def test_rows_at_different_places():
    """Each row its own count, its own padding and its own gaps; a row that begins later than the cache."""
    enc, length = ec.damped_rope(D, heads=H, half_life=(2.0, 300.0)), 560
    mask = torch.ones(B, length, dtype=torch.bool)
    mask[1, :301] = False
    mask[1, 400:410] = False
    mask[0, 555] = False
    tensors = [x.masked_fill(~mask[:, None, :, None], 7e3) for x in inputs(length)]  # padding holds anything
    out, lse, cache = in_pieces(tensors, enc, [100, *[1] * 3, 190, *[1] * 20, 90, *[1] * 157], mask=mask)
    expected, expected_lse = full(tensors, enc, mask=mask)
    close(out, expected, rows=mask)
    close(lse, expected_lse, rows=mask)
    assert cache.next_count.tolist() == mask.sum(-1).tolist()


def test_padding_may_hold_any_time():
    enc, length = ec.damped_rope(D, heads=H, half_life=(2.0, 300.0)) * ec.alibi(D, heads=H), 300
    mask = torch.arange(length).expand(B, length) >= torch.tensor([[0], [280]])
    times = torch.arange(length).expand(B, length).masked_fill(~mask, 10**12)
    tensors = inputs(length)
    out, lse, _ = in_pieces(tensors, enc, [262, *[1] * 38], times=times, mask=mask)
    expected, expected_lse = full(tensors, enc, times=torch.arange(length), mask=mask)
    close(out, expected, rows=mask)
    close(lse, expected_lse, rows=mask)


def test_an_elapsed_gate_counts_the_gap_between_pieces():
    enc, length = ec.fox(D, heads=H, features=5, clock=ec.Cumulative(5, gate="forget", base=ec.Timestamps("s"))), 60
    x, tensors, times = torch.randn(B, length, 5, dtype=F64), inputs(length), irregular(length)
    out, lse, _ = in_pieces(tensors, enc, [20, 1, 1, 30, *[1] * 8], x=x, times=times)
    expected, expected_lse = full(tensors, enc, x=x, times=times)
    close(out, expected)
    close(lse, expected_lse)


@pytest.mark.parametrize("name", ["rope", "damped_rope", "kerple_log"])
def test_values_seen_through_the_lag(name):
    enc, turns, tensors = BUILD[name](), ec.rope(4) + ec.nope(1), inputs(280)
    q, k, v = tensors
    expected = ec.attention(q, k, v, enc, value_encoding=turns)
    out, cache = ec.cached_attention(q[:, :, :257], k[:, :, :257], v[:, :, :257], enc, value_encoding=turns)
    outs = [out]
    for low, high in ((257, 258), (258, 260), (260, 280)):
        out, cache = ec.cached_attention(*(x[:, :, low:high] for x in tensors), enc, cache=cache, value_encoding=turns)
        outs.append(out)
    close(torch.cat(outs, 2), expected)
    with pytest.raises(ec.ConfigError, match="value_encoding=None now"):
        ec.cached_attention(q[:, :, :1], k[:, :, :1], v[:, :, :1], enc, cache=cache)
    with pytest.raises(ec.UnsupportedError, match="values are turned"):
        cache.moved(enc, by=1)


@pytest.mark.parametrize("name", BUILD)
def test_pieces_of_no_tokens(name):
    enc, tensors = BUILD[name](), inputs(270)
    out, lse, cache = in_pieces(tensors, enc, [0, 260, 0, 1, 0, 9, 0])
    close(out, full(tensors, enc)[0])
    assert len(cache) == 270 and lse.shape[2] == 270


def test_jordan_blocks_that_outgrow_the_dtype_are_told():
    """The lag counts from the first stored token, not from the piece; a lag within bounds says nothing."""
    enc, (q, k, v) = ec.jordan_rope(D, heads=H, eta=1.0, rate=1e-6), inputs(20, dtype=torch.float32)
    for gap, growth in ((16_000_000, True), (20, False)):
        times = torch.cat([torch.arange(10), torch.arange(10) + gap])
        cache = ec.KVCache.of(k[:, :, :10], v[:, :, :10], enc, times=times[:10])
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            ec.cached_attention(q[:, :, 10:], k[:, :, 10:], v[:, :, 10:], enc, cache=cache, times=times[10:])
        assert any("Jordan blocks grow" in str(w.message) for w in told) == growth


def test_sixteen_bits_beside_a_bias_for_each_pair():
    enc, tensors = ec.t5_bias(D, heads=H) * ec.gaussian_bias(D, heads=H, sigma=20.0), inputs(60, dtype=torch.bfloat16)
    with torch.no_grad():
        close(in_pieces(tensors, enc, [40, 1, 19])[0], full(tensors, enc)[0], TOLERANCE[torch.bfloat16])
