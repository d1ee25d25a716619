"""Held-out loss at several window lengths over the same text, and how it depends on the position in the window."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from eigenclock.lab.model import SmallGPT

FORWARD_TOKENS = 8192  # tokens in one forward pass
LOGITS = 1 << 24  # logits alive at a time: a large vocabulary is read out a few rows at a time


@dataclass(frozen=True)
class Evaluation:
    """Losses of one trained model.

    Units: bits per byte (per token for corpora of tokens); ``edges`` are positions in the longest window and
    ``curve[i]`` is the mean over positions ``edges[i] <= p < edges[i + 1]``.
    """

    bits: tuple[float, ...]
    edges: tuple[int, ...]
    curve: tuple[float, ...]
    targets: int


def losses(model: SmallGPT, tokens: np.ndarray, length: int, tick: Callable[[int], None] = lambda done: None) -> Float[Tensor, "N T"]:
    """Bits of every target in back-to-back windows of ``length``; the ragged end is left out.

    Every position counts, the first of a window too, where nothing is known yet.

    Shape: (windows, length), where windows = (N - 1) // length.
    """
    windows = (len(tokens) - 1) // length
    flat = torch.from_numpy(tokens[: windows * length + 1].astype(np.int64))
    inputs, targets = flat[:-1].view(windows, length), flat[1:].view(windows, length)
    rows = max(1, FORWARD_TOKENS // length)
    parts = []
    with torch.no_grad():
        for x, y in zip(inputs.split(rows), targets.split(rows), strict=True):
            hidden = model.hidden(x).flatten(0, 1)
            at_once = max(1, LOGITS // len(model.embed.weight))
            bits = [
                F.cross_entropy(F.linear(h, model.embed.weight), target, reduction="none")
                for h, target in zip(hidden.split(at_once), y.flatten().split(at_once), strict=True)
            ]
            parts.append(torch.cat(bits).view_as(y).double() / math.log(2))
            tick(y.numel())
    return torch.cat(parts)


def shared_part(tokens: np.ndarray, longest: int, most: int) -> np.ndarray:
    """The start of ``tokens`` that windows of every length fill exactly, with one more item as the last target.

    >>> len(shared_part(np.zeros(1000, np.uint8), longest=80, most=500))
    481
    """
    return tokens[: min(len(tokens) - 1, most) // longest * longest + 1]


def evaluate(
    model: SmallGPT, held_out: np.ndarray, lengths: tuple[int, ...], *, most: int, tick: Callable[[int], None] = lambda done: None
) -> Evaluation:
    """Mean loss over the same held-out targets read in windows of each length, and the curve of the longest.

    ``lengths`` increase and each divides the last one; ``tick`` hears how many targets were done.
    """
    model.eval()
    part = shared_part(held_out, lengths[-1], most)
    bits: list[float] = []
    for length in lengths:
        table = losses(model, part, length, tick)
        bits.append(table.mean().item())
    by_position = table.mean(0)
    edges = bin_edges(lengths[-1])
    curve = tuple(by_position[a:b].mean().item() for a, b in pairwise(edges))
    return Evaluation(tuple(bits), edges, curve, len(part) - 1)


def unknown(held_out: np.ndarray, lengths: tuple[int, ...], *, most: int) -> Evaluation:
    """What is known of a model that diverged: nothing, over as many targets."""
    edges = bin_edges(lengths[-1])
    targets = len(shared_part(held_out, lengths[-1], most)) - 1
    return Evaluation((math.nan,) * len(lengths), edges, (math.nan,) * (len(edges) - 1), targets)


def bin_edges(length: int, per_octave: int = 2) -> tuple[int, ...]:
    """Bin edges from 0 to ``length`` that widen geometrically; halves, quarters and eighths of ``length`` are among them.

    >>> bin_edges(16, per_octave=1)
    (0, 1, 2, 4, 8, 16)
    """
    octaves = math.floor(math.log2(length) * per_octave)
    inner = {round(length * 2 ** (-step / per_octave)) for step in range(octaves + 1)}
    return tuple(sorted({0, *inner}))
