"""Laws that hold for every input: shift invariance, the group law, contragredience, underflow instead of overflow."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import eigenclock as ec

F64 = torch.float64
EXAMPLES = settings(max_examples=25, deadline=None)

rates = st.floats(0, 8, allow_subnormal=False)
freqs = st.floats(-4, 4, allow_subnormal=False)
seeds = st.integers(0, 2**31)


def rotation(draw_pairs: list[tuple[float, float]], pairing: str) -> ec.Encoding:
    return ec.rope(2 * len(draw_pairs), freq=[f for f, _ in draw_pairs], pairing=pairing)


def damped(draw_pairs: list[tuple[float, float]], pairing: str) -> ec.Encoding:
    return ec.damped_rope(2 * len(draw_pairs), freq=[f for f, _ in draw_pairs], rate=[a for _, a in draw_pairs], pairing=pairing)


BUILDERS: list[Callable[[list[tuple[float, float]], str], ec.Encoding]] = [
    rotation,
    damped,
    lambda pairs, pairing: ec.decay(2 * len(pairs), rate=[a for _, a in pairs for _ in range(2)]),
    lambda pairs, pairing: ec.alibi(2 * len(pairs), heads=2, slopes=(pairs[0][1], 0.25)),
    lambda pairs, pairing: (
        ec.rope(2 * len(pairs), freq=[f for f, _ in pairs], pairing=pairing, heads=2) * ec.alibi(2 * len(pairs), heads=2)
    ),
    lambda pairs, pairing: damped(pairs, pairing) + ec.nope(2),
    lambda pairs, pairing: ec.nope(2 * len(pairs)),
]
encodings = st.builds(
    lambda builder, pairs, pairing: builder(pairs, pairing),
    st.sampled_from(BUILDERS),
    st.lists(st.tuples(freqs, rates), min_size=1, max_size=4),
    st.sampled_from(["interleaved", "half"]),
)


def content(enc: ec.Encoding, length: int, seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, 2, length, enc.head_dim, generator=generator).to(dtype) for _ in range(3)]


steps = st.lists(st.integers(0, 50), min_size=1, max_size=40)


@EXAMPLES
@given(encodings, steps, st.integers(-(2**61), 2**61), seeds)
def test_a_common_integer_shift_changes_no_bit(enc, steps, shift, seed):
    times = torch.tensor(steps).cumsum(0)
    q, k, v = content(enc, len(steps), seed)
    assert torch.equal(ec.attention(q, k, v, enc, times=times), ec.attention(q, k, v, enc, times=times + shift))
    assert torch.equal(ec.scores(q, k, enc, times=times), ec.scores(q, k, enc, times=times + shift))


@EXAMPLES
@given(encodings, steps, st.integers(-(2**61), 2**61), st.integers(1, 5), seeds)
def test_a_common_shift_of_queries_and_keys_changes_no_bit(enc, steps, shift, queries, seed):
    times = torch.tensor(steps).cumsum(0)
    q, k, v = content(enc, len(steps), seed)
    query_times = times[-1] + torch.arange(min(queries, len(steps)))
    q = q[:, :, : len(query_times)]
    one = ec.attention(q, k, v, enc, times=query_times, key_times=times)
    assert torch.equal(one, ec.attention(q, k, v, enc, times=query_times + shift, key_times=times + shift))


@EXAMPLES
@given(encodings, steps, st.floats(-1e5, 1e5), seeds)
def test_a_common_real_shift_changes_only_rounding(enc, steps, shift, seed):
    times = torch.tensor(steps, dtype=F64).cumsum(0) * 0.37
    q, k, v = content(enc, len(steps), seed, F64)
    one, other = ec.attention(q, k, v, enc, times=times), ec.attention(q, k, v, enc, times=times + shift)
    assert torch.allclose(one, other, rtol=0, atol=1e-8)


@EXAMPLES
@given(encodings, st.floats(-3, 3), st.floats(-3, 3))
def test_the_group_law(enc, s, t):
    """A(t) A(s) = A(t + s), A(0) = I, A(t) A(-t) = I."""
    generator = enc.generator()
    a, b, c, inverse = (generator.matrix(torch.tensor(x, dtype=F64)) for x in (t, s, t + s, -t))
    eye = torch.eye(generator.dim, dtype=F64).expand_as(a)
    size = float(a.abs().max() * b.abs().max()) + float(c.abs().max()) + 1
    assert torch.allclose(a @ b, c, rtol=0, atol=1e-11 * size)
    assert torch.allclose(generator.matrix(torch.tensor(0.0, dtype=F64)).to(F64), eye, rtol=0, atol=0)
    assert torch.allclose(a @ inverse, eye, rtol=0, atol=1e-11 * (1 + float(a.abs().max() * inverse.abs().max())))


@EXAMPLES
@given(encodings, st.floats(-3, 3))
def test_the_exponential_is_that_of_the_matrix(enc, t):
    generator = enc.generator()
    expected = torch.matrix_exp(t * generator.matrix().to(F64))
    got = generator.matrix(torch.tensor(t, dtype=F64)).to(F64)
    assert torch.allclose(got, expected, rtol=0, atol=1e-9 * (1 + float(expected.abs().max())))


@EXAMPLES
@given(encodings, st.floats(-2, 2), st.floats(-2, 2), seeds)
def test_contragredience(enc, t, s, seed):
    """(exp(tL)^T q) . (exp(-sL) k) = q . exp((t - s) L) k; the transposed generator has the transposed matrix."""
    generator = enc.generator()
    random = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(1, generator.heads, 1, generator.dim, generator=random, dtype=F64) for _ in range(2))
    left = generator.T.act(q, torch.tensor([t], dtype=F64)) * generator.act(k, torch.tensor([-s], dtype=F64))
    middle = generator.matrix(torch.tensor(t - s, dtype=F64)).to(F64)
    expected = (q[..., None, :] @ (middle[:, None] if middle.ndim == 3 else middle) @ k[..., None])[..., 0, 0]
    size = 1 + float(left.abs().max())
    assert torch.allclose(left.sum(-1), expected, rtol=0, atol=1e-10 * size)
    assert torch.allclose(generator.T.matrix(), generator.matrix().mT, rtol=0, atol=0)


@EXAMPLES
@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=4),
    st.lists(st.integers(0, 10**9), min_size=1, max_size=300),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, F64]),
    st.sampled_from(["decay", "damped_rope", "decay_bias"]),
    seeds,
)
def test_underflow_not_overflow(rates, gaps, dtype, recipe, seed):
    """Any rate, any gap: every output and gradient is finite, and the output is the true one."""
    width = 2 * len(rates)
    enc = {
        "decay": lambda: ec.decay(width, rate=rates * 2),
        "damped_rope": lambda: ec.damped_rope(width, rate=rates),
        "decay_bias": lambda: ec.decay_bias(width, heads=2, rate=rates[0]),
    }[recipe]()
    times = torch.tensor(gaps).cumsum(0)
    q, k, v = (x.requires_grad_() for x in content(enc, len(gaps), seed, dtype))
    out, lse = ec.attention(q, k, v, enc, times=times, return_lse=True)
    out.double().square().sum().backward()
    for what, x in {"out": out, "lse": lse, "dq": q.grad, "dk": k.grad, "dv": v.grad}.items():
        assert torch.isfinite(x).all(), what
    expected = ec.scores(q.detach().double(), k.detach().double(), enc, times=times).softmax(-1) @ v.detach().double()
    # An angle of 1e9 radians, of a key or of a lag, is itself rounded in float64.
    angle = torch.finfo(torch.float64).eps * float(times[-1]) if recipe == "damped_rope" else 0.0
    assert (out.double() - expected).abs().max() <= 20 * max(torch.finfo(dtype).eps, 1e-12) + 4 * angle


@pytest.mark.parametrize("backend", ["auto", "tiled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rate_five_over_twenty_thousand_irregular_steps(dtype, backend):
    """The key factor on its own would be exp(5 * 20 000); forward and backward stay finite, and right where checked."""
    torch.manual_seed(0)
    n, width = 20_000, 16
    enc = ec.damped_rope(width, rate=5.0, learn=("freq", "rate"))
    times = (torch.rand(n, dtype=F64) * 2).cumsum(0).requires_grad_()  # a step of 1 on average
    q, k, v = (torch.randn(1, 1, n, width).to(dtype).requires_grad_() for _ in range(3))
    out = ec.attention(q, k, v, enc, times=times, backend=backend)
    out.float().square().sum().backward()
    for x in (out, q.grad, k.grad, v.grad, times.grad, *(p.grad for p in enc.parameters())):
        assert torch.isfinite(x).all()
    tail = slice(n - 30, n)
    with torch.no_grad():
        z = ec.scores(q[:, :, tail].double(), k.double(), enc, times=times[tail], key_times=times)
        expected = z.softmax(-1) @ v.double()
    assert (out[:, :, tail].double() - expected).abs().max() <= 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("backend", ["auto", "tiled"])
def test_steps_without_decay_beside_steps_that_erase(backend):
    """Ties, tiny steps and gaps of a million in one leaf: nothing is lost between neighbours after a gap."""
    torch.manual_seed(1)
    gaps = torch.ones(600, dtype=F64) * 1e-3
    gaps[::37], gaps[::50] = 1e6, 0.0
    times = gaps.cumsum(0)
    q, k, v = (torch.randn(1, 2, 600, 8, dtype=F64) for _ in range(3))
    rates = [0.0, 0.1, 5.0, 100.0]
    for enc in (
        ec.damped_rope(8, freq=[0.0, 1e-3, 1e-2, 1.0], rate=rates),
        ec.decay(8, rate=rates * 2),
        ec.decay_bias(8, heads=2, rate=2.0),
    ):
        expected = ec.scores(q, k, enc, times=times).softmax(-1) @ v
        try:
            out = ec.attention(q, k, v, enc, times=times, backend=backend)
            single = ec.attention(q.float(), k.float(), v.float(), enc, times=times, backend=backend)
        except ec.UnsupportedError as refusal:
            pytest.skip(f"declined: {refusal}")
        assert torch.allclose(out, expected, rtol=0, atol=1e-10)
        assert torch.allclose(single.double(), expected, rtol=0, atol=5e-5)


@EXAMPLES
@given(encodings, st.integers(1, 12), st.integers(1, 40), seeds)
def test_causality(enc, cut, length, seed):
    """Changing the future changes no bit of the past."""
    q, k, v = content(enc, length, seed)
    cut = min(cut, length)
    before = ec.attention(q, k, v, enc)
    for x in (q, k, v):
        x[:, :, cut:] = 100.0
    assert torch.allclose(ec.attention(q, k, v, enc)[:, :, :cut], before[:, :, :cut], rtol=0, atol=1e-6)


@EXAMPLES
@given(encodings)
def test_specs_round_trip(enc):
    twin = ec.encoding(str(enc))
    assert str(twin) == str(enc)
    q, k, _ = content(enc, 9, 0)
    assert math.isclose(
        float((ec.scores(q, k, twin).nan_to_num(neginf=0) - ec.scores(q, k, enc).nan_to_num(neginf=0)).abs().max()), 0.0, abs_tol=1e-6
    )
