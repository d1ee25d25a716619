"""ALiBi without a T x T tensor, against plain causal attention and against attention with such a tensor."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from eigenclock.attention import attention
from eigenclock.bench.case import DTYPES, Case, Work, normal, scaled, trained, without_graph
from eigenclock.encodings import alibi
from eigenclock.schedules import alibi_slopes

HEADS, LENGTH, WIDTH = 8, 4096, 64
# what is measured: (what it says, whether backward, what is learned, the largest ratio against plain attention)
WAYS = {
    "forward": ("forward", False, (), 1.1),
    "train": ("forward and backward, slopes fixed", True, (), 1.1),
    "train-slopes": ("forward and backward, gradients to the slopes", True, ("slope",), 1.25),
}
AGAINST_TENSOR = 0.6
OTHERS = {
    "plain": "plain causal scaled_dot_product_attention",
    "tensor": "scaled_dot_product_attention with a T x T bias of the dtype of q, made beforehand",
}


def cases(size: float = 1.0) -> tuple[Case, ...]:
    """Two dtypes, three ways, two others; the tensor is made beforehand and gets no gradient, which flatters it."""
    shape = (1, HEADS, scaled(LENGTH, size), WIDTH)
    return tuple(
        Case(
            f"bias/{dtype}/{way}/{other}",
            f"ALiBi softmax: {says}",
            f"alibi({WIDTH}, heads={HEADS})",
            OTHERS[other],
            shape,
            dtype,
            target if other == "plain" else AGAINST_TENSOR,
            _builder(shape, dtype, backward, learn, other == "tensor"),
        )
        for dtype in DTYPES
        for way, (says, backward, learn, target) in WAYS.items()
        for other in OTHERS
    )


def bias_tensor(heads: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    """-slope * (t - s) where s <= t, else -inf; (1, H, T, T)."""
    t = torch.arange(length)
    lag = (t[:, None] - t).float()
    slopes = alibi_slopes()(heads).values.float()
    out = torch.empty(1, heads, length, length, dtype=dtype)
    for h in range(heads):  # head by head: float32 for all of them at once would need twice the memory
        out[0, h] = (-slopes[h] * lag).masked_fill(lag < 0, -math.inf)
    return out


def _builder(shape: tuple[int, ...], dtype: str, backward: bool, learn: tuple[str, ...], tensor: bool) -> Callable[[], Work]:
    def build() -> Work:
        inputs, encoding = normal(shape, dtype, 3, grad=backward), alibi(WIDTH, heads=HEADS, learn=learn)
        (g,) = normal(shape, dtype, 1, seed=1)
        bias = bias_tensor(HEADS, shape[2], DTYPES[dtype]) if tensor else None

        def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
            return attention(q, k, v, encoding)

        def other(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=bias is None)

        if not backward:
            return Work(without_graph(lambda: ours(*inputs)), without_graph(lambda: other(*inputs)))
        return Work(lambda: trained(ours, inputs, g, list(encoding.parameters())), lambda: trained(other, inputs, g))

    return build
