"""The axioms as measurements: what holds for generators, which axiom each broken map breaks, and with which witness."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from eigenclock.errors import AxiomError, ShapeError
from eigenclock.theory import (
    DampedRotation,
    Decay,
    Dense,
    Jordan,
    Rotation,
    Sampling,
    by_matrix,
    maps_of,
    measure_axioms,
    measure_kernel,
    realise,
)
from eigenclock.theory.axioms import continuity, contragredience, group_law, linearity, shift_invariance
from eigenclock.theory.axioms.realise import real_logarithm

F64 = torch.float64


def t(*values) -> Tensor:
    return torch.tensor(values, dtype=F64)


def scalar(f):
    """A function of the lag as a 1 x 1 matrix."""
    return lambda u: torch.tensor([[f(u)]], dtype=F64)


GENERATORS = {
    "rotation": (Rotation(t(1.0, 0.3), "half"), Sampling()),
    "damped": (DampedRotation(t(0.1, 0.0), t(1.0, -2.0)), Sampling(causal=True)),
    "damped, both directions": (DampedRotation(t(0.1, 0.02), t(1.0, -2.0)), Sampling(span=16)),
    "decay that leaves float64": (Decay(t(20.0, 0.1), 2), Sampling(causal=True)),
    "Jordan of order 3": (Jordan(t(0.0), order=3), Sampling()),
    "complex Jordan of order 4": (Jordan(t(0.2), order=4, freq=t(1.0)), Sampling(span=16, causal=True)),
    "dense": (Dense(t([-0.1, 2.0, 0.3], [-2.0, -0.2, 0.0], [0.0, 0.0, -0.4])), Sampling(span=8, causal=True)),
    "per head": (Decay(t([0.1], [0.4]), 3), Sampling(causal=True)),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_generators_keep_all_five(name):
    generator, at = GENERATORS[name]
    for head in range(generator.heads):
        found = measure_axioms(*maps_of(generator, head), generator.dim, at)
        assert found.ok and found.broken == ()
        assert all(r.holds and r.witness is None for r in found.residuals)
        assert found.rank_at_zero == found.hankel_rank == found.width == generator.dim
    if name == "decay that leaves float64":
        assert "not finite" in found.shift_invariance.note  # what was left out is said


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [1.0, 1e-3, 1e3])
def test_any_constants_on_either_side(seed, size):
    """A(0) = I is a normalisation: F(0) and G(0) may be anything invertible, of any size and different from one another."""
    random = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(4, 4, dtype=F64, generator=random) * size for _ in range(2))
    F, G = maps_of(DampedRotation(t(0.1, 0.3), t(1.0, 0.2)))
    found = measure_axioms(lambda x, s: F(x @ left, s), lambda x, s: G(x @ right, s), 4, Sampling(causal=True, limit=1e-8))
    assert found.broken == ()
    raw = left @ right.mT
    assert (raw @ raw - raw).abs().max() > 1e-3 * raw.abs().max() ** 2  # A itself is no group: A(0) A(0) is not A(0)


def test_a_change_of_basis_that_moves_with_time_is_seen():
    """(F, G) -> (M(t)^T F, M(s)^-1 G) keeps the contragredience and loses the lag."""
    F, G = maps_of(Rotation(t(1.0)))
    M = lambda s: torch.matrix_exp(s * t([0.0, 0.0], [0.01, 0.0]))  # noqa: E731
    found = measure_axioms(lambda x, s: F(x, s) @ M(s), lambda x, s: G(x, s) @ torch.linalg.inv(M(s)).mT, 2)
    assert "shift_invariance" in found.broken and found.contragredience.holds


def rms(x: Tensor) -> Tensor:
    return x / x.square().mean(-1, keepdim=True).sqrt()


def broken_maps():
    F, G = maps_of(Rotation(t(1.0, 0.3)))
    decay = maps_of(Decay(t(0.1), 4))
    gain = t(1.0, 0.5, 2.0, 0.7)
    nearest = lambda s: float(round(s))  # noqa: E731
    return {
        # name -> (F, G, sampling, what is broken)
        "absolute gain": (lambda x, s: F(x, s) * (1 + s), G, Sampling(), {"shift_invariance", "group_law", "contragredience"}),
        "one map on both sides": (decay[0], decay[0], Sampling(span=8), {"shift_invariance", "group_law", "contragredience"}),
        "query alone": (F, lambda x, s: x, Sampling(), {"shift_invariance", "group_law", "contragredience"}),
        "norm with gains": (
            lambda x, s: gain * rms(F(x, s)),
            lambda x, s: gain * rms(G(x, s)),
            Sampling(),
            {"linearity", "shift_invariance", "contragredience"},
        ),
        "whole times": (
            lambda x, s: F(x, nearest(s)),
            lambda x, s: G(x, nearest(s)),
            Sampling(),
            {"shift_invariance", "continuity", "group_law"},
        ),
        "a vector added": (lambda x, s: x + s, lambda x, s: x, Sampling(), {"shift_invariance", "group_law", "contragredience"}),
    }


@pytest.mark.parametrize("name", broken_maps())
def test_each_fault_is_named_with_a_witness(name):
    F, G, at, expected = broken_maps()[name]
    found = measure_axioms(F, G, 4, at)
    assert set(found.broken) == expected
    assert not found.ok
    for residual in found.residuals:
        assert (residual.witness is not None) == (residual.holds is False)
        if residual.witness is not None:
            assert residual.witness.defect > residual.limit and residual.value >= residual.witness.defect
    q, k = at.content(4)
    witness = found.shift_invariance.witness
    before = (F(q, witness.times[0]) * G(k, witness.times[1])).sum(-1)
    after = (F(q, witness.times[0] + witness.shift) * G(k, witness.times[1] + witness.shift)).sum(-1)
    n = int((before - witness.values[0]).abs().argmin())
    assert witness.values == pytest.approx((float(before[n]), float(after[n])))  # the two scores can be computed again


def test_the_witness_is_the_smallest_that_was_tried():
    """Rounding of times above 64 is found at the first times it spoils, not at the largest."""
    F, G = maps_of(Rotation(t(0.5)))
    coarse = lambda s: s if s <= 64 else 2.0 * math.floor(s / 2)  # noqa: E731
    at = Sampling(span=512, integer=True)
    found = measure_axioms(lambda x, s: F(x, coarse(s)), lambda x, s: G(x, coarse(s)), 2, at)
    assert max(*found.shift_invariance.witness.times, found.shift_invariance.witness.shift) <= 65
    assert max(found.group_law.witness.times) <= 64 < sum(found.group_law.witness.times) <= 67


def test_integer_times_are_said_to_be_integer():
    alternating = by_matrix(lambda n: t([(-1.0) ** n]))
    found = measure_axioms(alternating, alternating, 1, Sampling(integer=True))
    assert found.broken == () and found.continuity.holds is None
    assert "not measured" in str(found.continuity) and "integers" in str(found.continuity)
    with pytest.raises(AxiomError, match="integers only"):
        realise(torch.stack([t([(-1.0) ** n]) for n in range(4)]))
    half_turns = torch.stack([torch.matrix_exp(n * math.pi * 0.999 * t([0.0, -1.0], [1.0, 0.0])) for n in range(6)])
    assert realise(half_turns).rank == 2  # two dimensions have room for (almost) a half turn per step


def test_alibi_is_the_singular_case():
    """A(0) of the lifted content has the rank of the content; the bias needs two dimensions more."""
    slope, width = 0.5, 4

    def F(x, s):
        return torch.cat([x, t(-slope, -slope * s).expand(len(x), 2)], -1)

    def G(x, s):
        return torch.cat([x, t(-s, 1.0).expand(len(x), 2)], -1)

    found = measure_axioms(F, G, width)
    assert found.broken == () and "affine" in found.linearity.note
    assert (found.rank_at_zero, found.width, found.hankel_rank) == (width, width + 1, width + 2)
    assert "rank 4 of 5" in str(found)
    q, k = torch.randn(2, 3, width, dtype=F64)
    ours = ec.scores(q[None, None], k[None, None], ec.alibi(width, heads=1, slopes=slope), scale=1.0)[0, 0]
    assert float((F(q, 2.0) * G(k, 1.0)).sum(-1)[2]) == pytest.approx(float(q[2] @ k[2]) - slope)
    assert float(ours[2, 1]) == pytest.approx(float(q[2] @ k[1]) - slope)


NEEDS = {
    "decay": "decay(half_life=(4, 64))",
    "decay_bias": "decay_bias(half_life=(4, 64))",
    "gaussian_bias": "gaussian_bias(sigma=(4, 64))",
    "two_sided": "two_sided(alibi * damped_rope)",
}


# What is outside the group names its axiom, and `eigenclock.testing.check_axioms` measures that it breaks.
MEMBERS = [name for name in ec.ENCODINGS if not ec.encoding(NEEDS.get(name, name), head_dim=8, heads=2).breaks]


@pytest.mark.parametrize("name", MEMBERS)
def test_every_registered_encoding_is_a_group_with_its_lifts(name):
    """F . G is the logit of ``scores``, and keeps all five axioms: for t >= s the mirrored half of a two-sided one is not asked."""
    enc = ec.encoding(NEEDS.get(name, name), head_dim=8, heads=2)
    dim, scale = enc.width, enc.head_dim**-0.5
    q, k = (torch.randn(1, 2, 1, enc.head_dim, dtype=F64) for _ in range(2))
    times = (3.25, 1.5)
    if enc.clock.sums:  # a learned clock: the law in the time that it gives
        for head in range(2):
            F, G = maps_of(enc.generator(), head, lifts=enc.lifts(), scale=scale)
            found = measure_axioms(F, G, dim, Sampling(span=0.25, causal=True, limit=1e-7))
            assert found.broken == () and all(r.holds for r in found.residuals)
        return
    wide = (lambda x: t([x] * enc.clock.width)) if enc.clock.width > 1 else t
    z = ec.scores(q, k, enc, times=wide(times[0]), key_times=wide(times[1]), causal=enc.clock.width == 1)
    q, k = enc.read_in(q, k)  # what stands before the group knows no time
    for head in range(2):
        F, G = maps_of(enc.generator(), head, lifts=enc.lifts(), scale=scale)
        logit = (F(q[0, head], times[0]) * G(k[0, head], times[1])).sum().detach()
        assert float(logit) == pytest.approx(float(z[0, head, 0, 0].detach()), abs=1e-10)
        found = measure_axioms(F, G, dim, Sampling(span=4, causal=True, limit=1e-7))
        assert found.broken == () and all(r.holds for r in found.residuals)


def test_an_invertible_start_is_not_enough_where_the_maps_lead_into_more_dimensions():
    """A sum of cosines on constants has A(0) > 0, and A(u) A(0)^-1 is no group: the group has two dimensions for every wave."""
    enc = ec.sandwich(4, heads=1, width=6, theta=10.0)
    found = measure_axioms(*maps_of(enc.generator(), lifts=enc.lifts()), 4)
    assert found.broken == () and (found.rank_at_zero, found.width, found.hankel_rank) == (5, 5, 10)


KERNELS = {
    "linear": (lambda u: -u, (), 2),
    "quadratic": (lambda u: -0.01 * u * u, (), 3),
    "wave": (lambda u: math.cos(u) - 1, (), 3),
    "sum of waves": (lambda u: math.cos(u) + 0.5 * math.cos(0.3 * u), (), 4),
    "damped jet": (lambda u: u * math.exp(-0.3 * u), (), 2),
    "logarithm": (lambda u: -math.log1p(u), ("group_law",), None),
    "root": (lambda u: -(u**0.5), ("group_law",), None),
    "clipped": (lambda u: -min(u, 40.0), ("group_law",), None),
    "slower from 8 on": (lambda u: -(u if u < 8 else 8 + (u - 8) / 4), ("group_law",), None),
    "buckets": (lambda u: math.floor(math.log2(1 + u)), ("continuity", "group_law"), None),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_bias_is_in_the_group_if_it_is_an_exponential_polynomial(name):
    f, broken, size = KERNELS[name]
    found = measure_kernel(scalar(f), Sampling(causal=True))
    assert found.broken == broken and found.hankel_rank == size
    whole = measure_kernel(scalar(f), Sampling(causal=True, integer=True))
    assert whole.broken == tuple(name for name in broken if name != "continuity")
    assert whole.continuity.holds is None


def test_the_jump_is_found_where_it_is():
    step = measure_kernel(scalar(lambda u: float(u >= 10.625)), Sampling(causal=True)).continuity
    assert step.witness.times[1] == pytest.approx(10.625, abs=1e-11) and step.value == 1
    steep = measure_kernel(scalar(lambda u: math.tanh(50 * (u - 10.625))), Sampling(causal=True)).continuity
    assert steep.holds  # steep is not broken


def test_two_sided_kernels_are_even_and_no_group():
    both = measure_kernel(scalar(lambda u: math.exp(-0.1 * abs(u))))
    assert both.even and "group_law" in both.broken
    assert measure_kernel(scalar(lambda u: math.exp(-0.1 * u)), Sampling(span=16)).even is False
    assert measure_axioms(*maps_of(Rotation(t(1.0))), 2).even is False
    assert measure_axioms(lambda x, s: x, lambda x, s: x, 2).even is True  # no position, no order


def test_a_chain_of_delays_is_no_group():
    """Finite memory is finite-dimensional on integers, but what is forgotten does not come back."""
    found = measure_kernel(scalar(lambda u: 1.0 if round(u) == 2 else 0.0), Sampling(causal=True, integer=True, span=8))
    assert found.group_law.holds is False and "delays" in str(found.group_law)


def test_measurements_are_the_same_each_time_and_follow_the_seed():
    F, G, at, _ = broken_maps()["absolute gain"]
    a, b, c = (measure_axioms(F, G, 4, s) for s in (at, at, dataclasses.replace(at, seed=1)))
    assert str(a) == str(b) and a.shift_invariance.value != c.shift_invariance.value
    torch.manual_seed(123)
    assert str(measure_axioms(F, G, 4, at)) == str(a)


def test_residuals_do_not_depend_on_the_units_of_the_score():
    F, G, at, _ = broken_maps()["absolute gain"]
    one, big = measure_axioms(F, G, 4, at), measure_axioms(lambda x, s: 1e6 * F(x, s), G, 4, at)
    for a, b in zip(one.residuals, big.residuals, strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-6, abs=1e-9)


def test_each_residual_alone_is_that_of_the_whole():
    F, G, at, _ = broken_maps()["whole times"]
    whole = measure_axioms(F, G, 4, at)
    alone = [f(F, G, 4, at) for f in (linearity, shift_invariance, continuity, group_law, contragredience)]
    assert alone == list(whole.residuals)


def test_values_are_frozen_and_read_well():
    found = measure_axioms(*maps_of(Rotation(t(1.0))), 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.width = 3
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines[:5]] == [r.name for r in found.residuals]
    assert all("holds" in line for line in lines[:5])


def test_maps_must_meet_in_one_width():
    with pytest.raises(ShapeError, match="one width"):
        measure_axioms(lambda x, s: x, lambda x, s: x[:, :1], 3)


# --- realisation -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1.0, 0.25])
@pytest.mark.parametrize("name", ["rotation", "damped", "Jordan of order 3", "dense"])
def test_a_generator_is_realised_from_its_samples(name, step):
    generator, _ = GENERATORS[name]
    n = generator.dim
    found = realise(torch.stack([generator.matrix(i * step) for i in range(6)]), step)
    assert found.rank == n
    L = found.read_out @ found.L @ torch.linalg.inv(found.read_out)  # in the basis of the channels, since C B = 1
    torch.testing.assert_close(L, generator.matrix().reshape(n, n), rtol=0, atol=1e-9)
    torch.testing.assert_close(found.at(7.3), generator.matrix(7.3), rtol=0, atol=1e-9)


def test_the_logarithm_inverts_the_exponential_on_defective_matrices_too():
    torch.manual_seed(0)
    nilpotent = torch.diag(torch.ones(3, dtype=F64), 1)
    skew = torch.randn(5, 5, dtype=F64)
    skew = (skew - skew.mT) / torch.linalg.matrix_norm(skew - skew.mT, 2) * 2.9
    for L in (20 * nilpotent, nilpotent - 0.3 * torch.eye(4, dtype=F64), skew, torch.randn(6, 6, dtype=F64) * 0.3, torch.zeros(2, 2)):
        torch.testing.assert_close(real_logarithm(torch.matrix_exp(L.double())), L.double(), rtol=0, atol=1e-11)
    for bad in (t([0.0]), t([-2.0]), t([-1.0, 0.0], [0.0, -1.0])):
        with pytest.raises(AxiomError):
            real_logarithm(bad)


def test_realise_wants_more_than_one_sample():
    with pytest.raises(ShapeError, match="samples"):
        realise(torch.ones(1, 1, 1))


def float32_rope(x: torch.Tensor, t: float) -> torch.Tensor:
    """A rotation of halves as models write it: frequencies and angles in float32, cos and sin in the dtype of x."""
    n = x.shape[-1] // 2
    angle = torch.tensor(t, dtype=torch.float32) * 1e4 ** (-torch.arange(n, dtype=torch.float32) / n)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :n], x[..., n:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("span", [64.0, 1024.0, 4096.0])
def test_limit_of_a_narrow_dtype(span: float, dtype: torch.dtype) -> None:
    """Maps in float32 hold to the rounding of their angles at the span; a clock that runs off by a part in ten does not."""
    at = Sampling(span=span, integer=True, dtype=dtype)
    assert measure_axioms(float32_rope, float32_rope, 8, at).broken == ()
    found = measure_axioms(float32_rope, lambda x, t: float32_rope(x, 1.1 * t), 8, at)
    assert found.broken == ("shift_invariance", "group_law", "contragredience")
    assert "shift_invariance" in measure_axioms(float32_rope, float32_rope, 8, Sampling(span=span, integer=True)).broken
