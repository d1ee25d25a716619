"""Exponential decay: exp(tL) = e^(-rate t) on each channel."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from eigenclock.theory.generator import (
    Block,
    Generator,
    check_no_growth,
    check_width,
    not_zero,
    parameter_heads,
    per_block,
    per_token,
    working_dtype,
)
from eigenclock.theory.split import Split


@dataclass(frozen=True)
class Decay(Generator):
    """L = -diag(rate), one rate per channel, or one for all ``size`` channels.

    Shape: rate (size,), (heads, size), or (1,) and (heads, 1) for a multiple of the identity.
    Units: rate per unit of the clock.
    Raises: GrowthError where a rate is negative.
    Stability: ``act`` at negative times grows; attention never calls it there (it places a reference time between key and query).
    Source: Sun et al. (RetNet), 2307.08621; Yang et al. (GLA), 2312.06635.

    >>> import torch
    >>> Decay(torch.tensor([0.5]), 2).matrix(2.0)
    tensor([[0.3679, 0.0000],
            [0.0000, 0.3679]], dtype=torch.float64)
    """

    rate: Float[Tensor, "*heads n"]
    size: int

    def __post_init__(self) -> None:
        check_no_growth(self.rate, "Decay")

    @property
    def dim(self) -> int:
        return self.size

    @property
    def heads(self) -> int:
        return parameter_heads(self.rate)

    def blocks(self) -> tuple[Block, ...]:
        return tuple(Block((i,), decays) for i, decays in enumerate(not_zero(self.rate, self.size)))

    def act(self, x: Tensor, t: Tensor) -> Tensor:
        check_width(x, self.dim, "Decay")
        exponent = per_block(t, x).double() * per_token(self.rate).double()
        return (x * (-exponent).exp().to(working_dtype(x))).to(x.dtype)

    def transpose(self) -> "Decay":
        return self

    def split(self) -> Split:
        return Split(self.size, rate=self.rate)
