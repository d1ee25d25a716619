"""The zero generator: exp(t 0) = 1, the encoding of nothing (NoPE)."""

from dataclasses import dataclass

from torch import Tensor

from eigenclock.theory.generator import Block, Generator, check_width
from eigenclock.theory.split import Split


@dataclass(frozen=True)
class Zero(Generator):
    """L = 0 on ``size`` channels.

    Source: Haviv et al., 2203.16634; Kazemnejad et al., 2305.19466.

    >>> Zero(4).form
    JordanForm('4Z')
    """

    size: int

    @property
    def dim(self) -> int:
        return self.size

    @property
    def heads(self) -> int:
        return 1

    def blocks(self) -> tuple[Block, ...]:
        return tuple(Block((i,)) for i in range(self.size))

    def act(self, x: Tensor, t: Tensor) -> Tensor:
        check_width(x, self.dim, "Zero")
        return x

    def transpose(self) -> "Zero":
        return self

    def split(self) -> Split:
        return Split(self.size)
