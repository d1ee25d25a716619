"""Linear bias and decay of the weights: ALiBi written out, lifted, as BLOOM and MPT build it, and retention's twin in softmax."""

import math

import pytest
import torch
from torch import Tensor

import eigenclock as ec

F64 = torch.float64
BACKENDS = ["auto", "reference", "sdpa", "tiled"]


def published_slopes(heads: int) -> list[float]:
    """2^(-8i/p), i = 1..p, for the largest power of two p <= heads; then every other slope of the set of 2p."""
    p = 2 ** math.floor(math.log2(heads))
    return [2 ** (-8 * i / p) for i in range(1, p + 1)] + [2 ** (-4 * (2 * i - 1) / p) for i in range(1, heads - p + 1)]


def biased(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, times: Tensor) -> Tensor:
    """softmax over s <= t of q.k / sqrt d - m_h (t - s): the bias is added after the scale."""
    lag = times[..., :, None] - times[..., None, :]
    z = q @ k.mT / math.sqrt(q.shape[-1]) - slopes[:, None, None] * lag
    future = torch.ones(z.shape[-2:], dtype=torch.bool).triu(1)
    return z.masked_fill(future, -torch.inf).softmax(-1) @ v


def content(heads, length=33, width=8, seed=0):
    torch.manual_seed(seed)
    return [torch.randn(1, heads, length, width, dtype=F64) for _ in range(3)]


def slopes_in_use(enc: ec.Encoding, heads: int) -> Tensor:
    """What one unit of lag costs: the logit of the key before, content zero."""
    q = torch.zeros(1, heads, 2, enc.head_dim, dtype=F64)
    return -ec.scores(q, q, enc)[0, :, 1, 0]


@pytest.mark.parametrize("heads", range(1, 65))
def test_slopes_written_out(heads):
    expected = torch.tensor(published_slopes(heads), dtype=F64)
    assert torch.allclose(slopes_in_use(ec.alibi(8, heads=heads), heads), expected, rtol=1e-7, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "length"), [(8, 33), (12, 33), (2, 200)])
def test_attention_written_out(agree, backend, dtype, heads, length):
    q, k, v = content(heads, length)
    slopes, times, enc = torch.tensor(published_slopes(heads), dtype=F64), torch.arange(length, dtype=F64), ec.alibi(8, heads=heads)
    agree(lambda q, k, v: ec.attention(q, k, v, enc, backend=backend), lambda q, k, v: biased(q, k, v, slopes, times), q, k, v, dtype=dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("length", [33, 150])
@pytest.mark.parametrize(
    "build",
    [
        lambda: ec.alibi(8, heads=3, slopes=(0.5, 0.1, 0.02), learn=("slope",)),
        lambda: ec.decay_bias(8, heads=3, rate=[0.5, 0.1, 0.02], learn=("rate",)),
    ],
    ids=["alibi", "decay_bias"],
)
def test_learned_slopes_and_times(agree, backend, length, build):
    q, k, v = content(3, length)
    enc = build().double()
    torch.manual_seed(2)
    times = (torch.rand(length, dtype=F64) * 2).cumsum(0)
    mine, theirs = times.clone().requires_grad_(), times.clone().requires_grad_()
    slopes = slopes_in_use(enc, 3).detach().requires_grad_()  # a trainable number is kept in float32
    assert torch.allclose(slopes.detach(), torch.tensor([0.5, 0.1, 0.02], dtype=F64), rtol=1e-6, atol=0)
    oracle = lambda q, k, v: biased(q, k, v, slopes, theirs)  # noqa: E731
    agree(lambda q, k, v: ec.attention(q, k, v, enc, times=mine, backend=backend), oracle, q, k, v, extra=[(mine, theirs)])
    g = torch.randn(1, 3, length, 8, dtype=F64)
    ec.attention(q, k, v, enc, times=times, backend=backend).backward(g)
    oracle(q, k, v).backward(g)
    (p,) = enc.parameters()
    (pulled,) = torch.autograd.grad(slopes_in_use(enc, 3), [p], slopes.grad)
    assert torch.allclose(p.grad, pulled, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("slope_count", [1, 4])
def test_the_lift_gives_the_scores(slope_count):
    """Two coordinates, L = 0 + N with N = [[0, 1], [0, 0]]: q~ = (q; -m sqrt d, 0), k~ = (k; 0, 1), then exp(tL)^T q~ . exp(-sL) k~."""
    q, k, _ = content(slope_count, 21)
    d, times = 8, torch.linspace(0, 50, 21, dtype=F64).square() / 50
    slopes = torch.tensor(published_slopes(slope_count), dtype=F64)
    nilpotent = torch.zeros(d + 2, d + 2, dtype=F64)
    nilpotent[d, d + 1] = 1
    lift_q = torch.cat([q, (-slopes * math.sqrt(d))[:, None, None].expand(1, -1, 21, 1), q.new_zeros(1, slope_count, 21, 1)], -1)
    lift_k = torch.cat([k, k.new_zeros(1, slope_count, 21, 1), k.new_ones(1, slope_count, 21, 1)], -1)
    query = torch.stack([lift_q[..., i, :] @ torch.matrix_exp(t * nilpotent) for i, t in enumerate(times)], -2)
    key = torch.stack([lift_k[..., i, :] @ torch.matrix_exp(-s * nilpotent).T for i, s in enumerate(times)], -2)
    expected = query @ key.mT / math.sqrt(d)
    z = ec.scores(q, k, ec.alibi(d, heads=slope_count), times=times)
    seen = torch.ones(21, 21, dtype=torch.bool).tril()
    assert torch.allclose(z[..., seen], expected[..., seen], rtol=0, atol=1e-11)
    assert (z[..., ~seen] == -torch.inf).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("retention", [(0.96875, 0.984375, 0.9921875), (0.5, 0.9, 0.999)])
def test_the_softmax_twin_of_retention(agree, backend, dtype, retention):
    """sum_s gamma^(t-s) e^(q.k / sqrt d) v_s over its sum without v is decay_bias with rate -ln gamma."""
    q, k, v = content(3, 60)
    gamma = torch.tensor(retention, dtype=F64)
    lag = torch.arange(60)[:, None] - torch.arange(60)
    weight = (gamma[:, None, None] ** lag.clamp_min(0)).masked_fill(lag < 0, 0.0)

    def oracle(q, k, v):
        w = weight * (q @ k.mT / math.sqrt(8)).exp()
        return w @ v / w.sum(-1, keepdim=True)

    enc = ec.decay_bias(8, heads=3, rate=[-math.log(x) for x in retention])
    agree(lambda q, k, v: ec.attention(q, k, v, enc, backend=backend), oracle, q, k, v, dtype=dtype)


def test_gain_and_bias_are_not_each_other():
    """The same rate as a gain on the inner product: far keys turn neutral, they are not forgotten."""
    q, k, v = content(1, 60)
    gain, bias = ec.attention(q, k, v, ec.decay(8, rate=0.1)), ec.attention(q, k, v, ec.decay_bias(8, heads=1, rate=0.1))
    assert (gain - bias).abs().max() > 0.1


@pytest.mark.peer("transformers")
@pytest.mark.parametrize("heads", range(1, 65))
def test_slopes_of_bloom_and_mpt(heads):
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt")
    ours = slopes_in_use(ec.alibi(8, heads=heads), heads)
    tensor = bloom.build_alibi_tensor(torch.ones(1, 5), heads, torch.float32).reshape(heads, 5)
    assert torch.allclose(ours, (tensor[:, 1] - tensor[:, 0]).double(), rtol=1e-6, atol=0)
    tensor = mpt.build_mpt_alibi_tensor(heads, 5).reshape(heads, 5)
    assert torch.allclose(ours, (tensor[:, 1] - tensor[:, 0]).double(), rtol=1e-6, atol=0)


@pytest.mark.peer("transformers")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("source", ["bloom", "mpt"])
@pytest.mark.parametrize("heads", [1, 3, 6, 8, 16])
def test_attention_with_the_tensor_of_bloom_and_mpt(agree, backend, dtype, source, heads):
    module = pytest.importorskip(f"transformers.models.{source}.modeling_{source}")
    q, k, v = content(heads, 40)
    bias = (
        module.build_alibi_tensor(torch.ones(1, 40), heads, torch.float32)
        if source == "bloom"
        else module.build_mpt_alibi_tensor(heads, 40)
    )
    future = torch.ones(40, 40, dtype=torch.bool).triu(1)

    def oracle(q, k, v):
        z = q @ k.mT / math.sqrt(8) + bias.reshape(heads, 1, 40).double()
        return z.masked_fill(future, -torch.inf).softmax(-1) @ v

    agree(lambda q, k, v: ec.attention(q, k, v, ec.alibi(8, heads=heads), backend=backend), oracle, q, k, v, dtype=dtype)


@pytest.mark.peer("transformers")
@pytest.mark.parametrize("backend", BACKENDS)
def test_padded_rows_as_bloom_counts_them(backend):
    """BLOOM counts real tokens by the mask; for a relative bias any origin will do."""
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    heads, pads = 4, 7
    q, k, v = content(heads, 40)
    mask = torch.ones(1, 40)
    mask[:, :pads] = 0
    bias = bloom.build_alibi_tensor(mask, heads, torch.float32).reshape(heads, 1, 40).double()
    future = torch.ones(40, 40, dtype=torch.bool).triu(1)
    z = (q @ k.mT / math.sqrt(8) + bias).masked_fill(future | ~mask.bool(), -torch.inf)
    expected = z[:, :, pads:].softmax(-1) @ v
    try:
        out = ec.attention(q, k, v, ec.alibi(8, heads=heads), mask=mask.bool(), backend=backend)
    except ec.UnsupportedError as refusal:
        pytest.skip(f"declined: {refusal}")
    assert torch.allclose(out[:, :, pads:], expected, rtol=0, atol=1e-6)
