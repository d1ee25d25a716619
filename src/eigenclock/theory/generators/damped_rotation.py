"""Damped rotation: exp(tL) turns each pair of channels and shrinks it, e^(-rate t) R(-freq t)."""

from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from eigenclock.theory.generator import Block, Generator, check_no_growth, check_width, not_zero, parameter_heads, per_block, per_token
from eigenclock.theory.generators.rotation import check_pairing, pair_blocks, turn_pairs
from eigenclock.theory.split import Split, Turn


@dataclass(frozen=True)
class DampedRotation(Generator):
    """L = -rate - freq J on each pair of channels.

    Shape: rate and freq (n,) or (heads, n), for 2n channels.
    Units: rate per unit of the clock, freq in radians per unit.
    Raises: GrowthError where a rate is negative.
    Stability: ``act`` at negative times grows; attention never calls it there.
    Source: Sun et al. (RetNet), 2307.08621; Sun et al. (xPos), 2212.10554.

    >>> import torch
    >>> DampedRotation(torch.tensor([0.1]), torch.tensor([1.0])).form
    JordanForm('1S')
    """

    rate: Float[Tensor, "*heads n"]
    freq: Float[Tensor, "*heads n"]
    pairing: str = "interleaved"

    def __post_init__(self) -> None:
        check_pairing(self.pairing)
        check_no_growth(self.rate, "DampedRotation")

    @property
    def dim(self) -> int:
        return 2 * self.freq.shape[-1]

    @property
    def heads(self) -> int:
        return parameter_heads(self.rate, self.freq)

    def blocks(self) -> tuple[Block, ...]:
        n = self.freq.shape[-1]
        return pair_blocks(n, self.pairing, not_zero(self.rate, n), not_zero(self.freq, n))

    def act(self, x: Tensor, t: Tensor) -> Tensor:
        check_width(x, self.dim, "DampedRotation")
        t = per_block(t, x).double()
        y = turn_pairs(x, -t * per_token(self.freq).double(), self.pairing)
        factor = (-t * per_token(self.rate).double()).exp().to(y.dtype)
        return y * (factor.repeat_interleave(2, -1) if self.pairing == "interleaved" else factor.repeat(*(1,) * (factor.ndim - 1), 2))

    def transpose(self) -> "DampedRotation":
        return replace(self, freq=-self.freq)

    def split(self) -> Split:
        rate = self.rate.expand(*self.rate.shape[:-1], self.freq.shape[-1])
        if self.pairing == "interleaved":
            rate = rate.repeat_interleave(2, -1)
        return Split(self.dim, (Turn(0, self.freq, self.pairing),), rate)
