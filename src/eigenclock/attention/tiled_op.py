"""The tile engine as one opaque operator, so that compiled graphs and exported programs contain it whole.

Inside, plans depend on the data (which leaves break the exponent bound); a traced graph could not. A call is cut into pieces: groups
of heads, which keep temporaries small, and rows or heads of their own where a staircase has their times.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eigenclock.attention import bands, engine
from eigenclock.attention.job import Job
from eigenclock.theory.tiles import BIAS_BOUND, EXPONENT_BOUND, LEAVES, Ends, Tile, continued, square, staircase, within

PIECES = 2
"""Groups of heads a long call is cut into, so that temporaries shrink. Twice as many with a bias, whose reach differs by head, with a
window, which merges more, at great length in 32 bits, and for the gradients of 16-bit tensors, kept in float32."""

LONG = 1024
"""Tokens from which a call counts as long."""

# plan: "square" (self-attention), "staircase" (cross attention by time, key time <= query time), "strict staircase" (key time < query
# time), "continued" (a decode step: the queries are the last positions of the keys), "whole" (no order: every query sees every key)


@dataclass(frozen=True)
class _Piece:
    """A part of the call: some rows, some query heads and the key heads they read."""

    rows: slice
    heads: slice
    keys: slice
    job: Job


def _planned(plan: str, window: int, job: Job) -> Job:
    """The job with its tiles."""
    t, s = job.q.shape[2], job.k.shape[2]
    if plan == "square":
        plain = all(x is None for x in (job.rate, job.nilpotent, job.slope, job.documents, job.first))
        tiles = square(t, max(t, 1) if plain and not window else LEAVES[0], window or None)
    elif plan == "continued":
        tiles = continued(t, s, LEAVES[0])
    elif plan == "whole":
        tiles = [Tile("full", 0, 0, t, s)] if t and s else []
    else:
        limits = [
            bound / float(x.detach().max())
            for x, bound in ((job.rate, EXPONENT_BOUND), (job.slope, BIAS_BOUND))
            if x is not None and bool((x > 0).any())
        ]
        tiles = staircase(job.query_times[0, 0, :, 0], job.key_times[0, 0, :, 0], LEAVES[0], min(limits, default=float("inf")))
    if job.first is not None or job.last is not None:
        tiles = within(tiles, LEAVES[0], *(None if end is None else Ends.of(end) for end in (job.first, job.last)))
    norms = {}
    if job.slope is not None and job.nilpotent is None and job.q.dtype != torch.float64 and tiles:
        key_norms = torch.linalg.vector_norm(job.k, dim=-1, dtype=torch.float32)
        norms["query_norms"] = torch.linalg.vector_norm(job.q, dim=-1, dtype=torch.float32) * abs(job.scale)
        norms["key_norms"] = key_norms.repeat_interleave(job.q.shape[1] // job.k.shape[1], 1)
    return replace(job, tiles=tuple(tiles), **norms)


def _bounded(plan: str, window: int, job: Job) -> tuple[int, Job]:
    """The job with the interval of keys each query sees, where that is no fixed number of them; and the window that is left to the plan."""
    job = _with_ends(plan, window, job)
    return (0 if job.first is not None else window), job


def _with_ends(plan: str, window: int, job: Job) -> Job:
    if not job.q.shape[2] or not job.k.shape[2]:
        return job
    if plan == "whole" and job.documents is not None and job.key_documents is not None:
        first, last = bands.of_documents(job.documents, job.key_documents)
        return replace(job, first=first, last=last, documents=None, key_documents=None)
    if window and (plan == "continued" or (plan == "square" and _holes(job.key_mask))):
        places = torch.arange(job.k.shape[2], dtype=torch.float64, device=job.k.device)[None, None]
        first = bands.first_of_latest(places[..., -job.q.shape[2] :], places, job.key_mask, window)
        return replace(job, first=first if job.first is None else torch.maximum(job.first, first))
    times = job.query_times[..., 0], job.key_times[..., 0]
    if plan == "strict staircase":
        return replace(job, last=bands.last_before(*times))
    if window and plan == "staircase":
        return replace(job, first=bands.first_of_latest(*times, job.key_mask, window))
    return job


def _holes(key_mask: Tensor | None) -> bool:
    """Whether padding stands between real keys, where it does not count in a window."""
    if key_mask is None:
        return False
    count = key_mask.long().cumsum(-1)
    return bool((~key_mask & (count > 0) & (count < count[:, -1:])).any())


def _pieces(plan: str, window: int, whole: Job, backward: bool) -> list[_Piece]:
    """The call cut into groups of heads, and into rows and heads where a staircase has times of their own."""
    b, h, t, _ = whole.q.shape
    g = whole.k.shape[1]
    own_rows = plan.endswith("staircase") and max(whole.query_times.shape[0], whole.key_times.shape[0]) > 1
    own_heads = plan.endswith("staircase") and max(whole.query_times.shape[1], whole.key_times.shape[1]) > 1
    many = whole.slope is not None or window or (backward if whole.q.element_size() == 2 else t >= 8 * LONG)
    wanted = 2 * PIECES if many else PIECES
    groups = next(n for n in range(min(wanted, g), 0, -1) if g % n == 0) if t >= LONG and g else 1
    ranges = [(slice(i * h // groups, (i + 1) * h // groups), slice(i * g // groups, (i + 1) * g // groups)) for i in range(groups)]
    if own_heads:
        ranges = [(slice(i, i + 1), slice(i * g // h, i * g // h + 1)) for i in range(h)]
    rows = [slice(i, i + 1) for i in range(b)] if own_rows else [slice(0, b)]
    return [_Piece(r, heads, keys, _planned(plan, window, _part(whole, r, heads, keys))) for r in rows for heads, keys in ranges]


def _part(job: Job, rows: slice, heads: slice, keys: slice) -> Job:
    h, g = job.q.shape[1], job.k.shape[1]

    def of_head(x: Tensor | None, axis: int) -> Tensor | None:
        if x is None or x.shape[axis] == 1:
            return x
        chosen = heads if x.shape[axis] == h else keys
        return x[chosen] if axis == 0 else x[:, chosen]

    def of_row(x: Tensor | None) -> Tensor | None:
        return x if x is None or x.shape[0] == 1 else x[rows]

    def both(x: Tensor | None) -> Tensor | None:
        return of_head(of_row(x), 1)

    return replace(
        job, q=job.q[rows, heads], k=job.k[rows, keys], v=job.v[rows, keys],
        query_times=both(job.query_times), key_times=both(job.key_times),
        rate=of_head(job.rate, 0), nilpotent=of_head(job.nilpotent, 0), slope=of_head(job.slope, 0) if h > 1 or g > 1 else job.slope,
        documents=of_row(job.documents), key_documents=of_row(job.key_documents), key_mask=of_row(job.key_mask),
        allowed=both(job.allowed), first=both(job.first), last=both(job.last),
    )  # fmt: skip


def _forward(
    plan: str, window: int, scale: float, order: int, paired: bool, q: Tensor, k: Tensor, v: Tensor,
    query_times: Tensor, key_times: Tensor, rate: Tensor | None, nilpotent: Tensor | None, slope: Tensor | None,
    documents: Tensor | None, key_documents: Tensor | None, key_mask: Tensor | None, allowed: Tensor | None, first: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output (B, H, T, D) and log-sum-exp (B, H, T) of a lowered call; see Job for the shapes."""
    masks = documents, key_documents, key_mask, allowed, first
    whole = Job(q, k, v, query_times, key_times, scale, (), rate, paired, nilpotent, order, slope, *masks)
    pieces = _pieces(plan, *_bounded(plan, window, whole), False)
    if len(pieces) == 1:
        return engine.forward(pieces[0].job)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty(q.shape[:3], dtype=torch.float64, device=q.device)
    for piece in pieces:
        engine.forward(piece.job, out[piece.rows, piece.heads], lse[piece.rows, piece.heads])
    return out, lse


_forward_op = torch.library.custom_op("eigenclock::tiled", _forward, mutates_args=())


@_forward_op.register_fake
def _(
    plan, window, scale, order, paired, q, k, v, query_times, key_times, rate, nilpotent, slope, documents, key_documents, key_mask,
    allowed, first,
):  # fmt: skip
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:3], dtype=torch.float64)


def _backward(
    plan: str, window: int, scale: float, order: int, paired: bool, q: Tensor, k: Tensor, v: Tensor,
    query_times: Tensor, key_times: Tensor, rate: Tensor | None, nilpotent: Tensor | None, slope: Tensor | None,
    documents: Tensor | None, key_documents: Tensor | None, key_mask: Tensor | None, allowed: Tensor | None, first: Tensor | None,
    out: Tensor, lse: Tensor, g: Tensor, g_lse: Tensor | None, small: bool, clock: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients to q, k, v, query_times, key_times, rate, nilpotent and slope (empty tensors for those nobody asked for)."""
    masks = documents, key_documents, key_mask, allowed, first
    whole = Job(q, k, v, query_times, key_times, scale, (), rate, paired, nilpotent, order, slope, *masks)
    pieces = _pieces(plan, *_bounded(plan, window, whole), True)
    shared_keys = len({(p.rows.start, p.keys.start) for p in pieces}) < len(pieces)  # several pieces add to one key head
    keys = [(torch.zeros_like if shared_keys else torch.empty_like)(x, memory_format=torch.contiguous_format) for x in (k, v)]
    dq, dk, dv = torch.empty_like(q, memory_format=torch.contiguous_format), *keys
    d_query_times, d_key_times = (
        torch.zeros(x.shape if clock else 0, dtype=torch.float64, device=q.device) for x in (query_times, key_times)
    )
    parameters = [
        torch.zeros(x.shape if x is not None and small else 0, dtype=whole.accumulate, device=q.device) for x in (rate, nilpotent, slope)
    ]
    for p in pieces:
        one = engine.backward(p.job, g[p.rows, p.heads], out[p.rows, p.heads], lse[p.rows, p.heads],
                              None if g_lse is None else g_lse[p.rows, p.heads],
                              small or (clock and slope is not None))  # fmt: skip
        dq[p.rows, p.heads] = one.q.to(q.dtype)
        for total, part in ((dk, one.k), (dv, one.v)):
            if shared_keys:
                total[p.rows, p.keys] += part.to(total.dtype)
            else:
                total[p.rows, p.keys] = part.to(total.dtype)
        if clock:
            for total, part in zip((d_query_times, d_key_times), _clock_gradients(p.job, one), strict=True):
                view = total if total.shape[0] == 1 else total[p.rows]
                view = view if view.shape[1] == 1 else view[:, p.heads if view.shape[1] == q.shape[1] else p.keys]
                view += part
        if small:
            for total, part in zip(parameters, (one.rate, one.nilpotent, one.slope), strict=True):
                if part is not None:
                    view = total if total.shape[0] == 1 else total[p.heads if total.shape[0] == q.shape[1] else p.keys]
                    view += part
    return dq, dk, dv, d_query_times, d_key_times, parameters[0], parameters[1], parameters[2]


_backward_op = torch.library.custom_op("eigenclock::tiled_backward", _backward, mutates_args=())


@_backward_op.register_fake
def _(
    plan, window, scale, order, paired, q, k, v, query_times, key_times, rate, nilpotent, slope, documents, key_documents, key_mask,
    allowed, first, out, lse, g, g_lse, small, clock,
):  # fmt: skip
    kind = torch.float64 if q.dtype == torch.float64 else torch.float32

    def like(x: Tensor | None, wanted: bool, dtype: torch.dtype = kind) -> Tensor:
        return (
            q.new_empty(0, dtype=dtype)
            if x is None or not wanted
            else torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
        )

    sides = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    return (
        *sides,
        like(query_times, clock, torch.float64),
        like(key_times, clock, torch.float64),
        *(like(x, small) for x in (rate, nilpotent, slope)),
    )


def _clock_gradients(job: Job, grads: engine.Gradients) -> tuple[Tensor, Tensor]:
    """d tau = <L^T q, dq> on queries and -<L k, dk> on keys, exact from the final gradients; summed to the shapes of the times."""
    acc = grads.q.dtype
    totals = []
    for x, dx, times, is_query in ((job.q, grads.q, job.query_times, True), (job.k, grads.k, job.key_times, False)):
        total = torch.zeros(*x.shape[:3], times.shape[-1], dtype=acc, device=x.device)
        if job.rate is not None:
            energy = job.by_column(x.to(acc) * dx) * job.per_head(job.rate, x.shape[1]).to(acc)[:, None]
            energy = energy.sum(-1, keepdim=True) if times.shape[-1] == 1 else energy
            total += -energy if is_query else energy
        if job.nilpotent is not None:
            n = job.per_head(job.nilpotent, x.shape[1]).to(acc)
            sheared = ((x.to(acc) @ (n if is_query else n.mT)) * dx).sum(-1, keepdim=True)
            total += sheared if is_query else -sheared
        bias = grads.row_bias if is_query else grads.key_bias
        if job.slope is not None and bias is not None:
            share = (job.slope.to(acc)[:, None] * bias)[..., None]
            total = total - share if is_query else total + share
        totals.append(total.double().sum_to_size(times.shape))
    return totals[0], totals[1]


# --- the two ways in: an autograd function in eager mode, the operator while a graph is traced --------------------------------------


def tiled(
    plan: str, window: int, scale: float, order: int, paired: bool, q: Tensor, k: Tensor, v: Tensor,
    query_times: Tensor, key_times: Tensor, rate: Tensor | None, nilpotent: Tensor | None, slope: Tensor | None,
    documents: Tensor | None, key_documents: Tensor | None, key_mask: Tensor | None, allowed: Tensor | None, first: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output (B, H, T, D) and log-sum-exp (B, H, T) of a lowered call, differentiable; see Job for the shapes."""
    masks = documents, key_documents, key_mask, allowed, first
    arguments = plan, window, scale, order, paired, q, k, v, query_times, key_times, rate, nilpotent, slope, *masks
    return _forward_op(*arguments) if torch.compiler.is_compiling() else _Tiled.apply(*arguments)


OPTIONS = 5
"""How many arguments come before the tensors."""


def _setup(ctx, inputs, output) -> None:
    ctx.options = inputs[:OPTIONS]
    ctx.save_for_backward(*inputs[OPTIONS:], *output)
    ctx.set_materialize_grads(False)


def _gradients(backward, ctx, g, g_lse):
    *tensors, out, lse = ctx.saved_tensors
    rate, nilpotent, slope = tensors[5:8]
    if g is None and g_lse is None:
        return (None,) * (OPTIONS + len(tensors))
    g = torch.zeros_like(out) if g is None else g
    of_clocks, of_parameters = ctx.needs_input_grad[OPTIONS + 3 : OPTIONS + 5], ctx.needs_input_grad[OPTIONS + 5 : OPTIONS + 8]
    small, clock = any(of_parameters), any(of_clocks)
    dq, dk, dv, dtq, dtk, *parameters = backward(*ctx.options, *tensors, out, lse, g.contiguous(), g_lse, small, clock)
    back = [
        d.to(p.dtype) if p is not None and n else None for d, p, n in zip(parameters, (rate, nilpotent, slope), of_parameters, strict=True)
    ]
    return (*(None,) * OPTIONS, dq, dk, dv, dtq if clock else None, dtk if clock else None, *back, *(None,) * 5)


class _Tiled(torch.autograd.Function):
    """The eager way in: the operator's would import the compiler on its first call."""

    @staticmethod
    def forward(ctx, *arguments):
        with torch.no_grad():
            output = _forward(*arguments)
        _setup(ctx, arguments, output)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g, g_lse):
        return _gradients(_backward, ctx, g, g_lse)


_forward_op.register_autograd(lambda ctx, g, g_lse: _gradients(_backward_op, ctx, g, g_lse), setup_context=_setup)
