"""Product: two commuting generators on the same channels, exp(t(L_1 + L_2)) = exp(tL_1) exp(tL_2)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eigenclock.errors import AxiomError, ShapeError, UnsupportedError
from eigenclock.theory.generator import Block, Generator, check_width, common_heads
from eigenclock.theory.split import Split, on_top


@dataclass(frozen=True)
class Product(Generator):
    """L = L_1 + L_2 with L_1 L_2 = L_2 L_1.

    Raises: ShapeError where the widths differ; UnsupportedError where blocks overlap without matching;
        AxiomError where the two do not commute (their product is then no group).

    >>> import torch
    >>> from eigenclock.theory.generators import Decay, Rotation
    >>> Product(Rotation(torch.ones(2)), Decay(torch.tensor([0.1]), 4)).form
    JordanForm('2S')
    """

    left: Generator
    right: Generator

    def __post_init__(self) -> None:
        if self.left.dim != self.right.dim:
            raise ShapeError(f"got a product of widths {self.left.dim} and {self.right.dim}; expected the same channels on both sides")
        common_heads((self.left, self.right))
        if not torch.compiler.is_compiling():
            self._check_commuting()
            self.blocks()

    def _check_commuting(self) -> None:
        if self.left.split().is_scalar or self.right.split().is_scalar:
            return
        a, b = self.left.matrix().detach(), self.right.matrix().detach()
        gap, size = (a @ b - b @ a).abs().max().item(), (a.abs().max() * b.abs().max()).item()
        if gap > 1e-6 * size:
            raise AxiomError(
                f"got two generators that do not commute (largest entry of AB - BA {gap:.2g}); "
                "expected commuting ones, whose product is one group: "
                "give both channels of a pair the same rate and both factors the same pairing, or put them side by side with '+'"
            )

    @property
    def dim(self) -> int:
        return self.left.dim

    @property
    def heads(self) -> int:
        return common_heads((self.left, self.right))

    def blocks(self) -> tuple[Block, ...]:
        cells: list[Block] = []
        for block in (*self.left.blocks(), *self.right.blocks()):
            touching = [c for c in cells if set(c.channels) & set(block.channels)]
            cells = [c for c in cells if c not in touching]
            group = [block, *touching]
            channels = tuple(sorted({c for b in group for c in b.channels}))
            cell = Block(channels, any(b.decays for b in group), any(b.turns for b in group), max(b.order for b in group))
            if len(channels) != cell.jordan.dim:
                raise UnsupportedError(
                    f"got blocks that overlap without matching on channels {channels}; "
                    "expected both factors to cut the channels into the same blocks "
                    "(one pairing, chains of one shape)"
                )
            cells.append(cell)
        return tuple(sorted(cells, key=lambda b: b.channels))

    def act(self, x: Tensor, t: Tensor) -> Tensor:
        check_width(x, self.dim, "Product")
        return self.left.act(self.right.act(x, t), t)

    def transpose(self) -> "Product":
        return Product(self.left.T, self.right.T)

    def split(self) -> Split:
        return on_top(self.left.split(), self.right.split())
