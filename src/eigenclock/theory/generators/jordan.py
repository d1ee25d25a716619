"""Jordan blocks: exp(tL) = e^(-rate t) R(-freq t) sum_r (eta t)^r / r! N^r, with N^order = 0."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.errors import ConfigError
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
from eigenclock.theory.generators.rotation import check_pairing, pair_channels, turn_pairs
from eigenclock.theory.split import Split, Turn


@dataclass(frozen=True)
class Jordan(Generator):
    """n Jordan blocks of one order: real ones (rate alone) or complex pairs (rate and freq).

    The channels are ``order`` levels of equal width, level by level; N moves level r + 1 onto level r. Order 2 with rate 0 on one
    channel is [[0, eta], [0, 0]], the nilpotent block that ALiBi lifts.

    Shape: rate, freq and eta (n,) or (heads, n); n * order channels, twice that with freq.
    Units: rate per unit of the clock, freq in radians per unit, eta per unit.
    Raises: GrowthError where a rate is negative; ConfigError where the order is below 1.
    Stability: entries grow like t^(order - 1) unless a rate damps them; attention acts with lags, never with absolute times.
    Source: Zhang (Jordan-RoPE), 2605.04217; Press et al. (ALiBi), 2108.12409.

    >>> import torch
    >>> Jordan(torch.zeros(1), order=2).matrix(3.0)
    tensor([[1., 3.],
            [0., 1.]], dtype=torch.float64)
    """

    rate: Float[Tensor, "*heads n"]
    order: int
    freq: Float[Tensor, "*heads n"] | None = None
    eta: Float[Tensor, "*heads n"] | None = None
    pairing: str = "interleaved"
    lowered: bool = False  # N^T instead of N: the transpose

    def __post_init__(self) -> None:
        check_pairing(self.pairing)
        check_no_growth(self.rate, "Jordan")
        if self.order < 1:
            raise ConfigError(f"got order {self.order} for a Jordan block; expected 1 or more")

    @property
    def _level(self) -> int:
        return self.rate.shape[-1] * (1 if self.freq is None else 2)

    @property
    def dim(self) -> int:
        return self._level * self.order

    @property
    def heads(self) -> int:
        return parameter_heads(*(p for p in (self.rate, self.freq, self.eta) if p is not None))

    def blocks(self) -> tuple[Block, ...]:
        n, level = self.rate.shape[-1], self._level
        cells = pair_channels(n, self.pairing) if self.freq is not None else [(i,) for i in range(n)]
        decays = not_zero(self.rate, n)
        return tuple(
            Block(tuple(c + r * level for r in range(self.order) for c in cell), decays[i], self.freq is not None, self.order)
            for i, cell in enumerate(cells)
        )

    def _spread(self, parameter: Tensor) -> Tensor:
        """A parameter of one value per block as one value per channel of a level."""
        if self.freq is None:
            return parameter
        return parameter.repeat_interleave(2, -1) if self.pairing == "interleaved" else parameter.repeat(*(1,) * (parameter.ndim - 1), 2)

    def act(self, x: Tensor, t: Tensor) -> Tensor:
        check_width(x, self.dim, "Jordan")
        dtype = working_dtype(x)
        t = per_block(t, x).double()
        shear = t if self.eta is None else self._spread(t * per_token(self.eta).double())
        levels = list(x.to(dtype).split(self._level, -1))
        if self.lowered:
            levels.reverse()
        factor = self._spread((-t * per_token(self.rate).double()).exp())
        # The factor meets the powers in float64: where it is 0 they may exceed the range of a narrower dtype.
        powers = [(factor * shear**r / math.factorial(r)).to(dtype) for r in range(self.order)]
        out = [sum((powers[r] * levels[i + r] for r in range(1, self.order - i)), start=powers[0] * levels[i]) for i in range(self.order)]
        if self.lowered:
            out.reverse()
        if self.freq is not None:
            angle = -t * per_token(self.freq).double()
            out = [turn_pairs(level, angle, self.pairing) for level in out]
        return torch.cat(out, -1).to(x.dtype)

    def transpose(self) -> "Jordan":
        return replace(self, lowered=not self.lowered, freq=None if self.freq is None else -self.freq)

    def split(self) -> Split:
        level, order = self._level, self.order
        eta = torch.ones_like(self.rate) if self.eta is None else self.eta
        shift = torch.diag(torch.ones(order - 1, dtype=torch.float64, device=eta.device), 1)
        if self.lowered:
            shift = shift.mT
        diagonal = torch.diag_embed(self._spread(eta.double()))
        nilpotent = (
            torch.einsum("rs,...ij->...risj", shift, diagonal).reshape(*diagonal.shape[:-2], self.dim, self.dim) if order > 1 else None
        )
        turns = () if self.freq is None else tuple(Turn(r * level, self.freq, self.pairing) for r in range(order))
        return Split(self.dim, turns, self._spread(self.rate), nilpotent, order)
