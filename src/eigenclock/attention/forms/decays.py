"""q_i^T exp(-rate (u_i - u_j)) k_j for j <= i where exponents know no bound: no factor above 1 anywhere."""

import torch
from torch import Tensor

BLOCK = 16
"""Tokens whose pairs are weighted one by one."""


def decayed_scores(queries: list[Tensor], k: Tensor, times: Tensor, rate: Tensor) -> list[Tensor]:
    """For each of several q (N, C, D) and one k (N, C, D): the pairs j <= i (zero elsewhere), (N, C, C).

    times (N|1, C, W) float64, nondecreasing along C; rate (N|1, R); W and R are 1 or D. Rows of a block meet earlier keys around the
    last key before it; pairs inside a block are weighted one by one. Times are subtracted before anything else: exponents of a billion
    keep the digits of their differences. Plain operations throughout, so autograd differentiates it.
    """
    length, rate = k.shape[-2], rate.double()[:, None]
    if max(times.shape[-1], rate.shape[-1]) == 1:
        weight = (-(times - times.mT).clamp_min(0.0) * rate).exp().to(k.dtype).tril()
        return [(q @ k.mT) * weight for q in queries]
    rows: list[list[Tensor]] = [[] for _ in queries]
    for low in range(0, length, BLOCK):
        high = min(low + BLOCK, length)
        inner = slice(low, high)
        lag = (times[:, inner, None] - times[:, None, inner]).clamp_min(0.0)  # (N, i, j, W)
        near = (-lag * rate[:, None]).exp().to(k.dtype) * k[:, None, inner]
        far = here = None
        if low:
            boundary = times[:, low - 1 : low]
            far = k[:, :low] * ((times[:, :low] - boundary) * rate).exp().to(k.dtype)
            here = ((boundary - times[:, inner]) * rate).exp().to(k.dtype)
        for row, q in zip(rows, queries, strict=True):
            part = q[:, inner]
            parts = [] if far is None or here is None else [(part * here) @ far.mT]
            parts.append((part.unsqueeze(2) @ near.mT).squeeze(2).tril())
            parts.append(part.new_zeros(*part.shape[:2], length - high))
            row.append(torch.cat(parts, -1))
    return [torch.cat(row, -2) for row in rows]
