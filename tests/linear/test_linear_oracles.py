"""Independent oracles, each written out longhand from its paper: no generator, no clock, no code of the library."""

import math

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from linear.conftest import F64, close, normal

T, H, D, V = 70, 4, 8, 6


def sample() -> tuple[Tensor, Tensor, Tensor]:
    return normal(2, H, T, D, seed=1), normal(2, H, T, D, seed=2), normal(2, H, T, V, seed=3)


def retnet_angles(x: Tensor, positions: Tensor) -> Tensor:
    """RetNet's rotation: neighbours as pairs, angles n * 10000^(-linspace(0, 1, d/2)), x cos + (-x2, x1) sin."""
    angle = (1.0 / 10000 ** torch.linspace(0, 1, D // 2, dtype=F64)).repeat_interleave(2)
    cos, sin = torch.cos(positions[:, None] * angle), torch.sin(positions[:, None] * angle)
    turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return x * cos + turned * sin


def retention(q: Tensor, k: Tensor, v: Tensor, chunk: int = 16) -> dict[str, Tensor]:
    """Sun et al. (RetNet), 2307.08621, eqs. 5 to 7: the parallel, the recurrent and the chunkwise form, gamma_h = 1 - 2^(-5-h)."""
    gamma = 1 - 2.0 ** (-5 - torch.arange(H, dtype=F64))
    n = torch.arange(T, dtype=F64)
    q, k = retnet_angles(q, n) / math.sqrt(D), retnet_angles(k, n)
    lag = n[:, None] - n
    mask = torch.where(lag >= 0, gamma[:, None, None] ** lag.clamp_min(0), 0.0)
    parallel = (q @ k.mT * mask) @ v
    S, rows = torch.zeros(2, H, D, V, dtype=F64), []
    for i in range(T):
        S = gamma[:, None, None] * S + k[:, :, i, :, None] * v[:, :, i, None, :]
        rows.append((q[:, :, i, None] @ S).squeeze(2))
    R, parts = torch.zeros(2, H, D, V, dtype=F64), []
    for low in range(0, T, chunk):
        b = min(chunk, T - low)
        qi, ki, vi = (x[:, :, low : low + b] for x in (q, k, v))
        j = torch.arange(b, dtype=F64)
        inner = (qi @ ki.mT * mask[:, :b, :b]) @ vi
        cross = (qi @ R) * (gamma[:, None] ** (j + 1))[..., None]
        parts.append(inner + cross)
        R = ki.mT @ (vi * (gamma[:, None] ** (b - j - 1))[..., None]) + (gamma**b)[:, None, None] * R
    return {"parallel": parallel, "recurrent": torch.stack(rows, 2), "chunkwise": torch.cat(parts, 2)}


@pytest.mark.parametrize("form", ec.FORMS)
def test_retnet_in_its_three_forms(form):
    q, k, v = sample()
    got, _ = ec.linear_attention(q, k, v, ec.retnet(D, heads=H), form=form)
    for expected in retention(q, k, v).values():
        close(got, expected)


@pytest.mark.parametrize("form", ec.FORMS)
def test_scalar_decay(form):
    """Simple scalar decay (TransNormer, Mamba-2 with a fixed gate): S = e^g S + k v^T with one fixed g per head."""
    q, k, v = sample()
    g = -torch.tensor([0.5, 0.1, 0.01, 3.0], dtype=F64)
    S, rows = torch.zeros(2, H, D, V, dtype=F64), []
    for i in range(T):
        S = g.exp()[:, None, None] * S + k[:, :, i, :, None] * v[:, :, i, None, :]
        rows.append(torch.einsum("bhd,bhdv->bhv", q[:, :, i], S))
    got, state = ec.linear_attention(q, k, v, ec.decay(D, heads=H, rate=-g[:, None]), scale=1.0, form=form)
    close(got, torch.stack(rows, 2))
    close(state.S, S)


@pytest.mark.parametrize("form", ec.FORMS)
def test_gated_linear_attention_with_fixed_gates(form):
    """Yang et al. (GLA), 2312.06635, eq. 3: S = diag(alpha) S + k v^T, alpha fixed per key channel."""
    q, k, v = sample()
    alpha = torch.sigmoid(normal(H, D, seed=5) * 3)
    S, rows = torch.zeros(2, H, D, V, dtype=F64), []
    for i in range(T):
        S = alpha[..., None] * S + k[:, :, i, :, None] * v[:, :, i, None, :]
        rows.append((q[:, :, i, :, None] * S).sum(2) / math.sqrt(D))
    got, state = ec.linear_attention(q, k, v, ec.decay(D, heads=H, rate=-alpha.log()), form=form)
    close(got, torch.stack(rows, 2))
    close(state.S, S)


@pytest.mark.parametrize("form", ec.FORMS)
def test_elapsed_time_decay(form):
    """An event decays by what has passed since: S = e^(-a dt) S + k v^T over irregular stamps."""
    q, k, v = sample()
    stamps = torch.randint(0, 3 * 10**9, (T,), generator=torch.Generator().manual_seed(2)).cumsum(-1) + 1_600_000_000 * 10**9
    S, rows = torch.zeros(2, H, D, V, dtype=F64), []
    for i in range(T):
        seconds = 0.0 if i == 0 else float(stamps[i] - stamps[i - 1]) / 1e9
        S = 2.0 ** (-seconds / 8) * S + k[:, :, i, :, None] * v[:, :, i, None, :]
        rows.append((q[:, :, i, None] @ S).squeeze(2))
    got, _ = ec.linear_attention(q, k, v, ec.decay(D, half_life="8s", clock=ec.Timestamps("ns")), times=stamps, scale=1.0, form=form)
    close(got, torch.stack(rows, 2))


@pytest.mark.parametrize("form", ec.FORMS)
def test_complex_diagonal_recurrence(form):
    """A linear recurrence with complex eigenvalues e^(-a - iw), read as Re(conj(q) h): the damped rotation in its own notation."""
    q, k, v = sample()
    a, w = torch.tensor([0.02, 0.3, 1.0, 0.0], dtype=F64), torch.tensor([2.0, 0.5, 0.1, 3.0], dtype=F64)
    qc, kc = (torch.view_as_complex(x.unflatten(-1, (D // 2, 2)).contiguous()) for x in (q, k))
    h, rows = torch.zeros(2, H, D // 2, V, dtype=torch.complex128), []
    for i in range(T):
        h = torch.exp(torch.complex(-a, -w))[:, None] * h + kc[:, :, i, :, None] * v[:, :, i, None, :]
        rows.append((qc[:, :, i, :, None].conj() * h).real.sum(2))
    got, _ = ec.linear_attention(q, k, v, ec.damped_rope(D, freq=w, rate=a), scale=1.0, form=form)
    close(got, torch.stack(rows, 2))


@pytest.mark.parametrize("form", ec.FORMS)
def test_linear_attention_is_a_running_average(form):
    """Katharopoulos et al., 2006.16236, eq. 9: phi = elu + 1, sum of phi(q) phi(k) v over its own sum."""
    q, k, v = sample()
    fq, fk = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1
    S, z, rows = torch.zeros(2, H, D, V, dtype=F64), torch.zeros(2, H, D, dtype=F64), []
    for i in range(T):
        S, z = S + fk[:, :, i, :, None] * v[:, :, i, None, :], z + fk[:, :, i]
        rows.append((fq[:, :, i, :, None] * S).sum(2) / (fq[:, :, i] * z).sum(-1, keepdim=True))
    got, state = ec.linear_attention(
        q, k, v, ec.nope(D), normalize=True, feature_map=lambda x: torch.nn.functional.elu(x) + 1, form=form
    )  # fmt: skip
    close(got, torch.stack(rows, 2))
    assert state.z is not None
    close(state.z, z)


@pytest.mark.parametrize("form", ec.FORMS)
def test_integrator_cascade(form):
    """Order 2 over a decay: a second memory integrates the first, x1' = x0, both leaking: the gamma memory of two stages."""
    eta, a, step = 0.2, math.log(2) / 9, 1e-3
    q, k, v = (x[:1, :1, :6, :4] for x in sample())
    enc = ec.jordan_rope(4, eta=eta, half_life=9.0, freq=[0.0])
    got, _ = ec.linear_attention(q, k, v, enc, scale=1.0, form=form)
    L = enc.generator().matrix().detach().squeeze()
    S, rows = torch.zeros(4, v.shape[-1], dtype=F64), []
    for i in range(6):
        if i:
            for _ in range(round(1 / step)):  # Runge-Kutta of order 4 for S' = L S, over one step of the clock
                k1 = L @ S
                k2 = L @ (S + step / 2 * k1)
                k3 = L @ (S + step / 2 * k2)
                S = S + step / 6 * (k1 + 2 * k2 + 2 * k3 + L @ (S + step * k3))
        S = S + k[0, 0, i, :, None] * v[0, 0, i]
        rows.append(q[0, 0, i] @ S)
    close(got[0, 0], torch.stack(rows), 1e-9)
    assert abs(float(torch.linalg.eigvals(L).real.max()) + a) < 1e-6
