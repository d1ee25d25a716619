"""Learned planes (GRAPE-M) and hyperbolic boosts (HoPE) against their formulas written out, gradients included."""

import math

import pytest
import torch
from torch import Tensor

import eigenclock as ec

F64 = torch.float64
BACKENDS = ["auto", "reference", "tiled", "sdpa"]


def content(heads=2, length=50, width=6, batch=2, seed=0):
    torch.manual_seed(seed)
    return [torch.randn(batch, heads, length, width, dtype=F64) for _ in range(3)]


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
    z = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        z = z.masked_fill(torch.ones_like(z, dtype=torch.bool).triu(1), -torch.inf)
    return z.softmax(-1) @ v


# --- planes ------------------------------------------------------------------------------------------------------------------------


def rodrigues(a: Tensor, b: Tensor, angle: Tensor) -> Tensor:
    """exp(n w L) = 1 + sin(n w s)/s L + (1 - cos(n w s))/s^2 L^2 as matrices, L = a b^T - b a^T; angle (..., T) holds n w."""
    L = a[..., :, None] * b[..., None, :] - b[..., :, None] * a[..., None, :]
    s = ((a * a).sum(-1) * (b * b).sum(-1) - (a * b).sum(-1) ** 2).sqrt()
    eye = torch.eye(a.shape[-1], dtype=a.dtype)
    turn, L, s = (angle * s[..., None])[..., None, None], L[..., None, :, :], s[..., None, None, None]
    return eye + turn.sin() / s * L + (1 - turn.cos()) / s**2 * L @ L


def skew(upper: Tensor, width: int) -> Tensor:
    rows, k = [], 0
    for i in range(width):
        row = [torch.zeros((), dtype=upper.dtype)] * (i + 1)
        row += [upper[k + j] for j in range(width - i - 1)]
        k += width - i - 1
        rows.append(torch.stack(row))
    S = torch.stack(rows)
    return S - S.T


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [True, False])
def test_one_plane_written_out(agree, backend, dtype, causal):
    """G(n) = exp(n w L): queries and keys are turned by it alike, up to the sign of w."""
    q, k, v = content()
    a, b, w = torch.tensor([1.0, 0.2, -0.3, 0.0, 0.5, 0.1], dtype=F64), torch.tensor([0.0, 1.0, 1.0, -0.4, 0.2, 0.0], dtype=F64), 0.3
    enc = ec.grape_m(6, planes=1, freq=w, a=a, b=b)
    G = rodrigues(a, b, -w * torch.arange(50, dtype=F64))
    turn = lambda x: (G @ x[..., None])[..., 0]  # noqa: E731
    agree(
        lambda q, k, v: ec.attention(q, k, v, enc, causal=causal, backend=backend),
        lambda q, k, v: attend(turn(q), turn(k), v, causal),
        q, k, v, dtype=dtype,
    )  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("planes", [None, 2])
def test_orthogonal_planes_written_out(agree, backend, dtype, planes):
    """exp(n L) for L = sum_i w_i (p_i q_i^T - q_i p_i^T), p_i and q_i columns of (1 - S)(1 + S)^-1."""
    q, k, v = content()
    upper = torch.linspace(-0.8, 0.9, 15, dtype=F64)
    enc = ec.grape_m(6, planes=planes, theta=20.0, basis=upper)
    S, eye, count = skew(upper, 6), torch.eye(6, dtype=F64), planes or 3
    Q = (eye - S) @ torch.linalg.inv(eye + S)
    w = 20.0 ** (-torch.arange(count, dtype=F64) / count)
    L = sum(w[i] * (Q[:, 2 * i, None] * Q[:, 2 * i + 1] - Q[:, 2 * i + 1, None] * Q[:, 2 * i]) for i in range(count))
    G = torch.matrix_exp(-torch.arange(50, dtype=F64)[:, None, None] * L)
    turn = lambda x: (G @ x[..., None])[..., 0]  # noqa: E731
    agree(
        lambda q, k, v: ec.attention(q, k, v, enc, backend=backend),
        lambda q, k, v: attend(turn(q), turn(k), v),
        q, k, v, dtype=dtype,
    )  # fmt: skip


@pytest.mark.parametrize("backend", ["auto", "reference", "tiled"])
def test_gradients_to_the_vectors_of_a_plane_its_frequency_and_times(agree, backend):
    q, k, v = content(heads=3, length=40)
    torch.manual_seed(1)
    enc = ec.grape_m(6, heads=3, planes=1, freq=0.4, a=torch.randn(3, 6), b=torch.randn(3, 6), learn=("freq", "basis"))
    times = (torch.rand(2, 40, dtype=F64) * 2).cumsum(-1)
    mine, theirs = times.clone().requires_grad_(), times.clone().requires_grad_()
    raw = dict(enc.named_parameters())
    assert {name.split(".")[1] for name in raw} == {"freq", "a", "b"}
    leaf = {name.split(".")[1]: p.detach().double().requires_grad_() for name, p in raw.items()}

    def oracle(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        w = leaf["freq"].exp()[:, 0]  # a frequency is learned on a log scale
        G = rodrigues(leaf["a"], leaf["b"], -w[:, None] * theirs[:, None])
        return attend((G @ q[..., None])[..., 0], (G @ k[..., None])[..., 0], v)

    agree(lambda q, k, v: ec.attention(q, k, v, enc, times=mine, backend=backend), oracle, q, k, v, extra=[(mine, theirs)])
    g = torch.randn(2, 3, 40, 6, dtype=F64)
    ec.attention(q, k, v, enc, times=times, backend=backend).backward(g)
    oracle(q, k, v).backward(g)
    for name, p in raw.items():
        expected = leaf[name.split(".")[1]].grad
        assert expected.abs().max() > 0
        torch.testing.assert_close(p.grad.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["auto", "reference", "tiled"])
@pytest.mark.parametrize("start", [0.0, 0.4])
def test_gradients_to_a_learned_basis(backend, start):
    """Also at S = 0, where the encoding still is RoPE."""
    q, k, v = content(heads=2, length=40, width=4)
    enc = ec.grape_m(4, heads=2, freq=[1.0, 0.1], basis=[start * (i - 2) for i in range(6)], learn=("freq", "basis"))
    raw = dict(enc.named_parameters())
    leaf = {name.split(".")[1]: p.detach().double().requires_grad_() for name, p in raw.items()}
    times, eye = torch.arange(40, dtype=F64), torch.eye(4, dtype=F64)

    def oracle(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        turned = []
        for h in range(2):
            S, w = skew(leaf["basis"][h], 4), leaf["freq"][h].exp()
            Q = (eye - S) @ torch.linalg.inv(eye + S)
            L = sum(w[i] * (Q[:, 2 * i, None] * Q[:, 2 * i + 1] - Q[:, 2 * i + 1, None] * Q[:, 2 * i]) for i in range(2))
            turned.append(torch.matrix_exp(-times[:, None, None] * L))
        G = torch.stack(turned)
        return attend((G @ q[..., None])[..., 0], (G @ k[..., None])[..., 0], v)

    if not start:
        torch.testing.assert_close(ec.attention(q, k, v, enc), ec.attention(q, k, v, ec.rope(4, freq=[1.0, 0.1])), rtol=0, atol=1e-7)
    torch.testing.assert_close(ec.attention(q, k, v, enc, backend=backend), oracle(q, k, v), rtol=0, atol=1e-10)
    g = torch.randn(2, 2, 40, 4, dtype=F64)
    ec.attention(q, k, v, enc, backend=backend).backward(g)
    oracle(q, k, v).backward(g)
    for name, p in raw.items():
        expected = leaf[name.split(".")[1]].grad
        assert expected.abs().max() > 0
        torch.testing.assert_close(p.grad.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_learned_plane_can_be_found():
    """Gradient descent on a and b turns a plane into the one that made the data."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 24, 3, dtype=F64)
    target = ec.scores(q, k, ec.grape_m(3, planes=1, freq=0.3, a=[1.0, 0.0, 0.0], b=[0.0, 0.6, 0.8]), causal=False)
    enc = ec.grape_m(3, planes=1, freq=0.3, a=[1.0, 0.1, 0.0], b=[0.0, 1.0, 0.1], learn="basis")
    optimiser = torch.optim.Adam(enc.parameters(), lr=0.02)
    losses = []
    for _ in range(150):
        optimiser.zero_grad()
        loss = (ec.scores(q, k, enc, causal=False) - target).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 1e-3 * losses[0]


# --- hyperbolic --------------------------------------------------------------------------------------------------------------------


def boosted(q: Tensor, k: Tensor, v: Tensor, times: Tensor, boost: Tensor, rate: Tensor, half: bool) -> Tensor:
    """Softmax of q^T e^(-a u) [[cosh bu, sinh bu], [sinh bu, cosh bu]] k, pair by pair, from the lag u of every query and key."""
    n, z = boost.shape[-1], torch.zeros((), dtype=F64)
    lag = times[..., :, None] - times[..., None, :]
    lag = lag.clamp_min(0)  # what lies in the future is not seen
    for i in range(n):
        first, second = (i, i + n) if half else (2 * i, 2 * i + 1)
        x, y, xk, yk = q[..., first, None], q[..., second, None], k[..., None, :, first], k[..., None, :, second]
        b, a = boost[..., i, None, None], rate[..., i, None, None]
        z = z + (-a * lag).exp() * ((b * lag).cosh() * (x * xk + y * yk) + (b * lag).sinh() * (x * yk + y * xk))
    z = z / math.sqrt(q.shape[-1])
    return z.masked_fill(torch.ones_like(z, dtype=torch.bool).triu(1), -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("backend", ["auto", "reference", "tiled"])
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize(
    ("boost", "rate"), [([0.1, -0.02, 0.0], [0.1, 0.02, 0.0]), ([0.2, 0.1, -0.3], [0.25, 0.1, 0.4]), ([0.0, 0.0, 0.0], [0.3, 0.0, 0.1])]
)
def test_hyperbolic_written_out(agree, backend, dtype, pairing, boost, rate):
    q, k, v = content()
    b, a, times = torch.tensor(boost, dtype=F64), torch.tensor(rate, dtype=F64), torch.arange(50, dtype=F64)
    enc = ec.hyperbolic(6, boost=boost, rate=rate, pairing=pairing)
    half = pairing == "half"
    agree(
        lambda q, k, v: ec.attention(q, k, v, enc, backend=backend),
        lambda q, k, v: boosted(q, k, v, times, b, a, half),
        q, k, v, dtype=dtype,
    )  # fmt: skip


@pytest.mark.parametrize("backend", ["auto", "reference", "tiled"])
@pytest.mark.parametrize("learn", [("rate", "boost"), ("boost",), ("rate",)])
def test_learned_boosts_stay_stable(agree, backend, learn):
    """The numbers in use are read off L; their gradients reach what is trained, b and a - |b| on a log scale."""
    q, k, v = content(heads=2, length=40, width=4)
    enc = ec.hyperbolic(4, heads=2, boost=[0.2, -0.1], rate=[0.3, 0.4], learn=learn)
    times = (torch.rand(2, 40, dtype=F64, generator=torch.Generator().manual_seed(1)) * 2).cumsum(-1)
    mine, theirs = times.clone().requires_grad_(), times.clone().requires_grad_()
    raw = dict(enc.named_parameters())

    def oracle(q: Tensor, k: Tensor, v: Tensor, boost: Tensor, rate: Tensor, times: Tensor) -> Tensor:
        return boosted(q, k, v, times[:, None], boost.reshape(-1, 2), rate.reshape(-1, 2), False)

    L = enc.generator().matrix().detach().reshape(-1, 4, 4)
    in_use = [torch.stack([L[:, 0, 1], L[:, 2, 3]], -1), -torch.stack([L[:, 0, 0], L[:, 2, 2]], -1)]
    expected_start = torch.tensor([0.2, -0.1], dtype=F64)
    torch.testing.assert_close(in_use[0], expected_start.expand_as(in_use[0]), rtol=1e-6, atol=0)
    agree(
        lambda q, k, v: ec.attention(q, k, v, enc, times=mine, backend=backend),
        lambda q, k, v: oracle(q, k, v, *in_use, theirs),
        q, k, v, extra=[(mine, theirs)],
    )  # fmt: skip
    boost, rate = (x.clone().requires_grad_() for x in in_use)
    g = torch.randn(2, 2, 40, 4, dtype=F64)
    ec.attention(q, k, v, enc, times=times, backend=backend).backward(g)
    oracle(q, k, v, boost, rate, times).backward(g)
    chain = {"boost": boost.grad * boost + rate.grad * boost.abs(), "excess": rate.grad * (rate - boost.abs())}
    for name, p in raw.items():
        want = chain[name.split(".")[1]].detach().sum_to_size(p.shape) if p.ndim == 2 else chain[name.split(".")[1]].detach().sum(0)
        torch.testing.assert_close(p.grad.double(), want.reshape(p.shape), rtol=1e-5, atol=1e-6)
    with torch.no_grad():  # a step of any size leaves a stable matrix
        for p in raw.values():
            p += 50 * torch.randn(p.shape, generator=torch.Generator().manual_seed(2)).sign() * 0.1
    assert torch.linalg.eigvals(enc.generator().matrix()).real.max() <= 1e-9


def test_growth_is_refused():
    for boost, rate in ((0.3, 0.2), ([0.1, -0.3], 0.2), (0.1, 0.0)):
        with pytest.raises(ec.GrowthError, match="boost"):
            ec.hyperbolic(4, boost=boost, rate=rate)
    q = torch.zeros(1, 1, 3, 4)
    with pytest.raises(ec.GrowthError):  # and both directions at once
        ec.attention(q, q, q, ec.hyperbolic(4), causal=False)


@pytest.mark.parametrize("backend", ["auto", "tiled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_hyperbolic_is_finite_at_large_times(backend, dtype):
    """cosh(b t) on its own leaves float32 at b t = 89; here b t reaches 8000."""
    q, k, v = (x.to(dtype) for x in content(length=400))
    times = torch.arange(400) * 20
    enc = ec.hyperbolic(6, boost=[1.0, 0.1, 0.001])
    out = ec.attention(q, k, v, enc, times=times, backend=backend)
    exact = ec.scores(q.double(), k.double(), enc, times=times).softmax(-1) @ v.double()
    assert torch.isfinite(out).all()
    assert (out.double() - exact).abs().max() <= 32 * torch.finfo(dtype).eps
