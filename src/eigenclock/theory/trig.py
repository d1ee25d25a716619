"""Angles and decay factors from exact times: products in float64, reduced before any rounding."""

import math

import torch
from torch import Tensor

J = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
"""The quarter turn: exp(x J) turns (1, 0) to (cos x, sin x)."""


def reduced(angle: Tensor) -> Tensor:
    """A float64 angle moved to [-pi, pi] by whole turns, so that float32 keeps 2e-7 of a radian at any time."""
    turns = torch.round(angle.detach() * (1 / (2 * math.pi)))
    return angle - turns * (2 * math.pi)


def cos_sin(angle: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of a float64 angle, in ``dtype``: the angle is reduced in float64 first and rounded once."""
    angle = reduced(angle).to(dtype)
    return angle.cos(), angle.sin()
