"""What a mask hides may hold NaN, infinity or numbers beyond all products: no other row and no gradient sees it."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from attention.test_grid import (
    ENCODED,
    F64,
    FEATURES,
    D,
    H,
    Way,
    allowed,
    close,
    dense,
    documents,
    irregular,
    on_axes,
    on_every_backend,
    padding,
)
from attention.test_grid import B as ROWS

JUNK = (math.nan, math.inf, -math.inf, 1e300)


def dead_rows() -> Tensor:
    """A dense mask that hides some keys from all, others from one row or head, and leaves some queries nothing."""
    mask = torch.rand(ROWS, 1, 40, 40, generator=torch.Generator().manual_seed(2)) < 0.7
    mask[:, :, :, 5:8] = mask[1, :, :, 20:30] = mask[0, :, 11:14] = False
    return mask


WAYS: dict[str, Way] = {
    "left padding": Way(lambda: {"mask": padding(40, "left")}, 40),
    "right padding, window": Way(lambda: {"mask": padding(40, "right"), "window": 6}, 40, kv_heads=2),
    "interior padding, documents": Way(lambda: {"mask": padding(150, "interior"), "documents": documents(150, True)}, 150),
    "padding, not causal": Way(lambda: {"mask": padding(40, "interior"), "causal": False}, 40, needs_causal=False),
    "dense mask": Way(lambda: {"mask": dead_rows()}, 40),
    "cache, right padding": Way(lambda: {"mask": padding(90, "right")}, 3, 90, kv_heads=2),
    "cache, left padding": Way(lambda: {"mask": torch.arange(20).expand(ROWS, 20) >= torch.tensor([[18], [4]])}, 5, 20),
    "cross, no key yet": Way(lambda: {"times": irregular(30, seed=1), "key_times": irregular(40, seed=2) + 9.5}, 30, 40),
    "cross, padding": Way(
        lambda: {"times": irregular(30, seed=1), "key_times": irregular(40, seed=2), "mask": padding(40, "interior")}, 30, 40
    ),
}


def hidden(way: Way, keywords: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Which queries (B, T) and keys (B, S) the call hides, from the visible pairs of the oracle and the padding."""
    keys = way.queries if way.keys is None else way.keys
    seen = ec.scores(torch.zeros(ROWS, 1, way.queries, 2), torch.zeros(ROWS, 1, keys, 2), ec.nope(2), **keywords) > -torch.inf
    of_queries, of_keys = ~seen.any(-1).any(1), ~seen.any(2).any(1)
    mask = keywords.get("mask")
    if mask is not None and mask.ndim == 2:
        of_keys = ~mask
        of_queries = of_queries | ~mask if way.keys is None else of_queries
    return of_queries, of_keys


def filled(x: Tensor, rows: Tensor, junk: bool) -> Tensor:
    """x (B, X, n, D) or (B, n, D) with zeros, or with every kind of junk, in some rows (B, n)."""
    where = (rows[:, None] if x.ndim == 4 else rows)[..., None]
    kinds = torch.tensor(JUNK, dtype=x.dtype)[torch.arange(rows.shape[1]) % len(JUNK)][:, None]
    return torch.where(where, kinds if junk else torch.zeros((), dtype=x.dtype), x)


def tensors(way: Way, kv: int, junk: bool, keywords: dict[str, Any]) -> list[Tensor]:
    torch.manual_seed(11)
    keys = way.queries if way.keys is None else way.keys
    of_queries, of_keys = hidden(way, keywords)
    drawn = [torch.randn(ROWS, n, m, D, dtype=F64) for n, m in ((H, way.queries), (kv, keys), (kv, keys))]
    return [filled(x, rows, junk).requires_grad_() for x, rows in zip(drawn, (of_queries, of_keys, of_keys), strict=True)]


def call(name: str, way: Way, junk: bool) -> tuple[ec.Encoding, list[Tensor], dict[str, Any], Tensor]:
    """The encoding, q, k and v, the keywords, and the rows of the output that mean something, (B, 1, T, 1)."""
    kv = H if name == "rope * fox" else way.kv_heads
    enc, given = ENCODED[name][0](kv), way.keywords()
    of_queries, of_keys = hidden(way, given)
    padded = "mask" in given and given["mask"].ndim == 2
    keywords = on_axes(enc, dict(given), way)
    for x in ("x", "key_x"):
        if x in keywords and padded:  # a dense mask stops no clock
            keywords[x] = filled(keywords[x], of_keys, junk).requires_grad_()
    counted = of_queries if way.keys is None and padded else torch.zeros_like(of_queries)
    return enc, tensors(way, kv, junk, given), keywords, ~counted[:, None, :, None]


CELLS = [(name, way) for name in ENCODED for way in WAYS if allowed(name, way if way in ("left padding",) else "plain")]


@pytest.mark.parametrize(("name", "way"), CELLS)
def test_softmax(name, way):
    chosen = WAYS[way]
    enc, clean, keywords, rows = call(name, chosen, junk=False)
    learned = isinstance(enc.clock, ec.Cumulative)
    if (learned and "times" in chosen.keywords()) or (not chosen.needs_causal and ENCODED[name][1]):
        pytest.skip("not a way of calling this encoding")
    if any(part.length is not None for part in enc.outside()) and "times" in chosen.keywords():
        pytest.skip("a vector for each whole position")
    leaves = [*clean, *(x for x in keywords.values() if isinstance(x, Tensor) and x.requires_grad), *enc.parameters()]
    expected, _ = dense(*clean, enc, **keywords)
    g = torch.randn_like(expected) * rows
    want = torch.autograd.grad(expected, leaves, g, allow_unused=True)
    _, loud, words, _ = call(name, chosen, junk=True)
    mine = [*loud, *(x for x in words.values() if isinstance(x, Tensor) and x.requires_grad), *enc.parameters()]

    def check(backend: str) -> None:
        out = ec.attention(*loud, enc, backend=backend, **words)
        close("output", out * rows, expected * rows, 1e-10)
        got = torch.autograd.grad(out, mine, g, allow_unused=True)
        for x, a, b in zip(mine, got, want, strict=True):
            zero, limit = torch.zeros_like(x), 1e-9 if x.dtype == F64 else 1e-6
            close("gradient", zero if a is None else a, zero if b is None else b, limit)

    on_every_backend(check, *loud, enc, **words)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "way", ["left padding", "right padding, window", "interior padding, documents", "dense mask", "cache, left padding"]
)
@pytest.mark.parametrize("name", ["rope", "damped_rope, per head and pair", "alibi", "wall", "t5_bias"])
def test_low_precision(name, way, dtype):
    """The fused kernels: bit for bit what zeros in the hidden rows give."""
    enc, clean, keywords, rows = call(name, WAYS[way], junk=False)
    _, loud, words, _ = call(name, WAYS[way], junk=True)
    results = []
    for tensors_, given in ((clean, keywords), (loud, words)):
        low = [x.detach().to(dtype).requires_grad_() for x in tensors_]
        out = ec.attention(*low, enc, **given)
        (out * rows).float().square().sum().backward() if not bool(out.isnan().any()) else None
        results.append((out * rows, *(x.grad for x in low)))
    for a, b in zip(*results, strict=True):
        assert b is not None and bool(b.isfinite().all())
        assert torch.equal(a, b)


LINEAR: dict[str, Callable[[], ec.Encoding]] = {
    "rope": lambda: ec.rope(D),
    "damped_rope": lambda: ec.damped_rope(D, half_life=5.0, learn=("rate",)),
    "jordan_rope": lambda: ec.jordan_rope(D, heads=H, eta=0.2, half_life=9.0),
    "gla": lambda: ec.gla(D, heads=H, features=FEATURES, rank=2),
    "mamba2": lambda: ec.mamba2(D, heads=H, features=FEATURES),
    "mamba3": lambda: ec.mamba3(D, heads=H, features=FEATURES),
    "rwkv6": lambda: ec.rwkv6(D, heads=H, features=FEATURES),
}


@pytest.mark.parametrize("way", ["softmax", "linear", "normalised"])
@pytest.mark.parametrize("name", LINEAR)
def test_pieces_of_a_sequence(name, way):
    """Padding of each piece, over a cache and over a state: outputs, gradients, and what is carried on."""
    enc, pieces = LINEAR[name](), [15, 1, 9, 1, 14]
    if way == "softmax" and enc.weighs:
        pytest.skip("made for linear attention")
    mask = padding(40, "interior")
    mask[0, :4] = mask[1, 15] = mask[1, 38:] = False
    results = []
    for junk in (False, True):
        torch.manual_seed(5)
        drawn = [*(torch.randn(ROWS, H, 40, D, dtype=F64) for _ in range(3)), torch.randn(ROWS, 40, FEATURES, dtype=F64)]
        leaves = [filled(x, ~mask, junk).requires_grad_() for x in drawn]
        outs, carried, start = [], None, 0
        for n in pieces:
            cut = slice(start, start := start + n)
            new, words = [x[:, :, cut] for x in leaves[:3]], {"mask": mask[:, cut]} | ({"x": leaves[3][:, cut]} if enc.clock.sums else {})
            if way == "softmax":
                out, carried = ec.cached_attention(*new, enc, cache=carried, **words)  # type: ignore[call-overload]
            else:
                out, carried = ec.linear_attention(*new, enc, state=carried, normalize=way == "normalised", **words)
            outs.append(out * mask[:, None, cut, None])
        out = torch.cat(outs, 2)
        wanted = [*leaves[: 4 if enc.clock.sums else 3], *enc.parameters()]
        results.append([out, *torch.autograd.grad(out, wanted, torch.ones_like(out), allow_unused=True)])
        assert isinstance(carried, ec.State) or bool(carried.store.tokens().keys.isfinite().all())
    for a, b in zip(*results, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            close("result", b, a, 1e-9 if a.dtype == F64 else 1e-6)


def test_written_out():
    """Two real tokens of four: the weights of the second are those of a call on these two alone."""
    q, v = torch.zeros(1, 1, 4, 2), torch.tensor([[[[math.nan] * 2, [1.0, 0.0], [math.inf] * 2, [0.0, 1.0]]]])
    k, mask = v.clone(), torch.tensor([[False, True, False, True]])
    for enc in (ec.nope(2), ec.alibi(2, heads=1, slopes=[math.log(3.0)])):
        out = ec.attention(q, k, v, enc, mask=mask)[0, 0]
        share = 0.5 if enc.form == ec.nope(2).form else 0.25  # 1 : 1, or 1/3 : 1
        torch.testing.assert_close(out[3], torch.tensor([share, 1 - share]))
        assert out[1].tolist() == [1.0, 0.0] and out[0].tolist() == [0.0, 0.0]
    none = ec.attention(torch.full((1, 1, 1, 2), math.nan), k, v, ec.nope(2), mask=torch.zeros(1, 1, 1, 4, dtype=torch.bool))
    assert none.tolist() == [[[[0.0, 0.0]]]]


def test_what_is_visible_is_not_hidden():
    """NaN in a real token is shown, not repaired; and ordinary numbers in padding stay as they are, with their own rows."""
    q, k, v = torch.randn(3, 1, 1, 6, 2, generator=torch.Generator().manual_seed(0))
    bad = torch.where(torch.arange(6)[:, None] == 2, math.nan, v)
    assert bool(ec.attention(q, k, bad, ec.nope(2))[0, 0, 2:].isnan().all())
    mask = torch.arange(6)[None] != 2
    out = ec.attention(q, k, v, ec.rope(2), mask=mask)
    alone = ec.scores(q, k, ec.rope(2), mask=mask).softmax(-1) @ v.double()
    torch.testing.assert_close(out.double(), alone, rtol=0, atol=1e-6)
    assert bool((out[0, 0, 2] != 0).all())


def test_compiled():
    enc, clean, keywords, rows = call("alibi", WAYS["left padding"], junk=False)
    _, loud, words, _ = call("alibi", WAYS["left padding"], junk=True)
    run = torch.compile(lambda q, k, v, mask: ec.attention(q, k, v, enc, mask=mask), backend="aot_eager", fullgraph=True)
    low = [x.detach().float() for x in loud]
    expected = ec.attention(*(x.detach().float() for x in clean), enc, **keywords)
    torch.testing.assert_close(run(*low, words["mask"]) * rows, expected * rows, rtol=1e-5, atol=1e-5)
