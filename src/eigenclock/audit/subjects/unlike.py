"""Attention layers of one type that do not treat the same vectors alike: one layer in a stack may be patched, or miss its positions."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eigenclock.audit.subjects.live_layers import Layer

MOST = 3
"""How many kinds of other layers are measured by themselves."""
TOKENS = 7


def unlike(found: Sequence[Layer], dtype: torch.dtype, length: int) -> list[Layer]:
    """The layers that act, or decode, otherwise than the first of ``found`` on the same vectors; the first of each kind."""
    kinds: list[tuple[Layer, list[Tensor]]] = []
    for layer in found:
        try:
            given = _answers(layer, dtype, length)
        except Exception:  # a layer that cannot be run alone is no other kind
            continue
        if all(not _alike(given, known, dtype) for _, known in kinds):
            kinds.append((layer, given))
    return [layer for layer, _ in kinds[1 : MOST + 1]]


def _answers(layer: Layer, dtype: torch.dtype, length: int) -> list[Tensor]:
    sizes, random = layer.sizes, torch.Generator().manual_seed(19)
    q, k = (torch.randn(h, TOKENS, sizes.width, generator=random).to(dtype) for h in (sizes.heads, sizes.kv_heads))
    v = torch.randn(sizes.kv_heads, TOKENS, sizes.value_width, generator=random).to(dtype)
    far = torch.tensor([0, 1, 2, 7, 33, length // 2, length - 1]).clamp_max(length - 1)
    out = [*layer.act(q, k, far)]
    if layer.caches:
        out.append(layer.decode(q, k, v, torch.arange(TOKENS), (TOKENS - 3, TOKENS - 2, TOKENS - 1)))
    return out


def _alike(one: list[Tensor], other: list[Tensor], dtype: torch.dtype) -> bool:
    limit = 64 * torch.finfo(dtype).eps
    return len(one) == len(other) and all(
        a.shape == b.shape and float((a.double() - b.double()).abs().max()) <= limit * max(float(a.double().abs().max()), 1e-30)
        for a, b in zip(one, other, strict=True)
    )
