"""Jordan-RoPE against complex Jordan blocks written out, and against the paper's pair of absolute maps by dense exponentials."""

import math

import pytest
import torch
from torch import Tensor

import eigenclock as ec

F64 = torch.float64
BACKENDS = ["auto", "reference", "tiled"]


def content(heads=2, length=40, width=16, batch=2, seed=0):
    torch.manual_seed(seed)
    return [torch.randn(batch, heads, length, width, dtype=F64) for _ in range(3)]


def spectrum(width: int, order: int, theta: float = 1e4) -> Tensor:
    """w_k = theta^(-2k/d), k < d/(2m): the upper part of the spectrum of RoPE."""
    return torch.tensor([theta ** (-2 * k / width) for k in range(width // (2 * order))], dtype=F64)


def levels(x: Tensor, order: int, half: bool) -> list[Tensor]:
    """Each level's pairs as complex numbers (..., T, blocks)."""
    out = []
    for level in x.chunk(order, -1):
        a, b = level.chunk(2, -1) if half else (level[..., 0::2], level[..., 1::2])
        out.append(torch.complex(a, b))
    return out


def logits(q: Tensor, k: Tensor, times: Tensor, order: int, w: Tensor, g: Tensor, eta: Tensor, half: bool) -> Tensor:
    """sum over blocks of Re <q, e^((-g - i w) u) sum_r (eta u)^r / r! N^r k> / sqrt d, u = t - s: the complex Jordan block, term by term.

    w, g and eta are (blocks,) or (heads, blocks); both sides turn by + w times their time, hence -i.
    """
    lag = (times[..., :, None] - times[..., None, :]).clamp_min(0)[..., None]
    lag = lag if lag.ndim == 3 else lag[:, None]
    at = lambda p: p[..., None, None, :]  # noqa: E731
    z_q, z_k = levels(q, order, half), levels(k, order, half)
    total = torch.zeros(())
    for row in range(order):
        for column in range(row, order):
            r = column - row
            product = z_q[row].conj()[..., :, None, :] * z_k[column][..., None, :, :]
            total = total + (product * torch.exp((-at(g) - 1j * at(w)) * lag) * (at(eta) * lag) ** r / math.factorial(r)).real
    return total.sum(-1) / math.sqrt(q.shape[-1])


def attend(z: Tensor, v: Tensor) -> Tensor:
    return z.masked_fill(torch.ones_like(z, dtype=torch.bool).triu(1), -torch.inf).softmax(-1) @ v


CASES = {
    "raw, as it starts": (16, {}, 1e-4, 0.1, 2),
    "raw": (16, {"rate": 0.05, "eta": 0.5, "theta": 100.0}, 0.05, 0.5, 2),
    "raw, order 3": (12, {"order": 3, "half_life": 20.0, "eta": -0.3}, math.log(2) / 20, -0.3, 3),
    "raw, order 4": (16, {"order": 4, "rate": [0.1, 0.3], "eta": [0.2, 0.4]}, [0.1, 0.3], [0.2, 0.4], 4),
    "scaled": (16, {"length": 32}, 1 / 32, 1 / 32, 2),
    "scaled, order 3": (24, {"order": 3, "length": 64, "c": 0.5, "eta": 2.0}, 0.5 / 64, 2 / 64, 3),
    "order 1": (16, {"order": 1, "rate": 0.1}, 0.1, 0.0, 1),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("name", CASES)
def test_written_out(agree, backend, dtype, pairing, name):
    width, options, rate, eta, order = CASES[name]
    q, k, v = content(width=width)
    w = spectrum(width, order, options.get("theta", 1e4))
    g, n = (torch.as_tensor(x, dtype=F64).expand(len(w)) for x in (rate, eta))
    enc, times = ec.jordan_rope(width, pairing=pairing, **options), torch.arange(40, dtype=F64)
    agree(
        lambda q, k, v: ec.attention(q, k, v, enc, backend=backend),
        lambda q, k, v: attend(logits(q, k, times, order, w, g, n, pairing == "half"), v),
        q, k, v, dtype=dtype,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("order", [2, 3])
def test_scaled_blocks_in_16_bits(agree, dtype, order):
    """With c = 1 the blocks stay below 1, and tiles act in float32 and cast once."""
    width = 12 * order
    q, k, v = content(width=width, length=150)
    enc, times = ec.jordan_rope(width, order=order, length=50), torch.arange(150, dtype=F64)
    w, one = spectrum(width, order), torch.full((6,), 1 / 50, dtype=F64)
    assert ec.explain(*(x.to(dtype) for x in (q, k, v)), enc).backend == "tiled"
    oracle = lambda q, k, v: attend(logits(q, k, times, order, w, one, one, False), v)  # noqa: E731
    agree(lambda q, k, v: ec.attention(q, k, v, enc), oracle, q, k, v, dtype=dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("length", [40, 200])
def test_gradients_to_everything(agree, backend, order, length):
    """q, k, v, times, and a rate, a frequency and a superdiagonal per head and block."""
    width, heads = 4 * order, 2
    q, k, v = content(heads, length, width)
    start = {"rate": [[0.3, 0.05], [0.02, 0.7]], "freq": [[1.0, -0.2], [0.3, 2.0]], "eta": [[0.5, 0.1], [-0.2, 0.3]]}
    enc = ec.jordan_rope(width, heads=heads, order=order, **start, learn=("freq", "rate", "eta")).double()
    times = (torch.rand(2, length, dtype=F64) * 2).cumsum(-1)
    mine, theirs = times.clone().requires_grad_(), times.clone().requires_grad_()

    def in_use() -> tuple[Tensor, ...]:  # read off L, whatever the parametrisation: block i, level 0, is channels 2i and 2i + 1
        L, a = enc.generator().matrix(), torch.tensor([0, 2])
        return L[:, a, a + 1], -L[:, a, a], L[:, a, a + 4]

    w, g, n = (x.detach().requires_grad_() for x in in_use())
    for used, given in ((w, "freq"), (g, "rate"), (n, "eta")):
        assert torch.allclose(used.detach(), torch.tensor(start[given], dtype=F64), rtol=1e-6, atol=0)
    oracle = lambda q, k, v: attend(logits(q, k, theirs, order, w, g, n, False), v)  # noqa: E731
    agree(lambda q, k, v: ec.attention(q, k, v, enc, times=mine, backend=backend), oracle, q, k, v, extra=[(mine, theirs)])
    weight = torch.randn(2, heads, length, width, dtype=F64)
    ec.attention(q, k, v, enc, times=times, backend=backend).backward(weight)
    oracle(q, k, v).backward(weight)
    pulled = torch.autograd.grad(in_use(), list(enc.parameters()), [w.grad, g.grad, n.grad])
    for p, expected in zip(enc.parameters(), pulled, strict=True):
        assert torch.allclose(p.grad, expected, rtol=1e-5, atol=1e-6 * expected.abs().max().item())


@pytest.mark.parametrize("order", [2, 3])
def test_the_pair_of_absolute_maps(order):
    """The published implementation: keys take A(-p), queries A(-p)^-T, A(p) = exp(p J), J = (-g + i w) I + eta N on neighbouring levels.

    Its channels are ordered by block, level and component where ours are by level, block and component, and it turns the other way.
    """
    width, length, g, eta = 4 * order, 30, 0.03, 0.2
    q, k, _ = content(width=width, length=length)
    w, blocks = spectrum(width, order), 2
    J = torch.zeros(blocks, 2 * order, 2 * order, dtype=F64)
    for b in range(blocks):
        for level in range(order):
            J[b, 2 * level : 2 * level + 2, 2 * level : 2 * level + 2] = torch.tensor([[-g, -w[b]], [w[b], -g]], dtype=F64)
            if level + 1 < order:
                J[b, 2 * level : 2 * level + 2, 2 * level + 2 : 2 * level + 4] = eta * torch.eye(2, dtype=F64)
    A = torch.linalg.matrix_exp(-torch.arange(length, dtype=F64)[:, None, None, None] * J)  # (T, blocks, 2m, 2m)
    key = torch.einsum("tbij,...tbj->...tbi", A, k.unflatten(-1, (blocks, 2 * order))).flatten(-2)
    query = torch.einsum("tbij,...tbj->...tbi", torch.linalg.inv(A).mT, q.unflatten(-1, (blocks, 2 * order))).flatten(-2)
    expected = query @ key.mT

    def ours(x: Tensor, mirrored: bool) -> Tensor:
        x = x.unflatten(-1, (blocks, order, 2)).transpose(-3, -2)
        return (x * torch.tensor([1.0, -1.0]) if mirrored else x).flatten(-3)

    seen = torch.ones(length, length, dtype=torch.bool).tril()
    for freq, mirrored in (((-w).tolist(), False), (None, True)):
        z = ec.scores(ours(q, mirrored), ours(k, mirrored), ec.jordan_rope(width, order=order, rate=g, eta=eta, freq=freq), scale=1.0)
        assert torch.allclose(z[..., seen], expected[..., seen], rtol=0, atol=1e-10)


@pytest.mark.parametrize("c", [0.1, 1.0])
@pytest.mark.parametrize("order", [2, 3])
def test_the_scaled_regime_is_time_in_units_of_the_length(order, c):
    """The same scores at every length where times are stretched with it (frequencies aside)."""
    width = 8 * order
    q, k, _ = content(width=width)
    times = torch.linspace(0, 3, 40, dtype=F64)
    still = [0.0] * 4
    one, other = (
        ec.scores(q, k, ec.jordan_rope(width, order=order, length=length, c=c, freq=still), times=times * length) for length in (1, 1024)
    )
    assert torch.allclose(one, other, rtol=0, atol=1e-11)


def test_the_size_and_sign_of_eta_are_a_matter_of_basis():
    """S^-1 (lambda + N) S = lambda + eta N with S = diag(1, eta, eta^2, ..), which queries and keys can absorb."""
    q, k, _ = content(width=12)
    scale = torch.cat([torch.full((4,), (-0.25) ** r, dtype=F64) for r in range(3)])
    one = ec.scores(q, k, ec.jordan_rope(12, order=3, rate=0.1, eta=1.0))
    other = ec.scores(q * scale, k / scale, ec.jordan_rope(12, order=3, rate=0.1, eta=-0.25))
    assert torch.allclose(one, other, rtol=0, atol=1e-11)


def test_no_function_of_the_lag_once_the_shear_saturates():
    """Why the stabilised variant is not offered: p/(1 + |p|/L) of the absolute position is not additive, and scores move under a shift."""
    length, L = 20, 16.0
    q, k, _ = content(width=4, length=length)

    def scores(start: int) -> Tensor:
        p = torch.arange(start, start + length, dtype=F64)
        tau = p / (1 + p / L)  # the key takes N^1 with -tau, the query its transpose with +tau; no phase, no decay
        key = torch.cat([k[..., :2] - tau[:, None] * k[..., 2:], k[..., 2:]], -1)
        query = torch.cat([q[..., :2], q[..., 2:] + tau[:, None] * q[..., :2]], -1)
        return query @ key.mT

    defect = (scores(0) - scores(100)).abs().max() / scores(0).abs().max()
    assert defect > 0.3
    enc = ec.jordan_rope(4, rate=0.0, eta=1.0, freq=[0.0])
    at = [ec.scores(q, k, enc, times=torch.arange(start, start + length)) for start in (0, 100)]
    assert torch.allclose(*at, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"order": 3}, ec.ShapeError, "head_dim=16.*multiple of 6"),
        ({"order": 0}, ec.ConfigError, "order=0"),
        ({"order": 2.0}, ec.ConfigError, "order=2.0"),
        ({"c": 0.5}, ec.ConfigError, "c without length"),
        ({"length": 64, "rate": 0.1}, ec.ConfigError, "length together with rate"),
        ({"length": 64, "half_life": 5.0}, ec.ConfigError, "length together with rate or half_life"),
        ({"length": 0}, ec.ConfigError, "length=0"),
        ({"rate": -0.1}, ec.GrowthError, "-0.1"),
        ({"length": 64, "c": -1.0}, ec.GrowthError, "-1"),
        ({"theta": 10.0, "freq": [1.0] * 4}, ec.ConfigError, "both theta and freq"),
        ({"freq": [1.0] * 8}, ec.ShapeError, "freq of shape"),
        ({"eta": "big"}, ec.ConfigError, "eta"),
        ({"pairing": "halves"}, ec.ConfigError, "halves"),
        ({"learn": "gamma"}, ec.ConfigError, "gamma"),
    ],
)
def test_refusals(options, error, words):
    with pytest.raises(error, match=words):
        ec.jordan_rope(16, **options)
