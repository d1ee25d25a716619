"""What the rules on the law say: the smallest witness, the right name for each rounding, and silence on what is sound."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import eigenclock as ec
from audit import twins
from audit.twins import base, by_maps, rotate, turner
from eigenclock.audit.measure.causes import causes_of
from eigenclock.audit.measure.pairs import read_pairs
from eigenclock.audit.measure.samples import best
from eigenclock.audit.probe import Probe
from eigenclock.audit.rules import RULES
from eigenclock.audit.subjects import read
from eigenclock.audit.subjects.options import Options
from eigenclock.encodings import ENCODINGS


def one(probe: Probe, rule: str):
    found = twins.of_rule(probe, rule)
    assert len(found) == 1
    return found[0]


# --- the three roundings that look alike in review -----------------------------------------------------------------------------------


def test_rounded_positions_are_named_with_the_smallest_witness():
    probe = by_maps(twins.positions_in_the_dtype_of_x, twins.positions_in_the_dtype_of_x, dtype=torch.bfloat16)
    law = one(probe, "group_law")
    assert (law.where["s"], law.where["t"]) == (256.0, 1.0)
    assert law.measured == pytest.approx(2 * math.sin(0.5), abs=0.02)  # the fastest pair stands still for one step of 1 rad
    shift = one(probe, "shift_invariance")
    assert shift.severity == "fault" and "positions rounded to bfloat16" in shift.message
    assert shift.where["position_error"] >= 1 and shift.where["law_error"] < 0.1
    merged = one(probe, "precision")
    assert merged.where["positions"] == [256.0, 257.0]


def test_rounded_angles_are_told_from_rounded_positions():
    probe = by_maps(twins.angles_in_the_dtype_of_x, twins.angles_in_the_dtype_of_x, dtype=torch.bfloat16)
    found = one(probe, "shift_invariance")
    assert "angles rounded to bfloat16" in found.message and found.where["position_error"] == 0


def test_rounded_frequencies_keep_the_law_and_lose_the_claim():
    """Another group than the one declared: scores keep to the lag, and the angle is off by its error times the position."""
    claimed = base(1e4, 16)
    rounded = claimed.bfloat16().double()
    probe = by_maps(turner(rounded), turner(rounded), dtype=torch.float32, length=4096)
    probe = replace(probe, head_dim=16)
    assert not twins.of_rule(probe, "shift_invariance") and not twins.of_rule(probe, "group_law")
    cause = causes_of(probe, claimed)
    assert cause is not None
    assert cause.frequency == pytest.approx(float((rounded - claimed).abs().max()) * 4095, rel=1e-3)
    assert cause.words == "frequencies rounded to bfloat16" and cause.position == 0


def test_a_law_that_breaks_in_float64_is_not_called_rounding():
    found = one(by_maps(twins.warped, twins.warped), "shift_invariance")
    assert "the law itself" in found.message
    assert found.where["t"] >= found.where["s"] and found.where["shift"] > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_table_rounded_once_is_sound(dtype):
    probe = by_maps(turner(), turner(), dtype=dtype, length=4096)
    assert not [f for f in twins.findings(probe) if f.severity != "advice"]


# --- readings --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("width", [4, 8])
def test_pairs_are_read_with_their_frequencies(layout, width):
    freq = base(1e3, width)
    pairs = read_pairs(best(by_maps(turner(freq, layout), turner(freq, layout))), by_maps(turner(freq, layout), turner(freq, layout)))
    assert pairs is not None and pairs.layout == layout
    assert pairs.still.numel() == twins.D - width
    assert torch.allclose(pairs.freq.abs(), freq, rtol=1e-6, atol=0)
    assert float(pairs.error.max()) < 1e-6 and torch.allclose(pairs.size, torch.ones(width // 2, dtype=torch.float64), rtol=1e-6)


def test_frequencies_of_either_sign_and_far_apart_are_read():
    freq = torch.tensor([2.5, -0.3, 1e-3, 2e-5], dtype=torch.float64)
    pairs = read_pairs(best(by_maps(turner(freq), turner(freq), length=8192)), by_maps(turner(freq), turner(freq), length=8192))
    assert pairs is not None
    sign = torch.sign(pairs.freq[0]) * torch.sign(freq[0])
    assert torch.allclose(sign * pairs.freq, freq, rtol=1e-4, atol=1e-9)


def test_what_does_not_turn_in_pairs_is_not_read_as_pairs():
    mixed = by_maps(twins.two_layouts, twins.two_layouts)
    assert read_pairs(best(mixed), mixed) is None
    dense = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    turned = lambda x, t: turner()(x @ dense.to(x.dtype), t) @ dense.to(x.dtype).mT  # noqa: E731
    assert read_pairs(best(by_maps(turned, turned)), by_maps(turned, turned)) is None
    assert not [f for f in twins.findings(by_maps(turned, turned)) if f.severity == "fault"]


# --- row constants, decay, directions ---------------------------------------------------------------------------------------------------


def test_a_bias_by_key_position_alone_is_advice_under_softmax():
    """BLOOM's form: scores move by a constant for each query, which softmax does not see."""

    def scores(q, k, t, s):
        return (q @ k.mT).double() + 0.25 * s.double()

    probe = Probe("by key", "callable", 8, 2, 2, 640, torch.float32, causal=True, scores=scores, exact=scores)
    found = one(probe, "shift_invariance")
    assert found.severity == "advice" and "constant for each query" in found.message
    assert not [f for f in twins.findings(probe) if f.severity != "advice"]
    warped = replace(probe, scores=lambda q, k, t, s: (q @ k.mT).double() + 0.25 * s.double() ** 1.1, exact=None)
    assert one(warped, "shift_invariance").severity == "fault"


@pytest.mark.parametrize(("rate", "dtype", "last"), [(0.2, torch.float32, 88.7), (0.5, torch.float32, 88.7), (0.05, torch.float16, 11.1)])
def test_the_overflow_horizon_is_where_the_exponent_ends(rate, dtype, last):
    probe = by_maps(twins.decayed(-1, rate), twins.decayed(1, rate), causal=True, dtype=dtype, length=1024)
    found = one(probe, "growth")
    assert found.severity == "fault"
    assert 0.5 * last / rate <= found.where["s"] <= 4 * last / rate  # the grid of positions doubles
    short = replace(probe, length=int(0.4 * last / rate))
    horizon = one(short, "growth")
    assert horizon.severity == "risk" and 0.5 * last / rate < horizon.where["position"] < 2 * last / rate


def test_a_reader_of_both_directions_of_a_decay_is_warned():
    found = one(by_maps(twins.decayed(-1, 0.02), twins.decayed(1, 0.02)), "direction")
    assert found.where["s"] > found.where["t"] and found.severity == "risk"
    assert RULES["direction"].applies(by_maps(twins.decayed(-1, 0.02), twins.decayed(1, 0.02), causal=True))


@st.composite
def sound(draw):
    """A sound rotary function in any of the usual ways: layout, width, base, amplitude, length, dtype, and what a probe shows of it."""
    dim = draw(st.sampled_from([2, 4, 8, 16]))
    width = draw(st.sampled_from([w for w in (2, dim // 2, dim) if w >= 2 and w % 2 == 0]))
    layout, amplitude = draw(st.sampled_from(["half", "interleaved"])), draw(st.sampled_from([1.0, 1.37]))
    turn = turner(base(draw(st.sampled_from([100.0, 1e4, 5e5])), width), layout, amplitude)
    single = lambda x, t: turn(x, t.float())  # noqa: E731
    side = draw(st.sampled_from([turn, single]))
    length, dtype = (
        draw(st.sampled_from([2, 5, 17, 300, 4096, 32768])),
        draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16])),
    )
    probe = replace(by_maps(side, side, length=length, dtype=dtype, fractional=draw(st.booleans())), head_dim=dim)
    if draw(st.booleans()):
        probe = replace(probe, action=None)
    if dtype != torch.float64 and draw(st.booleans()):
        probe = replace(probe, exact=None)
    return probe


@settings(max_examples=30, deadline=None, derandomize=True)
@given(sound())
def test_no_fault_and_no_risk_on_any_sound_rotary(probe):
    assert not [str(f) for f in twins.findings(probe) if f.severity != "advice"]


# --- our own ---------------------------------------------------------------------------------------------------------------------------

OPTIONS = {"decay": {"half_life": 64}, "decay_bias": {"half_life": (4, 512)}, "gaussian_bias": {"sigma": (4, 512)}}
NAMES = sorted(ENCODINGS)


def recipe(name: str, heads: int = 2) -> ec.Encoding:
    if name == "two_sided":
        return ec.two_sided(ec.decay(8, half_life=8))
    return ENCODINGS[name](8, heads=heads, **OPTIONS.get(name, {}))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_audits_without_a_fault(name, dtype):
    probe = read(recipe(name), Options(length=300, dtype=dtype))
    assert not [str(f) for f in twins.findings(probe) if f.severity != "advice"]


def test_rotate_is_the_rotation_of_the_twins():
    x = torch.tensor([[[1.0, 0.0, 0.0, 1.0]]])
    angle = torch.tensor([[math.pi / 2, 0.0]])
    assert torch.allclose(rotate(x, angle.cos(), angle.sin(), "half"), torch.tensor([[[0.0, 0.0, 1.0, 1.0]]]), atol=1e-6)
    assert torch.allclose(rotate(x, angle.cos(), angle.sin(), "interleaved"), torch.tensor([[[0.0, 1.0, 0.0, 1.0]]]), atol=1e-6)
