"""The real modes of a diagonalisable matrix: a basis in which it is rotations and decays, differentiable in its entries."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.errors import UnsupportedError

MAX_CONDITION = 1e4
"""Eigenvectors of a larger condition are refused: a basis costs its condition times the rounding of the dtype."""

_EPS = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Modes:
    """L = basis @ blocks @ inverse: ``pairs`` blocks -rate - freq J on channels (2i, 2i + 1), then the real eigenvalues -rate.

    rate (D,), freq (pairs,), basis and inverse (D, D), condition of the basis, skew where L^T = -L.
    """

    pairs: int
    freq: Float[Tensor, "n"]
    rate: Float[Tensor, "D"]
    basis: Float[Tensor, "D D"]
    inverse: Float[Tensor, "D D"]
    condition: float
    skew: bool


def growth(L: Float[Tensor, "D D"]) -> tuple[float, float]:
    """How far the largest real part stands above what rounding explains, and that real part.

    An eigenvalue moves by the rounding of L times its condition 1 / |<y, x>|, which for a defective one is large: an exact nilpotent
    block must not be taken for growth. The allowance ends at 1e-4 of the norm.
    """
    if not L.numel():
        return 0.0, 0.0
    values, vectors = torch.linalg.eig(L)
    norm = float(torch.linalg.matrix_norm(L, 2))
    allowed = _allowance(vectors, L.shape[-1]) * norm
    over = values.real - allowed
    worst = int(over.argmax())
    return float(over[worst]), float(values.real[worst])


def _allowance(vectors: Tensor, dim: int) -> Tensor:
    """The relative rounding error of each eigenvalue: 10 D eps times its condition, at most 1e-4."""
    inverse, info = torch.linalg.inv_ex(vectors)
    condition = torch.linalg.vector_norm(inverse, dim=-1) * torch.linalg.vector_norm(vectors, dim=-2)
    condition = torch.where(torch.isfinite(condition) & (info == 0), condition, torch.inf)
    return (10 * dim * _EPS * condition).clamp(max=1e-4)


def modes(L: Float[Tensor, "D D"]) -> Modes:
    """The modes of one matrix in float64; gradients to L are those of first-order perturbation.

    Raises: UnsupportedError where L is learned and two eigenvalues coincide: the basis then has no derivative.
    """
    with torch.no_grad():
        norm = float(L.abs().max()) if L.numel() else 0.0
        skew = bool((L + L.mT).abs().max() <= 1e-12 * norm) if L.numel() else False
        symmetric = bool((L - L.mT).abs().max() <= 1e-12 * norm) if L.numel() else True
        if skew:
            pairs, freq, rate, basis = _skew(L, norm)
        elif symmetric:
            values, basis = torch.linalg.eigh(L)
            pairs, freq, rate = 0, L.new_zeros(0), _settled(-values, norm * L.shape[-1] * _EPS)
        else:
            pairs, freq, rate, basis = _general(L)
        orthogonal = skew or symmetric
        condition = 1.0 if orthogonal else float(torch.linalg.cond(basis))
        inverse = basis.mT if orthogonal else torch.linalg.inv_ex(basis)[0]
    if L.requires_grad and condition <= MAX_CONDITION:
        freq, rate, basis, inverse = _differentiable(L, pairs, freq, rate, basis, inverse, norm)
    return Modes(pairs, freq, rate, basis, inverse, condition, skew)


def _settled(rate: Tensor, floor: Tensor | float) -> Tensor:
    """Rates of the size of rounding are 0."""
    return torch.where(rate.abs() <= floor, 0.0, rate).clamp_min(0.0)


def _skew(L: Tensor, norm: float) -> tuple[int, Tensor, Tensor, Tensor]:
    """Orthogonal planes: eigenvectors x + iy of i omega give L x = -omega y, L y = omega x."""
    values, vectors = torch.linalg.eigh(-1j * L)  # eigenvalues omega, in order; they come as +-
    chosen = values > 4 * L.shape[-1] * _EPS * norm
    pairs = int(chosen.sum())
    planes = torch.view_as_real(vectors[:, chosen]).flatten(1) * 2**0.5  # columns x_1, y_1, x_2, y_2, ..
    rest = torch.linalg.qr(planes, mode="complete")[0][:, 2 * pairs :]  # what no plane holds stays
    return pairs, values[chosen], L.new_zeros(L.shape[-1]), torch.cat([planes, rest], -1)


def _general(L: Tensor) -> tuple[int, Tensor, Tensor, Tensor]:
    values, vectors = torch.linalg.eig(L)
    rates = _settled(-values.real, _allowance(vectors, L.shape[-1]) * float(torch.linalg.matrix_norm(L, 2)))
    up, real = values.imag > 0, values.imag == 0
    pairs = int(up.sum())
    planes = torch.view_as_real(vectors[:, up]).flatten(1) * 2**0.5  # eigenvectors come with norm 1
    basis = torch.cat([planes, vectors[:, real].real], -1)
    return pairs, values.imag[up], torch.cat([rates[up].repeat_interleave(2), rates[real]]), basis


def _differentiable(
    L: Tensor, pairs: int, freq: Tensor, rate: Tensor, basis: Tensor, inverse: Tensor, norm: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same numbers with their derivative: E = basis^-1 dL basis moves eigenvalues by its diagonal, the basis by E_ij / (l_j - l_i)."""
    dim = L.shape[-1]
    to_real = torch.eye(dim, dtype=torch.complex128)  # columns of a pair: x + iy and x - iy
    values = torch.complex(-rate, torch.zeros_like(rate))
    for i in range(pairs):
        a, b = 2 * i, 2 * i + 1
        to_real[a : b + 1, a : b + 1] = torch.tensor([[1, 1], [1j, -1j]], dtype=torch.complex128)
        values[a] += 1j * freq[i]
        values[b] -= 1j * freq[i]
    gap = values[None, :] - values[:, None]
    off = ~torch.eye(dim, dtype=torch.bool)
    if dim > 1 and float(gap.abs()[off].min()) <= 1e-7 * norm:
        raise UnsupportedError(
            "got a learned matrix with two equal eigenvalues; expected distinct ones (its basis has no derivative there): learn the "
            "frequencies and the basis apart, as Conjugate(Rotation(freq), cayley(upper)), or start from distinct frequencies"
        )
    change = (inverse @ (L - L.detach()) @ basis).to(torch.complex128)  # zero, with a derivative
    change = torch.linalg.inv(to_real) @ change @ to_real
    moved = torch.diagonal(change)
    turned = (to_real @ torch.where(off, change / torch.where(off, gap, 1.0), 0.0) @ torch.linalg.inv(to_real)).real
    eye = torch.eye(dim, dtype=L.dtype)
    return freq + moved[0 : 2 * pairs : 2].imag, rate - moved.real, basis @ (eye + turned), (eye - turned) @ inverse
