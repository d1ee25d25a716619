"""Axial RoPE: each axis of a picture or a table turns its own share of the pairs."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.clocks import Axes, Clock
from eigenclock.encodings.base import Encoding, Recipe
from eigenclock.encodings.mixed_rope import axes_clock, rotation
from eigenclock.encodings.parameter import Parameter
from eigenclock.encodings.rates import even
from eigenclock.errors import ShapeError
from eigenclock.schedules import geometric
from eigenclock.theory import Rotation


def axial_rope(
    head_dim: int,
    *,
    heads: int = 1,
    kv_heads: int | None = None,
    theta: float = 100.0,
    pairing: str = "interleaved",
    clock: Clock | None = None,
) -> Encoding:
    """Axial rotary embedding: axis a turns pairs a n/A .. (a + 1) n/A - 1 by freq_i times its own coordinate.

    freq_i = theta^(-i / (n/A)) on each of the A axes, n = head_dim / 2 pairs in all. Times have a last axis of size A.

    Args:
        theta: the base; images use 100, since an axis is tens of patches long.
        clock: the axes, by default ``Axes(("height", "width"))``.
    Units: radians per unit of each axis.
    Raises: ShapeError where the pairs cannot be shared equally; ConfigError where the clock has one axis.
    Source: Heo et al. (RoPE-ViT), 2403.13298, section 3.2.

    >>> enc = axial_rope(8)
    >>> print(enc)
    axial_rope(head_dim=8, heads=1, clock=axes(names=('height', 'width')))
    >>> enc.generator().freq
    tensor([[1.0000, 0.1000, 0.0000, 0.0000],
            [0.0000, 0.0000, 1.0000, 0.1000]], dtype=torch.float64)
    """
    clock = axes_clock(clock, Axes())
    freq = axial_frequencies(head_dim, clock.width, theta)
    options: dict[str, Any] = {"theta": None if theta == 100.0 else theta}
    if pairing != "interleaved":
        options["pairing"] = pairing
    Rotation(freq, pairing)  # refuses an unknown pairing here
    return Recipe("axial_rope", head_dim, heads, kv_heads, clock, options, {"freq": Parameter(freq)}, rotation)


def axial_frequencies(head_dim: int, axes: int, theta: float) -> Float[Tensor, "axes n"]:
    """Each axis its own share of the pairs, theta^(-i / (n/axes)) on each.

    Raises: ShapeError where the pairs cannot be shared equally.
    """
    pairs = even(head_dim, "head_dim")
    if pairs % axes:
        raise ShapeError(f"got head_dim={head_dim} for {axes} axes; expected a multiple of {2 * axes}, so that each has as many pairs")
    return torch.block_diag(*[geometric(theta)(pairs // axes).values[None]] * axes)
