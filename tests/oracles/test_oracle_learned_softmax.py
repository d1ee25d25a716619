"""Learned clocks inside softmax, each written out from its paper pair by pair: forget gates, gates per channel, angles from tokens."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import eigenclock as ec

F64 = torch.float64
BACKENDS = ["auto", "tiled", "reference"]
B, H, D, FEATURES = 2, 4, 8, 5


def content(length: int, kv_heads: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(B, h, length, D, dtype=F64) for h in (H, kv_heads, kv_heads)]


def projected(enc: ec.Encoding, x: Tensor, per_head: int) -> Tensor:
    """x W + b as (B, T, heads, per_head): the projection every one of these models begins with."""
    weights = dict(enc.named_parameters())
    z = x @ weights["clock.weight.0"].double() + weights["clock.bias"].double()
    return z.unflatten(-1, (-1, per_head))


Rows = Callable[[Tensor, Tensor, int, int], Tensor]  # (q_t, k_s, t, s) of one row and head, to a logit


def pair_by_pair(q: Tensor, k: Tensor, v: Tensor, logit: Callable[[int, int], Rows], window: int | None = None) -> Tensor:
    """softmax over s <= t of logit(row, head)(q_t, k_s, t, s), each query head with the key head of its group."""
    group, out = q.shape[1] // k.shape[1], []
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            at, g = logit(b, h), h // group
            for t in range(q.shape[2]):
                first = 0 if window is None else max(0, t - window + 1)
                z = torch.stack([at(q[b, h, t], k[b, g, s], t, s) for s in range(first, t + 1)])
                out.append((z.softmax(0)[:, None] * v[b, g, first : t + 1]).sum(0))
    return torch.stack(out).unflatten(0, q.shape[:3])


def turned(x: Tensor, angle: Tensor) -> Tensor:
    """Neighbouring channels (a, b) to (a cos - b sin, a sin + b cos)."""
    a, b = x[0::2], x[1::2]
    return torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1).flatten()


def fox(enc: ec.Encoding, x: Tensor) -> Callable[[int, int], Rows]:
    """Lin et al. (Forgetting Transformer), 2503.02130, eq. 5: q_t . k_s / sqrt d + sum of log f_j over j = s + 1 .. t, per query head."""
    log_f = torch.log(torch.sigmoid(projected(enc, x, 1)))[..., 0]

    def logit(b: int, h: int) -> Rows:
        return lambda q, k, t, s: q @ k / math.sqrt(D) + log_f[b, s + 1 : t + 1, h].sum()

    return logit


def wall(enc: ec.Encoding, x: Tensor) -> Callable[[int, int], Rows]:
    """Wall attention: every channel of the inner product times the product of its gates over s + 1 .. t, gates sigmoid(x W + b)."""
    gate = torch.sigmoid(projected(enc, x, D))
    key_heads = gate.shape[2]

    def logit(b: int, h: int) -> Rows:
        g = h * key_heads // H
        return lambda q, k, t, s: (q * k * gate[b, s + 1 : t + 1, g].prod(0)).sum() / math.sqrt(D)

    return logit


def by_angles(steps: Tensor, freq: Tensor) -> Callable[[int, int], Rows]:
    """Both sides turned by freq times the sum of the steps (B, T, heads, pairs) so far, as rotary embeddings are applied."""
    key_heads = steps.shape[2]

    def logit(b: int, h: int) -> Rows:
        g = h * key_heads // H
        angle = [freq * steps[b, : t + 1, g].sum(0) for t in range(steps.shape[1])]
        return lambda q, k, t, s: turned(q, angle[t]) @ turned(k, angle[s]) / math.sqrt(D)

    return logit


def selective_rope(enc: ec.Encoding, x: Tensor) -> Callable[[int, int], Rows]:
    """Selective RoPE, 2511.17388: signed phases x W, running sums times the temperature 500000^(-2i/d)."""
    return by_angles(projected(enc, x, D // 2), 500000.0 ** (-2 * torch.arange(D // 2, dtype=F64) / D))


def carope(enc: ec.Encoding, x: Tensor) -> Callable[[int, int], Rows]:
    """CARoPE, 2507.23083: pair i = 1 .. d/2 turns by the sum of f^i, f = 1 / (softplus(x W) + 1), one f per head."""
    f = 1 / (F.softplus(projected(enc, x, 1)) + 1)
    return by_angles(torch.cat([f**i for i in range(1, D // 2 + 1)], -1), torch.ones(D // 2, dtype=F64))


def grape_ctx(enc: ec.Encoding, x: Tensor) -> Callable[[int, int], Rows]:
    """GRAPE-M with a contextual phase, 2512.07805, section 4: RoPE's angles times the sum of softplus(x w + b), one for all heads."""
    phase = F.softplus(projected(enc, x, 1))
    return by_angles(phase.expand(-1, -1, -1, D // 2), 10000.0 ** (-2 * torch.arange(D // 2, dtype=F64) / D))


ORACLES = {"fox": fox, "wall": wall, "selective_rope": selective_rope, "carope": carope, "grape_ctx": grape_ctx}


def built(name: str, kv_heads: int) -> ec.Encoding:
    """The encoding with weights and a bias away from their start, so that each of them matters."""
    enc = ec.encoding(f"{name}(features={FEATURES})", head_dim=D, heads=H, kv_heads=kv_heads)
    bias = dict(enc.named_parameters())["clock.bias"]
    with torch.no_grad():
        bias.copy_(bias / 4 + 0.3 * torch.randn(bias.shape, generator=torch.Generator().manual_seed(7)))
    return enc


@pytest.mark.parametrize(("kv_heads", "window"), [(H, None), (2, None), (2, 4)])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ORACLES)
def test_pair_by_pair(agree, name, backend, kv_heads, window):
    """Outputs and gradients to q, k, v, the activations and the clock's own weights."""
    length = 10
    enc, (q, k, v) = built(name, kv_heads), content(length, kv_heads)
    x = torch.randn(B, length, FEATURES, dtype=F64)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ec.attention(q, k, v, enc, x=mine, window=window, backend=backend)

    def oracle(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return pair_by_pair(q, k, v, ORACLES[name](enc, theirs), window)

    agree(ours, oracle, q, k, v, extra=[(mine, theirs)])
    out, expected = ours(q, k, v), oracle(q, k, v)
    g = torch.randn_like(out)
    learned = [p for n, p in enc.named_parameters() if n.startswith("clock.")]
    for a, b in zip(torch.autograd.grad(out, learned, g), torch.autograd.grad(expected, learned, g), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6 * float(b.abs().max()))  # learned numbers are float32, and so are their gradients


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("name", ORACLES)
def test_one_query_at_a_time(name, window):
    """Decoding: each query alone against the keys and activations so far is its row of the whole, under grouped keys."""
    enc, (q, k, v) = built(name, 2), content(12, 2)
    x = torch.randn(B, 12, FEATURES, dtype=F64)
    full = ec.attention(q, k, v, enc, x=x, window=window)
    for t in range(1, 12):
        one = ec.attention(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1], enc, key_x=x[:, : t + 1], window=window)
        assert torch.allclose(one, full[:, :, t : t + 1], rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["fox", "grape_ctx"])
def test_gates_times_elapsed_time(agree, name):
    """Irregular stamps: every increment counts as long as the time since the token before, ties not at all."""
    length = 12
    gate = {"fox": "forget", "grape_ctx": "softplus"}[name]
    clock = ec.Cumulative(FEATURES, per="all" if name == "grape_ctx" else "head", gate=gate, base=ec.Timestamps("ms", per="s"))
    recipe = {"fox": ec.fox, "grape_ctx": ec.grape_ctx}[name]
    enc, (q, k, v) = recipe(D, heads=H, features=FEATURES, clock=clock), content(length, H)
    x = torch.randn(B, length, FEATURES, dtype=F64)
    gaps = torch.tensor([0, 300, 0, 0, 2500, 10, 1, 60_000, 5, 5, 700, 90])
    elapsed = (gaps.double() / 1000)[None, :, None]
    step = -torch.log(torch.sigmoid(projected(enc, x, 1))) if name == "fox" else F.softplus(projected(enc, x, 1))
    time = (step[..., 0] * elapsed).cumsum(1)  # (B, T, heads)

    def logit(b: int, h: int) -> Rows:
        if name == "fox":
            return lambda q, k, t, s: q @ k / math.sqrt(D) - (time[b, t, h] - time[b, s, h])
        freq = 10000.0 ** (-2 * torch.arange(D // 2, dtype=F64) / D)
        return lambda q, k, t, s: turned(q, freq * time[b, t, 0]) @ turned(k, freq * time[b, s, 0]) / math.sqrt(D)

    times = 1_700_000_000_000 + gaps.cumsum(0)
    agree(
        lambda q, k, v: ec.attention(q, k, v, enc, x=x, times=times), lambda q, k, v: pair_by_pair(q, k, v, logit), q, k, v
    )  # fmt: skip


def test_the_oracles_differ():
    """No two of the models are one, so an oracle that agrees agrees with its own."""
    (q, k, v), x = content(10, H), torch.randn(B, 10, FEATURES, dtype=F64)
    outs = {name: pair_by_pair(q, k, v, ORACLES[name](built(name, H), x)) for name in ORACLES}
    for a in outs:
        for b in outs:
            assert a == b or float((outs[a] - outs[b]).detach().abs().max()) > 0.05, (a, b)
