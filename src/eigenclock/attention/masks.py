"""Who sees whom, as one dense boolean mask: the specification of causality, windows, documents and padding."""

import torch
from jaxtyping import Bool
from torch import Tensor

from eigenclock.attention.problem import Problem
from eigenclock.attention.times import per_query_head


def dense_visible(problem: Problem, rows: slice = slice(None)) -> Bool[Tensor, "b h T S"]:
    """The visible pairs, (B|1, H|1, T, S), for some query rows. Causality is by index in self-attention, by time otherwise."""
    t, s = problem.q.shape[2], problem.k.shape[2]
    device = problem.q.device
    i, j = torch.arange(t, device=device)[rows, None], torch.arange(s, device=device)
    seen = torch.ones(1, 1, i.shape[0], s, dtype=torch.bool, device=device)
    if problem.causal:
        seen = seen & (_lag(problem, problem.query_times, problem.key_times, rows) >= 0 if problem.cross else (j <= i))
    if problem.window is not None:
        seen = seen & (_latest(problem, seen, problem.window) if problem.cross else _near(problem, problem.window, rows))
    if problem.span is not None:
        queries, keys = problem.span_times
        keys = per_query_head(keys, problem.q.shape[1])
        seen = seen & problem.span.holds(queries[:, :, rows, None], keys[:, :, None, :])
    if problem.documents is not None:
        seen = seen & (problem.documents[:, rows, None] == problem.documents[:, None, :]).unsqueeze(1)
    if problem.key_mask is not None:
        seen = seen & problem.key_mask[:, None, None, :]
    if problem.allowed is not None:
        seen = seen & (problem.allowed if problem.allowed.shape[2] == 1 else problem.allowed[:, :, rows])
    return seen


def _lag(problem: Problem, query_times: Tensor, key_times: Tensor, rows: slice) -> Tensor:
    """t - s of every pair, (B|1, H|1, T, S)."""
    return query_times[:, :, rows, None] - per_query_head(key_times, problem.q.shape[1])[:, :, None, :]


def _near(problem: Problem, window: int, rows: slice) -> Tensor:
    """The ``window`` real tokens up to each query, itself included, by index, (B|1, 1, T, S)."""
    t, mask, device = problem.q.shape[2], problem.key_mask, problem.q.device
    count = torch.arange(t, device=device)[None] if mask is None else mask.long().cumsum(-1)
    return (count[:, rows, None] - count[:, None, :] < window).unsqueeze(1)


def _latest(problem: Problem, seen: Tensor, window: int) -> Tensor:
    """The ``window`` latest of the keys each query sees, by time, then by index; padding does not count."""
    real = seen if problem.key_mask is None else seen & problem.key_mask[:, None, None, :]
    order = problem.key_times.argsort(dim=-1, stable=True).unsqueeze(2)
    shape = torch.broadcast_shapes(real.shape, order.shape)
    order = order.expand(shape)
    in_order = real.expand(shape).gather(-1, order)
    after = in_order.long().flip(-1).cumsum(-1).flip(-1)  # visible keys from here to the newest
    kept = in_order & (after <= window)
    return torch.zeros_like(kept).scatter(-1, order, kept)
