"""Dense and learned generators: any real matrix, planes by the Rodrigues formula, and the parametrisations that keep them stable."""

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from eigenclock.errors import ConfigError, GrowthError, ShapeError, UnsupportedError
from eigenclock.testing import check_generator
from eigenclock.theory import Conjugate, Dense, Jordan, Plane, Rotation, cayley, dissipative, skew_symmetric
from eigenclock.theory.modes import growth

F64 = torch.float64


def t(*values) -> Tensor:
    return torch.tensor(values, dtype=F64)


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dim", [1, 2, 3, 6, 9])
def test_skew_symmetric_matrices_keep_the_laws(dim, seed):
    generator = Dense(skew_symmetric(random(dim * (dim - 1) // 2, seed=seed)))
    check_generator(generator)
    assert str(generator.form) == " + ".join([f"{dim // 2}R"] * (dim > 1) + ["1Z"] * (dim % 2))
    split = generator.split()
    torch.testing.assert_close(split.basis.mT @ split.basis, torch.eye(dim, dtype=F64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rank", [1, 3, 6])
def test_dissipative_matrices_never_grow(seed, rank):
    L = dissipative(random(15, seed=seed), random(6, rank, seed=seed + 10, scale=0.5))
    assert torch.linalg.eigvals(L).real.max() <= 1e-12
    lengths = torch.linalg.matrix_norm(Dense(L).matrix(torch.linspace(0, 20, 41, dtype=F64)), 2)
    assert (lengths.diff() <= 1e-12).all()  # a contraction, not only stable: no transient either
    check_generator(Dense(L), atol=1e-8)


@pytest.mark.parametrize(
    ("matrix", "form"),
    [
        ([[0.0, 0.0], [0.0, 0.0]], "2Z"),
        ([[-0.5, 0.0], [0.0, 0.0]], "1D + 1Z"),
        ([[-1.0, 3.0], [0.0, -2.0]], "2D"),
        ([[-0.1, 2.0], [-2.0, -0.1]], "1S"),
        ([[0.0, 4.0], [-1.0, 0.0]], "1R"),
        ([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, -2.0]], "1R + 1D"),
        ([[-0.3, 0.1], [0.1, -0.3]], "2D"),
    ],
)
def test_forms(matrix, form):
    generator = Dense(t(*matrix))
    assert generator.form == ec.JordanForm(form)
    check_generator(generator)


def test_heads():
    generator = Dense(torch.stack([skew_symmetric(random(6, seed=i)) - 0.1 * i * torch.eye(4) for i in range(3)]))
    assert generator.heads == 3 and str(generator.form) == "2S"
    check_generator(generator)
    x, times = random(2, 3, 5, 4), torch.linspace(0, 3, 5, dtype=F64)
    each = torch.stack([Dense(generator.entries[h]).act(x[:, h], times) for h in range(3)], 1)
    torch.testing.assert_close(generator.act(x, times), each)
    with pytest.raises(UnsupportedError, match="same number in each head"):
        Dense(torch.stack([torch.zeros(2, 2, dtype=F64), skew_symmetric(t(1.0))])).split()


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e3])
def test_growth_is_refused_whatever_the_size(size):
    for grows in ([[0.01, 0.0], [0.0, -1.0]], [[0.01, 2.0], [-2.0, 0.01]], [[0.0, 1.0], [1.0, 0.0]]):
        with pytest.raises(GrowthError, match="dissipative"):
            Dense(size * t(*grows))
    with pytest.raises(GrowthError):
        Dense(torch.stack([-torch.eye(2), 0.1 * torch.eye(2)]))


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_a_defective_matrix_is_not_taken_for_growth_but_has_no_modes(order, rate, seed):
    """Its eigenvalues are only known to the root of the rounding; they must not be read as growth."""
    block = Jordan(t(rate), order=order)
    basis = random(order, order, seed=seed) + 3 * torch.eye(order)
    matrix = basis @ block.matrix() @ torch.linalg.inv(basis)
    assert growth(matrix)[0] <= 0
    generator = Dense(matrix)
    torch.testing.assert_close(generator.matrix(2.5), torch.matrix_exp(2.5 * matrix))
    moved = generator.act(torch.ones(1, order, dtype=F64), t(2.5))
    torch.testing.assert_close(moved[0], torch.matrix_exp(2.5 * matrix).sum(-1))
    for ask in (generator.split, generator.blocks, lambda: generator.form):
        with pytest.raises(UnsupportedError, match="Conjugate\\(Jordan"):
            ask()
    check_generator(Conjugate(block, basis), atol=1e-7)  # what the message says to write


def test_shapes_and_clocks_are_checked():
    with pytest.raises(ShapeError, match="square|real"):
        Dense(torch.zeros(2, 3))
    with pytest.raises(ShapeError, match="numbers"):
        skew_symmetric(torch.zeros(4))
    with pytest.raises(ShapeError, match="one clock"):
        Dense(torch.zeros(2, 2)).act(torch.ones(1, 3, 2), torch.zeros(1, 3, 2))
    with pytest.raises(ShapeError, match="width"):
        Dense(torch.zeros(2, 2)).act(torch.ones(1, 3, 4), torch.zeros(3))
    with pytest.raises(ShapeError):
        Plane(torch.ones(3), torch.ones(4))
    for b in ([2.0, 0.0], [0.0, 0.0]):
        with pytest.raises(ConfigError, match="plane"):
            Plane(t(1.0, 0.0), t(*b))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dim", [2, 3, 7])
def test_a_plane_is_the_exponential_of_its_matrix(dim, seed):
    a, b = random(2, dim, seed=seed)
    plane = Plane(a, b)
    L = a[:, None] * b - b[:, None] * a
    torch.testing.assert_close(plane.matrix().reshape(dim, dim), L)
    for u in (-3.0, 0.0, 0.7, 40.0):
        torch.testing.assert_close(plane.matrix(u), torch.matrix_exp(u * L), rtol=0, atol=1e-11)
    check_generator(plane)
    s = torch.linalg.eigvals(L).imag.abs().max()
    torch.testing.assert_close(plane.split().turns[0].freq.abs(), s[None])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_plane_along_the_axes_is_a_rotation(sign):
    """The reflections behind the basis have no singular direction at the axes, on either side of them."""
    for a in (t(sign, 0.0, 0.0), t(0.0, sign, 0.0), t(sign * 1e-12, 0.0, 1.0)):
        for b in (t(0.3, 0.4, 0.5), t(0.0, 0.0, 1.0) if a[2] == 0 else t(1.0, 0.0, 0.0)):
            check_generator(Plane(a, b))
    pair = Plane(t(0.0, sign * 0.3), t(1.0, 0.0)).matrix()
    torch.testing.assert_close(pair.reshape(2, 2), Rotation(t(-sign * 0.3)).matrix())


def test_the_cayley_map_is_orthogonal_and_smooth():
    upper = random(10).requires_grad_()
    q = cayley(upper)
    torch.testing.assert_close(q.mT @ q, torch.eye(5, dtype=F64), rtol=0, atol=1e-12)
    assert torch.equal(cayley(torch.zeros(10, dtype=F64)), torch.eye(5, dtype=F64))
    assert torch.autograd.gradcheck(cayley, (upper,))
    assert torch.autograd.gradcheck(cayley, (torch.zeros(2, 6, dtype=F64, requires_grad=True),))


@pytest.mark.parametrize("what", ["skew", "dissipative", "symmetric"])
def test_gradients_go_through_the_modes(what):
    """exp(tL) assembled from the split has the gradient of matrix_exp(tL)."""
    upper, root = random(6).requires_grad_(), random(4, 4, seed=1).requires_grad_()

    def matrix(upper: Tensor, root: Tensor) -> Tensor:
        if what == "skew":
            return skew_symmetric(upper) + 0 * root.sum()
        return dissipative(upper * (what == "dissipative"), root)

    def assembled(upper: Tensor, root: Tensor) -> Tensor:
        split = Dense(matrix(upper, root)).split()
        turning, decaying, _ = (torch.linalg.solve(split.basis, p @ split.basis) for p in split.parts())
        return split.basis @ torch.matrix_exp(0.7 * turning) @ torch.matrix_exp(0.7 * decaying) @ split.inverse

    direct = torch.autograd.functional.jacobian(lambda a, b: torch.matrix_exp(0.7 * matrix(a, b)), (upper, root))
    through = torch.autograd.functional.jacobian(assembled, (upper, root))
    for a, b in zip(direct, through, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def test_learned_matrices_with_equal_eigenvalues_say_what_to_do_instead():
    upper = torch.zeros(6, dtype=F64, requires_grad=True)
    start = torch.block_diag(*[t([0.0, 1.0], [-1.0, 0.0])] * 2)
    learned = Dense(start + skew_symmetric(upper))
    with pytest.raises(UnsupportedError, match="cayley"):
        learned.split()
    learned.act(torch.ones(1, 4, dtype=F64), t(2.0)).sum().backward()  # the action itself needs no eigenvectors
    assert torch.isfinite(upper.grad).all() and upper.grad.abs().sum() > 0
    assert str(Dense(start).form) == "2R"  # fixed ones may coincide


def test_float32_and_bfloat16_input():
    generator = Dense(dissipative(random(6), random(4, 2, seed=1)))
    plane = Plane(*random(2, 4))
    x, times = random(20, 4), torch.linspace(0, 1000, 20, dtype=F64)
    for which in (generator, plane):
        exact = which.act(x, times)
        for dtype in (torch.float32, torch.bfloat16):
            low = which.act(x.to(dtype), times)
            assert low.dtype == dtype
            assert (low.double() - exact).abs().max() <= 4 * torch.finfo(dtype).eps * exact.abs().max()
