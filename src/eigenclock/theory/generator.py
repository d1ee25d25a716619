"""The generator L of a one-parameter group exp(tL), as a frozen value without a dense matrix.

Queries take ``L.T.act(q, t)``, keys ``L.act(k, -s)``; their product is q^T exp((t - s) L) k.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.errors import GrowthError, ShapeError
from eigenclock.theory.form import JordanBlock, JordanForm
from eigenclock.theory.split import Split


@dataclass(frozen=True)
class Block:
    """Where one real Jordan block sits: its channels, whether it decays, whether it turns, its order."""

    channels: tuple[int, ...]
    decays: bool = False
    turns: bool = False
    order: int = 1

    @property
    def jordan(self) -> JordanBlock:
        return JordanBlock(
            {(False, False): "Z", (True, False): "D", (False, True): "R", (True, True): "S"}[self.decays, self.turns], self.order
        )


class Generator(ABC):
    """A real D x D matrix L with Re(lambda) <= 0, known by its real Jordan blocks.

    Subclasses are frozen values that hold tensors of shape (n,) or (heads, n); nothing concrete is subclassed again.

    Shape: every method takes vectors ``x`` of shape (..., T, D), or (..., H, T, D) where the parameters carry heads, and
        times ``t`` of at most one axis fewer: (T,), (B, 1, T), (B, H, T) all broadcast. Times with exactly as many axes as
        ``x`` are one clock per block.
    Units: times in the unit of the clock; rates and frequencies (radians) per that unit.

    >>> import eigenclock as ec
    >>> generator = ec.decay(2, rate=0.5).generator()
    >>> generator.matrix()
    tensor([[-0.5000,  0.0000],
            [ 0.0000, -0.5000]], dtype=torch.float64)
    """

    @property
    @abstractmethod
    def dim(self) -> int:
        """The number D of channels L acts on."""

    @property
    @abstractmethod
    def heads(self) -> int:
        """How many heads the parameters tell apart; 1 when all heads share them."""

    @abstractmethod
    def blocks(self) -> tuple[Block, ...]:
        """The real Jordan blocks with the channels they occupy (before any change of basis)."""

    @abstractmethod
    def act(self, x: Float[Tensor, "*batch D"], t: Tensor) -> Float[Tensor, "*batch D"]:
        """exp(tL) x, computed in float32 or better and returned in the dtype of ``x``."""

    @abstractmethod
    def transpose(self) -> "Generator":
        """The generator of exp(tL)^T, the action on queries."""

    @abstractmethod
    def split(self) -> Split:
        """L as three commuting parts, turning + decaying + nilpotent, in the form the fast paths take."""

    @property
    def T(self) -> "Generator":
        """Short for :meth:`transpose`."""
        return self.transpose()

    @property
    def form(self) -> JordanForm:
        """The Jordan form without numbers."""
        return JordanForm(block.jordan for block in self.blocks())

    def matrix(self, t: Tensor | float | None = None) -> Float[Tensor, "*batch D D"]:
        """L itself, or exp(tL) where a time is given: (D, D), with heads in front where parameters carry them.

        Shape: ``t`` of shape (...) gives (..., D, D) or (..., H, D, D).
        """
        if t is None:
            return self.split().matrix()
        example = self.split().example()
        t = torch.as_tensor(t, dtype=torch.float64, device=example.device)
        eye = torch.eye(self.dim, dtype=torch.float64, device=example.device)
        lead = (1,) * (2 if self.heads > 1 else 1)
        x = eye.expand(*t.shape, *((self.heads,) if self.heads > 1 else ()), self.dim, self.dim)
        return self.act(x, t.reshape(*t.shape, *lead)).mT

    def __add__(self, other: "Generator") -> "Generator":
        from eigenclock.theory.generators.direct_sum import DirectSum

        return DirectSum((self, other))

    def __mul__(self, other: "Generator") -> "Generator":
        from eigenclock.theory.generators.product import Product

        return Product(self, other)


def per_block(t: Tensor, x: Tensor) -> Tensor:
    """Times as (..., T, 1) to multiply parameters (..., n), or (..., T, n) where each block has its own clock."""
    return t if t.ndim == x.ndim else t[..., None]


def per_token(parameter: Float[Tensor, "*heads n"]) -> Float[Tensor, "*heads_1 n"]:
    """A parameter (n,) or (heads, n) shaped to multiply (..., heads, T, n)."""
    return parameter if parameter.ndim == 1 else parameter.unsqueeze(-2)


def working_dtype(x: Tensor) -> torch.dtype:
    """Float32, or float64 where the input is float64: actions are never computed in 16 bits."""
    return torch.promote_types(x.dtype, torch.float32)


def check_width(x: Tensor, dim: int, what: str) -> None:
    """Refuse vectors of another width with one clear line."""
    if x.shape[-1] != dim:
        raise ShapeError(f"got vectors of width {x.shape[-1]}, expected {dim}, the width of {what}; check head_dim")


def check_no_growth(rate: Tensor, what: str) -> None:
    """Refuse a negative rate: exp(+a t) grows without bound, and no reference time can make it safe.

    Skipped while a graph is traced and away from the CPU, where reading the value would stall the device; the declared
    constraints of learned parameters hold there.
    """
    if torch.compiler.is_compiling() or rate.device.type != "cpu":
        return
    low = float(rate.detach().min()) if rate.numel() else 0.0
    if not low >= 0:
        raise GrowthError(
            f"got a rate of {low:g} in {what}; expected rates >= 0 (exp(-rate * t) must not grow): flip the sign or drop the block"
        )


def not_zero(parameter: Float[Tensor, "*heads n"], n: int) -> list[bool]:
    """For each of n blocks, whether its number differs from 0 in any head: a block whose number is 0 everywhere is a simpler one."""
    if parameter.device.type == "meta":
        return [True] * n
    return (parameter.detach().reshape(-1, parameter.shape[-1]) != 0).any(0).expand(n).tolist()


def common_heads(parts: Iterable[Generator]) -> int:
    """The number of heads several generators agree on; 1 stands for 'the same in all heads'."""
    heads = 1
    for part in parts:
        if part.heads != 1 and heads != 1 and part.heads != heads:
            raise ShapeError(f"got generators with {heads} and {part.heads} heads; expected one number of heads (or 1, shared by all)")
        heads = part.heads if heads == 1 else heads
    return heads


def parameter_heads(*parameters: Tensor) -> int:
    """The number of heads carried by parameters of shape (n,) or (heads, n)."""
    heads = 1
    for parameter in parameters:
        if parameter.ndim > 1:
            heads = max(heads, parameter.shape[0])
    return heads
