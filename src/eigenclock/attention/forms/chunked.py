"""The chunked form: matrix products inside chunks, one state from chunk to chunk. Time and memory grow with the length alone."""

from typing import Any

import torch
from torch import Tensor

from eigenclock.attention.forms import chunk_engine
from eigenclock.attention.forms.task import Form, Task, carries_all
from eigenclock.theory.tiles import EXPONENT_BOUND

CHUNK = 64
"""Tokens of a chunk where nothing speaks against it."""

SMALLEST = 16
"""The shortest chunk that is chosen on its own."""


def _run(task: Task) -> tuple[Tensor, Tensor]:
    b, g, t, d = task.k.shape
    n, width = b * g, task.v.shape[-1]
    queries = task.sheared_queries()
    q = torch.stack(queries) if len(queries) > 1 else task.q[None]
    out, moments = _Chunked.apply(
        task.chunk or _chunk(task),
        task.scale,
        q.reshape(len(queries), n, task.groups, t, d),
        task.k.reshape(n, t, d),
        task.v.reshape(n, t, width),
        _per_head(task.times, b, g),
        _per_head(task.before, b, g),
        None if task.rate is None else _rows(task.rate, b, g),
        None if task.nilpotent is None else _rows(task.nilpotent.detach(), b, g),
        None if task.documents is None else _documents(task.documents, b, g),
        None if task.start is None else task.start.reshape(n, d, width),
    )
    moments = moments.unflatten(1, (b, g))
    return out.reshape(b, task.q.shape[1], t, width), task.gathered(list(moments))


def _chunk(task: Task) -> int:
    """Half of CHUNK, or a quarter, where the middle of a chunk would be too far from its ends in most chunks."""
    chunk, t = CHUNK, task.times.shape[2]
    if task.rate is None or t <= SMALLEST or max(task.rate.shape[-1], task.times.shape[-1]) == 1:
        return chunk
    times, rate = task.times.detach(), task.rate.detach().double()
    while chunk > SMALLEST:
        ends = times[:, :, :: chunk // 2]
        reach = ends.diff(dim=2) * rate[:, None]
        if not reach.numel() or float((reach.amax((1, 3)) > EXPONENT_BOUND).double().mean()) < 0.25:
            break
        chunk //= 2
    return chunk


def _per_head(times: Tensor, b: int, g: int) -> Tensor:
    """(B|1, G|1, T, W) as (N|1, T, W)."""
    if times.shape[:2] == (1, 1):
        return times[0]
    return times.expand(b, g, *times.shape[2:]).reshape(b * g, *times.shape[2:])


def _rows(parameter: Tensor, b: int, g: int) -> Tensor:
    """(1|G, ...) as (N|1, ...)."""
    return parameter if parameter.shape[0] == 1 else parameter.expand(b, *parameter.shape).reshape(b * g, *parameter.shape[1:])


def _documents(documents: Tensor, b: int, g: int) -> Tensor:
    """(B|1, T) as (N|1, T)."""
    return documents if documents.shape[0] == 1 else documents.repeat_interleave(g, 0)


class _Chunked(torch.autograd.Function):
    """The output and the moments of the last state; the backward walks the chunks once more, from states saved now and then."""

    @staticmethod
    def forward(ctx, chunk: int, scale: float, *tensors: Any) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        call = _call(chunk, scale, tensors)
        out, moments, saved = chunk_engine.forward(call)
        ctx.options = chunk, scale
        ctx.save_for_backward(*tensors, moments, saved)
        return out, moments

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g: Tensor, g_moments: Tensor):  # type: ignore[override]
        *tensors, moments, saved = ctx.saved_tensors
        chunk, scale = ctx.options
        call, needs = _call(chunk, scale, tensors), ctx.needs_input_grad[2:]
        grads = chunk_engine.backward(call, g, g_moments, moments, saved, needs[3] or needs[4], needs[5])
        d_times = None if grads.times is None else grads.times.sum_to_size(call.times.shape)
        d_rate = None if grads.rate is None or call.rate is None else grads.rate.sum_to_size(call.rate.shape).to(call.rate.dtype)
        # Only differences of times count: moving all of them, the one before included, moves nothing.
        d_before = None if d_times is None else -d_times.sum(1, keepdim=True)
        return None, None, grads.q, grads.k, grads.v, d_times, d_before, d_rate, None, None, grads.start[0] if needs[8] else None


def _call(chunk: int, scale: float, tensors: Any) -> chunk_engine.Call:
    q, k, v, times, before, rate, nilpotent, documents, start = tensors
    return chunk_engine.Call(q, k, v, times, before, rate, nilpotent, documents, start, scale, chunk)


form = Form("matrix products inside chunks, one state from chunk to chunk", carries_all, _run, chunks=True)
