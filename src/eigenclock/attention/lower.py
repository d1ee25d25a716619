"""Lowering: from a checked problem to turned queries and keys and the parts that still need a reference time."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eigenclock.attention.problem import Problem
from eigenclock.attention.rotate import make_table, rotate
from eigenclock.theory import Split
from eigenclock.theory.split import Turn, side_by_side


@dataclass(frozen=True)
class Lowered:
    """Turned queries and keys, and what is left of L: rate, nilpotent part and slope (see Split and Problem)."""

    q: Tensor
    k: Tensor
    rate: Tensor | None  # (rows, R)
    nilpotent: Tensor | None  # (rows, D, D)
    order: int
    slope: Tensor | None
    width: int  # of q and k before any padding
    paired: bool  # column i of rate belongs to channels 2i and 2i + 1; otherwise to every channel c with c % R = i
    query_times: Tensor  # (B|1, H|1, T, W), W one time or one for each column of rate
    key_times: Tensor


def lower(problem: Problem) -> Lowered:
    """Apply the basis and the rotations once; append the coordinates of lifts that are no linear bias."""
    split, q, k = problem.split, problem.q, problem.k
    query_times, key_times = problem.query_vectors, problem.key_vectors
    if problem.other_lifts:
        q, k, split = _append(problem, q, k, split)
    if split.basis is not None and split.inverse is not None:
        q = through(q, split.basis)
        k = through(k, split.inverse.mT)
    for turn in split.turns:
        for_keys = make_table(key_times, turn, k.dtype)
        for_queries = for_keys
        repeated = per_query_head(turn, q.shape[1])
        if query_times is not key_times or repeated is not turn:
            for_queries = make_table(query_times, repeated, q.dtype)
        q, k = rotate(q, for_queries), rotate(k, for_keys)
    rate = split.rate if split.rate is None or split.rate.ndim == 2 else split.rate[None]
    paired = rate is not None and rate.shape[-1] == q.shape[-1] and _pairwise(split)
    if paired and rate is not None:
        # Both channels of a pair decay alike (else they would not commute): one column per pair, and one gradient for both.
        rate = rate.unflatten(-1, (-1, 2)).mean(-1)
    if rate is None or query_times.ndim == 3:
        times = tuple(x[..., None] for x in problem.scalar_times)
    else:
        times = tuple(_for_rates(x, split, paired, rate.shape[-1]) for x in (query_times, key_times))
    nilpotent = split.nilpotent if split.nilpotent is None or split.nilpotent.ndim == 3 else split.nilpotent[None]
    return Lowered(q, k, rate, nilpotent, split.order, problem.slope, q.shape[-1], paired, *times)


def _for_rates(vectors: Tensor, split: Split, paired: bool, columns: int) -> Tensor:
    """The time that each column of rate reads, (B|1, H|1, T, R)."""
    if split.rate_clock is None:  # one time for each block, in order; both channels of a pair read theirs
        blocks = vectors.shape[-1]
        halves = bool(split.turns) and split.turns[0].pairing == "half"
        return vectors if blocks == columns else vectors.repeat(1, 1, 1, 2) if halves else vectors.repeat_interleave(columns // blocks, -1)
    clock = list(split.rate_clock) * (split.dim // len(split.rate_clock)) if paired else list(split.rate_clock)
    return vectors[..., clock[::2] if paired else clock]


def _pairwise(split: Split) -> bool:
    """Whether all channels are interleaved pairs, whose rates are equal two by two."""
    turns = split.turns
    return (
        len(turns) == 1
        and turns[0].width == split.dim
        and turns[0].pairing == "interleaved"
        and split.nilpotent is None
        and split.basis is None
    )


def per_query_head(turn: Turn, heads: int) -> Turn:
    """A run of rotations whose frequencies are one per key head, repeated for the query heads of each group."""
    return turn if turn.rows in (1, heads) else replace(turn, freq=turn.freq.repeat_interleave(heads // turn.rows, 0))


def through(x: Tensor, matrix: Tensor) -> Tensor:
    """Rows of x times a constant matrix, (D, D) or (rows, D, D), in float32 or better."""
    work = torch.promote_types(x.dtype, torch.float32)
    if matrix.ndim == 3 and matrix.shape[0] not in (1, x.shape[1]):
        matrix = matrix.repeat_interleave(x.shape[1] // matrix.shape[0], 0)
    return (x.to(work) @ matrix.to(work)).to(x.dtype)


def _append(problem: Problem, q: Tensor, k: Tensor, split: Split) -> tuple[Tensor, Tensor, Split]:
    """Coordinates beside the content; the query side carries 1/scale where the bias stays outside the scale."""
    for lift in problem.other_lifts:
        # Coordinates read the content as it was given, before anything else was appended to it.
        for_queries = lift.queries(problem.q)
        q = torch.cat([q, for_queries if lift.scaled else for_queries / problem.scale], -1)
        k = torch.cat([k, lift.keys(problem.k)], -1)
    return q, k, side_by_side([split, *(lift.generator.split() for lift in problem.other_lifts)])
