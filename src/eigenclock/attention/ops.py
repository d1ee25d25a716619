"""One softmax tile: out and log-sum-exp forward, gradients backward. The only module that reaches private operators.

PyTorch's public attention returns no log-sum-exp, which merging tiles needs. Two roads with one contract:

* the fused CPU kernel behind the public call, private to PyTorch, used only after it passed its own check in this process;
* plain matrix products, blocked over queries so that memory stays (block x keys), on every device and dtype.

Contract (N tiles, H query heads, G key heads with H a multiple of G, D = width of q, k and v):
    q (N, H, L, D), k and v (N, G, S, D), bias (N|1, H|1, L|1, S) additive or None; ``causal`` aligns top-left (query i sees keys j <= i).
    out (N, H, L, D) in the dtype of q; lse (N, H, L) in float32 (float64 for float64). A row that sees nothing gives out 0; its lse is
    not defined here: callers set it to -inf before merging and to +inf before the backward, which then gives exact zeros.
"""

import functools
import math

import torch
from torch import Tensor

BLOCK = 256
"""Query rows per step of the plain road."""


def bias_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype a bias must have: the fused kernel misreads any other one silently."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, bias: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """out and lse of one set of tiles; see the module's contract."""
    if q.numel() == 0 or k.shape[-2] == 0:  # the fused kernel dies on an empty axis
        accumulate = bias_dtype(q.dtype)
        return q.new_zeros(q.shape), torch.full(q.shape[:-1], -math.inf, dtype=accumulate, device=q.device)
    if use_fused(q):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=_expand(bias, q, k), scale=scale)
    return plain_forward(q, k, v, causal, bias, scale)


def backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, bias: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients to q, k, v given the *final* out and lse, of which the tile may be only a part: they are exact all the same."""
    if q.numel() == 0 or k.shape[-2] == 0:
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    if use_fused(q):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            g, q, k, v, out, lse, 0.0, causal, attn_mask=_expand(bias, q, k), scale=scale
        )
    return plain_backward(g, q, k, v, out, lse, causal, bias, scale)


def use_fused(q: Tensor) -> bool:
    """Whether the fused road takes this input: a CPU tensor of a width it handles, and the kernel passed its check."""
    return q.device.type == "cpu" and 0 < q.shape[-1] <= 256 and fused_is_sound()


def _expand(bias: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    return None if bias is None else bias.expand(q.shape[0], bias.shape[1], q.shape[-2], k.shape[-2])


# --- the plain road ----------------------------------------------------------------------------------------------------------------


def _grouped(q: Tensor, groups: int) -> Tensor:
    """(N, H, L, D) as (N, G, H/G, L, D)."""
    return q.reshape(q.shape[0], groups, q.shape[1] // groups, *q.shape[2:])


def _logits(q: Tensor, k: Tensor, start: int, causal: bool, bias: Tensor | None, scale: float) -> Tensor:
    """Logits (N, G, H/G, l, S) of the query rows that begin at ``start``."""
    z = torch.matmul(q, k.mT.unsqueeze(2)) * scale
    rows = q.shape[-2]
    if bias is not None:
        part = bias if bias.shape[-2] == 1 else bias[..., start : start + rows, :]
        z = z + (part.unsqueeze(2) if bias.shape[1] == 1 else _grouped(part, k.shape[1])).to(z.dtype)
    if causal:
        i = torch.arange(start, start + rows, device=q.device)[:, None]
        z = z.masked_fill(i < torch.arange(k.shape[-2], device=q.device), -math.inf)
    return z


def plain_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, bias: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """The contract in public matrix products, one block of queries at a time."""
    work = torch.promote_types(q.dtype, torch.float32)
    groups = k.shape[1]
    kw, vw = k.to(work), v.to(work)
    outs, lses = [], []
    for start in range(0, q.shape[-2], BLOCK):
        z = _logits(_grouped(q[..., start : start + BLOCK, :].to(work), groups), kw, start, causal, bias, scale)
        top = z.amax(-1, keepdim=True)
        p = (z - top.masked_fill(top == -math.inf, 0.0)).exp()
        total = p.sum(-1, keepdim=True)
        outs.append(torch.matmul(p, vw.unsqueeze(2)) / total.masked_fill(total == 0, 1.0))
        lses.append((top + total.log()).squeeze(-1))
    return torch.cat(outs, -2).flatten(1, 2).to(q.dtype), torch.cat(lses, -1).flatten(1, 2)


def plain_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, bias: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The contract's backward in public matrix products; rows with lse = +inf contribute exact zeros."""
    work = torch.promote_types(q.dtype, torch.float32)
    groups = k.shape[1]
    kw, vw = k.to(work), v.to(work)
    dq, dk, dv = [], torch.zeros_like(kw), torch.zeros_like(vw)
    for start in range(0, q.shape[-2], BLOCK):
        rows = slice(start, start + BLOCK)
        qb, gb, ob = (_grouped(x[..., rows, :].to(work), groups) for x in (q, g, out))
        z = _logits(qb, kw, start, causal, bias, scale)
        p = (z - _grouped(lse[..., rows].to(work), groups)[..., None]).exp()
        dv += torch.matmul(p.mT, gb).sum(2)
        dz = p * (torch.matmul(gb, vw.mT.unsqueeze(2)) - (gb * ob).sum(-1, keepdim=True)) * scale
        dq.append(torch.matmul(dz, kw.unsqueeze(2)))
        dk += torch.matmul(dz.mT, qb).sum(2)
    return torch.cat(dq, -2).flatten(1, 2).to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


# --- the check of the fused road ---------------------------------------------------------------------------------------------------


@functools.cache
def fused_is_sound() -> bool:
    """Run the private kernel once against the plain road: causal alignment, biases of every kind, dead rows, groups, float64.

    Sizes are above 64 because a bias of the wrong dtype happens to pass below. Any error or difference means: take the plain road.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            return all(
                _agrees(dtype, causal, kind)
                for dtype in (torch.float32, torch.float64)
                for causal in (True, False)
                for kind in ("none", "key", "full")
            )
        except (RuntimeError, TypeError, AttributeError, NotImplementedError):
            return False


def _agrees(dtype: torch.dtype, causal: bool, kind: str) -> bool:
    n, h, groups, rows, width = 2, 4, 2, 70, 8
    q, g = (torch.randn(n, h, rows, width, dtype=dtype) for _ in range(2))
    k, v = (torch.randn(n, groups, rows if causal else 66, width, dtype=dtype) for _ in range(2))
    bias = {"none": None, "key": torch.randn(n, h, 1, k.shape[-2], dtype=dtype), "full": torch.randn(1, 1, rows, k.shape[-2], dtype=dtype)}[
        kind
    ]
    if bias is not None:
        bias[..., :3] = -math.inf  # with causal order the first rows see nothing
    scale = 0.3
    want, want_lse = plain_forward(q, k, v, causal, bias, scale)
    full_bias = _expand(bias, q, k)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=full_bias, scale=scale)
    dead = want_lse == -math.inf
    final = want_lse.masked_fill(dead, math.inf)
    grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        g, q, k, v, want, final, 0.0, causal, attn_mask=full_bias, scale=scale
    )
    wanted = plain_backward(g, q, k, v, want, final, causal, bias, scale)
    pairs = [(out, want), (lse.masked_fill(dead, 0.0), want_lse.masked_fill(dead, 0.0)), *zip(grads, wanted, strict=True)]
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in pairs)
