"""Dense: a generator given as any real matrix, and the parametrisations that keep a learned one skew-symmetric or stable."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.errors import GrowthError, ShapeError, UnsupportedError
from eigenclock.theory.generator import Block, Generator, check_width
from eigenclock.theory.modes import MAX_CONDITION, Modes, growth, modes
from eigenclock.theory.split import Split, Turn


@dataclass(frozen=True)
class Dense(Generator):
    """L as a real matrix, with no structure asked for but Re(lambda) <= 0; exp(tL) is ``matrix_exp`` in float64.

    ``split()`` reads the structure off: an orthogonal basis where L is skew-symmetric or symmetric, the real eigenvectors where L is
    diagonalisable and they are well conditioned. A defective L has no such basis and is refused there (``act`` and ``matrix`` still
    work): write it as ``Conjugate(Jordan(...), basis)``.

    Shape: entries (D, D) or (heads, D, D). All channels share one clock.
    Units: per unit of the clock.
    Raises: ShapeError where it is not square; GrowthError where an eigenvalue has a real part above what rounding explains;
        UnsupportedError in ``split``, ``blocks`` and ``form`` where L is defective, or learned with two equal eigenvalues.
    Stability: the basis costs its condition number (at most 1e4) times the rounding of the dtype; orthogonal ones cost nothing.
    Source: Zhang et al. (GRAPE), 2512.07805, for learned skew-symmetric L.

    >>> import torch
    >>> Dense(torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])).form
    JordanForm('1S')
    """

    entries: Float[Tensor, "*heads D D"]

    def __post_init__(self) -> None:
        shape = tuple(self.entries.shape)
        if len(shape) not in (2, 3) or shape[-1] != shape[-2]:
            raise ShapeError(f"got entries of shape {shape}; expected a real (D, D) matrix, or (heads, D, D)")
        if torch.compiler.is_compiling() or self.entries.device.type != "cpu":
            return
        for head in self._each():
            excess, value = growth(head.detach())
            if excess > 0:
                raise GrowthError(
                    f"got a matrix with an eigenvalue of real part {value:.3g}; expected Re(lambda) <= 0 (exp(tL) must not grow): "
                    "subtract that rate from the diagonal, or learn L as dissipative(upper, root)"
                )

    def _each(self) -> list[Tensor]:
        return list(self.entries.double().reshape(-1, self.dim, self.dim))

    @property
    def dim(self) -> int:
        return self.entries.shape[-1]

    @property
    def heads(self) -> int:
        return self.entries.shape[0] if self.entries.ndim == 3 else 1

    @cached_property
    def _modes(self) -> list[Modes]:
        found = [modes(head) for head in self._each()]
        worst = max(m.condition for m in found)
        if not worst <= MAX_CONDITION:
            raise UnsupportedError(
                f"got a matrix whose eigenvectors have condition {worst:.2g}; expected at most {MAX_CONDITION:g} (it is defective or "
                "nearly so): write it as Conjugate(Jordan(...), basis), or use act and matrix, which need no eigenvectors"
            )
        if len({m.pairs for m in found}) > 1:
            raise UnsupportedError(
                f"got heads with {', '.join(str(m.pairs) for m in found)} complex pairs; expected the same number in each head: "
                "build one generator per head"
            )
        return found

    def blocks(self) -> tuple[Block, ...]:
        decays = torch.stack([m.rate.detach() for m in self._modes]).gt(0).any(0).tolist()
        pairs = self._modes[0].pairs
        turning = [Block((2 * i, 2 * i + 1), decays[2 * i], turns=True) for i in range(pairs)]
        return (*turning, *(Block((c,), decays[c]) for c in range(2 * pairs, self.dim)))

    def act(self, x: Tensor, t: Tensor) -> Tensor:
        check_width(x, self.dim, "Dense")
        moved = self.matrix(one_clock(t, x), token=True) @ x.double()[..., None]
        return moved[..., 0].to(x.dtype)

    def matrix(self, t: Tensor | float | None = None, *, token: bool = False) -> Float[Tensor, "*batch D D"]:
        """L, or exp(tL); with ``token`` the last axis of the times runs along tokens, behind the heads."""
        L = self.entries.double() if self.heads > 1 or self.entries.ndim == 2 else self.entries[0].double()
        if t is None:
            return L
        t = torch.as_tensor(t, dtype=torch.float64, device=L.device)
        if self.heads > 1:
            t, L = (t, L.unsqueeze(-3)) if token else (t[..., None], L)
        return torch.linalg.matrix_exp(t[..., None, None] * L)

    def transpose(self) -> "Dense":
        return Dense(self.entries.mT)

    def split(self) -> Split:
        found, many = self._modes, self.heads > 1

        def stacked(parts: list[Tensor]) -> Tensor:
            return torch.stack(parts) if many else parts[0]

        turns = (Turn(0, stacked([m.freq for m in found])),) if found[0].pairs else ()
        decaying = any(bool((m.rate != 0).any()) or (m.rate.requires_grad and not m.skew) for m in found)
        rate = stacked([m.rate for m in found]) if decaying else None
        return Split(self.dim, turns, rate, basis=stacked([m.basis for m in found]), inverse=stacked([m.inverse for m in found]))


def one_clock(t: Tensor, x: Tensor) -> Tensor:
    """Times for a generator whose channels share one clock, without the axis of blocks.

    Raises: ShapeError where there is one time per block.
    """
    if t.ndim < x.ndim:
        return t
    if t.shape[-1] != 1:
        raise ShapeError(f"got {t.shape[-1]} times per token; expected one clock: the channels of a dense generator are not independent")
    return t[..., 0]


def skew_symmetric(upper: Float[Tensor, "*heads n"]) -> Float[Tensor, "*heads D D"]:
    """The skew-symmetric matrix with these entries above the diagonal, row by row: S^T = -S, so exp(tS) is a rotation.

    Shape: D (D - 1) / 2 numbers give (D, D).
    Raises: ShapeError where their number fits no D.

    >>> import torch
    >>> skew_symmetric(torch.tensor([1.0, 2.0, 3.0]))
    tensor([[ 0.,  1.,  2.],
            [-1.,  0.,  3.],
            [-2., -3.,  0.]])
    """
    n = upper.shape[-1]
    dim = (1 + math.isqrt(1 + 8 * n)) // 2
    if dim * (dim - 1) // 2 != n:
        raise ShapeError(f"got {n} numbers for a skew-symmetric matrix; expected D (D - 1) / 2 of them: 1, 3, 6, 10, ..")
    rows, columns = torch.triu_indices(dim, dim, 1, device=upper.device)
    where = torch.zeros(dim, dim, dtype=torch.long, device=upper.device)
    where[rows, columns] = 1 + torch.arange(n, device=upper.device)
    where[columns, rows] = 1 + n + torch.arange(n, device=upper.device)
    return torch.cat([upper.new_zeros(*upper.shape[:-1], 1), upper, -upper], -1)[..., where]


def dissipative(upper: Float[Tensor, "*heads n"], root: Float[Tensor, "*heads D r"]) -> Float[Tensor, "*heads D D"]:
    """L = S - R R^T with S skew-symmetric: every value of the parameters is stable, so L can be learned without a constraint.

    x^T L x = -|R^T x|^2 <= 0, hence Re(lambda) <= 0 and |exp(tL) x| never grows.

    >>> import torch
    >>> dissipative(torch.tensor([2.0]), torch.tensor([[1.0], [0.0]]))
    tensor([[-1.,  2.],
            [-2.,  0.]])
    """
    return skew_symmetric(upper) - root @ root.mT


def cayley(upper: Float[Tensor, "*heads n"]) -> Float[Tensor, "*heads D D"]:
    """The orthogonal matrix (I - S)(I + S)^-1 of a skew-symmetric S: smooth, and the identity at S = 0.

    It reaches every rotation that turns no plane by a half turn exactly.

    >>> import torch
    >>> q = cayley(torch.tensor([0.5]))
    >>> torch.allclose(q @ q.T, torch.eye(2))
    True
    """
    S = skew_symmetric(upper)
    eye = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
    return torch.linalg.solve(eye + S, eye - S)
