"""Heads whose bias hardly reaches over the keys take one fused call; the others take tiles, which drop what weighs nothing there."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eigenclock.attention.backends import sdpa
from eigenclock.attention.problem import Problem


@dataclass(frozen=True)
class Parts:
    """A call in two: its heads of short and of long reach, and the order that puts their outputs back."""

    near: Problem
    far: Problem
    back: Tensor

    def joined(self, near: Tensor, far: Tensor) -> Tensor:
        """Both outputs (B, h, T, V) as one, with the heads in their own order."""
        out = torch.cat([far, near], 1)
        return out if bool((self.back.diff() == 1).all()) else out.index_select(1, self.back)


def by_reach(problem: Problem) -> Parts | None:
    """The two parts of a call whose heads differ in the reach of their linear bias; None where one way serves all of them."""
    if torch.compiler.is_compiling() or problem.slope is None or problem.cross or problem.want_lse or problem.q.device.type != "cpu":
        return None
    if problem.split.rate is not None or problem.split.nilpotent is not None or problem.split.basis is not None:
        return None
    near = sdpa.reaches(problem) <= sdpa.KEY_TERM_BOUND
    h, g = problem.q.shape[1], problem.k.shape[1]
    near = near.view(g, h // g).all(-1)  # keys of a group stay together
    if bool(near.all()) or not bool(near.any()):
        return None
    keys = [near.nonzero().flatten(), (~near).nonzero().flatten()]
    queries = [(x[:, None] * (h // g) + torch.arange(h // g)).flatten() for x in keys]
    parts = [_heads(problem, q, k) for q, k in zip(queries, keys, strict=True)]
    if sdpa.backend.refuses(parts[0]) is not None:
        return None
    return Parts(parts[0], parts[1], torch.cat([queries[1], queries[0]]).argsort())


def _heads(problem: Problem, queries: Tensor, keys: Tensor) -> Problem:
    """The same call on some of its heads."""
    h, g = problem.q.shape[1], problem.k.shape[1]

    def pick(x: Tensor) -> Tensor:
        """Axis 1 by query head or key head, as it has them; one row for all heads stays."""
        if x.shape[1] == 1 or x.shape[1] not in (h, g):
            return x
        index = queries if x.shape[1] == h else keys
        run = bool((index.diff() == 1).all())
        return x.narrow(1, int(index[0]), len(index)) if run else x.index_select(1, index)

    turns = tuple(replace(turn, freq=pick(turn.freq[None])[0]) if turn.rows > 1 else turn for turn in problem.split.turns)
    return replace(
        problem, q=pick(problem.q), k=pick(problem.k), v=pick(problem.v), slope=None if problem.slope is None else problem.slope[queries],
        query_times=pick(problem.query_times), key_times=pick(problem.key_times),
        query_counts=None if problem.query_counts is None else pick(problem.query_counts),
        key_counts=None if problem.key_counts is None else pick(problem.key_counts),
        query_vectors=pick(problem.query_vectors), key_vectors=pick(problem.key_vectors),
        allowed=None if problem.allowed is None else pick(problem.allowed), split=replace(problem.split, turns=turns),
    )  # fmt: skip
