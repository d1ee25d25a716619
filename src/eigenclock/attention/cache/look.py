"""Queries on stored keys: one query sees each chunk from its anchor, many see all keys from one reference; partial softmaxes merge."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenclock.attention import ops
from eigenclock.attention.bands import Span
from eigenclock.attention.cache.law import Law
from eigenclock.attention.cache.store import CHUNK, Run, Store
from eigenclock.attention.times import per_query_head

FEW = 8
"""Up to so many queries look at each chunk by itself, which touches no key; more are worth moving the keys."""

Merged = tuple[Tensor, Tensor]
"""A softmax over some keys: output (.., B, H, T, D) and log-sum-exp (.., B, H, T), -inf where no key is seen."""


@dataclass(frozen=True)
class Queries:
    """Turned queries behind the stored keys: q (B, H, T, D), times (B|1, H|1, T, W) for what decays, scalar (B|1, H|1, T) for biases,
    real (B|1, T). ``start``: the place of the first among the tokens; key j is before query i where j <= start + i, which holds for all
    that are stored. window: keys by count, and ``count`` (B|1, T) how many real tokens there are up to each query; span: by time, which
    compares ``stamps``, as scalar, in its place."""

    q: Tensor
    times: Tensor
    scalar: Tensor
    real: Tensor | None
    start: int
    scale: float
    window: int | None = None
    span: Span | None = None
    count: Tensor | None = None
    stamps: Tensor | None = None

    def rows(self, low: int, high: int) -> "Queries":
        """Some of the queries."""
        cut = slice(low, high)
        return Queries(
            self.q[:, :, cut], self.times[:, :, cut], self.scalar[:, :, cut], None if self.real is None else self.real[:, cut],
            self.start + low, self.scale, self.window, self.span, None if self.count is None else self.count[:, cut],
            None if self.stamps is None else self.stamps[:, :, cut],
        )  # fmt: skip

    def earliest(self, times: Tensor) -> Tensor:
        """The first real time of each row, (B|1, H|1, 1, ...): between all stored keys and all queries."""
        if self.real is not None:
            real = self.real.reshape(self.real.shape[0], 1, -1, *(1,) * (times.ndim - 3))
            top = torch.inf if times.is_floating_point() else torch.iinfo(times.dtype).max
            first = torch.where(real, times, top).amin(2, keepdim=True)
            return torch.where(first == top, times[:, :, :1], first).detach()
        return times[:, :, :1].detach()


def look(store: Store, law: Law, queries: Queries) -> Merged:
    """Softmax over every stored key that a query may see, in float32 or better; log-sum-exp with the bias's row term."""
    view = _View(store, law, queries)
    t = queries.q.shape[2]
    if t <= FEW:
        out, lse = _merge([part for part in (view.chunks(), view.opened()) if part is not None], queries, law)
    else:
        step = ops.BLOCK if queries.window is not None or queries.span is not None else t  # each block its own range of keys
        parts = [view.rows(low, min(low + step, t)) for low in range(0, t, step)]
        out, lse = torch.cat([p[0] for p in parts], 2), torch.cat([p[1] for p in parts], 2)
    if law.slope is not None:
        lse = lse - (law.slope[:, None] * (queries.scalar - queries.earliest(queries.scalar))).to(lse.dtype)
    return out, lse


class _View:
    """One look: the store from the reference c, which lies between its keys and the queries."""

    def __init__(self, store: Store, law: Law, queries: Queries):
        self.store, self.law, self.queries = store, law, queries
        self.c, self.c_scalar = queries.earliest(queries.times), queries.earliest(queries.scalar)
        tensors = [queries.q, queries.times, *(run.tensor for run in store.runs().values()), law.rate, law.nilpotent, law.slope]
        self.learns = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
        self._flat: tuple[Tensor, Tensor] | None = None

    def of(self, run: Run) -> Tensor:
        """A part of the store; memory that a graph reads is never written again."""
        return run.keep() if self.learns else run.tensor

    def lag(self, at: Tensor) -> Tensor:
        """c - at for keys that stand at (..., B|1, X|1, T, W)."""
        c, heads = self.c, at.shape[-3]
        return ((c if c.shape[1] in (1, heads) or heads == 1 else c[:, :: c.shape[1] // heads]) - at).clamp_min(0.0)

    def opened(self) -> Merged | None:
        """All queries on the keys of the open chunk."""
        store, law, queries = self.store, self.law, self.queries
        if not len(store.open_keys):
            return None
        keys = self.of(store.open_keys)
        if store.open_at is not None:
            keys = law.keys(keys, self.lag(self.of(store.open_at)))
        q = law.queries(queries.q, (queries.times - self.c).clamp_min(0.0))
        bias, alive = self.bias(queries, store.closed, len(store))
        out, lse = self.kernel(q, keys, self.of(store.open_values), bias, alive)
        return out[None], lse[None]

    def chunks(self) -> Merged | None:
        """Few queries on the closed chunks, each from the anchor of the chunk: one batch."""
        store, law, queries = self.store, self.law, self.queries
        low = self.first_seen(queries) // CHUNK
        count = len(store.keys) - low
        if count <= 0:
            return None
        keys, values = (self.of(run)[low:].flatten(0, 1) for run in (store.keys, store.values))
        q = queries.q[None]
        if store.anchors is not None:
            anchors = self.of(store.anchors)[low:]
            heads = queries.q.shape[1]
            anchors = anchors if anchors.shape[2] in (1, heads) else anchors.repeat_interleave(heads // anchors.shape[2], 2)
            q = law.queries(q, (queries.times - anchors).clamp_min(0.0))
        else:
            q = law.queries(q, queries.times)
        q = q.expand(count, *q.shape[1:]).flatten(0, 1)
        bias, alive = (
            None if x is None else _by_chunk(x, queries.q.shape[0]) for x in self.bias(queries, low * CHUNK, store.closed, False)
        )
        alive = None if alive is None else alive.any(-1)
        out, lse = self.kernel(q, keys, values, bias, alive)
        return out.unflatten(0, (count, -1)), lse.unflatten(0, (count, -1))

    def rows(self, low: int, high: int) -> Merged:
        """Some queries on all keys, brought to the reference once."""
        queries, law = self.queries.rows(low, high), self.law
        keys, values = self.flat()
        first = self.first_seen(queries)
        q = law.queries(queries.q, (queries.times - self.c).clamp_min(0.0))
        bias, alive = self.bias(queries, first, len(self.store))
        return self.kernel(q, keys[:, :, first:], values[:, :, first:], bias, alive)

    def flat(self) -> tuple[Tensor, Tensor]:
        if self._flat is None:
            tokens, law = self.store.tokens(), self.law
            keys = tokens.keys if tokens.at is None else law.keys(tokens.keys, self.lag(tokens.at))
            gap = self.store.first  # places count hidden tokens
            pad = (x.new_zeros(*x.shape[:2], gap, x.shape[3]) for x in (keys, tokens.values))
            self._flat = tuple(torch.cat([a, b], 2) if gap else b for a, b in zip(pad, (keys, tokens.values), strict=True))  # type: ignore[assignment]
        assert self._flat is not None
        return self._flat

    def first_seen(self, queries: Queries) -> int:
        """The place of the first key that any of the queries may see."""
        first, store = self.store.first, self.store
        if queries.window is not None and store.real is None and queries.real is None:
            first = max(first, queries.start - queries.window + 1)
        elif queries.window is not None and queries.count is not None:
            first = max(first, store.place_of(queries.count[:, 0] - queries.window))
        if queries.span is not None and len(store):
            asked, keys = self.span_times(0, len(store))
            inside = queries.span.holds(queries.earliest(asked), keys).flatten(0, 1).any(0)
            first = max(first, int(inside.long().argmax()) if bool(inside.any()) else len(store))
        return min(first, len(store))

    def span_times(self, low: int, high: int) -> tuple[Tensor, Tensor]:
        """What a window in time compares: of the queries, and of the keys low .. high (B|1, H|1, n)."""
        store, stamps = self.store, self.queries.stamps
        if stamps is None or store.counts is None:
            asked, keys = self.queries.scalar, store.ticks.tensor
        else:
            asked, keys = stamps, store.counts.tensor
        return asked.detach(), per_query_head(keys.detach()[:, :, low:high], self.queries.q.shape[1])

    def bias(self, queries: Queries, low: int, high: int, reduce: bool = True) -> tuple[Tensor | None, Tensor | None]:
        """The additive bias (B|1, H|1, 1|T, n) of the keys low .. high relative to the reference, and the rows that see one of them (with
        ``reduce`` off, the pairs themselves)."""
        store, device = self.store, queries.q.device
        seen: Tensor | None = None
        ticks = None if self.law.slope is None else per_query_head(self.of(store.ticks)[:, :, low:high], queries.q.shape[1])
        if store.real is not None:
            seen = store.real.tensor[:, None, None, low:high]
        if low < store.first:
            seen = _also(seen, (torch.arange(low, high, device=device) >= store.first)[None, None, None])
        if queries.window is not None:
            seen = _also(seen, self.near(queries, queries.window, low, high))
        if queries.span is not None:
            asked, keys = self.span_times(low, high)
            seen = _also(seen, queries.span.holds(asked[..., None], keys[:, :, None]))
        kind = ops.bias_dtype(queries.q.dtype)
        bias = None
        if self.law.slope is not None and ticks is not None:
            bias = (self.law.slope[:, None] * (ticks - self.c_scalar)).unsqueeze(2).to(kind)
        if seen is None:
            return bias, None
        if bias is None:
            bias = torch.zeros(seen.shape, dtype=kind, device=device)
        return bias.masked_fill(~seen, -math.inf), seen.any(-1) if reduce else seen

    def near(self, queries: Queries, window: int, low: int, high: int) -> Tensor:
        """Which of the keys low .. high are among the ``window`` latest real tokens up to each query, (B|1, 1, T, n)."""
        assert queries.count is not None  # set beside a window
        count = self.store.counted(low, high)
        return (queries.count[..., None] - count[:, None] < window).unsqueeze(1)

    def kernel(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, alive: Tensor | None) -> Merged:
        """One softmax: (N, H, T, D) on (N, G, S, D); rows that see nothing give 0 and -inf."""
        run = _plain if self.learns else ops.forward
        out, lse = run(q, k, v, False, bias, self.queries.scale)
        if alive is None:
            return out, lse
        return out.masked_fill(~alive[..., None], 0.0), lse.masked_fill(~alive, -math.inf)


def _plain(q: Tensor, k: Tensor, v: Tensor, causal: bool, bias: Tensor | None, scale: float) -> Merged:
    """The kernel in differentiable matrix products; memory T x S."""
    work = torch.promote_types(q.dtype, torch.float32)
    groups = k.shape[1]
    z = q.to(work).unflatten(1, (groups, -1)) @ k.to(work).mT.unsqueeze(2) * scale
    z = z.flatten(1, 2)
    if bias is not None:
        z = z + bias
        z = z.masked_fill((z == -math.inf).all(-1, keepdim=True), 0.0)  # the gradient of a row of -inf would be NaN
    out = z.softmax(-1).unflatten(1, (groups, -1)) @ v.to(work).unsqueeze(2)
    return out.flatten(1, 2), z.logsumexp(-1)


def _also(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a & b


def _by_chunk(x: Tensor, batch: int) -> Tensor:
    """(B|1, H|1, T|1, C 256) as (C B, H|1, T|1, 256)."""
    x = x.expand(batch, *x.shape[1:]).unflatten(-1, (-1, CHUNK))
    return x.movedim(-2, 0).flatten(0, 1)


def merge(parts: list[Merged]) -> Merged:
    """Partial softmaxes over different keys, stacked along their first axis, as one; in float32 or better."""
    lses = torch.cat([lse for _, lse in parts])
    dead = (lses == -math.inf).all(0, keepdim=True)
    total = lses.masked_fill(dead, 0.0).logsumexp(0)
    weights = (lses - total).exp()
    pieces, out, start = [out for out, _ in parts], None, 0
    for piece in pieces:
        weighed = (piece.to(total.dtype) * weights[start : start + piece.shape[0], ..., None]).sum(0)
        out, start = weighed if out is None else out + weighed, start + piece.shape[0]
    assert out is not None
    return out, total.masked_fill(dead[0], -math.inf)


def _merge(parts: list[Merged], queries: Queries, law: Law) -> Merged:
    if parts:
        return merge(parts)
    b, h, t, _ = queries.q.shape
    kind = ops.bias_dtype(law.dtype)
    none = torch.full((b, h, t), -math.inf, dtype=kind, device=queries.q.device)
    return torch.zeros(b, h, t, law.stored, dtype=kind, device=queries.q.device), none
