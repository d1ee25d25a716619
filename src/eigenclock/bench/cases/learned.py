"""Softmax on learned clocks: a forget gate per head, whose bias is a key term, and one per channel."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eigenclock.attention import attention
from eigenclock.bench.case import DTYPES, Case, Work, normal, scaled, trained, without_graph
from eigenclock.bench.cases.bias import AGAINST_TENSOR, OTHERS
from eigenclock.encodings import Encoding, fox, wall

HEADS, LENGTH, WIDTH = 8, 4096, 64
# what is measured: (what it says, whether backward, the largest ratio against plain attention)
WAYS = {"forward": ("forward", False, 1.1), "train": ("forward and backward, gradients to the gate", True, 1.25)}
PER_CHANNEL = 1.5
SPANS = (16.0, 4096.0)
"""Tokens after which the gate of the first and of the last head has forgotten all but 1/e: a trained gate forgets more slowly than the
start value 1/2, with which most tiles are dropped."""


def fox_cases(size: float = 1.0) -> tuple[Case, ...]:
    """Two dtypes, two ways, two others; the tensor is made beforehand and gets no gradient, which flatters it."""
    shape = (1, HEADS, scaled(LENGTH, size), WIDTH)
    return tuple(
        Case(
            f"fox/{dtype}/{way}/{other}",
            f"Forgetting Transformer softmax, projection and gate included: {says}",
            f"fox({WIDTH}, heads={HEADS})",
            OTHERS[other],
            shape,
            dtype,
            target if other == "plain" else AGAINST_TENSOR,
            _builder(forgetting, shape, dtype, backward, other == "tensor"),
        )
        for dtype in DTYPES
        for way, (says, backward, target) in WAYS.items()
        for other in OTHERS
    )


def wall_cases(size: float = 1.0) -> tuple[Case, ...]:
    """Two dtypes, forward."""
    shape = (1, HEADS, scaled(LENGTH, size), WIDTH)
    return tuple(
        Case(
            f"wall/{dtype}/forward",
            "softmax with a clock per channel: forward, projection and gate included",
            f"wall({WIDTH}, heads={HEADS})",
            OTHERS["plain"],
            shape,
            dtype,
            PER_CHANNEL,
            _builder(lambda: wall(WIDTH, heads=HEADS), shape, dtype, False, False),
        )
        for dtype in DTYPES
    )


def forgetting() -> Encoding:
    """Gates that forget over the spans above, one for each head."""
    encoding = fox(WIDTH, heads=HEADS)
    spans = torch.logspace(math.log10(SPANS[0]), math.log10(SPANS[1]), HEADS, dtype=torch.float64)
    with torch.no_grad():
        encoding.clock.bias.copy_(-torch.log(torch.expm1(1 / spans)))  # type: ignore[union-attr]  # sigmoid of it is e^(-1/span)
    return encoding


def bias_tensor(encoding: Encoding, x: Tensor, dtype: torch.dtype) -> Tensor:
    """-(tau_t - tau_s) where s <= t, else -inf; (1, H, T, T)."""
    ticks = encoding.clock(x=x).ticks.detach()
    heads, length = ticks.shape[1:]
    out, future = torch.empty(1, heads, length, length, dtype=dtype), torch.ones(length, length, dtype=torch.bool).triu_(1)
    for h in range(heads):  # head by head: float64 for all of them at once would need four times the memory
        out[0, h] = (ticks[0, h] - ticks[0, h, :, None]).masked_fill_(future, -math.inf)
    return out


def _builder(make: Callable[[], Encoding], shape: tuple[int, ...], dtype: str, backward: bool, tensor: bool) -> Callable[[], Work]:
    def build() -> Work:
        inputs, encoding = normal(shape, dtype, 3, grad=backward), make()
        (g,) = normal(shape, dtype, 1, seed=1)
        (x,) = normal((1, shape[2], HEADS * WIDTH), dtype, 1, seed=2)
        learned = [p for p in encoding.parameters() if p.requires_grad]
        bias = bias_tensor(encoding, x, DTYPES[dtype]) if tensor else None

        def ours(q: Tensor, k: Tensor, v: Tensor) -> Any:
            return attention(q, k, v, encoding, x=x)

        def other(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=bias is None)

        if not backward:
            return Work(without_graph(lambda: ours(*inputs)), without_graph(lambda: other(*inputs)))
        return Work(lambda: trained(ours, inputs, g, learned), lambda: trained(other, inputs, g))

    return build
