"""Where vectors go into an attention layer of transformers: its projections, apart or fused, or the norms after them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Vectors = tuple[Tensor, Tensor, Tensor]
APART = (
    ("q_norm", "k_norm", "v_proj"),
    ("q_layernorm", "k_layernorm", "v_proj"),
    ("query_layernorm", "key_layernorm", "v_proj"),
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
)
"""Names of the modules whose outputs are queries, keys and values, the last before the action first."""


@dataclass(frozen=True)
class Sizes:
    """Heads of queries and of keys, and the widths of a query and of a value."""

    heads: int
    kv_heads: int
    width: int
    value_width: int


@dataclass(frozen=True)
class Place:
    """Modules of an attention layer whose outputs are replaced.

    Args:
        where: in words.
        names: the modules: three, or one for all.
        shaped: for each module, from vectors (B, heads, T, D) and the output it would give to what replaces it.
        plain: whether vectors have to arrive as they were put in, but for a factor for each channel; else they need only arrive.
    """

    where: str
    names: tuple[str, ...]
    shaped: tuple[Callable[[Vectors, Tensor], Tensor], ...]
    plain: bool = True

    def hooks(self, module: Any, vectors: Vectors) -> list[tuple[nn.Module, Callable[[Tensor], Tensor]]]:
        """The modules with what replaces their output."""
        both = zip(self.names, self.shaped, strict=True)
        return [(getattr(module, name), lambda out, f=f: f(vectors, out).to(out.device)) for name, f in both]

    def arrives(self, put: Tensor, got: Tensor) -> bool:
        """Whether vectors (H, T, D) at position 0 are those that were put in, each channel by one factor."""
        a, b = put.double(), got.double()
        factor = (a * b).sum(-2, keepdim=True) / (a * a).sum(-2, keepdim=True)
        left = (b - factor * a).abs().amax()
        same = float(left) <= 2e-2 * float(b.abs().amax()) and bool(torch.isfinite(b).all())
        if not self.plain:
            return not same and bool(torch.isfinite(b).all())
        return same and bool((factor.abs() > 1e-2).all())


def places(module: Any, sizes: Sizes) -> Iterator[Place]:
    """The places of an attention module to be tried: first those where vectors arrive as they were put in, then those normalised later."""
    for plain in (True, False):
        for names in APART:
            if all(isinstance(getattr(module, name, None), nn.Module) for name in names):
                for heads_first in (False, True):
                    shaped = tuple(_apart(side, heads_first) for side in range(3))
                    yield Place(f"{names[0]} and {names[1]}", names, shaped, plain)
        rows = (sizes.heads + sizes.kv_heads) * sizes.width + sizes.kv_heads * sizes.value_width
        for name, child in module.named_children():
            weight = getattr(child, "weight", None)
            if isinstance(weight, Tensor) and weight.ndim == 2 and rows in weight.shape:
                for fused in (_joined, _grouped):
                    yield Place(name, (name,), (fused,), plain)


def _apart(side: int, heads_first: bool) -> Callable[[Vectors, Tensor], Tensor]:
    """One of queries, keys and values in the shape of an output (B, T, H D), (B, T, H, D) or (B, H, T, D)."""

    def shaped(vectors: Vectors, out: Tensor) -> Tensor:
        x = vectors[side]
        return (x if heads_first and out.ndim == 4 else x.transpose(1, 2)).reshape(out.shape)

    return shaped


def _joined(vectors: Vectors, out: Tensor) -> Tensor:
    """All queries, then all keys, then all values."""
    return torch.cat([x.transpose(1, 2).flatten(2) for x in vectors], -1).reshape(out.shape)


def _grouped(vectors: Vectors, out: Tensor) -> Tensor:
    """For each head of keys its queries, its key and its value."""
    q, k, v = (x.transpose(1, 2) for x in vectors)
    g = k.shape[2]
    return torch.cat([x.unflatten(2, (g, -1)).flatten(3) for x in (q, k, v)], -1).reshape(out.shape)
