"""Damped RoPE in softmax, with a rate of its own for every head and pair, against plain causal attention."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from eigenclock.attention import attention
from eigenclock.bench.case import Case, Work, normal, scaled, trained, without_graph
from eigenclock.encodings import Encoding, damped_rope

HEADS, WIDTH = 8, 64
# (length, dtype): the largest ratio forward, and forward with backward
TARGETS = {(4096, "fp32"): (1.25, 1.25), (4096, "bf16"): (1.25, 1.35), (16384, "fp32"): (1.25, 1.1), (16384, "bf16"): (1.25, 1.1)}
# what is measured: (what it says, whether backward, what is learned)
WAYS = {
    "forward": ("forward", False, ()),
    "train": ("forward and backward, rates fixed", True, ()),
    "train-rates": ("forward and backward, gradients to every rate", True, ("rate",)),
}


def cases(size: float = 1.0) -> tuple[Case, ...]:
    """Two lengths, two dtypes, three ways."""
    out = []
    for (length, dtype), targets in TARGETS.items():
        shape = (1, HEADS, scaled(length, size), WIDTH)
        for way, (says, backward, learn) in WAYS.items():
            out.append(
                Case(
                    f"damped/{length}/{dtype}/{way}",
                    f"damped RoPE softmax, a rate per head and pair: {says}",
                    f"damped_rope({WIDTH}, heads={HEADS})",
                    "plain causal scaled_dot_product_attention",
                    shape,
                    dtype,
                    targets[backward],
                    _builder(shape, dtype, backward, learn),
                    long=length > 4096,
                )
            )
    return tuple(out)


def example(learn: tuple[str, ...] = ()) -> Encoding:
    """Rates from 1e-4 to 0.6 per token over the pairs, different in every head."""
    rate = torch.logspace(-4, -0.2218, WIDTH // 2, dtype=torch.float64) * (1 - 0.05 * torch.arange(HEADS, dtype=torch.float64))[:, None]
    return damped_rope(WIDTH, heads=HEADS, rate=rate, learn=learn)


def _builder(shape: tuple[int, ...], dtype: str, backward: bool, learn: tuple[str, ...]) -> Callable[[], Work]:
    def build() -> Work:
        inputs, encoding = normal(shape, dtype, 3, grad=backward), example(learn)
        (g,) = normal(shape, dtype, 1, seed=1)

        def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
            return attention(q, k, v, encoding)

        def other(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        if not backward:
            return Work(without_graph(lambda: ours(*inputs)), without_graph(lambda: other(*inputs)))
        return Work(lambda: trained(ours, inputs, g, list(encoding.parameters())), lambda: trained(other, inputs, g))

    return build
