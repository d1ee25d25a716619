"""Biases that are more than linear: the Gaussian kernel of KERPLE, and Transformer-XL as its authors write it."""

import math

import pytest
import torch
from torch import Tensor

import eigenclock as ec

F64 = torch.float64
BACKENDS = ["auto", "reference", "tiled"]


def content(heads: int = 3, length: int = 150, width: int = 8, seed: int = 0) -> list[Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(2, heads, length, width, dtype=F64) for _ in range(3)]


def weights(z: Tensor, causal: bool) -> Tensor:
    future = torch.ones(z.shape[-2:], dtype=torch.bool).triu(1)
    return (z.masked_fill(future, -torch.inf) if causal else z).softmax(-1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
def test_gaussian_written_out(agree, backend, causal, dtype):
    """KERPLE's power kernel with p = 2: -a |t - s|^2, irregular times."""
    q, k, v = content()
    times = (torch.rand(150, dtype=F64) * 2).cumsum(0)
    sigma = torch.tensor([2.0, 10.0, 300.0], dtype=F64)
    enc = ec.gaussian_bias(8, heads=3, sigma=sigma.tolist())

    def oracle(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        a = (1 / (2 * sigma**2))[:, None, None]
        return weights(q @ k.mT / math.sqrt(8) - a * (times[:, None] - times) ** 2, causal) @ v

    agree(lambda q, k, v: ec.attention(q, k, v, enc, times=times, causal=causal, backend=backend), oracle, q, k, v, dtype=dtype)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gaussian_gradients_to_widths_and_times(backend):
    q, k, v = content(length=60)
    enc = ec.gaussian_bias(8, heads=3, sigma=(2.0, 40.0), learn="sigma")
    (mine,) = enc.parameters()
    log_sigma = mine.detach().double().requires_grad_()
    start = (torch.rand(60, dtype=F64) * 2).cumsum(0)
    here, there = start.clone().requires_grad_(), start.clone().requires_grad_()
    lag = there[:, None] - there
    z = q @ k.mT / math.sqrt(8) - lag**2 / (2 * log_sigma.exp()[:, None, None] ** 2)
    expected, out = weights(z, True) @ v, ec.attention(q, k, v, enc, times=here, backend=backend)
    g = torch.randn_like(out)
    for a, b in zip(torch.autograd.grad(out, (mine, here), g), torch.autograd.grad(expected, (log_sigma, there), g), strict=True):
        assert torch.allclose(a.double(), b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [True, False])
def test_gaussian_far_from_the_origin_and_across_a_gap(dtype, causal):
    """Squares are taken of lags: a late start and a silence of a day in seconds cost no digit."""
    q, k, v = content(length=300)
    times = torch.arange(300, dtype=F64) * 0.5 + 1e9
    times[150:] += 86400.0
    enc = ec.gaussian_bias(8, heads=3, sigma=(1.0, 50.0))
    low = [x.to(dtype) for x in (q, k, v)]
    z = ec.scores(low[0].double(), low[1].double(), enc, times=times, causal=causal)
    expected = z.softmax(-1) @ low[2].double()
    error = (ec.attention(*low, enc, times=times, causal=causal).double() - expected).abs().max()
    assert error < 40 * torch.finfo(dtype).eps


def shifted(x: Tensor) -> Tensor:
    """The relative shift of the authors: scores against lags (.., T, T) in descending order become scores against keys."""
    rows = x.shape[-2]
    padded = torch.cat([x.new_zeros(*x.shape[:-1], 1), x], -1)
    return padded.reshape(*x.shape[:-2], rows + 1, rows)[..., 1:, :]


@pytest.mark.parametrize("backend", BACKENDS)
def test_transformer_xl_as_published(agree, backend):
    """(q + u) . k + (q + v) . W r, with the table of sinusoids and the shift trick of the authors, learned parts included."""
    heads, length, width, extra = 3, 60, 8, 6
    q, k, v = content(heads, length, width)
    torch.manual_seed(1)
    weight, u, p = (torch.randn(*s, dtype=F64) for s in ((heads, width, extra), (heads, width), (heads, width)))
    enc = ec.transformer_xl(width, heads=heads, sinusoids=extra, weight=weight, content=u, position=p)
    named = dict(enc.named_parameters())
    mine = [named[f"values.{name}.raw"] for name in ("weight", "content", "position")]
    theirs = [x.detach().double().clone().requires_grad_() for x in mine]

    def oracle(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weight, u, p = theirs
        lags = torch.arange(length - 1, -1, -1, dtype=F64)
        f = 10000.0 ** (-torch.arange(0, extra, 2, dtype=F64) / extra)
        table = torch.stack([(lags[:, None] * f).sin(), (lags[:, None] * f).cos()], -1).flatten(-2)
        by_lag = torch.einsum("bhtd,hdn,ln->bhtl", q + p[:, None], weight, table)
        z = (torch.einsum("bhtd,bhsd->bhts", q + u[:, None], k) + shifted(by_lag)) / math.sqrt(width)
        return weights(z, True) @ v

    q, k, v = (x.requires_grad_() for x in (q, k, v))
    out, expected = ec.attention(q, k, v, enc, backend=backend), oracle(q, k, v)
    assert torch.allclose(out, expected, rtol=0, atol=1e-6)  # the learned numbers are kept in float32
    g = torch.randn_like(out)
    got, want = torch.autograd.grad(out, (q, k, v, *mine), g), torch.autograd.grad(expected, (q, k, v, *theirs), g)
    for a, b in zip(got, want, strict=True):
        assert torch.allclose(a.double(), b, rtol=1e-4, atol=1e-5)
