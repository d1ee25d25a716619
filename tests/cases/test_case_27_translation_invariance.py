"""Case 27, the part about the law: variants that train and generate, and the property each of them has lost, with a pair of times."""

import math

import pytest
import torch

import eigenclock as ec
from eigenclock.theory import Rotation, Sampling, maps_of, measure_axioms, measure_kernel

F64 = torch.float64


def rotation(w: float):
    return maps_of(Rotation(torch.tensor([w], dtype=F64)))


def clocked(maps, clock):
    """The same maps on another time."""
    F, G = maps
    return lambda x, t: F(x, clock(t)), lambda x, s: G(x, clock(s))


def warp(t: float) -> float:
    return t / (1 + t / 6144)


def witness_of(case, F, G):
    """The shift of the case on its own query, key and times."""
    given = case["given"]
    (t, s), (moved, _) = given["times"]
    at = Sampling(times=(t, s), shifts=(moved - t,), causal=True)
    content = tuple(torch.tensor([given[name]], dtype=F64) for name in ("q", "k"))
    found = measure_axioms(F, G, 2, at, content=content)
    scores = [float((F(content[0], float(m)) * G(content[1], float(n))).sum()) for m, n in given["times"]]
    return found, scores


def test_a_warped_clock(case):
    F, G = clocked(rotation(case["given"]["angular_frequency"]), warp)
    found, scores = witness_of(case, F, G)
    expect = case["expect"]["warped"]
    assert scores == pytest.approx(expect["scores"], abs=expect["abs_tol"])
    assert found.shift_invariance.holds is False
    assert found.shift_invariance.witness.shift == 3000
    assert found.contragredience.holds  # it is a group, in g(t): both sides still meet in a difference
    again = clocked((F, G), lambda g: g / (1 - g / 6144))
    assert measure_axioms(*again, 2, Sampling(limit=1e-8)).broken == ()


def test_queries_turned_alone(case):
    F, _ = rotation(case["given"]["angular_frequency"])
    found, scores = witness_of(case, F, lambda x, s: x)
    expect = case["expect"]["query_only"]
    assert scores == pytest.approx(expect["scores"], abs=expect["abs_tol"])
    assert {"shift_invariance", "contragredience"} <= set(found.broken)
    full = measure_axioms(F, lambda x, s: x, 2)
    assert {"shift_invariance", "contragredience"} <= set(full.broken)
    assert full.contragredience.witness.times[0] != full.contragredience.witness.times[1]


def test_an_even_code(case):
    """(sin |d|, cos d) says how far, not on which side."""
    even = measure_kernel(lambda d: torch.tensor([[math.sin(abs(d))], [math.cos(d)]], dtype=F64))
    assert even.even and "past and future cannot be told apart" in str(even)
    assert even.group_law.holds is False  # |d| bends at 0, and no exp(dL) does
    assert even.group_law.witness is not None
    odd = measure_kernel(lambda d: torch.tensor([[math.sin(d)], [math.cos(d)]], dtype=F64))
    assert odd.even is False and odd.broken == ()


def table(theta: float, width: int, shared: bool):
    """A sinusoid table as a map that ignores its vector; sine and cosine of a pair share an exponent, or do not."""
    sine = theta ** (-torch.arange(0, width, 2, dtype=F64) / width)
    cosine = sine if shared else theta ** (-torch.arange(1, width + 1, 2, dtype=F64) / width)
    return lambda x, t: torch.cat([torch.sin(t * sine), torch.cos(t * cosine)]).expand(x.shape[0], -1)


@pytest.mark.parametrize(("theta", "width"), [(1e4, 8), (100.0, 2), (1e4, 64)])
def test_exponents_per_column(theta, width):
    broken = table(theta, width, shared=False)
    found = measure_axioms(broken, broken, 1)
    assert "shift_invariance" in found.broken
    (t, s), shift = found.shift_invariance.witness.times, found.shift_invariance.witness.shift
    p = [broken(torch.zeros(1, 1), x) for x in (t, s, t + shift, s + shift)]
    assert found.shift_invariance.witness.values == pytest.approx([float((p[0] * p[1]).sum()), float((p[2] * p[3]).sum())])
    shared = table(theta, width, shared=True)
    assert measure_axioms(shared, shared, 1).broken == ()


def test_every_verdict_names_a_property_and_a_witness(case):
    """The rule of the case."""
    warped = clocked(rotation(1.0), warp)
    F, _ = rotation(1.0)
    broken = table(1e4, 8, shared=False)
    for query, key, dim in ((*warped, 2), (F, lambda x, s: x, 2), (broken, broken, 1)):
        found = measure_axioms(query, key, dim)
        assert found.broken
        for residual in found.residuals:
            if residual.holds is False:
                assert residual.witness is not None and residual.value > residual.limit
                assert f"{residual.name} " in str(found) and str(residual.witness) in str(found)


@pytest.mark.parametrize("build", [lambda: ec.rope(8), lambda: ec.rope(8, rotary_dim=4, pairing="half"), lambda: ec.nope(8)])
def test_our_encodings_pass_the_same_check(build):
    F, G = maps_of(build().generator())
    assert measure_axioms(F, G, 8).broken == ()
