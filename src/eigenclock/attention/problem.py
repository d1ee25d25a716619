"""A checked attention call: shapes agree, times are exact and in order, masks are read one way only."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from eigenclock.attention.bands import Span
from eigenclock.attention.documents import Boundaries, read_ids
from eigenclock.attention.hidden import without_hidden
from eigenclock.attention.times import Times, along_order, check_order, for_queries, per_query_head, read_times
from eigenclock.clocks import exact_duration, is_duration
from eigenclock.clocks.units import Lapse
from eigenclock.encodings import Encoding, Weights
from eigenclock.encodings.outside import Outside, Pairs, absolute, place
from eigenclock.errors import ClockError, ConfigError, GrowthError, ShapeError, UnsupportedError
from eigenclock.theory import Generator, Lift, Split


@dataclass(frozen=True)
class Problem:
    """One attention call after every check, as the backends see it.

    query_times (B|1, H|1, T) and key_times (B|1, H|1, S): float64 ticks with a common origin, which say what came before.
    query_vectors and key_vectors: what the generator acts with: the same (but positions order a decode step on a learned clock), or
    (B|1, H|1, T, axes) on a clock of several axes.
    query_counts and key_counts: what a window in time compares, shaped as the times; None where those are as good.
    ``cross``: causality is decided by time instead of index. window: keys by count, span: by time. documents (B|1, T): run numbers.
    key_mask (B|1, S), allowed (B|1, H|1, T|1, S).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    encoding: Encoding
    query_times: Tensor
    key_times: Tensor
    query_vectors: Tensor
    key_vectors: Tensor
    cross: bool
    causal: bool
    window: int | None
    span: Span | None
    documents: Tensor | None
    key_mask: Tensor | None
    allowed: Tensor | None
    scale: float
    want_lse: bool
    generator: Generator
    split: Split
    lifts: tuple[Lift, ...]
    slope: Tensor | None  # the sum of all linear biases, (H,), or None
    outside: tuple[Outside, ...] = ()  # what no generator gives
    origin: Tensor | None = None  # what times lack of those that were given
    weights: Weights | None = None  # of tokens in linear attention, None where each weighs 1
    places: Tensor | None = None  # which keys the queries of a decode step stand at, (B|1, T); None: the last of all
    query_counts: Tensor | None = None
    key_counts: Tensor | None = None

    @property
    def other_lifts(self) -> tuple[Lift, ...]:
        """Lifts that are no linear bias: their coordinates are appended to queries and keys."""
        return tuple(lift for lift in self.lifts if lift.slope is None)

    def learns_in_16_bits(self, *tensors: Tensor) -> bool:
        """Whether one of the tensors gets a gradient from 16-bit queries: sums over time then need care."""
        return self.q.dtype in (torch.float16, torch.bfloat16) and torch.is_grad_enabled() and any(x.requires_grad for x in tensors)

    @property
    def scalar_times(self) -> tuple[Tensor, Tensor]:
        """The one time of each token that a bias, a Jordan block or a window in time reads: on several clocks, the one that orders."""
        one = self.query_vectors.ndim == 3
        return (self.query_vectors, self.key_vectors) if one else (self.query_times, self.key_times)

    @property
    def span_times(self) -> tuple[Tensor, Tensor]:
        """What a window in time compares, for queries and keys."""
        if self.query_counts is None or self.key_counts is None:
            return self.scalar_times
        return self.query_counts, self.key_counts

    @property
    def continues(self) -> bool:
        """Whether the queries are tokens of the keys, the last of each row in order by index: a decode step on a learned clock."""
        return self.cross and self.encoding.clock.sums

    @property
    def biased(self) -> bool:
        """Whether some bias is a number for each pair that no lift carries."""
        return any(part.bias is not None for part in self.outside)

    def bias(self, seen: Tensor, dtype: torch.dtype, rows: slice = slice(None)) -> Tensor:
        """The sum of those biases for some query rows, (B|1, H|1, T, S) in ``dtype`` or float32."""
        queries, keys = self.scalar_times
        keys = per_query_head(keys, self.q.shape[1])
        pairs = Pairs(self.q[:, :, rows].to(dtype), self.k.to(dtype), queries[:, :, rows], keys, seen, self.scale, self.origin)
        parts = [part.bias(pairs) for part in self.outside if part.bias is not None]
        return sum(parts[1:], parts[0])

    @property
    def two_sided(self) -> bool:
        return self.encoding.sides == 2 and not self.causal

    @property
    def ordered(self) -> bool:
        """Whether the law needs times in order: something decays, shears or adds a bias."""
        return needs_order(self.split, self.lifts)


def needs_order(split: Split, lifts: tuple[Lift, ...]) -> bool:
    """Whether a key after its query would grow or be rewarded: something decays, shears, or adds a bias with a direction."""
    return split.rate is not None or split.nilpotent is not None or any(lift.directed for lift in lifts)


def build(
    q: Tensor, k: Tensor, v: Tensor, encoding: Encoding, *, times: Any, key_times: Any, x: Tensor | None, key_x: Tensor | None,
    causal: bool, window: int | Lapse | None, documents: Tensor | Boundaries | None, mask: Tensor | None,
    scale: float | None, want_lse: bool = False, read: Times | None = None, before: Tensor | None = None, opens: Tensor | None = None,
) -> Problem:  # fmt: skip
    """Check a call and read its times, unless they are ``read`` already: then ``before`` is the time of the token before them, and
    ``opens`` (B|1,) says whether the first one begins a document.

    Raises: ShapeError, ClockError, GrowthError or ConfigError with one clear line.
    """
    check_tensors(q, k, v, encoding)
    b, h, t, d = q.shape
    s = k.shape[2]
    key_mask, allowed = read_mask(mask, b, h, t, s)
    cross = key_times is not None or s != t
    documents = read_ids(documents, t, q.device)
    runs = _read_documents(documents, b, t, cross)
    vectors = read or read_times(
        encoding.clock,
        times,
        key_times,
        t,
        s,
        cross=cross,
        causal=causal,
        documents=documents,
        key_mask=key_mask,
        allowed=allowed,
        x=x,
        key_x=key_x,
        device=q.device,
    )
    vectors = for_queries(vectors, h)
    query_ticks, key_ticks, *_ = along_order(vectors, encoding.clock, cross=cross, causal=causal)
    for name, ticks, heads in (("times", query_ticks, (1, h)), ("key_times", key_ticks, (1, k.shape[1], h))):
        if ticks.shape[0] not in (1, b) or ticks.shape[1] not in heads:
            raise ShapeError(f"got {name} for {ticks.shape[0]} rows and {ticks.shape[1]} heads; expected (T,), ({b}, T) or ({b}, {h}, T)")
    count, span = _read_window(window, encoding, vectors.query_counts is not None)
    q, k, v = without_hidden(q, k, v, key_mask, allowed, query_ticks, key_ticks, cross=cross, causal=causal)
    outside = encoding.outside(q.device)
    if outside:
        decodes = cross and times is None and read is None
        real = None if cross else key_mask
        real = _of_last(key_mask, vectors.places, t) if decodes else real
        q = place(outside, q, absolute(vectors.queries, vectors.origin), real, keys=False)
        k = place(outside, k, absolute(vectors.keys, vectors.origin), key_mask, keys=True)
    q, k = encoding.read_in(q, k)
    q, k, v = (x if x.stride(-1) == 1 or not x.numel() else x.contiguous() for x in (q, k, v))  # the kernels read rows
    generator, lifts = encoding.generator(q.device), encoding.lifts(q.device)
    slopes = [lift.slope for lift in lifts if lift.slope is not None]
    problem = Problem(
        q, k, v, encoding, query_ticks, key_ticks, vectors.queries, vectors.keys, cross, causal, count, span, runs, key_mask, allowed,
        d**-0.5 if scale is None else float(scale), want_lse, generator, generator.split(), lifts,
        sum(slopes[1:], slopes[0]).expand(h) if slopes else None, outside, vectors.origin,
        places=vectors.places,
        query_counts=vectors.query_counts, key_counts=vectors.key_counts,
    )  # fmt: skip
    _check_law(problem)
    return replace(problem, weights=_weights(problem, x, times is not None, before, opens)) if encoding.weighs else problem


def _of_last(key_mask: Tensor | None, places: Tensor | None, t: int) -> Tensor | None:
    """Which queries of a decode step are real tokens, (B|1, T); None where nothing says so."""
    if key_mask is None:
        return None
    return key_mask[:, key_mask.shape[1] - t :] if places is None else key_mask.gather(-1, places)


def _weights(problem: Problem, x: Tensor | None, given: bool, before: Tensor | None, opens: Tensor | None) -> Weights | None:
    """What tokens weigh, from how far the clock moved at each: at the first one since ``before``, or since 0."""
    encoding, times = problem.encoding, problem.key_vectors
    if problem.cross or not problem.causal or problem.allowed is not None or problem.window is not None or problem.span is not None:
        raise UnsupportedError(
            f"got {encoding}, which weighs {encoding.weighs}, with keys of their own, a window, a mask of 4 axes or causal=False; "
            "expected causal self-attention with documents= and key padding alone"
        )
    if x is not None and problem.key_mask is not None:  # padding may hold anything, and no gradient passes it
        x = x.masked_fill(~problem.key_mask[..., None], 0.0)
    if not times.shape[2]:
        return encoding.weights(x, times)
    first = torch.zeros_like(times[:, :, :1]) if before is None else before
    rows = torch.broadcast_shapes(first.shape[:2], times.shape[:2])
    steps = times.expand(*rows, *times.shape[2:]).diff(dim=2, prepend=first.expand(*rows, *first.shape[2:]))
    if given and problem.documents is not None:  # as at the very first token, no time has passed since the one before
        fresh = _first_of_documents(problem.documents, problem.key_mask, opens)
        steps = steps.masked_fill(fresh[:, None].reshape(fresh.shape[0], 1, -1, *(1,) * (steps.ndim - 3)), 0.0)
    return encoding.weights(x, steps)


def _first_of_documents(runs: Tensor, mask: Tensor | None, opens: Tensor | None) -> Tensor:
    """Which tokens have no real one of their document before them, (B|1, T); before the first real one of a row stands what ``opens``."""
    index = torch.arange(runs.shape[-1], device=runs.device)
    last = (index[None] if mask is None else torch.where(mask, index, -1)).cummax(-1).values
    last = torch.cat([torch.full_like(last[:, :1], -1), last[:, :-1]], -1)
    rows = max(last.shape[0], runs.shape[0], 1 if opens is None else opens.shape[0])
    last, runs = last.expand(rows, -1), runs.expand(rows, -1)
    first = torch.zeros_like(last, dtype=torch.bool) if opens is None else opens[:, None].expand(rows, last.shape[1])
    return torch.where(last < 0, first, runs.gather(-1, last.clamp_min(0)) != runs)


def check_tensors(q: Tensor, k: Tensor, v: Tensor, encoding: Encoding) -> None:
    """Refuse tensors that do not fit each other or the encoding."""
    if not isinstance(encoding, Encoding):
        raise ConfigError(
            f"got {type(encoding).__name__} as encoding; expected an Encoding: ec.rope(head_dim), "
            "or ec.encoding('rope * alibi', head_dim=..., heads=...)"
        )
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4 or not x.is_floating_point():
            raise ShapeError(
                f"got {name} of shape {tuple(x.shape)} and dtype {x.dtype}; expected a floating tensor (batch, heads, time, width)"
            )
    if not (q.dtype == k.dtype == v.dtype) or not (q.device == k.device == v.device):
        raise ShapeError(
            f"got dtypes {q.dtype}, {k.dtype}, {v.dtype} on {q.device}, {k.device}, {v.device}; "
            "expected one dtype and device for q, k and v"
        )
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ShapeError(
            f"got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}; expected q (B, H, T, D), k (B, G, S, D), v (B, G, S, V): "
            "tensors laid out (B, T, H, D) need .transpose(1, 2)"
        )
    h, g, d = q.shape[1], k.shape[1], q.shape[3]
    if h % max(g, 1):
        raise ShapeError(f"got {h} query heads and {g} key heads; expected query heads to be a multiple of key heads")
    if d != encoding.head_dim:
        raise ShapeError(f"got heads of width {d} for {encoding}; expected head_dim={encoding.head_dim}")
    if encoding.heads != 1 and encoding.heads != h:  # a traced h is no plain int: `in` would miss it
        raise ShapeError(f"got {h} query heads for {encoding}; expected heads={encoding.heads}")
    if encoding.kv_heads is not None and encoding.kv_heads != g:
        raise ShapeError(f"got {g} key heads for {encoding}; expected kv_heads={encoding.kv_heads}")


def read_mask(mask: Tensor | None, b: int, h: int, t: int, s: int) -> tuple[Tensor | None, Tensor | None]:
    """A mask as key padding (B|1, S) or as a block (B|1, H|1, T|1, S)."""
    if mask is None:
        return None, None
    if mask.is_floating_point() or mask.is_complex():
        raise ShapeError(
            f"got a mask of dtype {mask.dtype}; expected booleans, True where a key may be attended (an additive bias is not a mask)"
        )
    mask = mask != 0 if mask.dtype != torch.bool else mask
    if mask.ndim == 2:
        if mask.shape[0] not in (1, b) or mask.shape[1] != s:
            raise ShapeError(
                f"got a mask of shape {tuple(mask.shape)}; expected key padding ({b}, {s}), "
                f"or 4 axes that broadcast to ({b}, {h}, {t}, {s})"
            )
        return mask, None
    sizes = ((1, b), (1, h), (1, t), (s,))
    if mask.ndim != 4 or any(n not in allowed for n, allowed in zip(mask.shape, sizes, strict=True)):
        raise ShapeError(
            f"got a mask of shape {tuple(mask.shape)}; expected key padding ({b}, {s}), or 4 axes that broadcast to ({b}, {h}, {t}, {s})"
        )
    return (mask[:, 0, 0], None) if mask.shape[1] == mask.shape[2] == 1 else (None, mask)


def _read_documents(documents: Tensor | None, b: int, t: int, cross: bool) -> Tensor | None:
    """Document ids as run numbers (B|1, T)."""
    if documents is None:
        return None
    if cross:
        raise ShapeError("got documents in cross attention; expected them in self-attention only: pass a mask of 4 axes for other blocks")
    if (
        documents.ndim not in (1, 2)
        or documents.shape[-1] != t
        or (documents.ndim == 2 and documents.shape[0] not in (1, b))
        or documents.is_floating_point()
    ):
        raise ShapeError(
            f"got documents of shape {tuple(documents.shape)}, {documents.dtype}; expected integer ids ({t},) or ({b}, {t}): cumulative "
            "lengths go in by name, documents=Boundaries(cu_seqlens)"
        )
    ids = documents if documents.ndim == 2 else documents[None]
    runs = torch.zeros_like(ids, dtype=torch.int64)
    runs[:, 1:] = (ids[:, 1:] != ids[:, :-1]).long().cumsum(-1)
    if not torch.compiler.is_compiling():
        for row in range(ids.shape[0]):
            if t and int(runs[row, -1]) + 1 != int(ids[row].unique().numel()):
                raise ShapeError(
                    "got a document id that comes back after another document; expected each document in one piece "
                    "(sort the row by document)"
                )
    return runs


def _read_window(window: int | Lapse | None, encoding: Encoding, counted: bool) -> tuple[int | None, Span | None]:
    if window is None:
        return None, None
    if is_duration(window):
        size = exact_duration(window, encoding.clock.unit)
        if size <= 0:
            raise ConfigError(f"got window={window!r}; expected a duration above 0")
        return None, Span.of(size, encoding.clock.resolution if counted else None)
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise ConfigError(
            f"got window={window!r}; expected a whole number of keys (the query and the n - 1 before it), or a duration such as '30min'"
        )
    return window, None


def _check_law(problem: Problem) -> None:
    """Decays and biases need a direction and times in order; windows need a direction."""
    encoding = problem.encoding
    _check_clocks(problem)
    if problem.ordered and not problem.causal and encoding.sides == 1:
        raise GrowthError(
            f"got causal=False for {encoding}, which {'decays' if problem.split.rate is not None else 'adds a signed bias'}: "
            "keys after the query would grow "
            "without bound or be rewarded; expected causal=True, or two_sided(encoding) for exp(-a |t - s|)"
        )
    directed = any(part.directed for part in problem.outside)
    if directed and not problem.causal:
        raise ConfigError(f"got causal=False for {encoding}, which has no law for keys after the query; expected causal=True")
    if (problem.window is not None or problem.span is not None) and not problem.causal:
        raise ConfigError("got window= with causal=False; expected causal=True (the window is the query and the keys before it)")
    if problem.span is not None and encoding.clock.width > 1 and encoding.clock.order_axis is None:
        raise ConfigError(
            f"got a window in time for {encoding} on a clock of several times; expected a number of keys, or a clock with order= set"
        )
    _check_heads(problem)
    if problem.ordered or directed or problem.span is not None:
        check_order(problem)


def _check_clocks(problem: Problem) -> None:
    """Every part must know which of several times it reads, and nothing may decay on a clock that goes back."""
    encoding, split, width = problem.encoding, problem.split, problem.encoding.clock.width
    fits = reads_times(split, width)
    if split.rate is not None:
        pairs = {turn.freq.shape[-1] for turn in split.turns}
        fits = fits and (_reads(split.rate_clock, split.rate.shape[-1], width) or (split.rate_clock is None and pairs == {width}))
    if not fits or (width > 1 and (problem.lifts or problem.outside or split.nilpotent is not None)):
        raise ConfigError(
            f"got {encoding} on a clock with {width} numbers per token; expected a part for each of them and no bias or Jordan block: "
            "rotations over axes are axial_rope, mixed_rope and m_rope, and OnClock lets a part read its own times"
        )
    if problem.ordered and encoding.clock.signed and split.rate_clock is None:
        raise ClockError(
            f"got {encoding} on a clock whose increments have either sign: what decays would grow where time goes back; "
            "expected a gate that is never negative, such as 'softplus', or an encoding that only turns"
        )


def reads_times(split: Split, width: int) -> bool:
    """Whether every rotation knows which of ``width`` times it reads."""
    return all(turn.axes == width if turn.axes > 1 else _reads(turn.clock, turn.freq.shape[-1], width) for turn in split.turns)


def _reads(clock: tuple[int, ...] | None, blocks: int, width: int) -> bool:
    """Whether blocks that read these times fit a clock of ``width`` times: one for all, one each in order, or those named."""
    return width in (1, blocks) if clock is None else max(clock) < width


def _check_heads(problem: Problem) -> None:
    """What touches keys must be shared inside a group of query heads, unless the caller repeats the keys."""
    h, g = problem.q.shape[1], problem.k.shape[1]
    split = problem.split
    on_keys = [turn.freq for turn in split.turns] + [x for x in (split.rate, split.nilpotent, split.basis) if x is not None]
    rows = {turn.rows for turn in split.turns}
    rows |= {split.rate.shape[0]} if split.rate is not None and split.rate.ndim > 1 else set()
    rows |= {x.shape[0] for x in (split.nilpotent, split.basis) if x is not None and x.ndim > 2}
    for lift in problem.lifts:
        rows |= {x.shape[0] for x, flat in ((lift.key, 1), (lift.key_map, 2)) if x is not None and x.ndim > flat}
    bad = rows - {1, g}
    if bad:
        n = bad.pop()
        raise ShapeError(
            f"got rates or frequencies for {n} heads and keys with {g} heads; expected one per key head: "
            f"build the encoding with kv_heads={g} "
            f"(shared in each group of {h // max(g, 1)} query heads), or repeat the keys and values: "
            f"k.repeat_interleave({h // max(g, 1)}, 1)"
        )
    if problem.key_vectors.shape[1] not in (1, g) and on_keys:
        raise ShapeError(
            f"got times for {problem.key_vectors.shape[1]} heads and keys with {g} heads; expected one clock per key head, "
            "or repeat the keys and values: "
            f"k.repeat_interleave({h // max(g, 1)}, 1)"
        )
