"""exp((t-c)L) on queries and exp((c-s)L) on keys of one tile: decays and shears around the tile's reference time c."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eigenclock.attention.job import Edges, Job, Workspace, take
from eigenclock.attention.times import per_query_head
from eigenclock.theory.tiles import EXPONENT_BOUND, FACTOR_FLOOR, LEAVES, Tile


@dataclass(frozen=True)
class Side:
    """The queries or the keys of one tile, with their lag from the reference (>= 0 off the diagonal)."""

    x: Tensor  # (B, X, outer, count, L, D), a view
    lag: Tensor  # (B|1, X|1, outer|1, count|1, L, W), float32 (float64 for float64)
    factor: Tensor | None  # exp(-rate lag), (B|1, X|1, outer|1, count|1, L, R)
    is_query: bool


def reference(job: Job, tile: Tile) -> Tensor:
    """The reference time c of each tile, (B|1, X|1, outer, count, 1, W) in float64.

    Off the diagonal it is the time of the last key, so key <= c <= query; inside a leaf it is the middle.
    """
    if tile.kind in ("full", "flip"):
        return take(job.key_times, tile.key + tile.keys - 1, 1, tile)
    if tile.kind == "causal":
        return take(job.key_times, tile.key + tile.keys // 2, 1, tile)
    queries, keys = take(job.query_times, tile.query, tile.queries, tile), take(job.key_times, tile.key, tile.keys, tile)
    low, high = torch.minimum(queries[..., :1, :], keys[..., :1, :]), torch.maximum(queries[..., -1:, :], keys[..., -1:, :])
    return low + (high - low) / 2


def side(job: Job, tile: Tile, c: Tensor, is_query: bool, clamp: bool) -> Side:
    """One side of a tile with its factor; the difference of times is taken in float64 and rounded once."""
    if is_query:
        x, times, start, length = job.q, job.query_times, tile.query, tile.queries
    else:
        x, times, start, length = job.k, job.key_times, tile.key, tile.keys
    t = take(times, start, length, tile)
    c = per_query_head(c, t.shape[1])
    lag = (t - c if is_query else c - t).to(job.accumulate)
    one_clock = lag.shape[-1] == 1  # several are read from the data, and never regular
    if job.rate is not None and one_clock and tile.outer * tile.count > 1 and bool((lag == lag[:, :, :1, :1]).all()):
        lag = lag[:, :, :1, :1]  # regular times: one table of factors for all tiles
    factor = None
    if job.rate is not None:
        rate = job.per_head(job.rate, x.shape[1]).to(lag.dtype)[:, None, None, None]
        size = (lag.shape[0], max(lag.shape[1], rate.shape[0]), *lag.shape[2:5], rate.shape[-1])
        exponent = torch.mul(
            lag, rate.neg(), out=job.workspace.take("query factor" if is_query else "key factor", size, lag.dtype, lag.device)
        )
        if clamp:
            exponent = exponent.clamp_(-EXPONENT_BOUND, EXPONENT_BOUND)
        elif job.nilpotent is None and tile.kind in ("full", "flip") and lag.dtype == torch.float32:
            exponent = exponent.clamp_min_(-FACTOR_FLOOR)
        factor = exponent.exp_()
    return Side(take(x, start, length, tile), lag, factor, is_query)


def acted(job: Job, tile: Tile, c: Tensor, is_query: bool, clamp: bool, dtype: torch.dtype) -> tuple[Side | None, Tensor]:
    """One side of a tile and what it becomes, folded as :func:`apply` does; no side where its edges say it all."""
    moved = from_edges(job, tile, c, is_query, dtype)
    if moved is not None:
        return None, moved
    s = side(job, tile, c, is_query, clamp)
    return s, apply(job, s, dtype)


def powers(job: Job) -> list[Tensor]:
    """N^0 .. N^(order-1) in the accumulating dtype, (heads, D, D)."""
    assert job.nilpotent is not None
    n = job.nilpotent.to(job.accumulate)
    out = [torch.eye(n.shape[-1], dtype=n.dtype, device=n.device).expand(n.shape)]
    for _ in range(1, job.order):
        out.append(out[-1] @ n)
    return out


def _bounded(lag: Tensor, order: int) -> Tensor:
    """Lags cut where their highest power would leave float32: what decays is 0 there, and infinity times 0 would be no number."""
    limit = 10.0 ** (36 / max(order - 1, 1))
    return lag.clamp(-limit, limit)


def _shear(x: Tensor, lag: Tensor, job: Job, forward: bool) -> Tensor:
    """Rows of x times sum_r lag^r / r! N^r (forward), or its transpose."""
    out = None
    lag = _bounded(lag, job.order)
    for r, matrix in enumerate(powers(job)):
        matrix = job.per_head(matrix, x.shape[1])[:, None, None]
        term = (x @ (matrix if forward else matrix.mT)) * (lag**r / math.factorial(r))
        out = term if out is None else out + term
    assert out is not None
    return out


def apply(job: Job, s: Side, dtype: torch.dtype) -> Tensor:
    """The side acted on, folded to (N, X, L, D) in ``dtype``: exp(lag L)^T q or exp(lag L) k."""
    x = s.x
    if job.nilpotent is not None:
        x = _shear(x.to(job.accumulate), s.lag, job, forward=s.is_query)
    if s.factor is None:
        y = x.permute(0, 2, 3, 1, 4, 5)
        return y.to(dtype).flatten(0, 2)
    b, heads, outer, count, length, width = x.shape
    out = job.workspace.take("query" if s.is_query else "key", (b, outer, count, heads, length, width), dtype, x.device)
    # Off the diagonal the factor is <= 1 and may be rounded to 16 bits; a leaf's factor needs the exponent range of float32.
    factor = s.factor.to(x.dtype) if dtype == x.dtype else s.factor
    x = x.permute(0, 2, 3, 1, 4, 5)
    for part, wide in _columns(job, factor.permute(0, 2, 3, 1, 4, 5), width):
        torch.mul(x[..., part], wide, out=out[..., part])
    return out.flatten(0, 2)


BLOCK = LEAVES[0]
"""Tokens that share a factor off the diagonal, once they are at the edge of their block."""

EDGE_FLOOR = 20.0
"""Where the exponents of the two factors of each side stop in float32: e^-20 = 2e-9 of a logit is below its rounding, and four of them are
a normal number."""


def at_edges(job: Job) -> Edges | None:
    """The edges of a call on several clocks, whose factors are too many to make for every tile anew; None where it has too few tiles."""
    blocks = min(job.q.shape[2], job.k.shape[2]) // BLOCK
    if job.rate is None or job.nilpotent is not None or job.key_times.shape[-1] == 1 or job.leaf or blocks < 4:
        return None
    sides = []
    for x, times, is_query in ((job.q, job.query_times, True), (job.k, job.key_times, False)):
        x, times = (y[:, :, : blocks * BLOCK].unflatten(2, (blocks, BLOCK)) for y in (x, times))
        lag = job.workspace.take("lag", tuple(times.shape), times.dtype, x.device)
        lag = torch.sub(times, times[:, :, :, :1], out=lag) if is_query else torch.sub(times[:, :, :, -1:], times, out=lag)
        moved = torch.empty(x.shape, dtype=job.accumulate, device=x.device)
        for part, wide in _columns(job, _fading(job, lag, x.shape[1]), x.shape[-1]):
            torch.mul(x[..., part], wide, out=moved[..., part])
        sides.append(moved.flatten(2, 3))
    rate = job.per_head(job.rate, max(job.rate.shape[0], lag.shape[1]))[:, None]
    return Edges(*sides, calm=bool((lag[:, :, :, 0] * rate <= EDGE_FLOOR).all()))


def _fading(job: Job, lag: Tensor, heads: int) -> Tensor:
    """exp(-rate lag), for lags >= 0 of shape (B|1, X|1, ..., R) in float64."""
    assert job.rate is not None
    rate = job.per_head(job.rate, heads).to(job.accumulate)
    exponent = lag.to(job.accumulate) * rate.neg().view(rate.shape[0], *(1,) * (lag.ndim - 3), rate.shape[1])
    return (exponent.clamp_min_(-EDGE_FLOOR) if exponent.dtype == torch.float32 else exponent).exp_()


def from_edges(job: Job, tile: Tile, c: Tensor, is_query: bool, dtype: torch.dtype) -> Tensor | None:
    """What :func:`apply` gives for one side of a rectangle of whole blocks, from its edges; None where it has none."""
    start, length = (tile.query, tile.queries) if is_query else (tile.key, tile.keys)
    if job.edges is None or not (tile.kind == "full" or (tile.kind == "causal" and job.edges.calm)):
        return None
    if tile.outer > 1 or start % BLOCK or length % BLOCK or tile.stride % BLOCK:
        return None
    x = take(job.edges.q if is_query else job.edges.k, start, length, tile).unflatten(4, (-1, BLOCK)).permute(0, 2, 3, 1, 4, 5, 6)
    times = job.query_times if is_query else job.key_times[:, :, BLOCK - 1 :]
    if not is_query and length == BLOCK:  # they stand at the reference, the last key, already
        return x.to(dtype).flatten(4, 5).flatten(0, 2)
    if tile.kind == "causal":
        c = take(job.key_times, tile.key + BLOCK - 1, 1, tile)
    edge = take(times[:, :, ::BLOCK], start // BLOCK, length // BLOCK, replace(tile, stride=tile.stride // BLOCK))
    c = per_query_head(c, edge.shape[1])
    factor = _fading(job, edge - c if is_query else c - edge, x.shape[3]).permute(0, 2, 3, 1, 4, 5).unsqueeze(-2)
    out = job.workspace.take("query" if is_query else "key", tuple(x.shape), dtype, x.device)
    for part, wide in _columns(job, factor, x.shape[-1]):
        torch.mul(x[..., part], wide, out=out[..., part])
    return out.flatten(4, 5).flatten(0, 2)


def _columns(job: Job, factor: Tensor, width: int) -> list[tuple[slice, Tensor]]:
    """Runs of channels and the factor of each: few wide products, since broadcasting inside the width is slow."""
    columns = factor.shape[-1]
    if job.paired:
        return [(slice(0, width), _twice(factor, job.workspace))]
    return [(slice(start, start + columns), factor) for start in range(0, width, columns)] if columns > 1 else [(slice(0, width), factor)]


def _twice(factor: Tensor, workspace: Workspace) -> Tensor:
    """Each factor written twice, side by side, without the slow strided copies of ``repeat_interleave``."""
    if factor.element_size() == 2:  # a positive float is a positive integer, and times 2^16 + 1 it repeats itself
        return factor.view(torch.int16).to(torch.int32).mul_((1 << 16) + 1).view(factor.dtype)
    kind = torch.complex128 if factor.dtype == torch.float64 else torch.complex64
    pairs = torch.complex(factor, factor, out=workspace.take("factor twice", tuple(factor.shape), kind, factor.device))
    return torch.view_as_real(pairs).flatten(-2)


def pull_back(job: Job, s: Side, d: Tensor, total: Tensor, fresh: bool) -> None:
    """Put the gradient of the side into ``total``, from the gradient ``d`` (B, X, outer, count, L, D) of what was acted on.

    The transposed action; written where ``fresh``, added elsewhere, in one pass over memory.
    """
    if job.nilpotent is not None:
        d = _shear(d.to(job.accumulate), s.lag, job, forward=not s.is_query)
    if s.factor is None:
        total.copy_(d) if fresh else total.add_(d)
        return
    d = d.to(total.dtype)
    for part, wide in _columns(job, s.factor, d.shape[-1]):
        if fresh:
            torch.mul(d[..., part], wide, out=total[..., part])
        else:
            total[..., part].addcmul_(d[..., part], wide)


def rate_gradient(job: Job, s: Side, acted: Tensor, d: Tensor) -> Tensor:
    """The tile's share of the gradient to the rates, (X, R): minus the sum over the tile of lag * acted * d around its reference.

    Summed tile by tile: one sum over absolute times is exact in theory and loses everything in 16 bits.
    """
    product = job.by_column(acted.to(s.lag.dtype) * d)  # (B, X, outer, count, L, R)
    return -(product * s.lag).sum((0, 2, 3, 4))


def nilpotent_gradient(job: Job, s: Side, d: Tensor) -> Tensor:
    """The tile's share of the gradient to N, (X, D, D), by the product rule on its powers."""
    d = d.to(job.accumulate)
    if s.factor is not None:
        d = (d.unflatten(-1, (-1, s.factor.shape[-1])) * s.factor.unsqueeze(-2)).flatten(-2)
    x = s.x.to(job.accumulate)
    matrices = [job.per_head(m, x.shape[1]) for m in powers(job)]
    total = torch.zeros(x.shape[1], x.shape[-1], x.shape[-1], dtype=d.dtype, device=d.device)
    for r in range(1, job.order):
        weighted = x * (_bounded(s.lag, job.order) ** r / math.factorial(r))
        moment = torch.einsum("bxocli,bxoclj->xij", *((weighted, d) if s.is_query else (d, weighted)))
        for a in range(r):
            total = total + matrices[a].mT @ moment @ matrices[r - 1 - a].mT
    return total
