"""Decode steps on learned clocks: queries are the last positions of the keys, on tiles, in order by index."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import eigenclock as ec
from eigenclock.clocks.clock import Clock, Reading
from eigenclock.encodings.base import Encoding
from eigenclock.theory import Decay, Generator, OnClock, Product, Rotation

F64 = torch.float64
B, H, D, FEATURES = 2, 4, 8, 5


def learned(name: str, kv: int, fast: bool = False) -> Encoding:
    """A recipe on its own clock; ``fast`` moves it up to 10 per token, which leaves must be cut for."""
    enc = getattr(ec, name)(D, heads=H, kv_heads=kv, features=FEATURES)
    if fast:
        with torch.no_grad():
            enc.clock.bias.sub_(15.0 if name == "wall" else 7.0).mul_(-1.0 if name == "mamba2" else 1.0)
    return enc


def drawn(length: int, keys: int, kv: int, dtype: torch.dtype = F64) -> tuple[list[Tensor], Tensor]:
    torch.manual_seed(4)
    shapes = (B, H, length, D), (B, kv, keys, D), (B, kv, keys, D)
    return [torch.randn(*shape, dtype=F64).to(dtype).requires_grad_() for shape in shapes], torch.randn(B, keys, FEATURES, dtype=F64)


def dense(q: Tensor, k: Tensor, v: Tensor, enc: Encoding, **keywords: Any) -> Tensor:
    z = ec.scores(q, k, enc, **keywords)
    dead = (z == -torch.inf).all(-1, keepdim=True)
    return z.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0) @ v.double().repeat_interleave(q.shape[1] // v.shape[1], 1)


def padding(keys: int) -> Tensor:
    mask = torch.ones(B, keys, dtype=torch.bool)
    mask[0, : keys // 3] = mask[1, keys // 2 : keys // 2 + 3] = False
    return mask


WAYS: dict[str, tuple[int, int, int, Callable[[int], dict[str, Any]]]] = {
    "one query": (1, 300, H, lambda keys: {}),
    "one query, grouped": (1, 301, 2, lambda keys: {}),
    "three queries, one key head": (3, 257, 1, lambda keys: {}),
    "more than a leaf": (200, 333, 2, lambda keys: {}),
    "all but one": (150, 151, H, lambda keys: {}),
    "window": (5, 300, 2, lambda keys: {"window": 20}),
    "window past the queries": (140, 300, H, lambda keys: {"window": 150}),
    "padding": (9, 140, 2, lambda keys: {"mask": padding(keys)}),
    "padding and window": (150, 200, 2, lambda keys: {"mask": padding(keys), "window": 17}),
    "dense mask": (9, 140, H, lambda keys: {"mask": torch.rand(B, H, 9, keys, generator=torch.Generator().manual_seed(0)) < 0.5}),
}


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["wall", "gla", "fox", "mamba2"])
def test_tiles_equal_the_oracle(name, way, fast):
    length, keys, kv, options = WAYS[way]
    enc = learned(name, kv, fast)
    (q, k, v), x = drawn(length, keys, kv)
    keywords = options(keys) | {"key_x": x}
    expected, out = dense(q, k, v, enc, **keywords), ec.attention(q, k, v, enc, backend="tiled", **keywords)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-10)
    g, wanted = torch.randn_like(out), [q, k, v, *enc.parameters()]
    for a, b in zip(torch.autograd.grad(out, wanted, g), torch.autograd.grad(expected, wanted, g), strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-8, atol=1e-9 * max(1.0, float(b.abs().max())))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("way", ["one query, grouped", "more than a leaf", "padding and window"])
@pytest.mark.parametrize("name", ["wall", "fox"])
def test_every_dtype(name, way, dtype):
    length, keys, kv, options = WAYS[way]
    enc = learned(name, kv, fast=name == "wall")
    low, x = drawn(length, keys, kv, dtype)
    q, k, v = (y.detach().double().requires_grad_() for y in low)
    keywords, eps = options(keys) | {"key_x": x}, torch.finfo(dtype).eps
    expected, out = dense(q, k, v, enc, **keywords), ec.attention(*low, enc, **keywords)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=(64 if name == "fox" else 16) * eps)  # a bias of 50 takes digits
    g = torch.randn_like(out)
    for a, b in zip(torch.autograd.grad(out, low, g), torch.autograd.grad(expected, (q, k, v), g.double()), strict=True):
        assert float((a.double() - b).norm() / b.norm()) < (32 if name == "fox" else 8) * eps


def test_wall_as_it_is_written():
    """logit = sum_c q_c k_c exp(P_tc - P_sc) / sqrt(d), P the running sum of log sigmoid(x W + 8), for the last three positions."""
    enc, keys = ec.wall(D, heads=H, features=FEATURES), 60
    (q, k, v), x = drawn(3, keys, H)
    (weight,), bias = enc.clock.weight, enc.clock.bias  # the gate's start bias is part of ``bias``
    gate = F.logsigmoid(x @ weight.double() + bias.double()).unflatten(-1, (H, D))
    out = ec.attention(q, k, v, enc, key_x=x)
    assert ec.explain(q, k, v, enc, key_x=x).backend == "tiled"
    for i, t in enumerate(range(keys - 3, keys)):
        logits = torch.stack([(q[:, :, i] * k[:, :, s] * gate[:, s + 1 : t + 1].sum(1).exp()).sum(-1) * D**-0.5 for s in range(t + 1)], -1)
        want = (logits.softmax(-1)[..., None] * v[:, :, : t + 1]).sum(2)
        torch.testing.assert_close(out[:, :, i], want, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["wall", "fox", "mamba2", "selective_rope", "grape_ctx"])
def test_a_decode_step_is_the_last_row(name):
    """Each step of a decode equals its row of the whole sequence, also where the gate stands still or time goes back."""
    kv, length = H, 40
    enc = learned(name, kv)
    if name in ("fox", "wall"):
        with torch.no_grad():
            enc.clock.bias.add_(60.0)  # increments of e^-60 vanish in the sum: ties between neighbours
    (q, k, v), x = drawn(length, length, kv)
    whole = ec.attention(q, k, v, enc, x=x)
    for steps in (1, 3, 17):
        last = ec.attention(q[:, :, -steps:], k, v, enc, key_x=x)
        torch.testing.assert_close(last, whole[:, :, -steps:], rtol=0, atol=1e-12)
    later = ec.attention(q[:, :, -3:], k, torch.cat([v[:, :, :-1], v[:, :, -1:] + 1e6], 2), enc, key_x=x)
    assert torch.equal(later[:, :, 0], ec.attention(q[:, :, -3:], k, v, enc, key_x=x)[:, :, 0])  # a later value reaches no earlier query


def test_a_signed_clock_keeps_the_order_of_tokens():
    enc = ec.rope(D, heads=H, clock=ec.Cumulative(FEATURES, gate="signed"))
    (q, k, v), x = drawn(30, 30, H)
    whole = ec.attention(q, k, v, enc, x=x)
    for backend in ("sdpa", "tiled", "reference"):
        last = ec.attention(q[:, :, -4:], k, v, enc, key_x=x, backend=backend)
        torch.testing.assert_close(last, whole[:, :, -4:], rtol=0, atol=1e-12)


class _Dials(Clock):
    """A running sum of activations as they are: the first of two times never goes back, the second may."""

    sums, signed, width = True, True, 2

    def forward(self, times=None, *, length=None, origin=None, documents=None, mask=None, x=None, device=None, **rest) -> Reading:  # type: ignore[override]
        assert x is not None
        steps = torch.stack([x[..., 0].abs(), x[..., 1]], -1).unsqueeze(1)
        return Reading(steps.double().cumsum(2), None)


class _Spiral(Encoding):
    """A decay on the first time and phases on the second, as in Mamba-3."""

    def __init__(self, rate_clock: int = 0):
        super().__init__()
        self.head_dim, self.heads, self.kv_heads, self.clock, self.rate_clock = D, 1, None, _Dials(), rate_clock

    def generator(self, device: torch.device | None = None) -> Generator:
        turning = OnClock(Rotation(torch.linspace(0.1, 1.0, D // 2, dtype=F64)), 1, 1)
        return Product(turning, OnClock(Decay(torch.full((1,), 0.7, dtype=F64), D), self.rate_clock, 1))

    @property
    def spec(self) -> dict[str, Any]:
        return {"name": "spiral"}


@pytest.mark.parametrize("length", [1, 3, 200, 260])
def test_a_decay_and_phases_on_times_of_their_own(length):
    enc = _Spiral()
    (q, k, v), x = drawn(length, 260, 2)
    keywords: dict[str, Any] = {"x": x} if length == 260 else {"key_x": x}
    out, expected = ec.attention(q, k, v, enc, backend="tiled", **keywords), dense(q, k, v, enc, **keywords)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-10)
    g = torch.randn_like(out)
    for a, b in zip(torch.autograd.grad(out, (q, k, v), g), torch.autograd.grad(expected, (q, k, v), g), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    with pytest.raises(ec.ClockError, match="go back"):
        ec.attention(q, k, v, _Spiral(rate_clock=1), **keywords)


class _Largest(TorchDispatchMode):
    """The most bytes that any tensor made meanwhile stands on."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.bytes = max([self.bytes, *(x.untyped_storage().nbytes() for x in tree_leaves(out) if isinstance(x, Tensor))])
        return out


@pytest.mark.parametrize("name", ["wall", "fox"])
def test_no_tensor_of_queries_times_keys(name):
    enc, (length, keys) = learned(name, H), (700, 1500)
    (q, k, v), x = drawn(length, keys, H, torch.float32)
    with _Largest() as tiles:
        ec.attention(q, k, v, enc, key_x=x, window=600).sum().backward()
    assert tiles.bytes < B * H * length * keys * 4 / 8
    with _Largest() as quadratic:
        ec.attention(q[:1, :, :70], k[:1, :, :160], v[:1, :, :160], enc, key_x=x[:1, :160], backend="reference")
    assert quadratic.bytes >= H * 70 * 160 * 8  # the measure sees such a tensor where there is one


def test_a_window_in_time_needs_a_time():
    (q, k, v), x = drawn(9, 9, H)
    enc = ec.wall(D, heads=H, clock=ec.Cumulative(FEATURES, per="block", gate="forget_late", base=ec.Timestamps("s")))
    with pytest.raises(ec.ConfigError, match="several times"):
        ec.attention(q, k, v, enc, x=x, times=torch.arange(9), window="3s")


@pytest.mark.parametrize("name", ["wall", "mamba2", "fox"])
def test_shared_keys_are_not_copied(name, monkeypatch):
    """Clocks of their own for heads that share keys: the kernel gets the keys as they are shared, the oracle's numbers come out."""
    from eigenclock.attention.backends import tiled

    enc, seen, real = learned(name, 2), [], tiled.tiled
    monkeypatch.setattr(tiled, "tiled", lambda *arguments: seen.append(arguments[6].shape[1]) or real(*arguments))
    for length in (3, 300):
        (q, k, v), x = drawn(length, 300, 2)
        keywords: dict[str, Any] = {"x": x} if length == 300 else {"key_x": x}
        with torch.no_grad():
            torch.testing.assert_close(
                ec.attention(q, k, v, enc, backend="tiled", **keywords), dense(q, k, v, enc, **keywords), rtol=0, atol=1e-10
            )
    assert seen == [2, 2]


@pytest.mark.parametrize("shift", [0.0, -7.0, -12.0], ids=["slow", "middling", "fast"])
@pytest.mark.parametrize(("name", "length", "kv"), [("wall", 520, 2), ("gla", 512, 1)])
def test_long_sequences_go_through_block_edges(name, length, kv, shift, monkeypatch):
    """Rectangles of whole blocks start from queries and keys at the edges of their blocks, whatever fades inside one."""
    from eigenclock.attention import scaling

    enc, made, real = learned(name, kv), [], scaling.at_edges
    with torch.no_grad():
        enc.clock.bias.add_(shift)
    low, x = drawn(length, length, kv, torch.bfloat16)
    q, k, v = (y.detach()[:1] for y in low)
    expected = dense(q.double(), k.double(), v.double(), enc, x=x[:1]).detach()
    monkeypatch.setattr(scaling, "at_edges", lambda job: made.append(real(job)) or made[-1])
    for dtype in (F64, torch.float32, torch.bfloat16, torch.float16):
        with torch.no_grad():
            out = ec.attention(q.to(dtype), k.to(dtype), v.to(dtype), enc, x=x[:1])
        limit = 1e-10 if dtype == F64 else 16 * torch.finfo(dtype).eps
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=limit)
    calm = {edges.calm for edges in made if edges is not None}
    assert calm == {shift == 0.0} if name == "wall" else calm


def test_a_sum_in_runs_is_the_sum():
    from eigenclock.clocks.cumulative import running_sum

    for length in (1, 255, 256, 777):
        steps = torch.rand(2, 3, length, 4, generator=torch.Generator().manual_seed(length)) * 1e-3
        steps[:, :, 3:9] = 0
        got, wanted = running_sum(steps.requires_grad_()), steps.double().cumsum(2)
        torch.testing.assert_close(got, wanted, rtol=1e-14, atol=0)
        assert bool((got.diff(dim=2) >= 0).all())
        g = torch.randn(got.shape, dtype=F64)
        (a,), (b,) = torch.autograd.grad(got, steps, g), torch.autograd.grad(wanted, steps, g)
        torch.testing.assert_close(a, b)


def test_a_compiled_decode_step():
    enc = learned("wall", 2)
    (q, k, v), x = drawn(3, 140, 2, torch.float32)
    call = torch.compile(lambda q, k, v, x: ec.attention(q, k, v, enc, key_x=x), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(call(q, k, v, x), ec.attention(q, k, v, enc, key_x=x), rtol=1e-5, atol=1e-5)
