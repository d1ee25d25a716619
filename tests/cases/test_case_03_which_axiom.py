"""Case 03: three roundings that look alike in review; the measured axioms tell which property each one breaks."""

import pytest
import torch

import eigenclock as ec
from eigenclock.theory import Rotation, Sampling, by_matrix, maps_of, measure_axioms, realise

F64 = torch.float64


def frequencies(width: int, theta: float) -> torch.Tensor:
    return theta ** (-torch.arange(0, width, 2, dtype=F64) / width)


def rounded_times(freq: torch.Tensor, dtype: torch.dtype):
    """F and G with exact frequencies, whose times pass through ``dtype``."""
    F, G = maps_of(Rotation(freq))
    cast = lambda t: float(torch.tensor(t, dtype=F64).to(dtype))  # noqa: E731
    return lambda x, t: F(x, cast(t)), lambda x, s: G(x, cast(s))


def rounded_table(freq: torch.Tensor, dtype: torch.dtype):
    """One map for both sides, exact angles, cos and sin rounded to ``dtype``."""

    def matrix(t: float) -> torch.Tensor:
        cos, sin = ((f(t * freq)).to(dtype).double() for f in (torch.cos, torch.sin))
        out = torch.zeros(2 * len(freq), 2 * len(freq), dtype=F64)
        a = torch.arange(0, 2 * len(freq), 2)
        out[a, a], out[a, a + 1], out[a + 1, a], out[a + 1, a + 1] = cos, -sin, sin, cos
        return out

    return by_matrix(matrix)


def measured_frequencies(F, G, width: int) -> torch.Tensor:
    """The frequencies of the generator that the maps have: pair by pair out of L, realised from two samples of A(u)."""
    eye = torch.eye(width, dtype=F64)
    samples = torch.stack([F(eye, u) @ G(eye, 0.0).mT for u in (0.0, 1.0)])
    found = realise(samples)
    L = found.read_out @ found.L @ torch.linalg.inv(found.read_out)
    return L[torch.arange(0, width, 2), torch.arange(1, width, 2)]


def test_rounded_frequencies_are_another_group(case):
    given, expect = case["given"], case["expect"]["A"]
    rounded = torch.tensor(given["rounded_frequencies"], dtype=F64)
    exact = frequencies(given["width"], given["theta"])
    assert torch.equal(rounded, exact.to(torch.bfloat16).double())
    F, G = maps_of(Rotation(rounded))
    found = measure_axioms(F, G, given["width"], Sampling(span=given["length"], limit=1e-8))
    assert found.broken == ()
    error = (measured_frequencies(F, G, given["width"]) - exact).abs() * expect["last_time"]
    assert int(error.argmax()) == expect["worst_pair"]
    assert float(error.max()) == pytest.approx(expect["angle_error_rad_at_last_time"], abs=expect["abs_tol"])


def test_rounded_times_break_the_group_law(case):
    given, expect = case["given"], case["expect"]["B"]
    F, G = rounded_times(frequencies(given["width"], given["theta"]), torch.bfloat16)
    found = measure_axioms(F, G, given["width"], Sampling(span=given["length"], integer=True))
    assert "group_law" in found.broken and "shift_invariance" in found.broken
    assert found.contragredience.holds and found.linearity.holds  # what a table of cos and sin would break
    pair = measure_axioms(F, G, given["width"], Sampling(times=(expect["t"], expect["s"]), integer=True, causal=True)).group_law
    assert sorted(pair.witness.times) == [expect["t"], expect["s"]]  # the smallest: times up to 256 are exact in this dtype
    assert pair.witness.defect == pytest.approx(expect["spectral_norm_defect"], abs=expect["abs_tol"])


def test_rounded_tables_change_norms(case):
    given, expect = case["given"], case["expect"]["C"]
    move = rounded_table(frequencies(given["width"], given["theta"]), torch.bfloat16)
    found = measure_axioms(move, move, given["width"], Sampling(span=given["length"], integer=True))
    assert "contragredience" in found.broken  # the map is no longer its own inverse transpose
    assert found.contragredience.witness.times == (0.0, 1.0)
    block = move(torch.eye(given["width"], dtype=F64), expect["time"])[:2, :2]
    assert expect["pair"] == 0
    assert float(torch.linalg.det(block)) == pytest.approx(expect["determinant"], abs=expect["abs_tol"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("width", "theta"), [(2, 1e4), (8, 1e2), (64, 5e5)])
def test_the_verdicts_hold_for_other_widths_and_dtypes(width, theta, dtype):
    freq = frequencies(width, theta)
    last = {torch.bfloat16: 256, torch.float16: 2048}[dtype]  # the largest time up to which integers are exact
    at = Sampling(span=2 * last, integer=True)
    assert measure_axioms(*maps_of(Rotation(freq.to(dtype).double())), width, at).broken == ()
    times = measure_axioms(*rounded_times(freq, dtype), width, at)
    assert times.contragredience.holds and {"group_law", "shift_invariance"} <= set(times.broken)
    assert max(times.group_law.witness.times) <= last < sum(times.group_law.witness.times)
    table = rounded_table(freq, dtype)
    assert "contragredience" in measure_axioms(table, table, width, at).broken


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_our_rotary_breaks_none_of_them(dtype):
    """The public encoding, cast as a model would cast it: frequencies and times do not follow."""
    F, G = maps_of(ec.rope(16).to(dtype).generator())
    assert measure_axioms(F, G, 16, Sampling(span=4095, limit=1e-8)).broken == ()
