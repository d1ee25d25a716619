"""The parallel form: every pair of query and key, as attention is usually written; time T x T, memory in blocks of queries."""

import torch
from torch import Tensor

from eigenclock.attention.forms.decays import decayed_scores
from eigenclock.attention.forms.task import Form, Task, carries_all, no_state, power

ROWS = 256
"""Queries at a time."""


def _run(task: Task) -> tuple[Tensor, Tensor]:
    b, h, t, _ = task.q.shape
    groups = task.groups
    k, v, start = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (task.k, task.v, no_state(task)))
    times = task.times if task.times.shape[1] in (1, h) else task.times.repeat_interleave(groups, 1)
    rate = times.new_zeros(1, 1, 1) if task.rate is None else task.of_queries(task.rate).double()[:, None]
    queries = task.sheared_queries()
    out = [_rows(task, slice(low, min(low + ROWS, t)), queries, k, v, rate, times, start) for low in range(0, t, ROWS)]
    result = torch.cat(out, 2) if out else task.q.sum(-1, keepdim=True).expand(b, h, 0, v.shape[-1])
    return result, _end(task)


def _rows(
    task: Task, rows: slice, queries: list[Tensor], k: Tensor, v: Tensor, rate: Tensor, times: Tensor, start: Tensor
) -> Tensor:  # fmt: skip
    """The output of some query rows: keys before them around the last of these, their own block with care, then the state."""
    b, h = k.shape[:2]
    low, high = rows.start, rows.stop

    def flat(x: Tensor) -> Tensor:
        return x[:, :, rows].flatten(0, 1)

    own_times = flat(times.expand(b, h, -1, -1))
    own_rate = rate[:, 0].expand(b, h, -1).flatten(0, 1)
    scores = [a.unflatten(0, (b, h)) for a in decayed_scores([flat(q) for q in queries], flat(k), own_times, own_rate)]
    if low:
        boundary = times[:, :, low - 1 : low]
        far = k[:, :, :low] * ((times[:, :, :low] - boundary) * rate).exp().to(k.dtype)
        near = ((boundary - times[:, :, rows]) * rate).exp().to(k.dtype)
        scores = [torch.cat([(q[:, :, rows] * near) @ far.mT, a], -1) for q, a in zip(queries, scores, strict=True)]
    total = scores[0]
    if task.order > 1:
        lag = (times[:, :, rows] - times[:, :, :high].mT).clamp_min(0.0)
        total = total + sum(a * power(lag, r).to(a.dtype) for r, a in enumerate(scores[1:], 1))
    open_rows = None
    if task.documents is not None:
        same = task.documents[:, rows, None] == task.documents[:, None, :high]
        total = total * same[:, None].to(total.dtype)
        open_rows = (task.documents[:, rows] == 0)[:, None, :, None].to(total.dtype)
    out = total @ v[:, :, :high]
    since = times[:, :, rows] - (task.before if task.before.shape[1] in (1, h) else task.before.repeat_interleave(task.groups, 1))
    decay = (-since * rate).exp().to(k.dtype)
    for r, q in enumerate(queries):
        read = (q[:, :, rows] * decay) @ start
        read = read if not r else read * power(since, r).to(read.dtype)
        out = out + (read if open_rows is None else read * open_rows)
    return out * task.scale


def _end(task: Task) -> Tensor:
    """The state at the last token, each key moved there in one step."""
    start = no_state(task)
    if not task.k.shape[2]:
        return start
    lag = task.times[:, :, -1:] - task.times
    decay = None if task.rate is None else (-lag * task.rate[:, None].double()).exp().to(task.k.dtype)
    keys = task.k if decay is None else task.k * decay
    through, span = start, task.times[:, :, -1:] - task.before
    if task.rate is not None:
        through = start * (-span * task.rate[:, None].double()).exp().to(start.dtype).mT
    if task.documents is not None:
        last = task.documents[:, -1:]
        keys = keys * (task.documents == last)[:, None, :, None].to(keys.dtype)
        through = through * (last == 0)[:, None, :, None].to(through.dtype)
    moments = []
    for r in range(task.order if task.nilpotent is not None else 1):
        weighted = keys if not r else keys * power(lag, r).to(keys.dtype)
        moments.append(weighted.mT @ task.v + (through if not r else through * power(span, r).to(through.dtype)))
    return task.gathered(moments)


form = Form("all pairs, a block of queries at a time", carries_all, _run)
