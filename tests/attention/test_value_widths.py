"""Values narrower, as wide and wider than keys: every encoding on every backend, over a cache and in every form of linear attention."""

from typing import Any

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from attention.test_grid import ENCODED, F64, WAYS, D, H, Way, allowed, arguments, close, dense, on_axes, on_every_backend

WIDTHS = [3, 13, 24]
"""Narrower; wider by an odd number of channels; three times as wide. The grid has values as wide as keys."""

PHASE_INSIDE = {"pope": lambda kv: ec.pope(D, heads=H, kv_heads=kv, delta=-1.0)}  # at the edge its gradient is cut by sign, no sum
MADE = {name: row[0] for name, row in ENCODED.items()} | PHASE_INSIDE


WAYS_TO_CALL = {name: WAYS[name] for name in ("length 33", "grouped queries", "not causal")} | {
    "three queries, cache": Way(queries=3, keys=70)
}


def gradients(out: Tensor, leaves: list[Tensor], g: Tensor) -> list[Tensor]:
    found = torch.autograd.grad(out, leaves, g, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(x) if a is None else a for x, a in zip(leaves, found, strict=True)]


def same(out: Tensor, expected: Tensor, leaves: list[Tensor]) -> None:
    """Output and gradients; those of learned numbers, kept in float32, once for each piece."""
    close("output", out, expected, 1e-10)
    g = torch.randn(expected.shape, dtype=F64, generator=torch.Generator().manual_seed(1))
    for x, a, b in zip(leaves, gradients(out, leaves, g), gradients(expected, leaves, g), strict=True):
        close("gradient", a, b, 1e-9 if x.dtype == F64 else 1e-5)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("name", "way"), [(n, w) for n in ENCODED for w in WAYS_TO_CALL if w not in WAYS or allowed(n, w)])
def test_softmax(name, way, width):
    call = WAYS_TO_CALL[way]
    enc = MADE[name](call.kv_heads)
    (q, k, v), keywords = arguments(call, value_width=width)
    keywords = on_axes(enc, keywords, call)
    expected, _ = dense(q, k, v, enc, **keywords)
    leaves = [q, k, v, *enc.parameters()]
    on_every_backend(
        lambda backend: same(ec.attention(q, k, v, enc, backend=backend, **keywords), expected, leaves), q, k, v, enc, **keywords
    )


def cut(keywords: dict[str, Any], low: int, high: int) -> dict[str, Any]:
    return {name: x[:, low:high] if name == "x" else x[low:high] for name, x in keywords.items()}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ENCODED)
def test_softmax_over_a_cache(name, width):
    enc = MADE[name](2 if allowed(name, "grouped queries") else H)
    (q, k, v), keywords = arguments(WAYS["grouped queries" if allowed(name, "grouped queries") else "plain"], value_width=width)
    keywords = on_axes(enc, keywords, WAYS["plain"])
    expected, _ = dense(q, k, v, enc, **keywords)
    parts, cache = [], None
    for low, high in ((0, 20), (20, 21), (21, 45)):
        new = (x[:, :, low:high] for x in (q, k, v))
        part, cache = ec.cached_attention(*new, enc, cache=cache, **cut(keywords, low, high))  # type: ignore[call-overload]
        parts.append(part)
    same(torch.cat(parts, 2), expected, [q, k, v, *enc.parameters()])


IN_LINEAR = [
    name for name in ENCODED if not MADE[name](H).lifts() and not any(o.bias for o in MADE[name](H).outside()) and MADE[name](H).sides == 1
]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", IN_LINEAR)
def test_linear(name, width):
    enc = MADE[name](2)
    (q, k, v), keywords = arguments(WAYS["grouped queries"], value_width=width)
    keywords = on_axes(enc, keywords, WAYS["grouped queries"])
    z = ec.scores(q, k, enc, **keywords)
    expected = z.masked_fill(z == -torch.inf, 0.0) @ v.repeat_interleave(2, 1)
    for form in ec.FORMS:
        for normalize in (False, True):
            first, state = ec.linear_attention(
                q[:, :, :30], k[:, :, :30], v[:, :, :30], enc, form=form, normalize=normalize, **cut(keywords, 0, 30)
            )
            second, _ = ec.linear_attention(
                q[:, :, 30:], k[:, :, 30:], v[:, :, 30:], enc, form=form, normalize=normalize, state=state, **cut(keywords, 30, 45)
            )
            out = torch.cat([first, second], 2)
            if normalize:
                total = z.masked_fill(z == -torch.inf, 0.0).sum(-1, keepdim=True)
                out, steady = out * (total.abs() > 1e-2), (expected / total) * (total.abs() > 1e-2)
                close("normalised", out, steady, 1e-8)
            else:
                same(out, expected, [q, k, v, *enc.parameters()])


@pytest.mark.parametrize("shift", [0.0, -9.0], ids=["slow", "fast"])
@pytest.mark.parametrize("name", ["wall", "gla", "damped_rope, learned clock"])
def test_long_sequences(name, shift):
    """Edges of blocks, and leaves that are cut further, with columns that no time moves."""
    enc = ENCODED[name][0](2)
    with torch.no_grad():
        enc.clock.bias.add_(shift if name != "damped_rope, learned clock" else -shift)
    way = Way(queries=600, kv_heads=2)
    low, keywords = arguments(way, torch.float32, value_width=24)
    keywords = on_axes(enc, keywords, way)
    expected, _ = dense(*(x.detach().double() for x in low), enc, **keywords)
    with torch.no_grad():
        out = ec.attention(*low, enc, backend="tiled", **keywords)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=16 * torch.finfo(torch.float32).eps)
