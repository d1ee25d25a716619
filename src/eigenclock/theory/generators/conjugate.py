"""Conjugate: the same group in another basis, exp(tPLP^-1) = P exp(tL) P^-1."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.errors import ShapeError
from eigenclock.theory.generator import Block, Generator, check_width, working_dtype
from eigenclock.theory.split import Split


@dataclass(frozen=True)
class Conjugate(Generator):
    """P L P^-1: which basis the channels are read in. A layout of pairs is a permutation P.

    Shape: basis (D, D) or (heads, D, D), invertible.
    Stability: the basis is inverted in float64; an ill-conditioned one costs its condition number.

    >>> import torch
    >>> from eigenclock.theory.generators import Decay
    >>> Conjugate(Decay(torch.tensor([0.1, 0.2]), 2), torch.tensor([[0.0, 1.0], [1.0, 0.0]])).matrix().diagonal()
    tensor([-0.2000, -0.1000], dtype=torch.float64)
    """

    inner: Generator
    basis: Float[Tensor, "*heads D D"]

    def __post_init__(self) -> None:
        if self.basis.shape[-2:] != (self.inner.dim, self.inner.dim):
            raise ShapeError(
                f"got a basis of shape {tuple(self.basis.shape)}; expected ({self.inner.dim}, {self.inner.dim}), the width of the generator"
            )

    @property
    def inverse(self) -> Tensor:
        return torch.linalg.inv(self.basis.double())

    @property
    def dim(self) -> int:
        return self.inner.dim

    @property
    def heads(self) -> int:
        return max(self.inner.heads, self.basis.shape[0] if self.basis.ndim == 3 else 1)

    def blocks(self) -> tuple[Block, ...]:
        return self.inner.blocks()

    def act(self, x: Tensor, t: Tensor) -> Tensor:
        check_width(x, self.dim, "Conjugate")
        dtype = working_dtype(x)
        y = self.inner.act(x.to(dtype) @ self.inverse.to(dtype).mT, t)
        return (y @ self.basis.to(dtype).mT).to(x.dtype)

    def transpose(self) -> "Conjugate":
        return Conjugate(self.inner.T, self.inverse.mT)

    def split(self) -> Split:
        inner = self.inner.split()
        basis, inverse = self.basis.double(), self.inverse
        if inner.basis is not None and inner.inverse is not None:
            basis, inverse = basis @ inner.basis.double(), inner.inverse.double() @ inverse
        return replace(inner, basis=basis, inverse=inverse)
