"""The tiled backend: everything that decays, shears, is biased or masked, on tiles with a reference time each."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from eigenclock.attention.backends import sdpa
from eigenclock.attention.backends.by_reach import by_reach
from eigenclock.attention.bands import first_in_span
from eigenclock.attention.capability import Backend
from eigenclock.attention.lower import Lowered, lower
from eigenclock.attention.precision import refuses_growth, warn_of_growth
from eigenclock.attention.problem import Problem
from eigenclock.attention.tiled_op import tiled
from eigenclock.attention.times import per_query_head, real_last, settled, smooth_vectors, tokens_at

Merged = tuple[Tensor, Tensor]
"""A softmax over some keys: output (B, H, T, D) and log-sum-exp (B, H, T)."""


def _refuses(problem: Problem) -> str | None:
    if problem.biased:
        return "a bias for each pair is a T x S tensor, which tiles are there to avoid"
    if problem.cross and problem.causal and not problem.continues and problem.query_vectors.ndim > 3 and problem.split.rate is not None:
        return "decays on several axes have no plan of tiles in cross attention, where queries and keys share no order on each of them"
    if problem.two_sided and (problem.split.nilpotent is not None or problem.other_lifts):
        return "a two-sided encoding carries decays, rotations and linear biases only"
    return refuses_growth(problem)


def _run(problem: Problem) -> tuple[Tensor, Tensor | None]:
    parts = by_reach(problem)
    if parts is not None:
        return parts.joined(sdpa.backend.run(parts.near)[0], _tiles(parts.far)[0]), None
    return _tiles(problem)


def _tiles(problem: Problem) -> tuple[Tensor, Tensor | None]:
    """All heads on tiles."""
    warn_of_growth(problem)
    dtype, width = problem.q.dtype, problem.v.shape[-1]
    learned = problem.learns_in_16_bits(*(turn.freq for turn in problem.split.turns))
    if learned or (dtype in (torch.float16, torch.bfloat16) and problem.other_lifts):
        # The gradient of a frequency sums time * (gradient of the angle): 16-bit gradients would drown it. Coordinates that grow with
        # the lag do not fit 16 bits either.
        problem = replace(problem, q=problem.q.float(), k=problem.k.float(), v=problem.v.float())
    low = lower(problem)
    q, k, v = low.q, low.k, problem.v
    d = max(q.shape[-1], width)
    d += -d % 8 if problem.other_lifts else 0  # the kernel is slow at other widths
    q, k, v = (F.pad(x, (0, d - x.shape[-1])) if x.shape[-1] < d else x for x in (q, k, v))
    low = _widen(replace(low, q=q, k=k), d)
    h, g = q.shape[1], k.shape[1]
    learned_bias = low.slope is not None and torch.is_grad_enabled() and (low.slope.requires_grad or problem.key_vectors.requires_grad)
    if g != h and low.slope is not None:  # a key term for each query head, which costs no copy of the keys
        low = replace(low, key_times=per_query_head(low.key_times, h))
    if g != h and (learned_bias or _needs_own_keys(problem, low)):
        low = replace(low, k=low.k.repeat_interleave(h // g, 1), key_times=per_query_head(low.key_times, h))
        v = v.repeat_interleave(h // g, 1)
        counts = None if problem.key_counts is None else per_query_head(problem.key_counts, h)
        problem = replace(problem, key_times=per_query_head(problem.key_times, h), key_counts=counts)
        low = replace(low, rate=_per_query_head(low.rate, h, g), nilpotent=_per_query_head(low.nilpotent, h, g))
    out, lse = _cross(problem, low, v) if problem.cross else _self(problem, low, v)
    return out[..., :width].to(dtype), (lse if dtype == torch.float64 else lse.float()) if problem.want_lse else None


def _needs_own_keys(problem: Problem, low: Lowered) -> bool:
    """Whether query heads that share keys need copies of them: on a staircase of each head, and where a decay meets a bias or a shear."""
    if problem.key_vectors.shape[1] == 1:
        return False
    staircase = problem.cross and not problem.continues
    return (staircase and low.slope is not None) or (low.rate is not None and (staircase or low.slope is not None or low.order > 1))


def _per_query_head(parameter: Tensor | None, h: int, g: int) -> Tensor | None:
    """A parameter with one row per key head, repeated for the query heads of each group."""
    return parameter if parameter is None or parameter.shape[0] != g or g == 1 else parameter.repeat_interleave(h // g, 0)


def _widen(low: Lowered, d: int) -> Lowered:
    """Rates, the times they read and shears for the columns added where values are wider than keys: those columns are zero."""
    if d == low.width:
        return low
    rate, nilpotent = low.rate, low.nilpotent
    paired = low.paired and d % 2 == 0

    def columns(x: Tensor) -> Tensor:
        """(..., R) by columns of rate as those of d channels; one for all stays."""
        if x.shape[-1] == 1:
            return x
        if paired:
            return F.pad(x, (0, d // 2 - x.shape[-1]))
        x = x.repeat_interleave(2, -1) if low.paired else x.repeat(*(1,) * (x.ndim - 1), low.width // x.shape[-1])
        return F.pad(x, (0, d - low.width))

    if nilpotent is not None:
        nilpotent = F.pad(nilpotent, (0, d - nilpotent.shape[-1], 0, d - nilpotent.shape[-1]))
    return replace(
        low, rate=None if rate is None else columns(rate), nilpotent=nilpotent, paired=paired,
        query_times=columns(low.query_times), key_times=columns(low.key_times),
    )  # fmt: skip


@dataclass(frozen=True)
class _Masks:
    """What is seen, beside the order of time."""

    documents: Tensor | None = None
    key_documents: Tensor | None = None
    key_mask: Tensor | None = None
    allowed: Tensor | None = None
    first: Tensor | None = None  # the first key inside a window in time


def _call(plan: str, problem: Problem, low: Lowered, v: Tensor, query_times: Tensor, key_times: Tensor, masks: _Masks) -> Merged:
    return tiled(
        plan, problem.window or 0, problem.scale, low.order, low.paired, low.q, low.k, v,
        query_times, key_times, low.rate, low.nilpotent, low.slope,
        masks.documents, masks.key_documents, masks.key_mask, masks.allowed, masks.first,
    )  # fmt: skip


def _self(problem: Problem, low: Lowered, v: Tensor) -> Merged:
    # Padding may hold any time, which must neither break the order nor stretch the powers of the lag that a lift takes.
    in_order = problem.ordered or bool(problem.other_lifts)
    times = smooth_vectors(low.key_times, problem.documents, problem.key_mask) if in_order else low.key_times
    first = None
    if problem.span is not None:  # by the times as they came: only padding out of order is moved
        plain = settled(per_query_head(problem.span_times[1], low.q.shape[1]), problem.documents, problem.key_mask)
        first = first_in_span(plain, plain, problem.span, problem.documents)
    masks = _Masks(problem.documents, problem.documents, problem.key_mask, problem.allowed, first)
    query_times = per_query_head(times, low.q.shape[1])
    if problem.causal:
        return _call("square", problem, low, v, query_times, times, masks)
    if not _both_ways(problem, low):
        return _call("whole", problem, low, v, query_times, times, masks)
    past = _call("square", problem, low, v, query_times, times, masks)
    # The future: both axes reversed, shifted by one so that the diagonal is not seen twice.
    future = replace(_mirrored(low), q=low.q.flip(2)[:, :, 1:], k=low.k.flip(2)[:, :, :-1])
    query_times, key_times = -query_times.flip(2)[:, :, 1:], -times.flip(2)[:, :, :-1]
    out, lse = _call("square", problem, future, v.flip(2)[:, :, :-1], query_times, key_times, _reversed(masks))
    return _merge(past, (F.pad(out.flip(2), (0, 0, 0, 1)), F.pad(lse.flip(2), (0, 1), value=-torch.inf)))


def _both_ways(problem: Problem, low: Lowered) -> bool:
    """Whether keys before and after their query are two calls: a mirrored decay, or powers of the lag, which cancel around one origin."""
    return (problem.two_sided and problem.ordered) or low.nilpotent is not None


def _mirrored(low: Lowered) -> Lowered:
    """The same law with time running backwards: decays look at the distance, powers of the lag change their sign."""
    return low if low.nilpotent is None else replace(low, nilpotent=-low.nilpotent)


def _reversed(masks: _Masks) -> _Masks:
    """The masks of the reversed axes: queries without the last token, keys without the first. Run numbers keep their order."""
    documents, key_mask, allowed = masks.documents, masks.key_mask, masks.allowed
    if documents is not None:
        documents = -documents.flip(-1)
    if allowed is not None:
        allowed = allowed.flip(-1)[..., :-1]
        allowed = allowed.flip(-2)[..., 1:, :] if allowed.shape[-2] > 1 else allowed
    return _Masks(
        None if documents is None else documents[..., 1:], None if documents is None else documents[..., :-1],
        None if key_mask is None else key_mask.flip(-1)[..., :-1], allowed,
    )  # fmt: skip


def _merge(a: Merged, b: Merged) -> Merged:
    """Two partial softmaxes over different keys as one, differentiably."""
    dead = (a[1] == -torch.inf) & (b[1] == -torch.inf)  # the gradient of logaddexp would be NaN there
    lse = torch.logaddexp(a[1].masked_fill(dead, 0.0), b[1].masked_fill(dead, 0.0)).masked_fill(dead, -torch.inf)
    weights = [(part[1] - lse.masked_fill(lse == -torch.inf, 0.0)).exp()[..., None].to(a[0].dtype) for part in (a, b)]
    return a[0] * weights[0] + b[0] * weights[1], lse


def _cross(problem: Problem, low: Lowered, v: Tensor) -> Merged:
    query_times, key_times = problem.query_times, problem.key_times
    if problem.continues:
        return _continued(problem, low, v)
    if problem.causal:
        return _staircase("staircase", problem, low, v, query_times, key_times)
    if not _both_ways(problem, low):
        masks = _Masks(key_mask=problem.key_mask, allowed=problem.allowed)
        return _call("whole", problem, low, v, low.query_times, low.key_times, masks)
    past = _staircase("staircase", problem, low, v, query_times, key_times)
    return _merge(past, _staircase("strict staircase", problem, _mirrored(low), v, -query_times, -key_times))


def _continued(problem: Problem, low: Lowered, v: Tensor) -> Merged:
    """Queries that are the last positions of the keys: every key before them in one rectangle, then a causal square."""
    if problem.places is not None and problem.key_mask is not None:  # padding behind real keys: it moves before them
        order = real_last(problem.key_mask)
        mask, v = problem.key_mask.gather(-1, order), tokens_at(v, order)
        times, vectors = (tokens_at(x, order) for x in (low.key_times, problem.key_vectors))
        if problem.span is not None and vectors.ndim == 3:
            vectors = settled(vectors, None, mask)
        low = replace(low, k=tokens_at(low.k, order), key_times=smooth_vectors(times, None, mask))
        problem = replace(problem, key_mask=mask, key_vectors=vectors, places=None)
    first = None
    if problem.span is not None:
        query_times, key_times = problem.span_times
        first = first_in_span(query_times, per_query_head(key_times, low.q.shape[1]), problem.span)
    masks = _Masks(key_mask=problem.key_mask, allowed=problem.allowed, first=first)
    return _call("continued", problem, low, v, low.query_times, low.key_times, masks)


def _staircase(plan: str, problem: Problem, low: Lowered, v: Tensor, query_times: Tensor, key_times: Tensor) -> Merged:
    """Each query on the keys up to its time, both sides sorted first and results put back in order."""
    allowed, query_counts, key_counts = problem.allowed, *(problem.span_times if problem.span is not None else (None, None))
    if problem.key_mask is not None and (problem.ordered or problem.other_lifts):  # padding must not stretch the span of the keys
        key_times = _from_first(key_times, problem.key_mask)
        key_counts = None if key_counts is None else _from_first(key_counts, problem.key_mask)
    q, query_times, query_order = _sorted(low.q, query_times, query_counts)
    k, sorted_keys, key_order = _sorted(low.k, key_times, key_counts)
    if key_order is not None:
        v = _gather(v, key_order)
    if allowed is not None:
        allowed = _gather_block(allowed, query_order, key_order)
    key_mask = problem.key_mask
    if key_mask is not None and key_order is not None:
        if key_order.shape[1] > 1:
            allowed = _and_block(
                allowed,
                key_mask[:, None, None, :]
                .expand(-1, key_order.shape[1], 1, -1)
                .gather(-1, key_order.unsqueeze(2).expand(key_mask.shape[0], -1, 1, -1)),
            )
            key_mask = None
        else:
            key_mask = (
                key_mask.expand(key_order.shape[0], -1).gather(-1, key_order[:, 0].expand(max(key_order.shape[0], key_mask.shape[0]), -1))
                if key_order.shape[0] > 1
                else key_mask[:, key_order[0, 0]]
            )
    first = None
    if problem.span is not None and query_counts is not None and key_counts is not None:
        key_counts = per_query_head(_in(key_order, key_counts), q.shape[1])
        first = first_in_span(_in(query_order, query_counts), key_counts, problem.span)
    masks = _Masks(key_mask=key_mask, allowed=allowed, first=first)
    out, lse = _call(plan, problem, replace(low, q=q, k=k), v, query_times[..., None], sorted_keys[..., None], masks)
    if query_order is not None:
        back = query_order.argsort(-1)
        out, lse = _gather(out, back), _gather(lse[..., None], back)[..., 0]
    return out, lse


def _from_first(times: Tensor, key_mask: Tensor) -> Tensor:
    """Times (B|1, H|1, S) with the padding at the first real one of its row, at 0 where a row has none."""
    top = torch.inf if times.is_floating_point() else torch.iinfo(times.dtype).max
    first = torch.where(key_mask[:, None], times, top).amin(-1, keepdim=True)
    return torch.where(key_mask[:, None], times, first.masked_fill(first == top, 0))


def _sorted(x: Tensor, times: Tensor, counts: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """x and times in order of time (of the counts, where they tell more apart), and the order; as they are where they are in order."""
    by = (times if counts is None else counts).detach()
    if by.shape[-1] < 2 or (not torch.compiler.is_compiling() and bool((by.diff(dim=-1) >= 0).all())):
        return x, times, None
    order = by.argsort(dim=-1, stable=True)
    return _gather(x, order), _in(order, times), order


def _in(order: Tensor | None, times: Tensor) -> Tensor:
    """Times of each token in the order given."""
    return times if order is None else times.gather(-1, order)


def _gather(x: Tensor, order: Tensor) -> Tensor:
    """Axis 2 of (B, X, T, D) in the order given, (B|1, X|1, T)."""
    return x.gather(2, order[..., None].expand(*x.shape[:2], -1, x.shape[-1]))


def _gather_block(block: Tensor, query_order: Tensor | None, key_order: Tensor | None) -> Tensor:
    if query_order is not None and block.shape[2] > 1:
        shape = torch.broadcast_shapes(block.shape[:2], query_order.shape[:2])
        block = block.expand(*shape, *block.shape[2:]).gather(2, query_order[..., None].expand(*shape, -1, block.shape[-1]))
    if key_order is not None:
        shape = torch.broadcast_shapes(block.shape[:2], key_order.shape[:2])
        block = block.expand(*shape, *block.shape[2:]).gather(3, key_order[:, :, None].expand(*shape, block.shape[2], -1))
    return block


def _and_block(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a & b


backend = Backend("tiles with a reference time each, partial softmaxes merged; heads of a short bias in one call", _refuses, _run)
