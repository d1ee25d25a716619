"""xPos against its formula written out with two separate factors, with any centre, and against another package."""

import math

import pytest
import torch
from torch import Tensor

import eigenclock as ec

F64 = torch.float64
BACKENDS = ["auto", "reference", "tiled"]


def content(heads=2, length=64, width=16, batch=2, seed=0):
    torch.manual_seed(seed)
    return [torch.randn(batch, heads, length, width, dtype=F64) for _ in range(3)]


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    z = q @ k.mT / math.sqrt(q.shape[-1])
    return z.masked_fill(torch.ones_like(z, dtype=torch.bool).triu(1), -torch.inf).softmax(-1) @ v


def side(x: Tensor, times: Tensor, f: Tensor, log_gain: Tensor, half: bool) -> Tensor:
    """Pair i turned by the angle t f_i and scaled by e^(t log_gain_i), channel by channel."""
    n = f.shape[-1]
    columns = list(x.unbind(-1))
    for i in range(n):
        a, b = (i, i + n) if half else (2 * i, 2 * i + 1)
        cos, sin, scale = (times * f[..., i]).cos(), (times * f[..., i]).sin(), (times * log_gain[..., i]).exp()
        columns[a], columns[b] = scale * (x[..., a] * cos - x[..., b] * sin), scale * (x[..., a] * sin + x[..., b] * cos)
    return torch.stack(columns, -1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize(("width", "scale_base", "theta", "centre"), [(16, None, None, 0), (16, 64, 100.0, 32), (6, 512.0, 1e6, 10)])
def test_written_out(agree, backend, dtype, pairing, width, scale_base, theta, centre):
    """Queries times zeta_i^(t/b), keys times zeta_i^(-s/b), zeta_i = (2i + 0.4 d)/(1.4 d): the centre of the times does not matter."""
    q, k, v = content(width=width)
    i = torch.arange(width // 2, dtype=F64)
    log_gain = ((2 * i + 0.4 * width) / (1.4 * width)).log() / (scale_base or 512)
    f, times, half = (theta or 1e4) ** (-2 * i / width), torch.arange(64, dtype=F64) - centre, pairing == "half"
    enc = ec.xpos(width, scale_base=scale_base, theta=theta, pairing=pairing)
    agree(
        lambda q, k, v: ec.attention(q, k, v, enc, backend=backend),
        lambda q, k, v: attend(side(q, times, f, log_gain, half), side(k, times, f, -log_gain, half), v),
        q, k, v, dtype=dtype,
    )  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_learned_rates_and_frequencies(agree, backend):
    q, k, v = content(width=8, length=40)
    enc = ec.xpos(8, heads=2, scale_base=4.0, learn=("freq", "rate")).double()
    times = (torch.rand(2, 40, dtype=F64) * 2).cumsum(-1)
    mine, theirs = times.clone().requires_grad_(), times.clone().requires_grad_()
    a = 2 * torch.arange(4)

    def in_use() -> tuple[Tensor, Tensor]:  # read off L = [[-rate, freq], [-freq, -rate]], whatever the parametrisation
        L = enc.generator().matrix()
        return L[:, a, a + 1], -L[:, a, a]

    f, rate = (x.detach().requires_grad_() for x in in_use())
    zeta = (torch.arange(4, dtype=F64) / 4 + 0.4) / 1.4
    assert torch.allclose(rate.detach(), (-zeta.log() / 4).expand(2, -1), rtol=1e-6, atol=0)

    def oracle(q, k, v):
        t = theirs[:, None]
        return attend(side(q, t, f[:, None], -rate[:, None], False), side(k, t, f[:, None], rate[:, None], False), v)

    agree(lambda q, k, v: ec.attention(q, k, v, enc, times=mine, backend=backend), oracle, q, k, v, extra=[(mine, theirs)])
    g = torch.randn(2, 2, 40, 8, dtype=F64)
    ec.attention(q, k, v, enc, times=times, backend=backend).backward(g)
    oracle(q, k, v).backward(g)
    pulled = torch.autograd.grad(in_use(), list(enc.parameters()), [f.grad, rate.grad])
    for p, expected in zip(enc.parameters(), pulled, strict=True):
        assert torch.allclose(p.grad, expected, rtol=1e-5, atol=1e-6 * expected.abs().max().item())


def test_half_life_of_the_fastest_pair():
    """The published block: zeta_0^(1/512) = 0.99756 per token at any width, a half-life of 283 tokens."""
    rate = float(-ec.xpos(64).generator().matrix()[0, 0])
    assert math.exp(-rate) == pytest.approx(0.99756, abs=5e-6)
    assert math.log(2) / rate == pytest.approx(283, abs=0.5)


@pytest.mark.peer("rotary_embedding_torch")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("width", "scale_base", "length"), [(16, 512, 64), (32, 128, 33)])
def test_rotary_embedding_torch(agree, backend, width, scale_base, length):
    """Their interleaved xPos, centred on the length, in float64 from tables of float32; outputs and gradients."""
    peer = pytest.importorskip("rotary_embedding_torch")
    q, k, v = content(width=width, length=length)
    rotary = peer.RotaryEmbedding(dim=width, use_xpos=True, xpos_scale_base=scale_base, cache_if_possible=False).double()
    enc = ec.xpos(width, scale_base=scale_base)
    agree(
        lambda q, k, v: ec.attention(q, k, v, enc, backend=backend),
        lambda q, k, v: attend(*rotary.rotate_queries_and_keys(q, k), v),
        q, k, v, dtype=torch.float32,
    )  # fmt: skip
