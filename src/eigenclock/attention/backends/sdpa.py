"""The sdpa backend: turn once, call PyTorch's fused attention once; a linear bias rides along as one key term."""

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from eigenclock.attention import ops
from eigenclock.attention.backends import biased
from eigenclock.attention.capability import Backend
from eigenclock.attention.lower import lower
from eigenclock.attention.masks import dense_visible
from eigenclock.attention.problem import Problem

DENSE = 64
"""Up to so many queries (or keys) a dense mask is no larger than a few rows of keys."""

KEY_TERM_BOUND = 20.0
"""Largest |key term| around the middle of the keys. Beyond it softmax weights reach e^-40 and soon become subnormal, which slows the
kernel several times, and one origin for all keys starts to cost precision; tiles drop such keys and have an origin each."""


def _refuses(problem: Problem) -> str | None:
    if problem.biased:
        return biased.refuses(problem)
    split = problem.split
    if split.rate is not None or split.nilpotent is not None:
        return "something decays or shears, which needs a reference time per tile"
    if problem.want_lse:
        return "PyTorch's public call returns no log-sum-exp"
    if problem.other_lifts:
        return "a lift other than a linear bias needs tiles"
    if problem.two_sided and problem.slope is not None:
        return "a two-sided bias is two one-sided ones"
    if problem.learns_in_16_bits(*(turn.freq for turn in split.turns)):
        return "gradients of frequencies need float32, which tiles take"
    if torch.compiler.is_compiling() and problem.key_mask is not None:
        return "whether this PyTorch takes padding beside causality is not asked while a graph is traced"
    # A traced graph must not depend on the length; tiles take every length.
    small = not torch.compiler.is_compiling() and min(problem.q.shape[2], problem.k.shape[2]) <= DENSE
    if not small and (problem.documents is not None or problem.window is not None or problem.span is not None):
        return "documents and windows would need a T x T mask"
    if not small and problem.cross and problem.causal:
        return "causality by time would need a T x S mask"
    return _refuses_bias(problem, small) if problem.slope is not None else None


def _refuses_bias(problem: Problem, small: bool) -> str | None:
    slope = problem.slope
    assert slope is not None
    if torch.compiler.is_compiling():
        return "the size of the bias is not known while a graph is traced"
    if problem.q.device.type != "cpu":
        return "away from the CPU a bias would have to be rounded to the dtype of the queries"
    if problem.learns_in_16_bits(slope, problem.key_vectors):
        return "gradients of slopes and times are summed per tile in 16 bits"
    if not small and problem.allowed is not None:
        return "a bias beside a dense mask would need a T x T tensor per head"
    if not small and not key_term_is_free(problem.q.device.type):
        return "this device takes no key term beside causality"
    reach = float(reaches(problem).max()) if slope.numel() else 0.0
    return f"the bias reaches {2 * reach:.0f} over these times, where tiles are faster and more precise" if reach > KEY_TERM_BOUND else None


def reaches(problem: Problem) -> Tensor:
    """How far the linear bias of each head reaches from the middle of the keys, the largest over the rows, (H,)."""
    slope, t = problem.slope, problem.key_vectors.detach()
    assert slope is not None
    slope = slope.detach().abs().double()
    if not t.numel():
        return torch.zeros_like(slope)
    half = (t.amax(-1) - t.amin(-1)).amax(0) / 2
    return slope * (half if len(half) in (1, len(slope)) else half.repeat_interleave(len(slope) // len(half)))


def _run(problem: Problem) -> tuple[Tensor, Tensor | None]:
    if problem.biased:
        return biased.run(problem), None
    low = lower(problem)
    q, k, v = low.q, low.k, problem.v
    h, g = q.shape[1], k.shape[1]
    if q.shape[2] == 0 or k.shape[2] == 0:
        return q.new_zeros(*q.shape[:3], v.shape[-1]) + 0 * (q.sum() + k.sum() + v.sum()), None
    exact = not problem.cross and problem.causal  # top-left alignment is right on squares only
    dense = problem.allowed is not None or problem.documents is not None or problem.window is not None or problem.span is not None
    dense = dense or (problem.cross and problem.causal)
    mask: Tensor | None = None
    if dense:
        mask, exact = dense_visible(problem), False
    elif problem.key_mask is not None:
        mask = problem.key_mask[:, None, None, :]
    bias = None if problem.slope is None else _key_term(problem, problem.slope)
    width = v.shape[-1]
    if bias is not None and torch.is_grad_enabled() and bias.requires_grad:
        if g != h:
            k, v, g = k.repeat_interleave(h // g, 1), v.repeat_interleave(h // g, 1), h
        q, k = _gradient_column(q, k, bias, problem.scale)
    if mask is not None and exact and not key_term_is_free(q.device.type):
        mask, exact = dense_visible(problem), False
    additive = _additive(mask, bias, q.dtype)
    if additive is not None and exact:
        v = F.pad(v, (0, q.shape[-1] - v.shape[-1])) if v.shape[-1] < q.shape[-1] else v
        if v.shape[-1] > q.shape[-1]:
            q, k = (F.pad(x, (0, v.shape[-1] - x.shape[-1])) for x in (q, k))
    if additive is not None:
        additive = additive.expand(q.shape[0], additive.shape[1], q.shape[2], k.shape[2])
    grouped = True if g != h else False  # noqa: SIM210 - a traced g is no plain int: this line makes it a guard
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=additive, is_causal=exact, scale=problem.scale, enable_gqa=grouped)[..., :width]
    if mask is not None and not exact:
        out = out.masked_fill(~mask.any(-1, keepdim=True), 0.0)  # a row that sees nothing is zero on every device
    return out, None


def _key_term(problem: Problem, slope: Tensor) -> Tensor:
    """slope * (s - c), (B|1, H, 1, S) in float64: softmax cannot see the query's term. c is the middle of the keys."""
    times = problem.key_vectors  # one clock: a bias takes no more
    low, high = times.detach().amin(-1, keepdim=True), times.detach().amax(-1, keepdim=True)
    return (slope[:, None] * (times - (low + high) / 2)).unsqueeze(2)


def _gradient_column(q: Tensor, k: Tensor, bias: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """One coordinate worth zero whose key gradient is the gradient of the bias: the kernel gives none to its mask."""
    carrier = (bias - bias.detach()).squeeze(2).to(k.dtype)[..., None].expand(*k.shape[:3], 1)
    pad = 7  # with the column itself a multiple of 8, which keeps the kernel fast
    return F.pad(torch.cat([q, torch.full_like(q[..., :1], 1 / scale)], -1), (0, pad)), F.pad(torch.cat([k, carrier], -1), (0, pad))


def _additive(mask: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Mask and key term as the additive mask the kernel reads: float64 for float64, float32 for the rest (it misreads others)."""
    if bias is None and mask is None:
        return None
    kind = ops.bias_dtype(dtype)
    if bias is None:
        assert mask is not None
        if mask.device.type != "cpu":
            return mask
        return torch.zeros(mask.shape, dtype=kind, device=mask.device).masked_fill(~mask, -math.inf)
    bias = bias.detach().to(kind)
    return bias if mask is None else bias.masked_fill(~mask, -math.inf)


@functools.cache
def key_term_is_free(device: str) -> bool:
    """Whether the public call takes ``is_causal`` beside a stride-0 mask, which PyTorch does not document: tried once per process."""
    if device != "cpu":
        return False
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for dtype in (torch.float32, torch.float64):
            q, k, v = (torch.randn(1, 2, 70, 8, dtype=dtype) for _ in range(3))
            bias = torch.randn(1, 2, 1, 70, dtype=dtype)
            try:
                got = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(1, 2, 70, 70), is_causal=True)
            except RuntimeError:
                return False
            z = (q @ k.mT * 8**-0.5 + bias).masked_fill(~torch.ones(70, 70, dtype=torch.bool).tril(), -math.inf)
            if not torch.allclose(got, z.softmax(-1) @ v, atol=1e-4):
                return False
    return True


backend = Backend("turn once, then PyTorch's fused attention, linear biases as one key term", _refuses, _run)
