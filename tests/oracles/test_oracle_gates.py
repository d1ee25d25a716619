"""Gated linear attention and selective scans, each written out from its paper as plain loops: outputs and gradients, in all three forms."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import eigenclock as ec

F64 = torch.float64
B, H, T, D, V, X = 2, 4, 37, 8, 5, 6

pytestmark = pytest.mark.parametrize("form", list(ec.FORMS))


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64, requires_grad=True)


def sample() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and the activations."""
    return leaf(B, H, T, D), leaf(B, H, T, D), leaf(B, H, T, V), leaf(B, T, X)


def projected(enc: ec.Encoding, x: Tensor) -> Tensor:
    """x W1 .. + b, (B, heads, T, n), from the weights alone."""
    for matrix in enc.clock.weight:
        x = torch.einsum("btf,fn->btn", x, matrix.double())
    return (x + enc.clock.bias.double()).unflatten(-1, (enc.clock.heads, -1)).permute(0, 2, 1, 3)


def compare(out: Tensor, expected: Tensor, leaves: list[Tensor]) -> None:
    """Outputs and gradients, relative to their size; learned numbers are float32 and so are their gradients."""
    assert out.shape == expected.shape
    g = torch.randn_like(expected)
    got, want = (torch.autograd.grad(y, leaves, g, retain_graph=True) for y in (out, expected))
    for what, a, b in [("output", out, expected), *((f"d leaf {i}", *pair) for i, pair in enumerate(zip(got, want, strict=True)))]:
        error = float((a.detach().double() - b.detach().double()).abs().max() / b.detach().double().abs().max().clamp_min(1e-30))
        limit = 1e-10 if a.dtype == F64 else 1e-5
        assert error <= limit, f"{what}: relative error {error:.2e}, limit {limit:.0e}"


def recurrent(q: Tensor, k: Tensor, v: Tensor, keep: Callable[[int], Tensor]) -> Tensor:
    """S = keep_t S + k v^T, out = q^T S, token by token; keep_t broadcasts against (B, H, D, V)."""
    S, rows = torch.zeros(B, q.shape[1], q.shape[-1], v.shape[-1], dtype=q.dtype), []
    for t in range(q.shape[2]):
        S = keep(t) * S + k[:, :, t, :, None] * v[:, :, t, None, :]
        rows.append(torch.einsum("bhd,bhdv->bhv", q[:, :, t], S))
    return torch.stack(rows, 2)


def test_retention(form):
    """Sun et al. (RetNet), eq. 5, pair by pair: gamma^(t-s) Re(q e^(i t theta) conj(k e^(i s theta))) v."""
    q, k, v, _ = sample()
    gamma, theta = 1 - 2.0 ** (-5 - torch.arange(H, dtype=F64)), 10000 ** -torch.linspace(0, 1, D // 2, dtype=F64)
    turned = [torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) for x in (q, k)]
    rows = []
    for t in range(T):
        total = torch.zeros(B, H, V, dtype=F64)
        for s in range(t + 1):
            turn = torch.polar(torch.ones_like(theta), theta * (t - s))
            score = (turned[0][:, :, t] * turn * turned[1][:, :, s].conj()).real.sum(-1)
            total = total + (gamma ** (t - s) * score)[..., None] * v[:, :, s]
        rows.append(total)
    out, _ = ec.linear_attention(q, k, v, ec.retnet(D, heads=H), scale=1.0, form=form)
    compare(out, torch.stack(rows, 2), [q, k, v])


def simple_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, chunk: int = 8) -> dict[str, Tensor]:
    """A scalar gate e^g per head and token: step by step, chunk by chunk, and as one matrix."""
    parallel = torch.stack(
        [
            sum(
                ((q[:, :, t] * k[:, :, s]).sum(-1) * g[:, :, s + 1 : t + 1].sum(-1).exp())[..., None] * v[:, :, s] for s in range(t + 1)
            )
            for t in range(T)
        ],
        2,
    )  # fmt: skip
    S, parts = torch.zeros(B, H, D, V, dtype=F64), []
    for low in range(0, T, chunk):
        qc, kc, vc, gc = (x[:, :, low : low + chunk] for x in (q, k, v, g))
        since = gc.cumsum(-1)
        inner = (qc @ kc.mT * (since[..., :, None] - since[..., None, :]).exp()).tril() @ vc
        parts.append(inner + (qc * since.exp()[..., None]) @ S)
        rest = (since[..., -1:] - since).exp()[..., None]
        S = since[..., -1:, None].exp() * S + (kc * rest).mT @ vc
    return {"recurrent": recurrent(q, k, v, lambda t: g[:, :, t, None, None].exp()), "chunk": torch.cat(parts, 2), "parallel": parallel}


def test_one_gate_per_head(form):
    q, k, v, x = sample()
    enc = ec.decay(D, heads=H, rate=1.0, clock=ec.Cumulative(X, gate="forget"))
    out, _ = ec.linear_attention(q, k, v, enc, x=x, form=form)
    g = F.logsigmoid(projected(enc, x)[..., 0])
    for expected in simple_gla(q / math.sqrt(D), k, v, g).values():
        compare(out, expected, [q, k, v, x, *enc.parameters()])


def test_gla(form):
    """Yang et al. (GLA), eq. 3: S = diag(alpha_t) S + k v^T, alpha = sigmoid(x W1 W2 + b)^(1/16)."""
    q, k, v, x = sample()
    enc = ec.gla(D, heads=H, features=X, rank=3)
    alpha = torch.sigmoid(projected(enc, x)) ** (1 / 16)
    out, _ = ec.linear_attention(q, k, v, enc, x=x, form=form)
    expected = recurrent(q / math.sqrt(D), k, v, lambda t: alpha[:, :, t, :, None])
    compare(out, expected, [q, k, v, x, *enc.parameters()])


@pytest.mark.parametrize("bound", [0.0, 0.3, 0.96])
def test_hgrn2(form, bound):
    """Qin et al. (HGRN2): f = lb + (1 - lb) sigmoid(z), S = diag(f) S + (1 - f) v^T; the key is read off the clock."""
    q, _, v, x = sample()
    enc = ec.hgrn2(D, heads=H, features=X, lower_bound=bound)
    f = bound + (1 - bound) * torch.sigmoid(projected(enc, x))
    k = -torch.expm1(-enc.clock.increments(x))
    out, _ = ec.linear_attention(q, k, v, enc, x=x, scale=1.0, form=form)
    compare(out, recurrent(q, 1 - f, v, lambda t: f[:, :, t, :, None]), [q, v, x, *enc.parameters()])


def selective_scan(u: Tensor, delta: Tensor, A: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Gu and Dao (Mamba), algorithm 2: h = e^(Delta A) h + Delta b u, y = c h, channel by channel; u, delta (B, T, C), b, c (B, T, N).

    For complex A, twice the real part, which stands for the conjugate half that is not computed.
    """
    h, rows = torch.zeros(u.shape[0], u.shape[2], A.shape[1], dtype=A.dtype), []
    for t in range(u.shape[1]):
        d = delta[:, t, :, None]
        h = torch.exp(d * A) * h + d * b[:, t, None] * u[:, t, :, None]
        y = (c[:, t, None] * h).sum(-1)
        rows.append(2 * y.real if y.is_complex() else y)
    return torch.stack(rows, 1)


def test_mamba1(form):
    """Rates of each channel and state, one clock per channel, B and C shared by all channels."""
    channels, N = 6, 4
    u, b, c = leaf(B, T, channels), leaf(B, T, N), leaf(B, T, N)
    enc = ec.mamba1(N, heads=channels, rank=2)
    q, k = (m[:, None].expand(-1, channels, -1, -1) for m in (c, b))
    v = u.mT[..., None] * enc.clock.increments(u)
    out, _ = ec.linear_attention(q, k, v, enc, x=u, scale=1.0, form=form)
    delta = F.softplus(projected(enc, u)[..., 0].mT)
    A = -enc.values["rate"].raw.double().exp()
    assert torch.allclose(A, -torch.arange(1.0, N + 1, dtype=F64).expand(channels, -1), rtol=1e-6)
    compare(out[..., 0].mT, selective_scan(u, delta, A, b, c), [u, b, c, *enc.parameters()])


def test_mamba1_with_complex_rates(form):
    """Damped RoPE on the same clock; A = -rate + i freq of channel and state, B and C complex. Both sides of RoPE turn by +freq."""
    channels, N = 3, 4
    u, b, c = leaf(B, T, channels), leaf(B, T, 2 * N), leaf(B, T, 2 * N)
    rate, freq = torch.rand(channels, N, dtype=F64) * 2, torch.randn(channels, N, dtype=F64) * 3
    clock = ec.Cumulative(channels)
    enc = ec.damped_rope(2 * N, heads=channels, rate=rate, freq=freq, learn=("rate", "freq"), clock=clock)
    q, k = (m[:, None].expand(-1, channels, -1, -1) for m in (c, b))
    v = u.mT[..., None] * enc.clock.increments(u)
    out, _ = ec.linear_attention(q, k, v, enc, x=u, scale=2.0, form=form)
    sign = torch.sign(freq)
    A = torch.complex(-enc.values["rate"].raw.double().exp(), sign * enc.values["freq"].raw.double().exp())
    bc, cc = (torch.view_as_complex(m.unflatten(-1, (N, 2))) for m in (b, c))
    delta = F.softplus(projected(enc, u)[..., 0].mT)
    # q . R((s - t) w) k with q, k as pairs is Re(q conj(k e^(i (s - t) w))) = Re(q conj(k) e^(i (t - s) w)).
    compare(out[..., 0].mT, selective_scan(u, delta, A, bc.conj(), cc), [u, b, c, *enc.parameters()])


def test_mamba2(form):
    """Dao and Gu (Mamba-2), listing 1: chunks of semiseparable matrices from segment sums, Delta on the decay and on the input."""
    q, k, u, x = sample()
    enc = ec.mamba2(D, heads=H, features=X, seed=3)
    v = u * enc.clock.increments(x)
    out, _ = ec.linear_attention(q, k, v, enc, x=x, scale=1.0, form=form)
    delta = F.softplus(projected(enc, x)[..., 0])
    a = -enc.values["rate"].raw.double().exp() * delta  # (B, H, T)
    weighted, chunk = u * delta[..., None], 10

    def segment_sum(a: Tensor) -> Tensor:
        """sum of a over s + 1 .. t at (t, s), -inf above the diagonal."""
        n = a.shape[-1]
        rows = a[..., None].expand(*a.shape, n).masked_fill(torch.ones(n, n, dtype=torch.bool).triu(), 0.0).cumsum(-2)
        return rows.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)

    cuts = [slice(low, low + chunk) for low in range(0, T, chunk)]
    totals = torch.stack([a[:, :, cut].sum(-1) for cut in cuts], -1)
    local = [
        k[:, :, c].mT @ (weighted[:, :, c] * (a[:, :, c].sum(-1, keepdim=True) - a[:, :, c].cumsum(-1)).exp()[..., None]) for c in cuts
    ]
    between = segment_sum(F.pad(totals, (1, 0))).exp()  # what each chunk keeps of the states before it
    parts = []
    for i, c in enumerate(cuts):
        start = sum((between[:, :, i, j + 1, None, None] * local[j] for j in range(i)), torch.zeros(B, H, D, V, dtype=F64))
        inner = (q[:, :, c] @ k[:, :, c].mT * segment_sum(a[:, :, c]).exp()) @ weighted[:, :, c]
        parts.append(inner + (q[:, :, c] * a[:, :, c].cumsum(-1).exp()[..., None]) @ start)
    compare(out, torch.cat(parts, 2), [q, k, u, x, *enc.parameters()])


@pytest.mark.parametrize(("layer", "layers"), [(0, 1), (0, 12), (7, 12), (11, 12)])
def test_lightning(form, layer, layers):
    """Qin et al. (TransNormerLLM): kv = lambda kv + k v^T with lambda = exp(-8h/H (1 - l/L)); MiniMax-01: slopes of ALiBi instead."""
    q, k, v, _ = sample()
    h = torch.arange(H, dtype=F64)
    for enc, rate in (
        (ec.lightning(D, heads=H, layer=layer, layers=layers), 8 * h / H * (1 - layer / layers)),
        (ec.minimax(D, heads=H, layer=layer, layers=layers), 0.5 ** (8 * (h + 1) / H) * (1 - layer / (layers - 1 + 1e-5) + 1e-5)),
    ):
        out, _ = ec.linear_attention(q, k, v, enc, scale=1.0, form=form)
        keep = (-rate).exp()[:, None, None]
        compare(out, recurrent(q, k, v, lambda t, keep=keep: keep), [q, k, v])


def test_lightning_in_the_first_layer_turns_as_well(form):
    """The product with RoPE: e^(-rate u) R(w u) on every pair."""
    q, k, v, _ = sample()
    enc = ec.lightning(D, heads=H, layers=12) * ec.rope(D, theta=100.0)
    w, n = 100.0 ** -(torch.arange(0, D, 2, dtype=F64) / D), torch.arange(T, dtype=F64)[:, None]
    turn = torch.polar(torch.ones(T, D // 2, dtype=F64), n * w)
    turned = [torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2) for x in (q, k)]
    keep = (-8 * torch.arange(H, dtype=F64) / H).exp()[:, None, None]
    out, _ = ec.linear_attention(q, k, v, enc, scale=1.0, form=form)
    compare(out, recurrent(*turned, v, lambda t: keep), [q, k, v])
