"""The tile engine as one opaque operator, so that compiled graphs and exported programs contain it whole.

Inside, plans depend on the data (which leaves break the exponent bound); a traced graph could not.
"""

import torch
from torch import Tensor

from eigenclock.attention import engine
from eigenclock.attention.job import Job
from eigenclock.theory.tiles import LEAVES, square, staircase

# plan: "square" (self-attention), "staircase" (cross attention by time), "whole" (no order: every query sees every key)


def _tiles(plan: str, window: int, job: Job) -> Job:
    from dataclasses import replace

    t, s = job.q.shape[2], job.k.shape[2]
    if plan == "square":
        plain = job.rate is None and job.nilpotent is None and job.slope is None and job.documents is None
        tiles = square(t, max(t, 1) if plain and not window else LEAVES[0], window or None)
    elif plan == "whole":
        from eigenclock.theory.tiles import Tile

        tiles = [Tile("full", 0, 0, t, s)] if t and s else []
    else:
        rate = float(job.rate.detach().max()) if job.rate is not None and job.rate.numel() else 0.0
        tiles = staircase(job.query_times[0, 0, :, 0], job.key_times[0, 0, :, 0], LEAVES[0], rate)
    return replace(job, tiles=tuple(tiles))


def _jobs(
    plan: str, window: int, scale: float, order: int, q: Tensor, k: Tensor, v: Tensor, query_times: Tensor, key_times: Tensor,
    rate: Tensor | None, nilpotent: Tensor | None, slope: Tensor | None, documents: Tensor | None, key_mask: Tensor | None, allowed: Tensor | None,
) -> list[tuple[slice, slice, Job]]:  # fmt: skip
    """The call as jobs: one, or one per row (and head) where a staircase has its own times per row (and head)."""
    whole = Job(q, k, v, query_times, key_times, scale, (), rate, nilpotent, order, slope, documents, key_mask, allowed)
    rows, heads = max(query_times.shape[0], key_times.shape[0]), max(query_times.shape[1], key_times.shape[1])
    if plan != "staircase" or (rows == 1 and heads == 1):
        return [(slice(None), slice(None), _tiles(plan, window, whole))]
    out = []
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(heads):
            hs = slice(None) if heads == 1 else slice(h, h + 1)
            ks = slice(None) if heads == 1 else slice(h // group, h // group + 1)

            def row(x: Tensor | None, head: slice | None = None, b: int = b) -> Tensor | None:
                if x is None:
                    return None
                x = x[b : b + 1] if x.shape[0] > 1 else x
                return x if head is None or x.shape[1] == 1 else x[:, head]

            def per_head(x: Tensor | None, h: int = h) -> Tensor | None:
                return x if x is None or heads == 1 or x.shape[0] == 1 else x[h : h + 1] if x.shape[0] == heads else x[h // group : h // group + 1]

            part = Job(
                row(q, hs), row(k, ks), row(v, ks), row(query_times, hs), row(key_times, hs), scale, (), per_head(rate), per_head(nilpotent), order,
                per_head(slope), row(documents), row(key_mask), row(allowed, hs),
            )  # fmt: skip
            out.append((slice(b, b + 1), hs, _tiles(plan, window, part)))
    return out


@torch.library.custom_op("eigenclock::tiled", mutates_args=())
def tiled(
    plan: str, window: int, scale: float, order: int, q: Tensor, k: Tensor, v: Tensor, query_times: Tensor, key_times: Tensor,
    rate: Tensor | None, nilpotent: Tensor | None, slope: Tensor | None, documents: Tensor | None, key_mask: Tensor | None, allowed: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output (B, H, T, D) and log-sum-exp (B, H, T) of a lowered call; see Job for the shapes."""
    jobs = _jobs(plan, window, scale, order, q, k, v, query_times, key_times, rate, nilpotent, slope, documents, key_mask, allowed)
    if len(jobs) == 1:
        return engine.forward(jobs[0][2])
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    lse = torch.zeros(q.shape[:3], dtype=jobs[0][2].accumulate if jobs else torch.float32, device=q.device)
    for rows, heads, job in jobs:
        out[rows, heads], lse[rows, heads] = engine.forward(job)
    return out, lse


@tiled.register_fake
def _(plan, window, scale, order, q, k, v, query_times, key_times, rate, nilpotent, slope, documents, key_mask, allowed):  # noqa: ANN001, ANN202
    kind = torch.float64 if q.dtype == torch.float64 else torch.float32
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:3], dtype=kind)


@torch.library.custom_op("eigenclock::tiled_backward", mutates_args=())
def tiled_backward(
    plan: str, window: int, scale: float, order: int, q: Tensor, k: Tensor, v: Tensor, query_times: Tensor, key_times: Tensor,
    rate: Tensor | None, nilpotent: Tensor | None, slope: Tensor | None, documents: Tensor | None, key_mask: Tensor | None, allowed: Tensor | None,
    out: Tensor, lse: Tensor, g: Tensor, g_lse: Tensor | None, small: bool, clock: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients to q, k, v, query_times, key_times, rate, nilpotent and slope (empty tensors for those nobody asked for)."""
    jobs = _jobs(plan, window, scale, order, q, k, v, query_times, key_times, rate, nilpotent, slope, documents, key_mask, allowed)
    results = []
    for rows, heads, job in jobs:
        want = small or (clock and slope is not None)
        one = engine.backward(job, g[rows, heads], out[rows, heads], lse[rows, heads], None if g_lse is None else g_lse[rows, heads], want)
        results.append((rows, heads, job, one))
    grads = _collect(results, q, k, rate, nilpotent, slope)
    d_query_times, d_key_times = q.new_empty(0), q.new_empty(0)  # operators may not return one tensor twice
    if clock:
        d_query_times, d_key_times = _clock_gradients(grads, q, k, query_times, key_times, rate, nilpotent, slope)
    optional = [q.new_empty(0) if x is None or not small else x for x in (grads.rate, grads.nilpotent, grads.slope)]
    return (grads.q.to(q.dtype), grads.k.to(k.dtype), grads.v.to(v.dtype), d_query_times, d_key_times, optional[0], optional[1], optional[2])


@tiled_backward.register_fake
def _(  # noqa: ANN202
    plan, window, scale, order, q, k, v, query_times, key_times, rate, nilpotent, slope, documents, key_mask, allowed, out, lse, g, g_lse, small, clock,  # noqa: ANN001
):
    kind = torch.float64 if q.dtype == torch.float64 else torch.float32

    def like(x: Tensor | None, wanted: bool, dtype: torch.dtype = kind) -> Tensor:
        return q.new_empty(0) if x is None or not wanted else torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)

    sides = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    return (*sides, like(query_times, clock, torch.float64), like(key_times, clock, torch.float64), *(like(x, small) for x in (rate, nilpotent, slope)))


def _collect(results: list, q: Tensor, k: Tensor, rate: Tensor | None, nilpotent: Tensor | None, slope: Tensor | None) -> engine.Gradients:
    """The gradients of several jobs put together."""
    if len(results) == 1:
        return results[0][3]
    kind = torch.float64 if q.dtype == torch.float64 else torch.float32

    def zeros(size: torch.Size | tuple[int, ...]) -> Tensor:
        return torch.zeros(size, dtype=kind, device=q.device)

    total = engine.Gradients(zeros(q.shape), zeros(k.shape), zeros(k.shape))
    group = q.shape[1] // max(k.shape[1], 1)
    for rows, heads, _, one in results:
        kv = heads if heads == slice(None) else slice(heads.start // group, heads.start // group + 1)
        total.q[rows, heads] += one.q
        total.k[rows, kv] += one.k
        total.v[rows, kv] += one.v
        for name, full in (("key_bias", (*q.shape[:2], k.shape[2])), ("row_bias", q.shape[:3])):
            part = getattr(one, name)
            if part is not None:
                if getattr(total, name) is None:
                    setattr(total, name, zeros(full))
                getattr(total, name)[rows, heads] += part
        for name, parameter in (("rate", rate), ("nilpotent", nilpotent), ("slope", slope)):
            part = getattr(one, name)
            if part is not None and parameter is not None:
                if getattr(total, name) is None:
                    setattr(total, name, zeros(parameter.shape))
                target = getattr(total, name)
                if heads != slice(None) and target.shape[0] > 1:
                    target = target[heads] if target.shape[0] == q.shape[1] else target[kv]
                target += part
    return total


def _clock_gradients(
    grads: engine.Gradients, q: Tensor, k: Tensor, query_times: Tensor, key_times: Tensor, rate: Tensor | None, nilpotent: Tensor | None, slope: Tensor | None
) -> tuple[Tensor, Tensor]:
    """d tau = <L^T q, dq> on queries and -<L k, dk> on keys, exact from the final gradients."""
    acc = grads.q.dtype
    d_query = torch.zeros(*q.shape[:3], query_times.shape[-1], dtype=acc, device=q.device)
    d_key = torch.zeros(*k.shape[:3], key_times.shape[-1], dtype=acc, device=q.device)
    if rate is not None:
        for total, x, dx, sign in ((d_query, q, grads.q, -1.0), (d_key, k, grads.k, 1.0)):
            per_head = rate if rate.shape[0] in (1, x.shape[1]) else rate.repeat_interleave(x.shape[1] // rate.shape[0], 0)
            energy = (x.to(acc) * dx).unflatten(-1, (-1, rate.shape[-1])).sum(-2) * per_head.to(acc)[:, None]
            total += sign * (energy.sum(-1, keepdim=True) if total.shape[-1] == 1 else energy)
    if nilpotent is not None:
        for total, x, dx, sign in ((d_query, q, grads.q, 1.0), (d_key, k, grads.k, -1.0)):
            n = nilpotent.to(acc)
            n = n if n.shape[0] in (1, x.shape[1]) else n.repeat_interleave(x.shape[1] // n.shape[0], 0)
            total += sign * ((x.to(acc) @ (n if sign > 0 else n.mT)) * dx).sum(-1, keepdim=True)
    d_query_times = d_query.double().sum_to_size(query_times.shape)
    d_key_times = d_key.double().sum_to_size(key_times.shape) if d_key.shape[1] >= key_times.shape[1] else d_key.double().sum(1, keepdim=True).expand(key_times.shape)
    if slope is not None and grads.key_bias is not None and grads.row_bias is not None:
        m = slope.to(acc)[:, None]
        d_query_times = d_query_times - (m * grads.row_bias)[..., None].double().sum_to_size(query_times.shape)
        d_key_times = d_key_times + (m * grads.key_bias)[..., None].double().sum_to_size(key_times.shape)
    return d_query_times, d_key_times


def _setup(ctx, inputs, output) -> None:  # noqa: ANN001
    ctx.options = inputs[:4]
    ctx.save_for_backward(*inputs[4:], *output)
    ctx.set_materialize_grads(False)


def _backward(ctx, g, g_lse):  # noqa: ANN001, ANN202
    *tensors, out, lse = ctx.saved_tensors
    q, _, _, query_times, key_times, rate, nilpotent, slope, *_ = tensors
    if g is None and g_lse is None:
        return (None,) * 15
    g = torch.zeros_like(out) if g is None else g
    needs = ctx.needs_input_grad
    small, clock = any(needs[9:12]), any(needs[7:9])
    dq, dk, dv, dtq, dtk, *parameters = tiled_backward(*ctx.options, *tensors, out, lse, g.contiguous(), g_lse, small, clock)
    back = [d.to(p.dtype) if p is not None and n else None for d, p, n in zip(parameters, (rate, nilpotent, slope), needs[9:12], strict=True)]
    return (None,) * 4 + (dq, dk, dv, dtq if clock else None, dtk if clock else None, *back, None, None, None)


tiled.register_autograd(_backward, setup_context=_setup)
