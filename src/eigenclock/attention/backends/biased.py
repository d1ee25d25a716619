"""A bias for each pair, which no lift carries: turn once, then PyTorch's fused attention with an additive T x S tensor."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from eigenclock.attention import ops
from eigenclock.attention.lower import lower
from eigenclock.attention.masks import dense_visible
from eigenclock.attention.problem import Problem


def refuses(problem: Problem) -> str | None:
    """Why a call with a bias for each pair is not carried here, or None."""
    split = problem.split
    if split.rate is not None or split.nilpotent is not None:
        return "something decays or shears beside a bias for each pair"
    if problem.want_lse:
        return "PyTorch's public call returns no log-sum-exp"
    if problem.other_lifts:
        return "a lift other than a linear bias beside a bias for each pair"
    if problem.learns_in_16_bits(*(turn.freq for turn in split.turns)):
        return "gradients of frequencies need float32"
    return None


def run(problem: Problem) -> Tensor:
    """Attention with the bias of every pair as the mask of the kernel, its gradient included. Memory T x S for each head."""
    dtype, seen = problem.q.dtype, dense_visible(problem)
    bias = problem.bias(seen, torch.promote_types(dtype, torch.float32))
    if problem.slope is not None:
        queries, keys = problem.scalar_times
        lag = (queries[..., :, None] - keys[..., None, :]).masked_fill(~seen, 0.0)
        bias = bias - problem.slope[:, None, None] * lag
    low = lower(problem)
    q, k, v = low.q, low.k, problem.v
    h, g = q.shape[1], k.shape[1]
    if q.shape[2] == 0 or k.shape[2] == 0:
        return q.new_zeros(*q.shape[:3], v.shape[-1]) + 0 * (q.sum() + k.sum() + v.sum() + bias.sum())
    learned = torch.is_grad_enabled() and bias.requires_grad
    if learned and dtype in (torch.float16, torch.bfloat16):  # sums over pairs drown in 16 bits
        q, k, v = q.float(), k.float(), v.float()
    kind = ops.bias_dtype(q.dtype) if q.device.type == "cpu" else q.dtype
    alive = seen.any(-1, keepdim=True)
    bias = bias.to(kind).masked_fill(~seen & alive, -math.inf)  # a dead row stays finite, or its gradient would be NaN
    bias = bias.expand(q.shape[0], h, q.shape[2], k.shape[2])
    grouped = True if g != h else False  # noqa: SIM210 - a traced g is no plain int: this line makes it a guard
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=problem.scale, enable_gqa=grouped)
    return out.to(dtype).masked_fill(~alive, 0.0)
