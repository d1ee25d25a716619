"""Every encoding, taken in pieces and token by token, gives what the full pass gives: output and log-sum-exp, in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention.test_grid import ENCODED

import eigenclock as ec
from cache.conftest import B, H, close, cut, full, in_pieces, inputs, irregular, normal

LENGTH = 270
LEFT = torch.arange(LENGTH).expand(B, LENGTH) >= torch.tensor([[0], [70]])  # of the first piece, one row is all padding
HOLES = (torch.arange(LENGTH) % 7 != 3).expand(B, LENGTH) & LEFT

# name -> (key heads, keywords, pieces): chunks close at 256 tokens inside a piece, at its end and between two
WAYS: dict[str, tuple[int, Callable[[], dict[str, Any]], list[int]]] = {
    "count": (H, dict, [253, *[1] * 5, 12]),
    "irregular, grouped": (2, lambda: {"times": irregular(B, LENGTH)}, [1, 255, 2, 10, 1, 1]),
    "left padding": (H, lambda: {"mask": LEFT}, [40, 20, 205, *[1] * 5]),
    "window, padding, one key head": (1, lambda: {"window": 37, "mask": HOLES}, [100, *[1] * 3, 160, *[1] * 7]),
}


def call(name: str, way: str) -> tuple[ec.Encoding, list[torch.Tensor], dict[str, Any], list[int]]:
    heads, keywords, pieces = WAYS[way]
    enc = ENCODED[name][0](heads)
    words = keywords()
    if enc.clock.sums:
        words["x"] = normal(B, LENGTH, enc.clock.features, seed=9)  # type: ignore[arg-type]
    elif enc.clock.width > 1:
        place = torch.stack([torch.arange(LENGTH) * a % (7 + a) for a in range(enc.clock.width)], -1).double()
        place[:, 0] = torch.arange(LENGTH)
        words.pop("times", None)
        words["axes"] = place
    return enc, inputs(LENGTH, heads), words, pieces


def allowed(name: str, way: str) -> bool:
    heads, keywords, _ = WAYS[way]
    enc = ENCODED[name][0](heads)
    if name == "rope * fox" and heads != H:
        return False  # a clock per query head cannot turn shared keys
    return not enc.weighs and not (enc.breaks and "times" in keywords())


CELLS = [(name, way) for name in ENCODED for way in WAYS if allowed(name, way)]


@pytest.mark.parametrize(("name", "way"), CELLS)
def test_pieces_are_the_full_pass(name, way):
    enc, tensors, keywords, pieces = call(name, way)
    with torch.no_grad():
        out, lse, cache = in_pieces(tensors, enc, pieces, **keywords)
        wanted, wanted_lse = full(tensors, enc, **keywords)
    rows = keywords.get("mask")
    close(out, wanted, rows=rows)
    close(lse, wanted_lse, rows=rows)
    assert len(cache) == LENGTH


@pytest.mark.parametrize("name", ENCODED)
def test_gradients_go_through_the_cache(name):
    """Pieces trained through: the gradients of the full pass, to activations, times and numbers of the encoding."""
    if not allowed(name, "count"):
        pytest.skip("no law over a cache")
    enc, tensors, keywords, _ = call(name, "count")
    length, pieces = 24, [9, 1, 1, 13]
    tensors, keywords = [x[:, :, :length] for x in tensors], cut(keywords, 0, length)
    if "times" in keywords:
        keywords["axes"] = keywords.pop("times")
    elif not enc.clock.sums and not enc.breaks:
        keywords["times"] = irregular(length)
    weight = normal(*tensors[0].shape[:3], tensors[2].shape[3], seed=4)
    results = []
    for piecewise in (True, False):
        leaves = [x.clone().requires_grad_() for x in tensors]
        words = {n: x.clone().requires_grad_() if n in ("times", "x") and x.is_floating_point() else x for n, x in keywords.items()}
        out, lse = in_pieces(leaves, enc, pieces, **words)[:2] if piecewise else full(leaves, enc, **words)
        # PoPE's phase is bounded: each use stops the part of its own gradient that points out, so the sum depends on the pieces.
        numbers = [] if name == "pope" else list(enc.parameters())
        wanted = [*leaves, *(x for n, x in words.items() if n in ("times", "x") and x.requires_grad), *numbers]
        results.append(torch.autograd.grad((out * weight).sum() + lse.sum(), wanted, allow_unused=True))
    for got, expected in zip(*results, strict=True):
        got = torch.zeros_like(expected) if got is None and expected is not None else got
        if got is not None and expected is not None:
            close(got, expected, 1e-9 if got.dtype == torch.float64 else 1e-6)  # numbers of an encoding may be float32
