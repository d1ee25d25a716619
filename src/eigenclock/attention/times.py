"""Reading the times of a call: one origin for queries and keys, order checked, padding and documents smoothed over."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from eigenclock.clocks import Clock
from eigenclock.clocks.clock import Reading, with_heads
from eigenclock.errors import ClockError, ShapeError

if TYPE_CHECKING:
    from eigenclock.attention.problem import Problem


class Times(NamedTuple):
    """The times of a call, float64 with a common origin: ``queries`` (B|1, H|1, T) and ``keys`` (B|1, H|1, S), with one last axis more
    where the clock has several axes. ``origin`` (B|1, H|1, 1): what was subtracted from given times, on one clock in steps. ``places``
    (B|1, T): which keys the queries of a decode step stand at, None where these are the last of all. ``query_counts`` and ``key_counts``:
    the counts of both readings, None where either has none."""

    queries: Tensor
    keys: Tensor
    origin: Tensor | None = None
    places: Tensor | None = None
    query_counts: Tensor | None = None
    key_counts: Tensor | None = None


def read_times(
    clock: Clock, times: Any, key_times: Any, t: int, s: int, *, cross: bool, causal: bool, documents: Tensor | None,
    key_mask: Tensor | None, allowed: Tensor | None,
    x: Tensor | None, key_x: Tensor | None, device: torch.device,
) -> Times:  # fmt: skip
    """Query and key times read by a clock.

    With no times given, queries and keys of different length are a decode step: the queries are the last ``t`` real positions of their row.
    """
    if not cross:
        reading = clock(times, length=t, documents=documents, mask=key_mask, x=x, device=device)
        ticks = with_heads(reading.ticks, clock.width)
        _check_length("times", ticks, t)
        counts = counts_of(clock, reading)
        return Times(ticks, ticks, given_origin(clock, reading, times), query_counts=counts, key_counts=counts)
    if clock.sums:
        if times is not None or not causal or t > s:
            raise ClockError(
                "got cross attention on a learned clock, which sums along one sequence; expected a decode step: causal, no times for the "
                "queries, which are the last positions of the keys (key_x= for all of them, key_times= where the clock has a base)"
            )
        keys = with_heads(clock(key_times, length=s, mask=key_mask, x=key_x, device=device).ticks, clock.width)
        _check_length("key_times", keys, s)
        return _decode_step(keys, t, key_mask, allowed)
    if key_times is None and times is not None:
        raise ShapeError(
            f"got times for {t} queries and none for {s} keys; expected key_times= as well (queries and keys share no clock otherwise)"
        )
    if key_times is not None and times is None:
        raise ShapeError("got key_times without times; expected times= for the queries as well")
    if key_times is None:
        if not causal or t > s:
            raise ShapeError(
                f"got {t} queries and {s} keys without times; expected times= and key_times= "
                "(left out, they mean a decode step: causal, the queries being the last positions of the keys)"
            )
        keys = with_heads(clock(None, length=s, mask=key_mask, x=key_x, device=device).ticks, clock.width)
        return _decode_step(keys, t, key_mask, allowed)
    reading = clock(key_times, length=s, mask=key_mask, x=key_x, device=device)
    keys = with_heads(reading.ticks, clock.width)
    asked = clock(times, length=t, origin=reading.origin, x=x, device=device)
    queries = with_heads(asked.ticks, clock.width)
    _check_length("key_times", keys, s)
    _check_length("times", queries, t)
    return Times(
        queries, keys, given_origin(clock, reading, key_times), query_counts=counts_of(clock, asked), key_counts=counts_of(clock, reading)
    )


def counts_of(clock: Clock, reading: Reading) -> Tensor | None:
    """The counts of a reading, (B|1, H|1, T); None where the clock has none, or nothing is ever compared with them."""
    return None if reading.counts is None or clock.resolution is None else with_heads(reading.counts)


def _decode_step(keys: Tensor, t: int, key_mask: Tensor | None, allowed: Tensor | None) -> Times:
    """Times of ``t`` queries that are the last real tokens of their row of keys, whose times are (B|1, H|1, S, ...)."""
    places = _last_real(t, key_mask, allowed)
    return Times(keys[:, :, keys.shape[2] - t :] if places is None else tokens_at(keys, places), keys, None, places)


def _last_real(t: int, key_mask: Tensor | None, allowed: Tensor | None) -> Tensor | None:
    """The places of the last ``t`` real keys of each row in order, (B|1, T); None where all padding is on the left, before any real key.

    A row with fewer real keys has its first queries on the padding before them, where they see nothing.
    """
    if key_mask is None:
        _check_block(t, allowed)
        return None
    if not torch.compiler.is_compiling():
        late = ~key_mask & (key_mask.long().cumsum(-1) > 0)  # padding behind a real key
        if not bool(late.any()):
            return None
        short = late.any(-1) & (key_mask.sum(-1) < t)
        if bool(short.any()):
            row = int(short.nonzero()[0])
            raise ShapeError(
                f"got {t} queries without times and a row with {int(key_mask[row].sum())} real keys and padding behind them (row {row}); "
                f"expected at least {t}, since the queries are the last real keys of their row: pad such rows on the left, or pass times= "
                "and key_times="
            )
    return real_last(key_mask)[:, key_mask.shape[-1] - t :]


def _check_block(t: int, allowed: Tensor | None) -> None:
    """Refuse a mask of 4 axes that hides late keys from every query: whether those are padding, it cannot say."""
    if allowed is None or torch.compiler.is_compiling():
        return
    seen = allowed.any(1).any(1)  # (B|1, S)
    hidden = (~seen & (seen.long().cumsum(-1) > 0))[:, seen.shape[-1] - t :]
    if bool(hidden.any()):
        row, place = hidden.nonzero()[0].tolist()
        place += seen.shape[-1] - t
        raise ShapeError(
            f"got {t} queries without times and a mask of 4 axes that hides key {place} of row {row} from all of them; "
            "expected to know where the queries stand: pass padding as a mask (batch, keys), or times= and key_times="
        )


def real_last(key_mask: Tensor) -> Tensor:
    """The order (B|1, S) of keys that puts padding first and keeps the rest as it is."""
    return key_mask.long().argsort(dim=-1, stable=True)


def tokens_at(x: Tensor, places: Tensor) -> Tensor:
    """Tokens of (B|1, X|1, S, ...) by an index (B|1, n) for each row."""
    rows = max(x.shape[0], places.shape[0])
    index = places[:, None].reshape(places.shape[0], 1, -1, *(1,) * (x.ndim - 3)).expand(rows, x.shape[1], -1, *x.shape[3:])
    return x.expand(rows, *x.shape[1:]).gather(2, index)


def given_origin(clock: Clock, reading: Reading, times: Any) -> Tensor | None:
    """What a clock subtracted from given times, (B|1, H|1, 1); None where it counts from 0, or its ticks are not in the unit of times."""
    plain = times is not None and clock.unit is None and clock.width == 1 and not clock.sums
    return with_heads(reading.origin) if plain and reading.origin is not None else None


def for_queries(times: Times, heads: int) -> Times:
    """Times of one clock per key head, repeated for the query heads of each group."""
    queries = per_query_head(times.queries, heads)
    if queries is times.queries:
        return times
    return times._replace(queries=queries, query_counts=None if times.query_counts is None else per_query_head(times.query_counts, heads))


def per_query_head(x: Tensor, heads: int) -> Tensor:
    """One row of axis 1 per key head, repeated for the query heads of each group; as it is where the heads share it or have their own."""
    rows = x.shape[1]
    return x if rows in (1, heads) or heads % rows else x.repeat_interleave(heads // rows, 1)


def along_order(times: Times, clock: Clock, *, cross: bool, causal: bool) -> Times:
    """The scalar times that say what came before: the times themselves, one axis of several (zeros where none orders), or positions."""
    if cross and clock.sums:  # a decode step: by position, since a signed gate goes back and a closed one stands still
        last = torch.arange(times.keys.shape[2], dtype=torch.float64, device=times.keys.device)[None, None]
        places = last[..., times.keys.shape[2] - times.queries.shape[2] :] if times.places is None else times.places[:, None].double()
        return Times(places, last)
    if clock.width == 1:
        return times
    axis = clock.order_axis
    if axis is None and cross and causal:
        raise ClockError(
            "got causal cross attention on a clock of several axes, none of which says what came before; "
            "expected causal=False, a clock with order= set to one of its axes, or a mask of 4 axes"
        )
    if times.queries is times.keys:
        one = times.keys[..., axis] if axis is not None else torch.zeros_like(times.keys[..., 0])
        return Times(one, one)
    return Times(*(x[..., axis] if axis is not None else torch.zeros_like(x[..., 0]) for x in (times.queries, times.keys)))


def _check_length(name: str, ticks: Tensor, length: int) -> None:
    if ticks.shape[2] != length:
        raise ShapeError(
            f"got {name} for {ticks.shape[2]} tokens; expected {length}, the length of the {'keys' if name == 'key_times' else 'queries'}"
        )


def check_order(problem: "Problem") -> None:
    """Refuse times that go back along one sequence (inside a document, between real tokens), unless the clock sorts."""
    if (problem.cross and not problem.continues) or problem.encoding.clock.decreasing == "sort" or torch.compiler.is_compiling():
        return
    times, clock = problem.key_vectors.detach(), problem.split.rate_clock
    if times.ndim > 3 and clock is not None:  # what only turns may go back
        times = times[..., sorted(set(clock))]
    times = (smooth if times.ndim == 3 else smooth_vectors)(times, problem.documents, problem.key_mask)
    back = times[:, :, 1:] < times[:, :, :-1]
    if bool(back.any()):
        where = back.nonzero()[0].tolist()
        step = float(times.diff(dim=2)[tuple(where)])
        raise ClockError(
            f"got times that go back at token {where[2] + 1} (row {where[0]}): by {-step:.6g}; "
            "expected nondecreasing times, since "
            f"{problem.encoding} {'decays with' if problem.ordered else 'looks back in'} time: sort the tokens, or use a clock with "
            "decreasing='sort'"
        )


def each_as_head(vectors: Tensor) -> Tensor:
    """Several times per token, (B|1, H|1, T, W), as clocks of their own, (B|1, H W, T)."""
    return vectors.movedim(-1, 2).flatten(1, 2)


def _in_order(ticks: Tensor) -> bool:
    return not torch.compiler.is_compiling() and bool((ticks.detach().diff(dim=-1) >= 0).all())


def smooth_vectors(vectors: Tensor, documents: Tensor | None, key_mask: Tensor | None) -> Tensor:
    """:func:`smooth` on each of the times (B|1, H|1, T, W)."""
    if documents is None and key_mask is None:
        return vectors
    flat = smooth(each_as_head(vectors), documents, key_mask)
    return flat.unflatten(1, (vectors.shape[1], vectors.shape[-1])).movedim(2, -1)


def smooth(ticks: Tensor, documents: Tensor | None, key_mask: Tensor | None) -> Tensor:
    """Ticks whose steps matter: padding takes the time of its neighbour, the step into a new document is 0.

    Only differences between real tokens of one document reach a score, so this changes no result; it makes one increasing clock out
    of clocks that restart, and lets padding hold any finite time.
    """
    ticks = settled(ticks, documents, key_mask)
    if documents is not None and ticks.shape[-1]:
        steps = ticks.diff(dim=-1)
        same = (documents[:, 1:] == documents[:, :-1]).unsqueeze(1)
        steps = torch.where(same, steps, 0.0)
        ticks = torch.cat([steps.new_zeros(*steps.shape[:-1], 1), steps.cumsum(-1)], -1)
    return ticks


def settled(ticks: Tensor, documents: Tensor | None, key_mask: Tensor | None) -> Tensor:
    """Times (B|1, H|1, T) in which padding stands at the real token before it in its document, at the next one where there is none.

    Padding whose times are in order already keeps them: the rows of padded queries are then those of the oracle too.
    """
    if key_mask is None or not ticks.shape[-1] or _in_order(ticks):
        return ticks
    index = torch.arange(ticks.shape[-1], device=ticks.device)
    before = torch.where(key_mask, index, -1).cummax(-1).values
    after = torch.where(key_mask, index, ticks.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
    begins = 0
    if documents is not None:
        starts = torch.cat([torch.zeros_like(documents[:, :1]), documents.diff(dim=-1)], -1) != 0
        begins = torch.where(starts, index, 0).cummax(-1).values
    source = torch.where(before >= begins, before, after)
    source = torch.where(source < ticks.shape[-1], source, index).unsqueeze(1)
    shape = torch.broadcast_shapes(ticks.shape, source.shape)
    return ticks.expand(shape).gather(-1, source.expand(shape))
