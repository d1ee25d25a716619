"""RetNet: retention scores written out with complex numbers, its constants, and its twin in softmax."""

import math

import pytest
import torch
from torch import Tensor

import eigenclock as ec

F64 = torch.float64
BACKENDS = ["auto", "reference", "tiled"]


def content(heads=3, length=60, width=8, batch=2, seed=0):
    torch.manual_seed(seed)
    return [torch.randn(batch, heads, length, width, dtype=F64) for _ in range(3)]


def constants(heads: int, width: int) -> tuple[Tensor, Tensor]:
    """gamma_h = 1 - 2^(-5-h) and theta_i = 10000^(-x_i), x spread from 0 to 1, both ends included."""
    gamma = torch.tensor([1 - 2.0 ** (-5 - h) for h in range(heads)], dtype=F64)
    return gamma, torch.tensor([10000.0 ** -(i / max(width // 2 - 1, 1)) for i in range(width // 2)], dtype=F64)


def retention_scores(q: Tensor, k: Tensor, gamma: Tensor, theta: Tensor, half: bool) -> Tensor:
    """(Q e^(i n theta)) (K e^(i m theta))^dagger times gamma^(n - m) for n >= m and 0 otherwise: the parallel form, not normalised."""
    n = torch.arange(q.shape[-2], dtype=F64)

    def turned(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1) if half else (x[..., 0::2], x[..., 1::2])
        return torch.complex(a, b) * torch.polar(torch.ones(len(n), len(theta), dtype=F64), n[:, None] * theta)

    product = (turned(q) @ turned(k).conj().mT).real
    lag = n[:, None] - n
    return product * torch.where(lag >= 0, gamma[:, None, None] ** lag.clamp_min(0), 0.0)


@pytest.mark.parametrize(("heads", "width"), [(1, 2), (3, 8), (8, 64)])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_scores_are_those_of_retention(heads, width, pairing):
    q, k, _ = content(heads, 25, width)
    z = ec.scores(q, k, ec.retnet(width, heads=heads, pairing=pairing), scale=1.0)
    expected = retention_scores(q, k, *constants(heads, width), pairing == "half")
    assert torch.allclose(z.masked_fill(z == -torch.inf, 0.0), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_in_softmax(agree, backend, dtype, pairing):
    """The gain inside softmax, gradients included."""
    q, k, v = content()
    gamma, theta = constants(3, 8)
    future = torch.ones(60, 60, dtype=torch.bool).triu(1)

    def oracle(q, k, v):
        z = retention_scores(q, k, gamma, theta, pairing == "half") / math.sqrt(8)
        return z.masked_fill(future, -torch.inf).softmax(-1) @ v

    enc = ec.retnet(8, heads=3, pairing=pairing)
    agree(lambda q, k, v: ec.attention(q, k, v, enc, backend=backend), oracle, q, k, v, dtype=dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
def test_its_softmax_twin(agree, backend, dtype):
    """sum_s gamma^(t-s) e^(turned q . turned k) v_s over its sum: the rotation of RetNet times ALiBi with slope -ln gamma."""
    q, k, v = content()
    gamma, theta = constants(3, 8)
    lag = torch.arange(60)[:, None] - torch.arange(60)
    weight = torch.where(lag >= 0, gamma[:, None, None] ** lag.clamp_min(0), 0.0)
    plain = torch.ones(3, dtype=F64)  # no decay of the inner product

    def oracle(q, k, v):
        w = weight * (retention_scores(q, k, plain, theta, False) / math.sqrt(8)).exp()
        return w @ v / w.sum(-1, keepdim=True)

    enc = ec.rope(8, heads=3, freq=ec.retnet_angles()) * ec.decay_bias(8, heads=3, rate=ec.retnet_rates())
    agree(lambda q, k, v: ec.attention(q, k, v, enc, backend=backend), oracle, q, k, v, dtype=dtype)


def test_the_last_angle_is_not_that_of_rope():
    """1e-4 against 1.15e-4 at width 128."""
    last = [float(enc.generator().matrix().reshape(-1, 128, 128)[0, 126, 127]) for enc in (ec.retnet(128, heads=1), ec.rope(128))]
    assert last == pytest.approx([1e-4, 1.1548e-4], rel=1e-4)


@pytest.mark.parametrize("heads", [1, 4, 8])
def test_damped_rope_takes_its_rates_from_here(heads):
    rates = [-ec.damped_rope(4, heads=heads).generator().matrix(), -ec.retnet(4, heads=heads).generator().matrix()]
    a, b = (x.reshape(heads, 4, 4).diagonal(dim1=-2, dim2=-1) for x in rates)
    assert torch.equal(a, b)
    gamma, _ = constants(heads, 4)
    assert torch.allclose((-a).exp(), gamma[:, None].expand(-1, 4), rtol=1e-14, atol=0)
