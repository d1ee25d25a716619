"""What every schedule keeps, whatever its formula: signs, order, limits, and the way back from its specification."""

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import eigenclock as ec

F64 = torch.float64
L = 4096
# The schedules that extend a context: name -> (pairs, theta or an inner schedule, factor).
BUILD: dict[str, Callable[[int, Any, float], Any]] = {
    "linear": lambda n, theta, s: ec.linear(s, theta),
    "ntk": lambda n, theta, s: ec.ntk(s, theta),
    "dynamic": lambda n, theta, s: ec.dynamic(s, L, length=2 * L, theta=theta),
    "ntk_by_parts": lambda n, theta, s: ec.ntk_by_parts(s, L, theta=theta),
    "yarn": lambda n, theta, s: ec.yarn(s, L, theta=theta),
    "longrope": lambda n, theta, s: ec.longrope([1.0] * n, [1 + (s - 1) * i / n for i in range(n)], L, s, use="long", theta=theta),
    "llama3": lambda n, theta, s: ec.llama3(s, L, low_freq_factor=1.0, high_freq_factor=4.0, theta=theta),
    "resonance": lambda n, theta, s: ec.resonance(theta),
    "drope": lambda n, theta, s: ec.drope(),
}

HIGHEST_KEPT = ("ntk", "dynamic", "ntk_by_parts", "yarn", "llama3")
WITH_FACTOR = [kind for kind in BUILD if kind not in ("resonance", "drope")]
WITH_BASE = [kind for kind in BUILD if kind != "drope"]


@pytest.fixture(params=BUILD)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def build(kind: str) -> Callable[[int, Any, float], Any]:
    return BUILD[kind]


@given(st.integers(2, 80), st.floats(2.0, 1e7), st.floats(1.0, 64.0), st.sampled_from(sorted(BUILD)))
def test_positive_ordered_and_between_the_limits(n, theta, s, kind):
    values, base = BUILD[kind](n, theta, s)(n).values, ec.geometric(theta)(n).values
    assert values.shape == (n,) and values.dtype == F64 and bool(torch.isfinite(values).all())
    if kind == "drope":
        assert not values.any()
        return
    assert bool((values > 0).all())
    assert bool((values.diff() <= 1e-15 * values[:-1]).all())
    if kind != "resonance":
        largest = s + 1 if kind == "dynamic" else s
        assert bool((values <= base * (1 + 1e-14)).all()) and bool((values >= base / largest * (1 - 1e-14)).all())


@pytest.mark.parametrize("theta", [1e4, 5e5])
@pytest.mark.parametrize("s", [2.0, 8.0, 32.0])
def test_highest_kept_and_lowest_divided(kind, build, theta, s):
    values, base = build(64, theta, s)(64).values, ec.geometric(theta)(64).values
    if kind in HIGHEST_KEPT:
        assert values[0] == base[0]
    if kind in ("linear", "ntk", "ntk_by_parts", "yarn", "llama3"):
        assert math.isclose(float(values[-1]), float(base[-1]) / s, rel_tol=1e-13)
    if kind == "dynamic":  # at twice the length the factor is s + 1
        assert math.isclose(float(values[-1]), float(base[-1]) / (s + 1), rel_tol=1e-13)


@pytest.mark.parametrize("kind", WITH_FACTOR)
@pytest.mark.parametrize("theta", [1e4, (1e2, 1e6)])
def test_factor_1_is_the_base_spectrum(kind, build, theta):
    schedule = ec.dynamic(1.0, 4096, length=4096, theta=theta) if kind == "dynamic" else build(16, theta, 1.0)
    spectrum = schedule(16)
    assert torch.equal(spectrum.values, ec.geometric(theta)(16).values) and spectrum.attention_scale == 1.0


def test_dynamic_at_twice_the_length_with_factor_1_is_static_ntk_of_2():
    assert torch.equal(ec.dynamic(1.0, 4096, length=8192)(16).values, ec.ntk(2.0)(16).values)


def test_a_value_that_cannot_change(kind, build):
    schedule = build(8, 1e4, 2.0)
    assert schedule == build(8, 1e4, 2.0) and hash(schedule) == hash(build(8, 1e4, 2.0))
    if fields := dataclasses.fields(schedule):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(schedule, fields[0].name, 3.0)


@pytest.mark.parametrize("recipe", [ec.rope, ec.damped_rope])
@pytest.mark.parametrize("theta", [1e4, (1e2, 1e6)])
def test_the_way_back_from_a_spec(kind, build, recipe, theta):
    enc = recipe(16, heads=2, freq=build(8, theta, 4.0), pairing="half")
    for again in (ec.encoding(str(enc)), ec.encoding(enc.spec), ec.encoding(json.loads(json.dumps(enc.spec)))):
        assert str(again) == str(enc) and again.options["freq"] == enc.options["freq"]
        q, k = torch.randn(2, 1, 2, 5, 16, dtype=F64)
        assert torch.equal(ec.scores(q, k, again), ec.scores(q, k, enc))


def test_the_way_back_of_nested_schedules_and_numbers_of_numpy():
    numpy = pytest.importorskip("numpy")
    inner = ec.linear(numpy.float64(2.0), ec.proportional(0.5, 1e6))
    enc = ec.rope(16, freq=ec.resonance(ec.llama3(numpy.int64(8), 8192, 1.0, 4.0, theta=inner)))
    assert "resonance(theta=llama3(factor=8, " in str(enc) and "linear(factor=2.0, theta=proportional(share=0.5" in str(enc)
    assert str(ec.encoding(str(enc))) == str(enc)
    assert torch.equal(ec.encoding(str(enc)).generator().freq, enc.generator().freq)
    assert {"schedule resonance", "schedule llama3", "schedule linear", "schedule proportional"} <= {
        what for line in ec.cite(enc).splitlines() if line.startswith("%") for what in line[2:].split(": ")[0].split(", ")
    }


def test_rows_are_grouped_by_their_own_length():
    batch = [100, 5000, 4096, 5000, 6000]
    assert ec.rows_by_length(ec.dynamic(2.0, 4096), torch.tensor(batch)) == ec.rows_by_length(ec.dynamic(2.0, 4096), batch)
    groups = ec.rows_by_length(ec.dynamic(2.0, 4096), batch)
    assert list(groups.values()) == [[0, 2], [1, 3], [4]]
    assert ec.rows_by_length(ec.yarn(2.0, 4096), batch) == {ec.yarn(2.0, 4096): [0, 1, 2, 3, 4]}
    assert list(ec.rows_by_length(ec.linear(2.0, ec.dynamic(2.0, 4096)), batch).values()) == [[0, 2], [1, 3], [4]]
    with pytest.raises(ec.ConfigError, match="length of a row=0"):
        ec.rows_by_length(ec.dynamic(2.0, 4096), [3, 0])


# --- bad input ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WITH_FACTOR)
@pytest.mark.parametrize("bad", [0.5, 0.999, 0, -2.0, math.nan, math.inf, "4", True])
def test_a_factor_below_1_is_named(kind, build, bad):
    with pytest.raises(ec.ConfigError, match="got factor="):
        ec.longrope([1.0], [1.0], 16, bad) if kind == "longrope" else build(8, 1e4, bad)


@pytest.mark.parametrize("kind", WITH_BASE)
@pytest.mark.parametrize("bad", [0.0, -1e4, math.nan, None, "1e4", (1e4, 0.0)])
def test_a_base_that_is_none_is_named(kind, build, bad):
    with pytest.raises(ec.ConfigError, match="got theta="):
        build(8, bad, 2.0)


@pytest.mark.parametrize("bad", [None, 0, -4096, math.nan, "4096"])
def test_a_missing_original_length_is_named(bad):
    for make in (
        lambda: ec.dynamic(2.0, bad),
        lambda: ec.ntk_by_parts(2.0, bad),
        lambda: ec.yarn(2.0, bad),
        lambda: ec.longrope([1.0], [1.0], bad, 2.0),
        lambda: ec.llama3(2.0, bad, 1.0, 4.0),
    ):
        with pytest.raises(ec.ConfigError, match="got original_length="):
            make()


def test_bounds_out_of_order_are_named():
    for fast, slow in ((1.0, 32.0), (2.0, 2.0), (0.0, -1.0)):
        with pytest.raises(ec.ConfigError, match="beta_"):
            ec.ntk_by_parts(2.0, 4096, fast, slow)
    with pytest.raises(ec.ConfigError, match="beta_slow=0"):
        ec.yarn(2.0, 4096, beta_slow=0)
    for theta in (1.0, 0.5, (1e4, 1.0)):
        with pytest.raises(ec.ConfigError, match="above 1"):
            ec.yarn(2.0, 4096, theta=theta)
    with pytest.raises(ec.ConfigError, match="expected a number"):
        ec.yarn(2.0, 4096, theta=ec.linear(2.0))


def test_an_odd_width_is_named(kind, build):
    with pytest.raises(ec.ShapeError, match="head_dim=7"):
        ec.rope(7, freq=build(3, 1e4, 2.0))
    with pytest.raises(ec.ShapeError, match="rotary_dim=5"):
        ec.rope(8, rotary_dim=5, freq=build(2, 1e4, 2.0))
