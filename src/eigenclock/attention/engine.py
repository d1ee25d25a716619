"""Walks a plan of tiles: forward merges partial softmaxes, backward gives each tile the final output and log-sum-exp."""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from eigenclock.attention import ops, scaling
from eigenclock.attention.job import Job, fold, take, unfold
from eigenclock.attention.times import per_query_head
from eigenclock.attention.visibility import additive, visible
from eigenclock.theory.tiles import BIAS_BOUND, EXPONENT_BOUND, LEAVES, Tile

EXTRA = 8
"""Columns appended in the backward where a bias or the log-sum-exp has a gradient (a multiple of 8 keeps the kernel fast)."""

NEGLIGIBLE = 30.0
"""A softmax weight of e^-30 times the row's largest is below every rounding of float32."""


@dataclass
class _Prepared:
    """One tile, ready for the kernel: both sides acted on, the bias, and what must be undone afterwards."""

    query: scaling.Side | None  # None where the backward will not ask
    key: scaling.Side | None
    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    rows: Tensor | None  # (B|1, X|1, outer, count, L) rows that count, None for all
    row_term: Tensor | None  # what the key term left out of the logits of each row, (B|1, H, outer, count, L)
    pad: int  # rows put in front of a flipped tile so that it is a causal square
    kind: str

    @property
    def causal(self) -> bool:
        return self.kind in ("causal", "flip")


def hot_leaves(job: Job, tile: Tile) -> Tensor | None:
    """Leaves whose exponents or bias break their bound, (batch * outer * count,) True where split further; None where there are none.

    Never a global leaf size from a data maximum: one busy row or one huge gap must not slow down the rest.
    """
    graded = job.rate is not None or job.slope is not None or job.nilpotent is not None
    if tile.kind != "causal" or not graded or tile.queries == 1 or job.leaf + 1 >= len(LEAVES):
        return None
    last = take(job.query_times, tile.query, tile.queries, tile)[..., -1:, :]
    times = per_query_head(take(job.key_times, tile.key, tile.keys, tile), last.shape[1])
    last = torch.maximum(times[..., -1:, :], last)
    reach = torch.maximum(times[..., tile.keys // 2, :] - times[..., 0, :], last[..., 0, :] - times[..., tile.keys // 2, :])
    load = torch.zeros(1, 1, 1, 1, dtype=reach.dtype, device=reach.device)
    if job.rate is not None:
        load = (reach * job.per_head(job.rate, max(reach.shape[1], job.rate.shape[0])).double()[:, None, None]).amax(-1) / EXPONENT_BOUND
    if job.slope is not None:
        load = torch.maximum(load.amax(1, keepdim=True), reach[..., 0] * job.slope.double().max() / BIAS_BOUND)
    if job.nilpotent is not None:
        load = torch.maximum(load.amax(1, keepdim=True), _sheared(job, tile, reach[..., 0]).amax(1, keepdim=True) / BIAS_BOUND)
    hot = (load > 1).any(1)  # over heads
    hot = hot.expand(job.q.shape[0], *hot.shape[1:]).flatten()
    return hot if bool(hot.any()) else None


def _sheared(job: Job, tile: Tile, reach: Tensor) -> Tensor:
    """The largest term that a power of the time can put into a logit of each leaf, (B, H, outer, count): the lag itself may be small.

    |scale| |q| |k| sum_r (|N| reach)^r / r!, over the channels that N reads and writes alone.
    """
    assert job.nilpotent is not None
    size = job.nilpotent.detach().abs()
    norm = (size.sum(-1).amax(-1) * size.sum(-2).amax(-1)).sqrt()  # of N, from above
    touched = size.amax(0)
    rows, columns = touched.amax(-1) > 0, touched.amax(-2) > 0
    q = torch.linalg.vector_norm(take(job.q, tile.query, tile.queries, tile).detach()[..., rows], dim=-1).amax(-1).double()
    k = torch.linalg.vector_norm(take(job.k, tile.key, tile.keys, tile).detach()[..., columns], dim=-1).amax(-1).double()
    stretch = job.per_head(norm, q.shape[1])[:, None, None].double() * reach.abs()
    powers = sum(stretch**r / math.factorial(r) for r in range(1, job.order))
    return abs(job.scale) * q * k.repeat_interleave(q.shape[1] // k.shape[1], 1) * powers


def _countable(job: Job, tile: Tile, slack: Tensor, key_term: Tensor) -> tuple[Tensor, Tensor]:
    """The rows and the keys of a tile that can count, (B, H, outer, count, L): weights below e^-30 reach no digit of float32.

    ``slack`` is each row's log-sum-exp so far (a lower bound of the final one) relative to the tile's reference; a logit is at most
    |scale| |q| |k| by Cauchy-Schwarz. Left in, such weights become subnormal numbers and slow the kernel several times.
    """
    assert job.query_norms is not None and job.key_norms is not None
    q, k = take(job.query_norms, tile.query, tile.queries, tile), take(job.key_norms, tile.key, tile.keys, tile)
    rows = q * k.amax(-1, keepdim=True) - slack > -NEGLIGIBLE
    least = slack.masked_fill(~rows, math.inf).amin(-1, keepdim=True)
    return rows, key_term + k * q.amax(-1, keepdim=True) - least > -NEGLIGIBLE


def _bias_terms(job: Job, tile: Tile, c: Tensor) -> tuple[Tensor, Tensor]:
    """The bias of a tile as slope * (s - c) on keys and slope * (t - c) on rows, (B|1, H, outer, count, L) in float64."""
    assert job.slope is not None
    slope = job.slope.double()[:, None, None, None]
    keys, queries = take(job.key_times[..., 0], tile.key, tile.keys, tile), take(job.query_times[..., 0], tile.query, tile.queries, tile)
    return slope * (keys - c[..., 0]), slope * (queries - c[..., 0])


def shrink(job: Job, tile: Tile, lse: Tensor) -> Tile | None:
    """The part of a rectangle next to its boundary where something can count; None where nothing can."""
    if job.query_norms is None or tile.kind != "full":
        return tile
    key_term, row_term = _bias_terms(job, tile, scaling.reference(job, tile))
    rows, keys = (
        x.flatten(0, -2).any(0).nonzero() for x in _countable(job, tile, take(lse, tile.query, tile.queries, tile) + row_term, key_term)
    )
    if not rows.numel() or not keys.numel():
        return None
    first_key = int(keys[0])
    return replace(tile, queries=int(rows[-1]) + 1, key=tile.key + first_key, keys=tile.keys - first_key)


def _prepare(job: Job, tile: Tile, clamp: bool, lse: Tensor) -> _Prepared:
    c = scaling.reference(job, tile)
    dtype = job.q.dtype
    if dtype == torch.float16 and tile.kind in ("causal", "ragged") and job.rate is not None:
        dtype = torch.float32  # a leaf's factors reach exp(40), float16 ends at exp(11)
    (query, q), (key, k) = (scaling.acted(job, tile, c, is_query, clamp, dtype) for is_query in (True, False))
    v = fold(take(job.v, tile.key, tile.keys, tile)).to(dtype)
    seen = visible(job, tile)
    rows = seen.rows
    key_term = row_term = None
    if job.slope is not None:
        key_term, row_term = _bias_terms(job, tile, c)
        if job.query_norms is not None and tile.kind in ("full", "flip"):
            near, keys = _countable(job, tile, lse + row_term, key_term)
            rows = near if rows is None else rows & near
            key_term = key_term.masked_fill(~keys, -math.inf)
        key_term = key_term.unsqueeze(-2)
    bias = additive(seen.keys, key_term, ops.bias_dtype(dtype))
    if bias is not None:
        bias = bias.expand(job.q.shape[0], *bias.shape[1:]).permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
    pad = 0
    if tile.kind == "flip":
        pad = tile.keys - tile.queries
        q, k, v = _flip(q, pad), k.flip(-2), v.flip(-2)
        if bias is not None:
            bias = bias.flip(-1) if bias.shape[-2] == 1 else F.pad(bias.flip(-1, -2), (0, 0, pad, 0))
    return _Prepared(query, key, q, k, v, bias, rows, row_term, pad, tile.kind)


def _flip(x: Tensor, pad: int, fill: float = 0.0) -> Tensor:
    """Rows in reverse, after ``pad`` rows of ``fill``."""
    x = x.flip(-2)
    return F.pad(x, (0, 0, pad, 0), value=fill) if pad else x


# --- forward -----------------------------------------------------------------------------------------------------------------------


def forward(job: Job, out: Tensor | None = None, lse: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Output (B, H, T, D) in the dtype of q and log-sum-exp (B, H, T) in float64, since a bias can be large beside it.

    Rows that see nothing give zeros and -inf.

    ``out`` and ``lse``: where to write them, new tensors if left out.
    """
    target, job = out, replace(job, edges=scaling.at_edges(job))
    if out is None or out.dtype != job.accumulate:
        out = _accumulator(job, tuple(job.q.shape))
    elif not _leaves_first(job, out.shape[2]):
        out.zero_()
    if lse is None:
        lse = torch.empty(job.q.shape[:3], dtype=torch.float64, device=job.q.device)
    lse.fill_(-math.inf)
    for planned in job.tiles:
        tile = shrink(job, planned, lse)
        if tile is None:
            continue
        out_view, lse_view = take(out, tile.query, tile.queries, tile), take(lse, tile.query, tile.queries, tile)
        hot = hot_leaves(job, tile)
        if hot is None or not bool(hot.all()):
            part, part_lse = _forward_tile(job, tile, hot is not None, lse_view)
            if tile.kind == "causal":  # leaves come first and touch every row once
                out_view.copy_(part)
                lse_view.copy_(part_lse)
            else:
                merge(out_view, lse_view, part, part_lse)
        if hot is not None:
            chosen = hot.nonzero().squeeze(1)
            inner, inner_lse = forward(job.leaves(tile, chosen))
            out_view.permute(0, 2, 3, 1, 4, 5)[_split_index(chosen, tile)] = inner.to(out.dtype)
            lse_view.permute(0, 2, 3, 1, 4)[_split_index(chosen, tile)] = inner_lse
    if target is None:
        target = out.to(job.q.dtype)
    elif target is not out:
        target.copy_(out)
    return target, lse


def _leaves_first(job: Job, length: int) -> bool:
    """Whether leaves come first and reach each of so many rows or keys; those before the queries of a decode step are in no leaf."""
    return bool(job.tiles) and job.tiles[0].kind == "causal" and length == job.q.shape[2]


def _accumulator(job: Job, size: tuple[int, ...]) -> Tensor:
    """Zeros; left unwritten where leaves come first, which write every row and key once before anything is added."""
    make = torch.empty if _leaves_first(job, size[2]) else torch.zeros
    return make(size, dtype=job.accumulate, device=job.q.device)


def _split_index(chosen: Tensor, tile: Tile) -> tuple[Tensor, Tensor, Tensor]:
    leaves = tile.outer * tile.count
    return chosen // leaves, chosen % leaves // tile.count, chosen % tile.count


def _forward_tile(job: Job, tile: Tile, clamp: bool, lse: Tensor) -> tuple[Tensor, Tensor]:
    p = _prepare(job, tile, clamp, lse)
    part, part_lse = ops.forward(p.q, p.k, p.v, p.causal, p.bias, job.scale)
    if p.kind == "flip":
        part, part_lse = part[..., p.pad :, :].flip(-2), part_lse[..., p.pad :].flip(-1)
    batch = job.q.shape[0]
    part, part_lse = unfold(part, batch, tile), unfold(part_lse, batch, tile).double()
    if p.row_term is not None:
        part_lse = part_lse - p.row_term
    if p.rows is not None:
        part_lse = part_lse.masked_fill(~p.rows, -math.inf)
        part = part.masked_fill(~p.rows[..., None], 0.0)
    return part, part_lse


def merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Merge a partial softmax into ``out`` and ``lse`` in place: out = (1 - w) out + w part with w = sigmoid(part_lse - lse)."""
    difference = part_lse - lse
    difference.masked_fill_(difference.isnan(), -math.inf)  # -inf minus -inf: neither has seen a key
    small = difference.to(out.dtype)
    out.lerp_(part.to(out.dtype), small.sigmoid()[..., None])
    # log(e^a + e^b) around the larger; what is added to it is at most log 2, and needs no more digits than the output has
    torch.maximum(lse, part_lse, out=lse).add_(small.abs_().neg_().exp_().log1p_())


# --- backward ----------------------------------------------------------------------------------------------------------------------


@dataclass
class Gradients:
    """Accumulators in float32 or better; the small ones are None where nobody asked."""

    q: Tensor
    k: Tensor
    v: Tensor
    rate: Tensor | None = None  # (rows of rate, R)
    nilpotent: Tensor | None = None
    slope: Tensor | None = None  # (H,)
    key_bias: Tensor | None = None  # (B, H, S): gradient of the key term
    row_bias: Tensor | None = None  # (B, H, T): row sums of the logits' gradient


def backward(job: Job, g: Tensor, out: Tensor, lse: Tensor, g_lse: Tensor | None, small: bool) -> Gradients:
    """Gradients of a job given its final out and lse. ``small``: also those of rates, shears, slopes and bias terms."""
    acc = job.accumulate

    def zeros(*size: int) -> Tensor:
        return torch.zeros(*size, dtype=acc, device=job.q.device)

    grads = Gradients(*(_accumulator(job, tuple(x.shape)) for x in (job.q, job.k, job.v)))
    if small:
        grads.rate = None if job.rate is None else zeros(*job.rate.shape)
        grads.nilpotent = None if job.nilpotent is None else zeros(*job.nilpotent.shape)
        if job.slope is not None:
            b, h, t, _ = job.q.shape
            grads.slope, grads.key_bias, grads.row_bias = zeros(h), zeros(b, h, job.k.shape[2]), zeros(b, h, t)
    for planned in job.tiles:
        tile = shrink(job, planned, lse)
        if tile is None:
            continue
        hot = hot_leaves(job, tile)
        if hot is None or not bool(hot.all()):
            _backward_tile(job, tile, hot, g, out, lse, g_lse, grads)
        if hot is not None:
            chosen = hot.nonzero().squeeze(1)
            _backward_hot(job, tile, chosen, g, out, lse, g_lse, grads, small)
    return grads


def _backward_hot(
    job: Job, tile: Tile, chosen: Tensor, g: Tensor, out: Tensor, lse: Tensor, g_lse: Tensor | None, grads: Gradients, small: bool
) -> None:
    index = _split_index(chosen, tile)

    def pick(x: Tensor) -> Tensor:
        view = take(x, tile.query, tile.queries, tile)
        return view.permute(0, 2, 3, 1, *range(4, view.ndim))[index]

    inner = backward(job.leaves(tile, chosen), pick(g), pick(out), pick(lse), None if g_lse is None else pick(g_lse), small)
    ranges = {"q": (tile.query, tile.queries), "row_bias": (tile.query, tile.queries)}
    for name in ("q", "k", "v", "key_bias", "row_bias"):
        total, part = getattr(grads, name), getattr(inner, name)
        if total is not None and part is not None:
            view = take(total, *ranges.get(name, (tile.key, tile.keys)), tile)
            view = view.permute(0, 2, 3, 1, *range(4, view.ndim))
            view[index] = part  # a leaf is the first to reach its rows and keys
    for name in ("rate", "nilpotent", "slope"):
        total, part = getattr(grads, name), getattr(inner, name)
        if total is not None and part is not None:
            total += part


def _backward_tile(
    job: Job, tile: Tile, hot: Tensor | None, g: Tensor, out: Tensor, lse: Tensor, g_lse: Tensor | None, grads: Gradients
) -> None:
    tile_lse = take(lse, tile.query, tile.queries, tile)
    p = _prepare(job, tile, hot is not None, tile_lse)
    assert p.query is not None and p.key is not None
    batch, _, _, d = job.q.shape
    dtype = p.q.dtype
    if p.row_term is not None:
        tile_lse = tile_lse + p.row_term
    dead = tile_lse == -math.inf if p.rows is None else (tile_lse == -math.inf) | ~p.rows
    if hot is not None:
        dead = dead | hot.view(batch, 1, tile.outer, tile.count, 1)
    tile_lse = fold(tile_lse.masked_fill(dead, math.inf)).to(ops.bias_dtype(dtype)).contiguous()
    tile_g, tile_out = fold(take(g, tile.query, tile.queries, tile)).to(dtype), fold(take(out, tile.query, tile.queries, tile)).to(dtype)
    q, k, v = p.q, p.k, p.v
    extra = grads.key_bias is not None or g_lse is not None
    if p.kind == "flip":
        tile_g, tile_out = _flip(tile_g, p.pad), _flip(tile_out, p.pad)
        tile_lse = _flip(tile_lse[..., None], p.pad, math.inf)[..., 0]
    if extra:
        q, k, v, tile_g, tile_out = (F.pad(x, (0, EXTRA)) for x in (q, k, v, tile_g, tile_out))
        # Two coordinates whose products are zero: their gradients are the column and the row sums of the logits' gradient.
        q[..., d] = 1 / job.scale
        k[..., d + 1] = 1 / job.scale
        if g_lse is not None:  # the kernel subtracts sum(g * out) from the gradient of the weights; this adds g_lse to it
            mine = fold(take(g_lse, tile.query, tile.queries, tile)).to(dtype)
            tile_g[..., d + 2] = -(_flip(mine[..., None], p.pad)[..., 0] if p.kind == "flip" else mine)
            tile_out[..., d + 2] = 1.0
    dq, dk, dv = ops.backward(tile_g, q, k, v, tile_out, tile_lse, p.causal, p.bias, job.scale)
    if p.kind == "flip":
        dq, dk, dv = dq[..., p.pad :, :].flip(-2), dk.flip(-2), dv.flip(-2)
    dq, dk, dv = (unfold(x, batch, tile) for x in (dq, dk, dv))
    if extra:
        if grads.key_bias is not None and grads.row_bias is not None and grads.slope is not None:
            _bias_gradients(job, tile, p, dk[..., d].to(job.accumulate), dq[..., d + 1].to(job.accumulate), grads)
        dq, dk, dv = dq[..., :d], dk[..., :d], dv[..., :d]
    if grads.rate is not None:
        for s, acted, part in ((p.query, p.q, dq), (p.key, p.k, dk)):
            if p.kind == "flip":
                acted = acted[..., p.pad if s.is_query else 0 :, :].flip(-2)
            _add_rows(grads.rate, scaling.rate_gradient(job, s, unfold(acted, batch, tile), part))
    if grads.nilpotent is not None:
        for s, part in ((p.query, dq), (p.key, dk)):
            _add_rows(grads.nilpotent, scaling.nilpotent_gradient(job, s, part))
    fresh = tile.kind == "causal"
    scaling.pull_back(job, p.query, dq, take(grads.q, tile.query, tile.queries, tile), fresh)
    scaling.pull_back(job, p.key, dk, take(grads.k, tile.key, tile.keys, tile), fresh)
    total = take(grads.v, tile.key, tile.keys, tile)
    total.copy_(dv) if fresh else total.add_(dv)


def _bias_gradients(job: Job, tile: Tile, p: _Prepared, columns: Tensor, rows: Tensor, grads: Gradients) -> None:
    """Key and row sums of the logits' gradient; the slope's share is summed around the tile's reference."""
    assert (
        grads.key_bias is not None and grads.row_bias is not None and grads.slope is not None and p.query is not None and p.key is not None
    )
    if columns.shape[1] != rows.shape[1]:
        raise AssertionError("bias gradients need one key head per query head; the backend repeats the keys")
    take(grads.key_bias, tile.key, tile.keys, tile).add_(columns)
    take(grads.row_bias, tile.query, tile.queries, tile).add_(rows)
    grads.slope -= (rows * p.query.lag[..., 0]).sum((0, 2, 3, 4)) + (columns * p.key.lag[..., 0]).sum((0, 2, 3, 4))


def _add_rows(total: Tensor, part: Tensor) -> None:
    """Add per-head gradients to parameters that may be shared by groups of heads or by all."""
    rows = total.shape[0]
    total += part.unflatten(0, (rows, -1)).sum(1) if part.shape[0] >= rows else part.expand_as(total)
