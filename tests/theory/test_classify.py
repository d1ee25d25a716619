"""Classification: random Jordan forms with known answers, classical matrices, and what may not change the answer.

A draw is a real Jordan form with unit superdiagonals, in a basis U diag(s) V^T with orthogonal U, V and log-uniform s between 1 and
1/condition. Eigenvalues are 0, -a, +-iw and -a +- iw with a, w up to 1; one in four repeats an earlier one, and of the new ones two in
five stand exactly at the distance ``gap`` of an earlier one. The gap of a draw is log-uniform between the least of its class and 1.
The matrix is formed in extended precision and rounded once, except in the class that says otherwise.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import eigenclock as ec
from eigenclock.theory import JordanBlock, JordanForm

Block = tuple[complex, int]  # an eigenvalue with Im >= 0, and the order


@dataclass(frozen=True)
class Kind:
    """A class of draws."""

    dtype: str
    gap: float = 1e-3
    condition: float = 1e4
    order: int = 4
    computed: bool = False  # P @ J @ inv(P) in float64, errors and all
    decided: float = 0.0  # the least share that must be decided and right


KINDS = {
    "float64, 0.05 apart, condition to 100": Kind("float64", gap=0.05, condition=100.0, decided=0.995),
    "the same, computed in float64": Kind("float64", gap=0.05, condition=100.0, computed=True, decided=0.99),
    "float32, orders to 2, condition to 10": Kind("float32", condition=10.0, order=2, decided=0.95),
    "float64, everything": Kind("float64", decided=0.9),
    "float32, everything": Kind("float32", decided=0.2),
}


@dataclass(frozen=True)
class Draw:
    matrix: np.ndarray
    basis: np.ndarray
    jordan: np.ndarray
    blocks: list[Block]
    condition: float
    gap: float


def orthogonal(rng: np.random.Generator, n: int) -> np.ndarray:
    q, r = np.linalg.qr(rng.standard_normal((n, n)))
    return q * np.sign(np.diag(r))


def width(value: complex, order: int) -> int:
    return order * (2 if value.imag else 1)


def draw_eigenvalue(rng: np.random.Generator, known: list[complex], gap: float, least: float, room: int) -> complex | None:
    """A new eigenvalue at least ``gap`` from the known ones, their conjugates and its own; real parts are 0 or at most -least."""
    for attempt in range(400):
        gap = max(least, gap * (1.0 if attempt < 100 else 0.97))  # where there is no room left, the gap gives way
        a, w = rng.uniform(0, 1, 2)
        value = (0j, complex(-a), complex(0, w), complex(-a, w))[rng.integers(4)]
        if known and rng.random() < 0.4:
            base = known[rng.integers(len(known))]
            steps = [gap, -gap] if not base.imag else [1j * gap, -1j * gap] if not base.real else [gap * np.exp(2j * np.pi * rng.random())]
            value = complex(base + steps[rng.integers(len(steps))])
            if not base.real and rng.random() < 0.5:  # beside the imaginary axis
                value = complex(-gap, base.imag)
        others = [x for k in known for x in (k, k.conjugate())] + ([value.conjugate()] if value.imag else [])
        allowed = value.imag >= 0 and width(value, 1) <= room and (value.real == 0 or value.real <= -least)
        if allowed and all(abs(value - x) >= 0.999 * gap for x in others):
            return value
    return None


def real_jordan(blocks: list[Block]) -> np.ndarray:
    J, at = np.zeros((sum(width(*b) for b in blocks),) * 2), 0
    for value, order in blocks:
        cell = np.array([[value.real, value.imag], [-value.imag, value.real]]) if value.imag else np.array([[value.real]])
        block = np.kron(np.eye(order), cell) + np.kron(np.eye(order, k=1), np.eye(len(cell)))
        J[at : at + len(block), at : at + len(block)] = block
        at += len(block)
    return J


def draw(rng: np.random.Generator, kind: Kind) -> Draw:
    n = int(rng.integers(2, 17))
    gap = float(np.exp(rng.uniform(math.log(kind.gap), 0.0)))
    values: list[complex] = []
    blocks: list[Block] = []
    left = n
    while left:
        old = [v for v in values if width(v, 1) <= left]
        if old and rng.random() < 0.25:
            value = old[rng.integers(len(old))]
        elif (value := draw_eigenvalue(rng, values, gap, kind.gap, left)) is None:
            return draw(rng, kind)  # no room for another eigenvalue: start again
        else:
            values.append(value)
        order = min(int(rng.integers(1, kind.order + 1)), left // width(value, 1))
        blocks.append((value, order))
        left -= width(value, order)
    condition = float(np.exp(rng.uniform(0.0, math.log(kind.condition))))
    s = np.exp(rng.uniform(-math.log(condition), 0.0, n))
    s[0], s[-1] = 1.0, 1.0 / condition
    P, J = (orthogonal(rng, n) * s) @ orthogonal(rng, n), real_jordan(blocks)
    if kind.computed:
        A = P @ J @ np.linalg.inv(P)
    else:
        wide, inverse = P.astype(np.longdouble), np.linalg.inv(P).astype(np.longdouble)
        for _ in range(3):  # Newton's iteration for the inverse
            inverse = inverse @ (2 * np.eye(n) - wide @ inverse)
        A = wide @ J.astype(np.longdouble) @ inverse
    return Draw(A.astype(kind.dtype), P, J, blocks, condition, gap)


def form_of(blocks: list[Block]) -> JordanForm:
    letters = {(False, False): "Z", (True, False): "D", (False, True): "R", (True, True): "S"}
    return JordanForm(JordanBlock(letters[value.real != 0, value.imag != 0], order) for value, order in blocks)


def apart(blocks: list[Block]) -> float:
    """The smallest distance between distinct eigenvalues, conjugates included."""
    values = sorted({x for value, _ in blocks for x in (value, value.conjugate())}, key=lambda z: (z.real, z.imag))
    return min((abs(a - b) for i, a in enumerate(values) for b in values[:i]), default=math.inf)


def tally(kind: Kind, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    rng, seen, wrong = np.random.default_rng(seed), Counter(), []
    for _ in range(count):
        drawn = draw(rng, kind)
        found = ec.classify(drawn.matrix)
        right = form_of(drawn.blocks)
        if not found.certain:
            seen["undecided"] += 1
            seen["undecided, right one among the readings"] += right in [reading.form for reading in found.readings]
        elif found.form == right:
            seen["right"] += 1
        else:
            seen["wrong"] += 1
            wrong.append(f"{right} read as {found.form}: condition {drawn.condition:.0f}, eigenvalues {apart(drawn.blocks):.2g} apart")
    return seen, wrong


def check_kind(name: str, count: int, seed: int) -> None:
    kind = KINDS[name]
    seen, wrong = tally(kind, count, seed)
    print(f"{name}: {dict(seen)}")
    assert wrong == []  # not one, in any class
    assert seen["right"] >= kind.decided * count, seen


# The shares asked for are those of 1,000 draws; a smaller sample may miss them by chance, so its own is a little lower.
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", KINDS)
def test_a_thousand_random_forms(name):
    check_kind(name, 1000, seed=1)


@pytest.mark.parametrize("name", KINDS)
def test_random_forms(name):
    kind = KINDS[name]
    count = 150 if kind.condition <= 100 else 80
    seen, wrong = tally(kind, count, seed=2)
    print(f"{name}: {dict(seen)}")
    assert wrong == []
    assert seen["right"] >= (kind.decided - 0.03) * count, seen


@pytest.mark.parametrize("name", KINDS)
def test_draws_are_what_they_say(name):
    kind = KINDS[name]
    rng = np.random.default_rng(3)
    drawn = [draw(rng, kind) for _ in range(200)]
    assert {len(d.matrix) for d in drawn} == set(range(2, 17))
    assert {order for d in drawn for _, order in d.blocks} == set(range(1, kind.order + 1))
    assert {block.kind for d in drawn for block, _ in form_of(d.blocks)} == set("DRSZ")
    assert sum(len({v for v, _ in d.blocks}) < len(d.blocks) for d in drawn) > 50  # several blocks at one eigenvalue
    gaps = [apart(d.blocks) for d in drawn]
    assert min(gaps) >= 0.99 * kind.gap
    assert sum(g < 4 * kind.gap for g in gaps) > 10 and sum(g > 0.3 for g in gaps) > 10
    assert min(d.condition for d in drawn) < 2 and max(d.condition for d in drawn) > 0.7 * kind.condition
    for d in drawn:
        assert np.linalg.cond(d.basis) == pytest.approx(d.condition, rel=1e-6)
        assert d.matrix.dtype == kind.dtype
        unit = np.finfo(kind.dtype).eps * (d.condition if kind.computed else 1.0)
        error = np.abs(d.matrix.astype(np.longdouble) @ d.basis - d.basis.astype(np.longdouble) @ d.jordan).max()
        assert error <= 10 * unit * np.linalg.norm(d.matrix) * np.linalg.norm(d.basis)


def test_a_wrong_answer_would_be_noticed(monkeypatch):
    right = ec.classify
    monkeypatch.setattr(ec, "classify", lambda matrix: right(-matrix.T @ matrix))  # all real, all semisimple
    with pytest.raises(AssertionError):
        check_kind("float64, 0.05 apart, condition to 100", 20, seed=4)


def test_basis_and_numbers_are_those_of_the_draw():
    rng = np.random.default_rng(5)
    for _ in range(30):
        drawn = draw(rng, KINDS["float64, 0.05 apart, condition to 100"])
        found = ec.classify(torch.from_numpy(drawn.matrix))
        assert found.certain and found.basis is not None and found.jordan is not None
        again = found.basis @ found.jordan @ torch.linalg.inv(found.basis)
        scale = float(np.linalg.norm(drawn.matrix))
        assert float(torch.linalg.norm(again - torch.from_numpy(drawn.matrix))) <= 1e-12 * found.condition * scale
        assert found.residual <= 1e-12 * found.condition
        assert found.condition == pytest.approx(float(torch.linalg.cond(found.basis)), rel=1e-6)
        truth = Counter((round(-v.real, 6), round(v.imag, 6), order) for v, order in drawn.blocks)
        assert Counter({(abs(round(b.rate, 6)), round(b.freq, 6), b.order): b.count for b in found.blocks}) == truth
        for block in found.blocks:
            value = min((v for v, _ in drawn.blocks), key=lambda v: abs(v - complex(-block.rate, block.freq)))
            assert abs(value - complex(-block.rate, block.freq)) <= 2 * block.error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 16])
def test_hippo_lagt_is_one_block_of_full_order(n, dtype):
    transition = -torch.tril(torch.ones(n, n), -1) - 0.5 * torch.eye(n)
    found = ec.classify(transition.to(dtype))
    assert found.certain and found.form == JordanForm(f"1D{n}")
    assert found.blocks[0].rate == 0.5
    assert found.family == ("decay" if n == 1 else "Jordan")


@pytest.mark.parametrize(
    ("matrix", "form", "family"),
    [
        ([[0.0, 1.0], [0.0, 0.0]], "1Z2", "ALiBi-type lift"),
        ([[0.0, 0.0], [-3.0, 0.0]], "1Z2", "ALiBi-type lift"),
        ([[0.0]], "1Z", "NoPE"),
        ([[0.0, 0.0], [0.0, 0.0]], "2Z", "NoPE"),
        ([[-0.1, 0.0], [0.0, 0.0]], "1D + 1Z", "decay"),
        ([[0.0, 0.5], [-0.5, 0.0]], "1R", "RoPE"),
        ([[0.0, 4.0], [-1.0, 0.0]], "1R", "RoPE"),
        ([[0.0, 1e-4, 0.0], [-1e-4, 0.0, 0.0], [0.0, 0.0, 0.0]], "1R + 1Z", "RoPE"),
        ([[-0.2, 0.5], [-0.5, -0.2]], "1S", "damped RoPE"),
        ([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]], "1Z3", "Jordan"),
        ([[-1.0, 1.0], [0.0, -1.0]], "1D2", "Jordan"),
        ([[-1.0, 0.0, 0.0], [0.0, 0.0, 2.0], [0.0, -2.0, 0.0]], "1D + 1R", "mixed"),
        ([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, -1.0]], "1D + 1Z2", "mixed"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_classics(matrix, form, family, dtype):
    found = ec.classify(torch.tensor(matrix, dtype=dtype))
    assert found.certain and found.form == JordanForm(form) and found.family == family
    assert not found.grows and found.growth <= 0
    assert found.readings[0].form == found.form and len(found.readings) == 1


# The least a recipe needs beside its sizes. A boost that equals its rate has a rate of 0, which the form of the recipe counts as a decay.
NEEDS = {
    "decay": "decay(half_life=(4, 512))",
    "decay_bias": "decay_bias(half_life=(4, 512))",
    "gaussian_bias": "gaussian_bias(sigma=(4, 512))",
    "hyperbolic": "hyperbolic(boost=0.1, rate=0.3)",
    "two_sided": "two_sided(alibi * damped_rope)",
}


@pytest.mark.parametrize("name", ec.ENCODINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_encoding_is_recognised(name, dtype):
    encoding = ec.encoding(NEEDS.get(name, name), head_dim=12, heads=2)
    generators = [encoding.generator(), *(lift.generator for lift in encoding.lifts())]
    for generator in generators:
        matrices = generator.matrix().to(dtype)
        for matrix in matrices.reshape(-1, *matrices.shape[-2:]):
            found = ec.classify(matrix)
            # Lightning's first head has the rate 0: its numbers are those of no decay at all.
            expected = generator.form if matrix.any() else ec.JordanForm(f"{len(matrix)}Z")
            assert found.certain and found.form == expected, found


def example(form: str) -> np.ndarray:
    blocks: list[Block] = []
    values = {"Z": 0j, "D": -0.3 + 0j, "R": 0.7j, "S": -0.5 + 0.4j}
    for block, count in JordanForm(form):
        blocks += [(values[block.kind], block.order)] * count
    return real_jordan(blocks)


FORMS = ["3Z", "1Z2 + 4Z", "1D + 1D2", "1D4", "2R + 1R2", "1S3", "1D2 + 1R + 1S2 + 1Z3", "2Z2", "4D + 1R"]


@pytest.mark.parametrize("form", FORMS)
def test_a_change_of_basis_changes_nothing(form):
    rng = np.random.default_rng(6)
    J = example(form)
    for condition in (1.0, 10.0, 100.0):
        n = len(J)
        P = (orthogonal(rng, n) * np.geomspace(1.0, 1.0 / condition, n)) @ orthogonal(rng, n)
        for A in (P @ J @ np.linalg.inv(P), (P @ J @ np.linalg.inv(P)).T):
            found = ec.classify(A)
            assert found.certain and found.form == JordanForm(form), found
            assert {round(b.rate, 6) for b in found.blocks} <= {0.0, 0.3, 0.5}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("unit", [1e-9, 1.0 / 3600.0, 7.0, 1e12])
def test_the_unit_of_time_scales_the_numbers_alone(form, unit):
    rng = np.random.default_rng(7)
    q = orthogonal(rng, len(example(form)))
    plain, scaled = ec.classify(q @ example(form) @ q.T), ec.classify(unit * (q @ example(form) @ q.T))
    assert plain.certain and scaled.certain and plain.form == scaled.form == JordanForm(form)
    assert sorted(b.rate for b in scaled.blocks) == pytest.approx([unit * r for r in sorted(b.rate for b in plain.blocks)])
    assert sorted(b.freq for b in scaled.blocks) == pytest.approx([unit * f for f in sorted(b.freq for b in plain.blocks)])
    assert scaled.distance == pytest.approx(unit * plain.distance, rel=1e-3)
    assert scaled.precision == pytest.approx(unit * plain.precision, rel=1e-2)


@pytest.mark.parametrize("unit", [1e-300, 1e-200, 1e200, 1e307])
def test_units_at_the_ends_of_the_range(unit):
    found = ec.classify(unit * example("1D2 + 1R"))
    assert found.certain and found.form == JordanForm("1D2 + 1R")
    assert sorted(b.rate for b in found.blocks) == pytest.approx([0.0, 0.3 * unit])


@pytest.mark.parametrize(
    ("matrix", "growth"),
    [
        ([[0.1]], 0.1),
        ([[-1.0, 0.0], [0.0, 1e-6]], 1e-6),
        ([[0.0, 1.0], [1.0, 0.0]], 1.0),
        ([[0.2, 1.0], [-1.0, 0.2]], 0.2),
        ([[0.2, 1.0], [0.0, 0.2]], 0.2),
    ],
)
def test_growth_is_reported_and_never_called_a_decay(matrix, growth):
    found = ec.classify(torch.tensor(matrix, dtype=torch.float64))
    assert found.certain and found.grows and found.growth == pytest.approx(growth)
    assert found.form is None and found.family == "growing"
    growing = [block for block in found.blocks if block.kind == "G"]
    assert growing and all(block.rate < 0 for block in growing)
    assert "growing" in str(found) and "growth" in str(found)
    assert found.residual < 1e-12


def test_rounding_above_zero_is_no_growth():
    rng = np.random.default_rng(8)
    q = orthogonal(rng, 6)
    A = q @ example("3R") @ np.linalg.inv(q)
    assert np.linalg.eigvals(A).real.max() != 0  # what the eigenvalues alone would say
    found = ec.classify(A)
    assert found.certain and not found.grows and found.form == JordanForm("3R")


def test_undecided_gives_both_readings():
    close = np.array([[-0.5, 1.0], [1e-7, -0.5]])  # eigenvalues 6e-4 apart, at distance 1e-7 from one block of order 2
    found = ec.classify(close, tolerance=1e-7)
    assert not found.certain and found.form is None and found.family == "undecided" and found.basis is None
    assert {reading.form for reading in found.readings} == {JordanForm("1D2"), JordanForm("2D")}
    distances = {reading.form: reading.distance for reading in found.readings}
    assert distances[JordanForm("1D2")] == pytest.approx(1e-7, rel=1e-3)
    assert distances[JordanForm("2D")] < 1e-12
    assert found.distance == pytest.approx(1e-7, rel=1e-3)
    assert "1D2" in str(found) and "2D" in str(found) and found.doubts
    sharper, coarser = ec.classify(close, tolerance=1e-12), ec.classify(close, tolerance=1e-9)
    assert sharper.form == JordanForm("2D") and coarser.form in (None, JordanForm("2D"))


@pytest.mark.parametrize(
    ("matrix", "distance"),
    [
        ([[-1.0, 0.0], [0.0, -1.1]], 0.05),  # to equal eigenvalues, |E| = gap / 2
        ([[-1.0, 1.0], [0.0, -1.001]], 0.001**2 / 4),  # to one block, gap^2 / (4 coupling)
        ([[-1.0, 0.01], [0.0, -1.0]], 0.01),  # to two blocks of order 1
        ([[-0.003, 0.0], [0.0, -1.0]], 0.003),  # to a rate of 0
        ([[0.0, 0.02], [-0.02, 0.0]], 0.02),  # to 2Z or Z2: |E| = freq for one entry
    ],
)
def test_distance_to_the_next_form(matrix, distance):
    found = ec.classify(torch.tensor(matrix, dtype=torch.float64))
    assert found.certain
    assert distance / 2 <= found.distance <= 2 * distance


def test_tolerance_is_what_the_answer_rests_on():
    rng = np.random.default_rng(9)
    q = orthogonal(rng, 4)
    A = q @ example("1D2 + 1R") @ q.T
    noise = rng.standard_normal((4, 4))
    trained = A + 1e-5 * np.linalg.norm(A) * noise / np.linalg.norm(noise)
    assert ec.classify(trained).form != JordanForm("1D2 + 1R")  # as if all digits were good
    stated = ec.classify(trained, tolerance=1e-5)
    assert JordanForm("1D2 + 1R") in [reading.form for reading in stated.readings]
    assert stated.precision == pytest.approx(1e-5 * np.linalg.norm(A), rel=1e-2)


def test_no_bare_verdict():
    rng = np.random.default_rng(10)
    texts = [str(ec.classify(draw(rng, kind).matrix)) for kind in KINDS.values() for _ in range(4)]
    for text in texts:
        assert re.search(r"entries known to \d", text)
        assert re.search(r"at distance (about )?\d|no other form nearby", text)
    assert len({text.split()[0] == "undecided" for text in texts}) == 2  # both kinds of answer were seen


@pytest.mark.parametrize(
    "bad",
    [
        torch.zeros(2, 3),
        torch.zeros(2, 2, 2),
        torch.zeros(3),
        torch.zeros(0, 0),
        torch.zeros(2, 2, dtype=torch.bfloat16),
        torch.zeros(2, 2, dtype=torch.int64),
        torch.zeros(2, 2, dtype=torch.complex64),
        np.zeros((2, 2), dtype=np.float16),
        [[0.0, 1.0], [0.0, 0.0]],
        None,
        torch.full((2, 2), math.nan),
        torch.tensor([[0.0, math.inf], [0.0, 0.0]]),
    ],
)
def test_anything_else_is_one_clear_error(bad):
    with pytest.raises(ec.ShapeError, match=r"got .* expected "):
        ec.classify(bad)


@pytest.mark.parametrize("tolerance", [-1e-3, 1.0, math.nan])
def test_a_tolerance_is_relative(tolerance):
    with pytest.raises(ec.ConfigError, match="tolerance"):
        ec.classify(torch.eye(2), tolerance=tolerance)


def test_torch_and_numpy_agree():
    matrix = example("1D2 + 1S")
    a, b = ec.classify(matrix), ec.classify(torch.from_numpy(matrix).requires_grad_())
    assert str(a) == str(b) and a.certain
