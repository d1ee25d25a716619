"""One query against a long cache under damped softmax, whose keys stand at the end of their chunk, against plain attention on it."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from eigenclock.attention import KVCache, cached_attention
from eigenclock.bench.case import DTYPES, Case, Work, normal, scaled, without_graph
from eigenclock.bench.cases import damped

HEADS, WIDTH, LENGTH = 8, 64, 65536
TARGET = 1.3


def cases(size: float = 1.0) -> tuple[Case, ...]:
    """Two dtypes."""
    length = scaled(LENGTH, size)
    return tuple(
        Case(
            f"decode/{LENGTH}/{dtype}/damped",
            "damped RoPE softmax, a rate per head and pair: one query against cached keys, its own stored as well",
            "cached_attention with a KVCache",
            "scaled_dot_product_attention of one query on as many keys, which are there already",
            (1, HEADS, length, WIDTH),
            dtype,
            TARGET,
            _builder(length, dtype),
            long=True,
        )
        for dtype in DTYPES
    )


def _builder(length: int, dtype: str) -> Callable[[], Work]:
    def build() -> Work:
        encoding = damped.example()
        k, v = normal((1, HEADS, length, WIDTH), dtype, 2)
        new = normal((1, HEADS, 1, WIDTH), dtype, 3, seed=1)
        cache = without_graph(lambda: KVCache.of(k, v, encoding))()

        def ours() -> Tensor:
            nonlocal cache  # each step goes on from the one before, as a model does
            out, cache = cached_attention(new[0], new[1], new[2], encoding, cache=cache)
            return out

        return Work(without_graph(ours), without_graph(lambda: F.scaled_dot_product_attention(new[0], k, v)))

    return build
