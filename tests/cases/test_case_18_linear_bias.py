"""Case 18: the linear bias at decode: offset, sign, what is scaled, and the log-sum-exp."""

import math

import pytest
import torch

import eigenclock as ec


def inputs(case, dtype=torch.float32):
    given = case["given"]
    k = torch.tensor(given["k"], dtype=dtype)[None, None]
    q = torch.tensor(given["q_each_row"], dtype=dtype).expand(1, 1, len(given["query_times"]), -1)
    return q, k, torch.tensor(given["query_times"]), torch.tensor(given["key_times"])


BUILD = {
    "alibi": lambda slope: ec.alibi(4, heads=1, slopes=(slope,)),
    "decay_bias": lambda slope: ec.decay_bias(4, heads=1, rate=slope),
    "half-life": lambda slope: ec.decay_bias(4, heads=1, half_life=math.log(2) / slope),
}


@pytest.mark.parametrize("name", BUILD)
def test_numbers_of_the_case(case, name):
    given, expect = case["given"], case["expect"]
    q, k, times, key_times = inputs(case)
    enc = BUILD[name](given["slope"])
    z = ec.scores(q, k, enc, times=times, key_times=key_times)[0, 0]
    bias = ec.scores(torch.zeros_like(q), k, enc, times=times, key_times=key_times)[0, 0]
    for i, (logits, biases) in enumerate(zip(expect["logits_causal"], expect["bias"], strict=True)):
        n = len(logits)
        assert torch.allclose(z[i, :n], torch.tensor(logits, dtype=torch.float64), rtol=0, atol=expect["abs_tol"])
        assert (z[i, n:] == -torch.inf).all()
        seen = [b for b in biases if b is not None]
        assert torch.allclose(bias[i, : len(seen)], torch.tensor(seen, dtype=torch.float64), rtol=0, atol=expect["abs_tol"])


@pytest.mark.parametrize("offset", [0, 1, 5000, -3])
@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
@pytest.mark.parametrize("name", BUILD)
def test_log_sum_exp_carries_the_row_term(case, attend, name, backend, offset):
    """Not the key-only form, whose log-sum-exp is larger by slope * t_q."""
    given, expect = case["given"], case["expect"]
    q, k, times, key_times = inputs(case)
    out, lse = attend(
        q, k, k, BUILD[name](given["slope"]), times=times + offset, key_times=key_times + offset, return_lse=True, backend=backend
    )
    assert torch.allclose(lse[0, 0].double(), torch.tensor(expect["lse_natural_log"], dtype=torch.float64), rtol=0, atol=expect["abs_tol"])
    shifted = torch.tensor(expect["key_only_form"]["lse"], dtype=torch.float64) - given["slope"] * times
    assert torch.allclose(lse[0, 0].double(), shifted, rtol=0, atol=expect["abs_tol"])
    for i, logits in enumerate(expect["logits_causal"]):
        weights = torch.tensor(logits, dtype=torch.float64).softmax(0)
        assert torch.allclose(out[0, 0, i].double(), weights @ k[0, 0, : len(logits)].double(), rtol=0, atol=expect["abs_tol"])


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
def test_without_times_the_queries_are_the_last_ones(case, attend, backend):
    given, expect = case["given"], case["expect"]
    q, k, *_ = inputs(case)
    _, lse = attend(q, k, k, BUILD["alibi"](given["slope"]), return_lse=True, backend=backend)
    assert torch.allclose(lse[0, 0].double(), torch.tensor(expect["lse_natural_log"], dtype=torch.float64), rtol=0, atol=expect["abs_tol"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
def test_neighbours_do_not_merge_in_low_dtype(case, attend, dtype, backend):
    given, expect = case["given"]["low_dtype"], case["expect"]
    enc = ec.alibi(8, heads=1, slopes=(given["slope"],)).to(dtype)
    q, k = torch.zeros(1, 1, 1, 8, dtype=dtype), torch.ones(1, 1, 2, 8, dtype=dtype)
    time, key_times = torch.tensor([given["query_time"]]), torch.tensor(given["key_times"])
    z = ec.scores(q, k, enc, times=time, key_times=key_times)[0, 0, 0]
    assert (z[1] - z[0]).item() == pytest.approx(expect["low_dtype_bias_difference"], abs=expect["low_dtype_abs_tol"])
    lse = [
        attend(q, k[:, :, :1], k[:, :, :1], enc, times=time, key_times=s[None], return_lse=True, backend=backend)[1].double().item()
        for s in key_times
    ]
    assert lse[1] - lse[0] == pytest.approx(expect["low_dtype_bias_difference"], abs=expect["low_dtype_abs_tol"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
@pytest.mark.parametrize("length", [5, 300])
def test_log_sum_exp_far_from_the_origin(attend, dtype, backend, length):
    torch.manual_seed(0)
    q, k = torch.randn(1, 2, length, 8, dtype=dtype), torch.randn(1, 2, length, 8, dtype=dtype)
    enc, times = ec.alibi(8, heads=2), torch.arange(length) + 1_000_000
    _, lse = attend(q, k, k, enc, times=times, return_lse=True, backend=backend)
    i = torch.arange(length, dtype=torch.float64)
    lag = i[:, None] - i
    logits = q.double() @ k.double().mT / math.sqrt(8) - torch.tensor([2.0**-4, 2.0**-8], dtype=torch.float64)[:, None, None] * lag
    expected = logits.masked_fill(lag < 0, -torch.inf).logsumexp(-1)
    assert (lse.double() - expected).abs().max() <= (1e-12 if dtype == torch.float64 else 2e-5)


@pytest.mark.parametrize("name", BUILD)
def test_never_a_silent_reward_for_the_future(case, name):
    given = case["given"]
    q, k, times, key_times = inputs(case)
    try:
        z = ec.scores(torch.zeros_like(q), k, BUILD[name](given["slope"]), times=times, key_times=key_times, causal=False)[0, 0]
    except ec.EigenclockError as refusal:
        assert "causal" in str(refusal)
    else:
        assert torch.allclose(z, -given["slope"] * (times[:, None] - key_times).abs().double(), rtol=0, atol=1e-9)


def test_the_two_sided_bias_is_offered_by_name(case):
    given = case["given"]
    q, k, times, key_times = inputs(case)
    for name in BUILD:
        enc = ec.two_sided(BUILD[name](given["slope"]))
        z = ec.scores(torch.zeros_like(q), k, enc, times=times, key_times=key_times, causal=False)[0, 0]
        assert torch.allclose(z, -given["slope"] * (times[:, None] - key_times).abs().double(), rtol=0, atol=1e-9)


# --- with a cache: the offset is the cache's, the numbers are the same ---------------------------------------------------------------


@pytest.mark.parametrize("offset", [None, 0, 5000, 1_700_000_000, -3])
@pytest.mark.parametrize("pieces", [(3, 1, 1), (3, 2), (1, 1, 1, 1, 1), (5,)])
@pytest.mark.parametrize("name", BUILD)
def test_decode_against_a_cache(case, name, pieces, offset):
    given, expect = case["given"], case["expect"]
    q, k, times, key_times = inputs(case)
    enc, queries = BUILD[name](given["slope"]), q[:, :, :1].expand(-1, -1, 5, -1)
    cache, outs, lses, start = None, [], [], 0
    for n in pieces:
        cut = slice(start, start + n)
        words = {} if offset is None else {"times": key_times[cut] + offset}
        (out, lse), cache = ec.cached_attention(queries[:, :, cut], k[:, :, cut], k[:, :, cut], enc, cache=cache, return_lse=True, **words)
        outs.append(out)
        lses.append(lse)
        start += n
    lse = torch.cat(lses, 2)[0, 0, times].double()
    assert torch.allclose(lse, torch.tensor(expect["lse_natural_log"], dtype=torch.float64), rtol=0, atol=expect["abs_tol"])
    out = torch.cat(outs, 2)[0, 0, times].double()
    for row, logits in zip(out, expect["logits_causal"], strict=True):
        weights = torch.tensor(logits, dtype=torch.float64).softmax(0)
        assert torch.allclose(row, weights @ k[0, 0, : len(logits)].double(), rtol=0, atol=expect["abs_tol"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_neighbours_do_not_merge_in_a_cache_of_low_dtype(case, dtype):
    """One stored key before the query, at either time: it weighs what its exact time says, also in 16 bits."""
    given, expect = case["given"]["low_dtype"], case["expect"]
    enc = ec.alibi(8, heads=1, slopes=(given["slope"],)).to(dtype)
    n, logits = given["query_time"], []
    for place in given["key_times"]:
        k = torch.ones(1, 1, 1, 8, dtype=dtype)
        cache = ec.KVCache.of(k, k, enc, times=torch.tensor([place - 1])).evict(0)
        cache = cache.append(k, k, enc, times=torch.tensor([place]))
        (_, both), _ = ec.cached_attention(0 * k, k, k, enc, cache=cache, times=torch.tensor([n]), return_lse=True)
        logits.append(math.log(math.expm1(both.double().item())))  # less the query's own key, whose logit is 0
    assert logits[1] - logits[0] == pytest.approx(expect["low_dtype_bias_difference"], abs=1e-6)
