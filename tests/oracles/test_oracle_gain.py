"""Decay of the inner product: gates per channel as wall attention writes them, xPos written out, damped rotations written out."""

import math

import pytest
import torch
from torch import Tensor

import eigenclock as ec

F64 = torch.float64
BACKENDS = ["auto", "reference", "tiled"]


def content(heads=2, length=60, width=8, batch=2, seed=0):
    torch.manual_seed(seed)
    return [torch.randn(batch, heads, length, width, dtype=F64) for _ in range(3)]


def gated(q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor) -> Tensor:
    """logit_ts = scale * sum_n q_tn k_sn e^(P_tn - P_sn) over s <= t, P the running sum of the log-gates: a clock per channel."""
    length, scale = q.shape[-2], 1 / math.sqrt(q.shape[-1])
    total = log_gate.cumsum(-2)
    rows = []
    for t in range(length):
        lag = total[..., t : t + 1, :] - total[..., : t + 1, :]
        z = scale * (q[..., t : t + 1, :] * k[..., : t + 1, :] * lag.exp()).sum(-1)
        rows.append((z.softmax(-1)[..., None] * v[..., : t + 1, :]).sum(-2))
    return torch.stack(rows, -2)


def per_channel(pairs: Tensor, half: bool) -> Tensor:
    """A value per pair laid out over the channels."""
    return torch.cat([pairs, pairs], -1) if half else pairs.repeat_interleave(2, -1)


def rotation(x: Tensor, angle: Tensor, half: bool) -> Tensor:
    """Pairs of x as complex numbers, turned by e^(i angle)."""
    d = x.shape[-1]
    a, b = (x[..., : d // 2], x[..., d // 2 :]) if half else (x[..., 0::2], x[..., 1::2])
    turned = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], -1) if half else torch.stack([turned.real, turned.imag], -1).flatten(-2)


RATES = {  # name -> (rates, are they one per pair?)
    "scalar": (0.1, False),
    "channels": ([0.0, 0.02, 0.3, 2.0, 0.1, 5.0, 1e-3, 0.5], False),
    "heads and channels": ([[0.0, 0.02, 0.3, 2.0, 0.1, 5.0, 1e-3, 0.5], [1.0, 0.1, 0.0, 0.7, 3.0, 0.04, 0.2, 0.01]], False),
    "pairs": ([0.0, 0.02, 0.3, 2.0], True),
    "heads and pairs": ([[0.0, 0.02, 0.3, 2.0], [1e-3, 1.0, 5.0, 0.1]], True),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rates", RATES)
@pytest.mark.parametrize("length", [17, 150])
def test_constant_gates_per_channel(agree, backend, dtype, rates, length):
    """A gate e^(-rate) at every step is ``decay``, and ``damped_rope`` with no turning where both channels of a pair share it."""
    q, k, v = content(length=length)
    rate, pairs = RATES[rates]
    table = torch.as_tensor(rate, dtype=F64)
    table = per_channel(table, False) if pairs else table if table.ndim else table.expand(8)
    heads = 2 if table.ndim == 2 else 1
    enc = ec.damped_rope(8, heads=heads, freq=[0.0] * 4, rate=rate) if pairs else ec.decay(8, heads=heads, rate=rate)
    gates = -table.expand(2, 8)[:, None, :].expand(2, length, 8)
    agree(lambda q, k, v: ec.attention(q, k, v, enc, backend=backend), lambda q, k, v: gated(q, k, v, gates), q, k, v, dtype=dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
def test_gates_that_follow_irregular_times(agree, backend, dtype):
    """Gate e^(-rate dt) over each row's own steps, ties among them."""
    q, k, v = content(length=90)
    torch.manual_seed(3)
    steps = torch.rand(2, 90, dtype=F64) * 3
    steps[:, 20:24] = 0
    rate = torch.tensor([0.01, 0.1, 0.5, 3.0], dtype=F64)
    gates = -(per_channel(rate, False) * steps[:, None, :, None]).expand(2, 2, 90, 8)
    enc = ec.decay(8, rate=rate.repeat_interleave(2).tolist())
    agree(
        lambda q, k, v: ec.attention(q, k, v, enc, times=steps.cumsum(-1), backend=backend),
        lambda q, k, v: gated(q, k, v, gates),
        q,
        k,
        v,
        dtype=dtype,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
def test_xpos_written_out(agree, backend, pairing, dtype):
    """Queries times zeta_i^(t/512), keys times zeta_i^(-s/512), zeta_i = (i/(d/2) + 0.4)/1.4, on top of the rotation, at small t."""
    width, length, half = 16, 64, pairing == "half"
    q, k, v = content(width=width, length=length)
    i = torch.arange(width // 2, dtype=F64)
    zeta, f, t = (i / (width / 2) + 0.4) / 1.4, 10_000 ** (-2 * i / width), torch.arange(length, dtype=F64)[:, None]
    gain = per_channel(zeta, half) ** (t / 512)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)

    def oracle(q, k, v):
        z = (rotation(q, t * f, half) * gain) @ (rotation(k, t * f, half) / gain).mT / math.sqrt(width)
        return z.masked_fill(future, -torch.inf).softmax(-1) @ v

    enc = ec.damped_rope(width, rate=(-zeta.log() / 512).tolist(), pairing=pairing)
    agree(lambda q, k, v: ec.attention(q, k, v, enc, backend=backend), oracle, q, k, v, dtype=dtype)


def in_use(enc: ec.Encoding, heads: int, width: int, half: bool) -> tuple[Tensor, Tensor]:
    """(frequencies, rates), (heads, pairs), read off L = [[-a, f], [-f, -a]] pair by pair: differentiable in whatever is trained."""
    matrix = enc.generator().matrix().reshape(heads, width, width)
    x = torch.arange(width // 2) if half else 2 * torch.arange(width // 2)
    return matrix[:, x, x + (width // 2 if half else 1)], -matrix[:, x, x]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("length", [40, 200])
def test_damped_rotation_with_gradients_to_everything(agree, backend, pairing, length):
    """e^(-a u) (q, R(-f u) k), u the lag: gradients to q, k, v, times, and the rates and frequencies per head and pair."""
    half, heads, width = pairing == "half", 2, 8
    q, k, v = content(length=length)
    freq, rate = [[1.0, 0.3, 0.1, -0.2], [0.5, 0.05, 2.0, 0.01]], [[0.3, 0.02, 0.7, 0.1], [0.01, 1.5, 0.05, 0.2]]
    enc = ec.damped_rope(width, heads=heads, freq=freq, rate=rate, learn=("freq", "rate"), pairing=pairing).double()
    torch.manual_seed(4)
    times = (torch.rand(2, length, dtype=F64) * 2).cumsum(-1)
    mine, theirs = times.clone().requires_grad_(), times.clone().requires_grad_()
    turn, decay = in_use(enc, heads, width, half)
    for used, given in ((turn, freq), (decay, rate)):  # trainable numbers are kept in float32
        assert torch.allclose(used.detach(), torch.tensor(given, dtype=F64), rtol=1e-6, atol=0)
    f, a = turn.detach().requires_grad_(), decay.detach().requires_grad_()
    future = torch.ones(length, length, dtype=torch.bool).triu(1)

    def oracle(q, k, v):
        lag = (theirs[:, :, None] - theirs[:, None, :]).masked_fill(future, 0.0)[:, None, :, :, None]
        at = lambda x: x[:, None, None, :]  # noqa: E731
        d = width // 2
        (qx, qy), (kx, ky) = ((x[..., :d], x[..., d:]) if half else (x[..., 0::2], x[..., 1::2]) for x in (q, k))
        qx, qy, kx, ky = qx[..., :, None, :], qy[..., :, None, :], kx[..., None, :, :], ky[..., None, :, :]
        pair = (qx * kx + qy * ky) * (at(f) * lag).cos() + (qx * ky - qy * kx) * (at(f) * lag).sin()
        z = ((-at(a) * lag).exp() * pair).sum(-1) / math.sqrt(width)
        return z.masked_fill(future, -torch.inf).softmax(-1) @ v

    agree(lambda q, k, v: ec.attention(q, k, v, enc, times=mine, backend=backend), oracle, q, k, v, extra=[(mine, theirs)])
    g = torch.randn(2, heads, length, width, dtype=F64)
    ec.attention(q, k, v, enc, times=times, backend=backend).backward(g)
    oracle(q, k, v).backward(g)
    pulled = torch.autograd.grad(in_use(enc, heads, width, half), list(enc.parameters()), [f.grad, a.grad])
    for p, expected in zip(enc.parameters(), pulled, strict=True):
        assert torch.allclose(p.grad, expected, rtol=1e-5, atol=1e-7 * expected.abs().max().item())


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_contragredient_pair(pairing):
    """exp(tL)^T on the query is e^(-at) R(+ft), exp(-sL) on the key e^(+as) R(+fs): not one map on both."""
    half, rate, f, t = pairing == "half", 0.3, 0.7, 1.25
    generator = ec.damped_rope(2, freq=[f], rate=rate, pairing=pairing).generator()
    x = torch.tensor([[[[1.0, 2.0]]]], dtype=F64)
    turned = rotation(x, torch.tensor([t * f], dtype=F64), half)
    assert torch.allclose(generator.T.act(x, torch.tensor([t], dtype=F64)), math.exp(-rate * t) * turned, rtol=0, atol=1e-12)
    assert torch.allclose(generator.act(x, torch.tensor([-t], dtype=F64)), math.exp(rate * t) * turned, rtol=0, atol=1e-12)
