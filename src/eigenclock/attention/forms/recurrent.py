"""The recurrent form, which is the definition: one token after another."""

import torch
from torch import Tensor

from eigenclock.attention.forms.task import Form, Task, carries_all, no_state, power


def _run(task: Task) -> tuple[Tensor, Tensor]:
    """S_t = exp((u_t - u_(t-1)) L) S_(t-1) + k_t v_t^T and out_t = scale q_t^T S_t; a new document starts from S = 0."""
    b, h, t, _ = task.q.shape
    g = task.k.shape[1]
    state = no_state(task)
    steps = task.times.diff(dim=2, prepend=task.before)
    decay = None
    if task.rate is not None:
        decay = (-steps * task.rate[:, None].double()).exp().to(task.k.dtype).unsqueeze(-1)  # (B|1, G|1, T, D|1, 1)
    q = task.q.unflatten(1, (g, h // g)).transpose(2, 3) * task.scale  # (B, G, T, H/G, D)
    out = []
    for i in range(t):
        if task.documents is not None:
            before = task.documents[:, i - 1] if i else torch.zeros_like(task.documents[:, 0])
            state = state * (task.documents[:, i] == before).to(state.dtype)[:, None, None, None]
        if decay is not None:
            state = state * decay[:, :, i]
        if task.nilpotent is not None:
            state = _shear(state, task.nilpotent.to(state.dtype), steps[:, :, i, :, None].to(state.dtype), task.order)
        state = state + task.k[:, :, i, :, None] * task.v[:, :, i, None, :]
        out.append(q[:, :, i] @ state)
    if not out:
        return task.q.sum(-1, keepdim=True).expand(b, h, 0, task.v.shape[-1]), state
    return torch.stack(out, 3).flatten(1, 2), state


def _shear(state: Tensor, nilpotent: Tensor, step: Tensor, order: int) -> Tensor:
    """exp(step N) S."""
    out = moved = state
    for r in range(1, order):
        moved = nilpotent @ moved
        out = out + power(step, r) * moved
    return out


form = Form("one token after another: the definition, and the decode step", carries_all, _run)
