"""Memory that grows along one axis and is shared by values: each reads its own range, only the newest may write behind it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


class Tape:
    """A tensor with room to spare along one axis. ``used``: what some value holds already and nobody writes again."""

    def __init__(self, data: Tensor, axis: int, used: int):
        self.data, self.axis, self.used = data, axis, used


@dataclass(frozen=True, eq=False)
class Run:
    """The range low .. high of a tape: a value, whatever is written behind it."""

    tape: Tape
    low: int
    high: int

    @classmethod
    def of(cls, data: Tensor, axis: int) -> "Run":
        """All of a tensor, with no room to spare."""
        length = data.shape[axis]
        return cls(Tape(data, axis, length), 0, length)

    @property
    def tensor(self) -> Tensor:
        """The range, as a view."""
        return self.tape.data.narrow(self.tape.axis, self.low, len(self))

    def __len__(self) -> int:
        return self.high - self.low

    def map(self, change: Callable[[Tensor], Tensor]) -> "Run":
        """Another tensor of the same axis in its place."""
        return Run.of(change(self.tensor), self.tape.axis)

    def part(self, low: int, high: int) -> "Run":
        """A range of the range, counted from its start."""
        return Run(self.tape, self.low + low, self.low + high)

    def append(self, new: Tensor, at_least: int = 0) -> "Run":
        """The range and ``new`` behind it: amortised, it costs what is new.

        Other axes broadcast. Memory doubles when it is full (``at_least`` is room asked for from the start); a tensor with a gradient is
        concatenated instead.
        """
        axis, old = self.tape.axis, self.tensor
        sizes = [list(x.shape) for x in (old, new)]
        for i, (n, m) in enumerate(zip(*sizes, strict=True)):  # as broadcast_shapes, which takes longer than a decode step
            if i != axis:
                sizes[0][i] = sizes[1][i] = m if n == 1 else n
        if torch.is_grad_enabled() and (old.requires_grad or new.requires_grad):
            return Run.of(torch.cat([old.expand(sizes[0]), new.expand(sizes[1])], axis), axis)
        tape, length = self.tape, len(self) + new.shape[axis]
        if not self._may_write(new, sizes[0]):
            room = list(sizes[0])
            room[axis] = max(2 * length if len(self) else length, at_least)
            tape = Tape(torch.empty(room, dtype=old.dtype, device=old.device), axis, len(self))
            tape.data.narrow(axis, 0, len(self)).copy_(old.detach())
        low = self.low if tape is self.tape else 0
        tape.data.narrow(axis, tape.used, new.shape[axis]).copy_(new.detach())
        tape.used += new.shape[axis]
        return Run(tape, low, low + length)

    def _may_write(self, new: Tensor, size: list[int]) -> bool:
        """Whether this value is the newest, there is room, and nothing of the memory belongs to a graph."""
        tape, data = self.tape, self.tape.data
        room = data.shape[tape.axis] - tape.used >= new.shape[tape.axis]
        fits = list(self.tensor.shape) == size and not data.requires_grad
        return tape.used == self.high and room and fits and (torch.is_inference_mode_enabled() or not data.is_inference())

    def keep(self) -> Tensor:
        """The range for a graph that saves it: nobody writes to its memory from now on."""
        self.tape.used = self.tape.data.shape[self.tape.axis] + 1
        return self.tensor
