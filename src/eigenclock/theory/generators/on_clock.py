"""A generator that reads its own share of several clocks, so that commuting parts can run at speeds of their own."""

from dataclasses import dataclass, replace

from torch import Tensor

from eigenclock.errors import ShapeError
from eigenclock.theory.generator import Block, Generator
from eigenclock.theory.split import Split, Turn


@dataclass(frozen=True)
class OnClock(Generator):
    """``inner`` driven by the times ``first .. first + count - 1`` of a vector of times: exp(sum_a tau_a L_a) is a product of these.

    One time moves all of ``inner``; with several, block i reads the time first + i. A scalar time moves everything at once.

    Shape: times (..., T, W) with as many axes as ``x``, W >= first + count; or (..., T).
    Raises: ShapeError where the number of blocks is neither the count nor driven by one time.
    Source: Lahoti et al. (Mamba-3), 2603.15569, where a decay and its phases have clocks of their own.

    >>> import torch
    >>> from eigenclock.theory.generators import Decay, Product, Rotation
    >>> turning, fading = OnClock(Rotation(torch.ones(2)), 1, 2), OnClock(Decay(torch.ones(1), 4), 0, 1)
    >>> Product(turning, fading).act(torch.ones(1, 4), torch.tensor([[torch.log(torch.tensor(2.0)), torch.pi, 0.0]])).round(decimals=4)
    tensor([[-0.5000, -0.5000,  0.5000,  0.5000]])
    """

    inner: Generator
    first: int
    count: int

    def __post_init__(self) -> None:
        split = self.inner.split()
        turns, rates = {turn.freq.shape[-1] for turn in split.turns}, 0 if split.rate is None else split.rate.shape[-1]
        fits = turns <= {self.count} and rates in (0, self.count, *(2 * n for n in turns))  # both channels of a pair decay alike
        if self.first < 0 or self.count < 1 or (self.count > 1 and not fits):
            raise ShapeError(
                f"got {self.count} times for rotations of {sorted(turns)} pairs and {rates} rates; expected one time, or one for each block"
            )

    @property
    def dim(self) -> int:
        return self.inner.dim

    @property
    def heads(self) -> int:
        return self.inner.heads

    def blocks(self) -> tuple[Block, ...]:
        return self.inner.blocks()

    def act(self, x: Tensor, t: Tensor) -> Tensor:
        if t.ndim < x.ndim:
            return self.inner.act(x, t)
        own = t[..., self.first : self.first + self.count]
        return self.inner.act(x, own[..., 0] if self.count == 1 else own)

    def transpose(self) -> "OnClock":
        return replace(self, inner=self.inner.T)

    def split(self) -> Split:
        inner = self.inner.split()

        def clock(columns: int) -> tuple[int, ...]:
            if self.count == 1:
                return (self.first,) * columns
            own = tuple(range(self.first, self.first + self.count))
            if columns == self.count:
                return own
            return own * 2 if inner.turns[0].pairing == "half" else tuple(c for c in own for _ in range(2))

        turns: tuple[Turn, ...] = tuple(replace(turn, clock=clock(turn.freq.shape[-1])) for turn in inner.turns)
        return replace(inner, turns=turns, rate_clock=None if inner.rate is None else clock(inner.rate.shape[-1]))
