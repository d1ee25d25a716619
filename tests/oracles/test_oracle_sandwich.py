"""Sandwich: the inner product of two sinusoidal vectors as a bias, written out."""

import math

import pytest
import torch
from torch import Tensor

import eigenclock as ec

F64 = torch.float64


def overlap(heads: int, width: int, theta: float, times: Tensor) -> Tensor:
    """p_t . p_s / (8h/H) with p_t = (sin(t / theta^(2i/width)), cos(..)), i = 1 .. width/2, heads counted from 1."""
    i = torch.arange(1, width // 2 + 1, dtype=F64)
    angle = times[:, None] / theta ** (2 * i / width)
    p = torch.cat([angle.sin(), angle.cos()], -1)
    return (p @ p.T) / (8 * torch.arange(1, heads + 1, dtype=F64) / heads)[:, None, None]


@pytest.mark.parametrize("backend", ["auto", "reference", "tiled"])
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "width", "theta"), [(4, 128, 1e4), (3, 10, 50.0)])
def test_written_out(agree, backend, dtype, heads, width, theta):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 70, 8, dtype=F64) for _ in range(3))
    bias = overlap(heads, width, theta, torch.arange(70, dtype=F64))
    future = torch.ones(70, 70, dtype=torch.bool).triu(1)
    enc = ec.sandwich(8, heads=heads, width=width, theta=theta)

    def oracle(q, k, v):
        return (q @ k.mT / math.sqrt(8) + bias).masked_fill(future, -torch.inf).softmax(-1) @ v

    agree(lambda q, k, v: ec.attention(q, k, v, enc, backend=backend), oracle, q, k, v, dtype=dtype)


def test_defaults_and_the_row_of_a_constant():
    """128 coordinates, base 10000; what is subtracted from every logit alike (width/2 in some code) leaves softmax alone."""
    times, q = torch.arange(12) * 3.7, torch.zeros(1, 2, 12, 4, dtype=F64)
    z = ec.scores(q, q, ec.sandwich(4, heads=2), times=times)[0]
    expected = overlap(2, 128, 1e4, times.double()).masked_fill(torch.ones(12, 12, dtype=torch.bool).triu(1), -torch.inf)
    assert torch.allclose(z, expected, rtol=0, atol=1e-10)
    assert torch.allclose((expected - 64).softmax(-1), z.softmax(-1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["reference", "tiled"])
def test_learned_amplitudes_and_frequencies(backend):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 40, 4, dtype=F64) for _ in range(3))
    times = (torch.rand(40, dtype=F64) * 2).cumsum(-1)
    enc = ec.sandwich(4, heads=2, width=4, theta=10.0, amplitude=(0.5, 0.2), learn=("freq", "amplitude")).double()
    freq, amplitude = torch.tensor([10**-0.5, 0.1], dtype=F64), torch.tensor([0.5, 0.2], dtype=F64)
    logs = [x.log().float().double().requires_grad_() for x in (freq, amplitude)]  # trained on a log scale, kept in float32

    def oracle() -> Tensor:
        lag = (times[:, None] - times)[..., None]
        bias = (logs[0].exp() * lag).cos().sum(-1) * logs[1].exp()[:, None, None]
        future = torch.ones(40, 40, dtype=torch.bool).triu(1)
        return (q @ k.mT / 2 + bias).masked_fill(future, -torch.inf).softmax(-1) @ v

    g, expected = torch.randn(1, 2, 40, 4, dtype=F64), oracle()
    want = torch.autograd.grad(expected, logs, g)
    out = ec.attention(q, k, v, enc, times=times, backend=backend)
    assert torch.allclose(out, expected, rtol=0, atol=1e-9)
    for a, b in zip(torch.autograd.grad(out, list(enc.parameters()), g), want, strict=True):
        assert torch.allclose(a.double(), b, rtol=1e-5, atol=1e-7)


def test_refusals():
    with pytest.raises(ec.ShapeError, match="width=9"):
        ec.sandwich(4, heads=2, width=9)
    with pytest.raises(ec.ConfigError, match="width=0"):
        ec.sandwich(4, heads=2, width=0)
    with pytest.raises(ec.ConfigError, match="base above 0"):
        ec.sandwich(4, heads=2, theta=-3.0)
