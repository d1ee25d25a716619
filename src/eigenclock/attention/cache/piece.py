"""A piece of a sequence, read and turned as the tokens after a cache: times that go on, keys ready to be stored."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eigenclock.attention.cache.law import Law, lowered
from eigenclock.attention.cache.store import Tokens
from eigenclock.attention.lower import Lowered
from eigenclock.attention.problem import Problem, build, check_tensors, read_mask
from eigenclock.attention.times import Times, counts_of, each_as_head, given_origin
from eigenclock.attention.values import ValueSide, on_values
from eigenclock.clocks import Clock
from eigenclock.clocks.clock import Reading, carried, first_real, with_heads
from eigenclock.clocks.units import Lapse
from eigenclock.encodings import Encoding
from eigenclock.errors import ClockError, ShapeError, UnsupportedError

if TYPE_CHECKING:
    from eigenclock.attention.cache.value import KVCache


@dataclass(frozen=True)
class Piece:
    """What a piece is, and what the next one goes on from.

    problem: the piece as self-attention of its own; side turns its output back, where values are turned.
    last (B|1, X|1, 1) or with an axis of several times: the last real time, float64.
    origin, since: for the clock, as in State. count (B|1,): real tokens so far.
    """

    problem: Problem
    low: Lowered
    law: Law
    tokens: Tokens
    last: Tensor
    origin: Tensor | None
    since: Tensor | None
    count: Tensor
    side: ValueSide | None


def read_piece(
    cache: "KVCache | None", q: Tensor | None, k: Tensor, v: Tensor, encoding: Encoding, *, times: Any, x: Tensor | None,
    mask: Tensor | None, window: int | Lapse | None = None, scale: float | None = None, want_lse: bool = False,
    value_encoding: Encoding | None = None,
) -> Piece:  # fmt: skip
    """Read times from where the cache stopped, check everything, turn keys (and queries, where there are any)."""
    queries = _no_queries(k, encoding) if q is None else q
    check_tensors(queries, k, v, encoding)
    check_encoding(encoding)
    t = k.shape[2]
    if q is not None and q.shape[2] != t:
        raise ShapeError(f"got {q.shape[2]} queries and {t} keys; expected as many: the cache carries the keys before")
    key_mask = _padding(mask, queries, t)
    clock, since = encoding.clock, None if cache is None else cache.since
    origin = None if cache is None else _origin(cache, clock, times, key_mask, k.device)
    more = {} if since is None or not clock.sums else {"since": since}
    reading = clock(times, length=t, origin=origin, mask=key_mask, x=x, device=k.device, **more)
    ticks = with_heads(reading.ticks, clock.width)
    if ticks.shape[2] != t:
        raise ShapeError(f"got times for {ticks.shape[2]} tokens; expected {t}, the length of k and v")
    known = cache is None or not len(cache.store) or cache.store.counts is not None  # a file of an older kind has none
    counts = counts_of(clock, reading) if known else None
    problem = build(
        queries, k, v, encoding, times=times, key_times=None, x=x, key_x=None, causal=True, window=window, documents=None, mask=key_mask,
        scale=scale, want_lse=want_lse, read=Times(ticks, ticks, given_origin(clock, reading, times), None, counts, counts),
    )  # fmt: skip
    _check_order(problem, cache, encoding)
    problem, side = on_values(problem, value_encoding)
    given, vectors = times is not None, problem.key_vectors
    if q is None:
        problem = replace(
            problem, q=problem.q[:, :, :0], query_times=problem.query_times[:, :, :0], query_vectors=problem.query_vectors[:, :, :0],
            query_counts=None if problem.query_counts is None else problem.query_counts[:, :, :0],
        )  # fmt: skip
    turned, low, law = lowered(problem)
    if problem.biased:
        law = law.unturned(problem.k.shape[-1])
    count = torch.full((1,), t, device=k.device) if key_mask is None else key_mask.long().sum(-1)
    count = count if cache is None else cache.count + count
    if t:
        origin = _continued(clock.continued(Reading(vectors, reading.origin), given), count, given or clock.sums, clock.width)
    tokens = _tokens(turned, low, law, problem, counts)
    return Piece(problem, low, law, tokens, _last(vectors, key_mask, cache), origin, _since(reading, encoding, cache), count, side)


def _origin(cache: "KVCache", clock: Clock, times: Any, key_mask: Tensor | None, device: torch.device) -> Tensor | None:
    """The cache's origin; where all was padding so far, that of the piece: what stood in the padding may be far from it."""
    origin, unread = cache.origin, cache.count == 0
    if origin is None or times is None or clock.sums or key_mask is None or not bool(unread.any()):
        return origin
    first = clock(times, mask=key_mask, device=device).origin
    if first is None or (origin.shape[0] == 1 and not bool(unread.all())):
        return origin
    unread = unread.reshape(-1, *(1,) * (origin.ndim - 1)) if origin.shape[0] > 1 else unread.all()
    return torch.where(unread, with_heads(first, clock.width), origin)


def check_encoding(encoding: Encoding) -> None:
    """Refuse what softmax over a cache does not have."""
    if encoding.weighs:
        raise UnsupportedError(
            f"got {encoding} in softmax attention, whose weights are normalised: it weighs {encoding.weighs}, which only linear_attention "
            "does; expected linear_attention with its state"
        )


def _no_queries(k: Tensor, encoding: Encoding) -> Tensor:
    """Zeros in the place of queries, for a piece that brings keys alone."""
    heads = encoding.heads if encoding.heads > 1 and k.ndim == 4 else k.shape[1] if k.ndim == 4 else 1
    return k.new_zeros(k.shape[0], heads, *k.shape[2:]) if k.ndim == 4 else k


def _padding(mask: Tensor | None, q: Tensor, t: int) -> Tensor | None:
    key_mask, block = read_mask(mask, q.shape[0], q.shape[1], t, t)
    if mask is not None and block is not None:
        raise ShapeError(f"got a mask of shape {tuple(mask.shape)}; expected key padding ({q.shape[0]}, {t}) of the new tokens")
    return key_mask


def _tokens(turned: Problem, low: Lowered, law: Law, problem: Problem, counts: Tensor | None) -> Tokens:
    """What is stored of the piece. Padding is zeros: whatever stood there is never multiplied."""
    keys = law.pad(problem.k if problem.biased else low.k).to(law.dtype)
    values, at, real = law.pad(problem.v).to(law.dtype), None, problem.key_mask
    if not law.still:
        at = low.key_times
    if real is not None:
        padded = ~real[:, None, :, None]
        keys, values = keys.masked_fill(padded, 0.0), values.masked_fill(padded, 0.0)
    return Tokens(keys, values, at, turned.scalar_times[1], real, counts)


def _continued(origin: Tensor | None, count: Tensor, own: bool, width: int) -> Tensor | None:
    """The origin of the next piece; a count starts at 0 in a row that had no real token yet."""
    if origin is None:
        return None
    origin = with_heads(origin, width)
    empty = (count == 0).reshape(-1, *(1,) * (origin.ndim - 1))
    return origin if own or not bool(empty.any()) else torch.where(empty, 0, origin)


def _since(reading: Reading, encoding: Encoding, cache: "KVCache | None") -> Tensor | None:
    if not encoding.clock.sums:
        return None
    return (None if cache is None else cache.since) if reading.last is None else with_heads(reading.last)


def _flat(vectors: Tensor) -> Tensor:
    return vectors if vectors.ndim == 3 else each_as_head(vectors)


def _last(vectors: Tensor, key_mask: Tensor | None, cache: "KVCache | None") -> Tensor:
    """The last real time of each row; the cache's where it has none, any where there is none at all."""
    if not vectors.shape[2]:
        return vectors.new_zeros(*vectors.shape[:2], 1, *vectors.shape[3:]) if cache is None else cache.last
    last = vectors[:, :, -1:].detach()
    if key_mask is None:
        return last
    flat = _flat(vectors.detach())
    before = _before(flat, key_mask, cache)
    last = carried(flat, before, key_mask)[..., -1:]
    return last if vectors.ndim == 3 else last.unflatten(1, (-1, vectors.shape[-1])).movedim(2, -1)


def _before(flat: Tensor, key_mask: Tensor | None, cache: "KVCache | None") -> Tensor:
    """The time before the piece (B|1, X|1, 1): the cache's last, or the piece's first real one where the cache has none."""
    first = flat[..., :1] if key_mask is None else first_real(flat, key_mask)
    if cache is None:
        return first
    return torch.where((cache.count > 0)[:, None, None], _flat(cache.last), first)


def _check_order(problem: Problem, cache: "KVCache | None", encoding: Encoding) -> None:
    """Refuse times that go back, from the cache to the piece and inside it, where the law or a window in time needs order."""
    if not (problem.ordered or problem.span is not None) or not problem.key_vectors.shape[2]:
        return
    flat = _flat(problem.key_vectors.detach())
    before = _before(flat, problem.key_mask, cache)
    if problem.key_mask is not None:
        flat = carried(flat, before, problem.key_mask)
    if flat.shape[:2] != before.shape[:2]:
        flat, before = (x.expand(*torch.broadcast_shapes(flat.shape[:2], before.shape[:2]), -1) for x in (flat, before))
    steps = flat.diff(dim=-1, prepend=before)
    if bool((steps < 0).any()):
        row, _, token = (steps < 0).nonzero()[0].tolist()
        where = "from the last token of the cache on, " if not token else ""
        raise ClockError(
            f"got times that go back at token {token} (row {row}): by {-float(steps[row, :, token].min()):.6g}; expected nondecreasing "
            f"times {where}in the order of the tokens, since {encoding} {'decays with' if problem.ordered else 'has a window in'} time: "
            "a cache does not sort"
        )
