"""Rotation over several axes: exp(x L_1 + y L_2 + ..) with generators that commute because they turn the same planes."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.errors import ShapeError
from eigenclock.theory.generator import Block, Generator, check_width
from eigenclock.theory.generators.rotation import check_pairing, pair_channels, turn_pairs
from eigenclock.theory.split import Split, Turn
from eigenclock.theory.trig import J


@dataclass(frozen=True)
class AxesRotation(Generator):
    """L_a = -freq_a J on each pair of channels, one L for every axis: the angle of pair i is the sum over the axes of freq[a, i] t_a.

    A frequency vector for every plane is the general answer for commuting skew generators (a maximal torus). A scalar time moves along
    all axes at once, with L the sum of the L_a.

    Shape: freq (axes, n) or (heads, axes, n) for 2n channels; times (..., T, axes), with as many axes as ``x``, or (..., T).
    Units: radians per unit of each axis.
    Raises: ShapeError where there are fewer than two axes.
    Source: Heo et al. (RoPE-Mixed), 2403.13298, eq. 14; Schenck et al. (STRING), 2502.02562.

    >>> import torch
    >>> flat = AxesRotation(torch.tensor([[1.0, 0.0], [0.0, 0.5]]))  # pair 0 reads x, pair 1 reads y
    >>> x = torch.eye(4)[None, 0]
    >>> flat.T.act(x, torch.tensor([[torch.pi / 2, 100.0]])).round(decimals=4)
    tensor([[-0., 1., 0., 0.]])
    """

    freq: Float[Tensor, "*heads axes n"]
    pairing: str = "interleaved"

    def __post_init__(self) -> None:
        check_pairing(self.pairing)
        if self.freq.ndim not in (2, 3) or self.freq.shape[-2] < 2:
            raise ShapeError(
                f"got frequencies of shape {tuple(self.freq.shape)}; expected (axes, n) or (heads, axes, n) with at least two axes "
                "(one axis is a Rotation)"
            )

    @property
    def axes(self) -> int:
        """How many numbers make one time."""
        return self.freq.shape[-2]

    @property
    def dim(self) -> int:
        return 2 * self.freq.shape[-1]

    @property
    def heads(self) -> int:
        return self.freq.shape[0] if self.freq.ndim == 3 else 1

    def blocks(self) -> tuple[Block, ...]:
        return tuple(Block(pair, turns=True) for pair in pair_channels(self.freq.shape[-1], self.pairing))

    def act(self, x: Tensor, t: Tensor) -> Tensor:
        check_width(x, self.dim, "AxesRotation")
        freq = self.freq.double()
        if t.ndim < x.ndim:
            total = freq.sum(-2)
            angle = t[..., None].double() * (total if total.ndim == 1 else total.unsqueeze(-2))
        else:
            angle = t.double() @ freq
        return turn_pairs(x, -angle, self.pairing)

    def along(self) -> Float[Tensor, "*heads axes D D"]:
        """The commuting generators L_a, one for each axis, as dense float64 matrices."""
        pairs = torch.tensor(pair_channels(self.freq.shape[-1], self.pairing), device=self.freq.device)
        out = torch.zeros(*self.freq.shape[:-1], self.dim, self.dim, dtype=torch.float64, device=self.freq.device)
        out[..., pairs[:, :, None], pairs[:, None, :]] = -self.freq.double()[..., None, None] * J.to(self.freq.device)
        return out

    def transpose(self) -> "AxesRotation":
        return replace(self, freq=-self.freq)

    def split(self) -> Split:
        return Split(self.dim, (Turn(0, self.freq, self.pairing, self.axes),))
