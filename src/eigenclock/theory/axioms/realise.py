"""Realisation: from values of A(u) on a grid of lags to constants C, L, B with A(u) = C exp(uL) B (Ho and Kalman)."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.errors import AxiomError, ShapeError


@dataclass(frozen=True)
class Realisation:
    """A(u) = read_out exp(u L) read_in, of the least size n that gives the samples.

    read_out C (p, n), L (n, n), read_in B (n, q); ``per_step`` is exp(step L), and the singular values are those of the block Hankel
    matrix, of which n are above rounding. (C, L, B) is one choice of basis: (C P, P^-1 L P, P^-1 B) is the same encoding.

    >>> import torch
    >>> lags = torch.arange(5, dtype=torch.float64)
    >>> r = realise(torch.exp(-0.5 * lags)[:, None, None])
    >>> r.rank, round(float(r.L), 6)
    (1, -0.5)
    """

    read_out: Float[Tensor, "p n"]
    L: Float[Tensor, "n n"]
    read_in: Float[Tensor, "n q"]
    per_step: Float[Tensor, "n n"]
    singular_values: Float[Tensor, "k"]
    step: float = 1.0

    @property
    def rank(self) -> int:
        """n, the rank of the block Hankel matrix: how many dimensions the lag needs."""
        return self.per_step.shape[-1]

    def at(self, lag: float) -> Float[Tensor, "p q"]:
        """A at any lag."""
        return self.read_out @ torch.linalg.matrix_exp(lag * self.L) @ self.read_in


def hankel(samples: Float[Tensor, "N p q"], rtol: float = 1e-10) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """C, exp(step L), B and the singular values of the block Hankel matrix (A((i + j) step)), from A(0), A(step), A(2 step), ..

    The shift of the matrix by one step, restricted to its range, is exp(step L) in the basis of the singular vectors.
    """
    samples = samples.double()
    n, p, q = samples.shape
    if n < 2:
        raise ShapeError(f"got {n} samples; expected at least 2, at the lags 0, step, 2 step, ..")
    k = n // 2
    order = torch.arange(k)[:, None] + torch.arange(k)
    here, next_ = (samples[order + shift].permute(0, 2, 1, 3).reshape(k * p, k * q) for shift in (0, 1))
    u, s, v = torch.linalg.svd(here, full_matrices=False)
    rank = int((s > rtol * s[0].clamp_min(1e-300)).sum()) if s.numel() else 0
    root = s[:rank].sqrt()
    left, right = u[:, :rank] * root, root[:, None] * v[:rank]
    per_step = (u[:, :rank] / root).mT @ next_ @ (v[:rank] / root[:, None]).mT
    return left[:p], per_step, right[:, :q], s


def realise(samples: Float[Tensor, "N p q"], step: float = 1.0, *, rtol: float = 1e-10) -> Realisation:
    """C, L and B with A(u) = C exp(uL) B, from samples at the lags 0, step, 2 step, ..

    Where A(0) is invertible n is its size and C B = A(0); where it is singular n may be larger or smaller, and no new function of the
    lag appears: queries and keys are confined to fixed subspaces. Take at least 2 n + 1 samples.

    Args:
        rtol: singular values below this share of the largest count as 0.
    Units: L per unit of the lag; frequencies are known up to multiples of 2 pi / step, so take step below pi / the fastest.
    Raises: AxiomError where the samples belong to integer times only: exp(step L) would need a real logarithm and has none; ShapeError
        for fewer than 2 samples.
    Source: Ho and Kalman, 1966; Culver, 1966, for the existence of a real logarithm.

    >>> import torch
    >>> lags = torch.arange(6, dtype=torch.float64)
    >>> bias = torch.zeros(6, 2, 2, dtype=torch.float64)
    >>> bias[:, 0, 1] = lags  # A(u) = [[0, u], [0, 0]], and A(0) = 0
    >>> realise(bias).rank
    2
    """
    c, per_step, b, s = hankel(samples, rtol)
    return Realisation(c, real_logarithm(per_step) / step, b, per_step, s, step)


def real_logarithm(matrix: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """The principal logarithm of a real matrix, defective ones included: square roots until it is near 1, then Gauss quadrature.

    log(1 + X) = integral over x in [0, 1] of X (1 + x X)^-1, by 12 nodes once |X| < 0.2.

    Raises: AxiomError where an eigenvalue is 0 or on the negative axis: there is no principal real logarithm.

    >>> import torch
    >>> real_logarithm(torch.tensor([[1.0, 3.0], [0.0, 1.0]], dtype=torch.float64)).round(decimals=9)
    tensor([[0., 3.],
            [0., 0.]], dtype=torch.float64)
    """
    a = matrix.double()
    n = a.shape[-1]
    if not n:
        return a
    values = torch.linalg.eigvals(a)
    size = float(values.abs().max())
    if bool((values.abs() <= 1e-9 * size).any()):
        raise AxiomError("got a step with the eigenvalue 0; expected an invertible one: exp(uL) never loses a dimension")
    if bool(((values.imag.abs() <= 1e-9 * size) & (values.real < 0)).any()):
        raise AxiomError(
            "got a step with a negative eigenvalue, which has no principal real logarithm; expected samples closer together (a pair "
            "turned by half a turn per step), or times that are integers only, where B(n) = B(1)^n needs no L"
        )
    eye = torch.eye(n, dtype=a.dtype)
    halvings = 0
    while float(torch.linalg.matrix_norm(a - eye, 1)) > 0.2 and halvings < 60:
        a, halvings = _square_root(a), halvings + 1
    nodes, weights = _gauss(12)
    x = a - eye
    out = sum((w * torch.linalg.solve(eye + node * x, x) for node, w in zip(nodes, weights, strict=True)), torch.zeros_like(a))
    return math.ldexp(1.0, halvings) * out


def _square_root(a: Tensor) -> Tensor:
    """The principal square root by the scaled product form of the Denman-Beavers iteration."""
    eye = torch.eye(a.shape[-1], dtype=a.dtype)
    m, x = a, a
    for _ in range(60):
        inverse = torch.linalg.inv(m)
        x = x @ (eye + inverse) / 2
        m = (eye + (m + inverse) / 2) / 2
        if float(torch.linalg.matrix_norm(m - eye, 1)) < 1e-15 * a.shape[-1]:
            break
    return x


def _gauss(n: int) -> tuple[list[float], list[float]]:
    """Nodes and weights of Gauss-Legendre quadrature on [0, 1], from the eigenvectors of the Jacobi matrix."""
    k = torch.arange(1, n, dtype=torch.float64)
    off = k / (4 * k.square() - 1).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return ((nodes + 1) / 2).tolist(), vectors[0].square().tolist()
