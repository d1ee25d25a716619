"""The fixed-kernel probe of Jordan-RoPE (2605.04217, table 3): what a ridge fit on the entries of exp(uL) can extrapolate.

Target y(u) = (u/L) cos(w_3 u), w_i = 10000^(-2i/64) for 16 frequencies, a constant among the features, ridge 1e-4; fitted on whole lags
u < L = 1024, mean square error over u < 8192. Features are read off the group of each generator.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from eigenclock.theory import DampedRotation, Decay, Generator, Jordan, Rotation

F64 = torch.float64
L, FAR, RIDGE = 1024, 8192, 1e-4
FREQ = ec.geometric(10000.0)(32).values[:16]
Features = Callable[[Tensor], list[Tensor]]


def entries(*blocks: Generator) -> Features:
    """The distinct entries of exp(uL), one generator for each block: its first row."""
    return lambda u: [entry for block in blocks for entry in block.matrix(u)[:, 0].unbind(-1)]


def both(*parts: Features) -> Features:
    return lambda u: [x for part in parts for x in part(u)]


def one(value: float) -> Tensor:
    return torch.tensor([value], dtype=F64)


def damped(g: float) -> Features:
    return entries(*(DampedRotation(one(g), f) for f in FREQ.split(1)))


def jordan(g: float) -> Features:
    return entries(*(Jordan(one(g), 2, f, eta=one(1 / L)) for f in FREQ.split(1)))


def bounded(damped: Features) -> Features:
    """What is no group: a shear that saturates, u/(1 + u/L), beside each damped entry."""
    return lambda u: [y for x in damped(u) for y in (x, x * u / (1 + u / L) / L)]


ROPE = entries(*(Rotation(f) for f in FREQ.split(1)))
ALIBI: Features = lambda u: entries(Jordan(one(0), 2, eta=one(1 / L)))(u)[1:]  # noqa: E731 - the constant is there already
# name -> (features, published error, error of a float64 fit: the published fits are float32, whose rounding shows where damping is weak)
BASES: dict[str, tuple[Features, float, float]] = {
    "RoPE": (ROPE, 8.791, 8.791),
    "ALiBi": (ALIBI, 10.666, 10.67),
    "RoPE and ALiBi": (both(ROPE, ALIBI), 8.791, 8.791),
    "damped RoPE": (damped(1e-4), 9.510, 9.51),
    "direct sum": (both(ROPE, ALIBI, bounded(entries(Decay(one(1e-4), 1)))), 8.819, 8.834),
    "stabilised Jordan": (bounded(damped(1e-4)), 7.414, 7.419),
    "raw Jordan": (jordan(1e-4), 1.975, 2.037),
    "scaled Jordan, c = 0.1": (jordan(0.1 / L), 2.011, 1.970),
    "scaled Jordan, c = 1": (jordan(1 / L), 10.254, 10.25),
}


def far_error(features: Features) -> tuple[float, float]:
    """Mean square error on the fitted lags, and on all."""

    def design(n: int) -> tuple[Tensor, Tensor]:
        u = torch.arange(n, dtype=F64)
        return torch.stack([torch.ones_like(u), *features(u)], -1), u / L * (FREQ[3] * u).cos()

    X, y = design(L)
    weights = torch.linalg.solve(X.T @ X + RIDGE * torch.eye(X.shape[1], dtype=F64), X.T @ y)
    near, far = (float((A @ weights - b).square().mean()) for A, b in ((X, y), design(FAR)))
    return near, far


@pytest.mark.parametrize("name", BASES)
def test_published_table(name):
    features, published, exact = BASES[name]
    _, error = far_error(features)
    assert error == pytest.approx(exact, rel=1e-3)  # three digits
    assert error == pytest.approx(published, rel=4e-2)


def test_without_damping_the_fit_is_exact():
    """The row that is not published: the exact rows above measure the mismatch of their own damping, not the basis."""
    near, far = far_error(jordan(0.0))
    assert near < 1e-8 and far < 1e-7


def test_the_target_is_an_entry_of_the_group():
    """And why: at rate 0 the block of w_3 holds (u/L) cos(w_3 u) itself, which no bounded or damped entry does."""
    u = torch.arange(FAR, dtype=F64)
    A = Jordan(one(0.0), 2, FREQ[3:4], eta=one(1 / L)).matrix(u)
    assert torch.allclose(A[:, 0, 2], u / L * (FREQ[3] * u).cos(), rtol=0, atol=1e-9)


def test_features_are_distinct_entries():
    """A feature counted twice would halve its ridge: 2 per frequency for rotations, 4 for blocks of order 2."""
    u = torch.tensor([0.3, 5.0], dtype=F64)
    assert [len(f(u)) for f in (ROPE, ALIBI, jordan(0.1))] == [32, 1, 64]
