"""Direct sum: generators side by side on different channels."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eigenclock.theory.generator import Block, Generator, check_width, common_heads
from eigenclock.theory.split import Split, side_by_side


@dataclass(frozen=True)
class DirectSum(Generator):
    """L = L_1 (+) L_2 (+) ..., each part on its own channels, in order.

    >>> import torch
    >>> from eigenclock.theory.generators import Rotation, Zero
    >>> DirectSum((Rotation(torch.ones(2)), Zero(3))).form
    JordanForm('2R + 3Z')
    """

    parts: tuple[Generator, ...]

    def __post_init__(self) -> None:
        common_heads(self.parts)

    @property
    def dim(self) -> int:
        return sum(part.dim for part in self.parts)

    @property
    def heads(self) -> int:
        return common_heads(self.parts)

    def blocks(self) -> tuple[Block, ...]:
        out, start = [], 0
        for part in self.parts:
            out += [replace(b, channels=tuple(c + start for c in b.channels)) for b in part.blocks()]
            start += part.dim
        return tuple(out)

    def act(self, x: Tensor, t: Tensor) -> Tensor:
        check_width(x, self.dim, "DirectSum")
        return torch.cat([part.act(piece, t) for part, piece in zip(self.parts, x.split([p.dim for p in self.parts], -1), strict=True)], -1)

    def transpose(self) -> "DirectSum":
        return DirectSum(tuple(part.T for part in self.parts))

    def split(self) -> Split:
        return side_by_side([part.split() for part in self.parts])
