"""The reference backend: softmax of the dense float64 logits. Slow, exact, memory T x S x D in blocks of queries."""

import torch
from torch import Tensor

from eigenclock.attention.capability import Backend
from eigenclock.attention.problem import Problem
from eigenclock.attention.scores import dense_logits


def _refuses(problem: Problem) -> str | None:
    if problem.two_sided and (problem.split.order > 1 or problem.split.basis is not None):
        return "a two-sided encoding carries decays, rotations and linear biases only"
    return None


def _run(problem: Problem) -> tuple[Tensor, Tensor | None]:
    z = dense_logits(problem)
    dead = (z == -torch.inf).all(-1, keepdim=True)
    p = z.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0)
    v = problem.v.double()
    out = torch.einsum("bghts,bgsv->bghtv", p.unflatten(1, (v.shape[1], -1)), v).flatten(1, 2)
    lse = None
    if problem.want_lse:
        lse = z.masked_fill(dead, 0.0).logsumexp(-1).masked_fill(dead[..., 0], -torch.inf)
        lse = lse if problem.q.dtype == torch.float64 else lse.float()
    return out.to(problem.q.dtype), lse


backend = Backend("dense logits in float64, the specification", _refuses, _run)
