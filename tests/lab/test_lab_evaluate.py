"""Held-out loss against direct computation."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from eigenclock.lab import evaluate as module
from eigenclock.lab.evaluate import bin_edges, evaluate, losses
from eigenclock.lab.model import SmallGPT


@pytest.fixture
def model() -> SmallGPT:
    return SmallGPT("rope * alibi", vocabulary=23, layers=2, width=16, heads=2, seed=0)


@pytest.fixture
def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 23, 150).astype(np.uint8)


def directly(model: SmallGPT, tokens: np.ndarray, length: int, count: int) -> torch.Tensor:
    """Bits of the first ``count`` targets, one window and one position at a time."""
    rows = []
    for start in range(0, count, length):
        window = torch.tensor(tokens[start : start + length].astype(int))[None]
        share = model(window)[0].double().softmax(-1).tolist()
        rows.append([-math.log2(share[p][int(tokens[start + p + 1])]) for p in range(length)])
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("logits", [1 << 24, 23 * 7])  # all rows at once, and seven at a time
def test_evaluation_equals_a_direct_computation(model, tokens, logits, monkeypatch):
    monkeypatch.setattr(module, "LOGITS", logits)
    monkeypatch.setattr(module, "FORWARD_TOKENS", 32)
    found = evaluate(model, tokens, (8, 16, 32, 64), most=10_000)
    assert found.targets == 128
    for length, bits in zip((8, 16, 32, 64), found.bits, strict=True):
        assert bits == pytest.approx(directly(model, tokens, length, 128).mean().item(), rel=1e-5)
    by_position = directly(model, tokens, 64, 128).mean(0)
    for a, b, value in zip(found.edges, found.edges[1:], found.curve, strict=False):
        assert value == pytest.approx(by_position[a:b].mean().item(), rel=1e-5)
    assert found.edges[0] == 0 and found.edges[-1] == 64 and {8, 16, 32} <= set(found.edges)


def test_every_length_reads_the_same_bytes(model, tokens):
    """A model that ignores its context has the same loss at every length exactly when the targets are the same."""
    for block in model.blocks:
        nn.init.zeros_(block.out.weight)
    bits = evaluate(model, tokens, (8, 16, 32, 64), most=10_000).bits
    assert max(bits) - min(bits) < 1e-6


def test_most_limits_what_is_read_and_a_whole_longest_window_remains(model, tokens):
    assert evaluate(model, tokens, (8, 64), most=127).targets == 64


def test_losses_leave_the_ragged_end_out(model, tokens):
    assert losses(model, tokens[:100], 16).shape == (6, 16)


@pytest.mark.parametrize("length", [8, 24, 100, 1024])
def test_bin_edges_cover_every_position_once(length):
    edges = bin_edges(length)
    assert edges[0] == 0 and edges[-1] == length and list(edges) == sorted(set(edges))
