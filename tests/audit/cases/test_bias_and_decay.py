"""Cases 4, 5, 17, 18 given to the auditor: factors that grow from one origin, decays in several forms, and linear biases."""

import json
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from audit.cases.given import case, faults, found, frequencies, halves, sound
from eigenclock.cli import main

Scores = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


# --- 4: a growing exponent ---------------------------------------------------------------------------------------------------------------

EXTRAPOLATING = case(4)["given"]


def factors(width: int) -> Tensor:
    return (torch.arange(0, width, 2, dtype=torch.float64) + 0.4 * width) / (1.4 * width)


def from_one_origin(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """z^(m/B) on queries and z^(-n/B) on keys, as two tables."""
    d = q.shape[-1]
    angle = positions.double()[:, None] * frequencies(d)
    scale = (factors(d).to(q.dtype) ** (positions.to(q.dtype)[:, None] / EXTRAPOLATING["scale_base"])).repeat(1, 2)
    return halves(q, angle) * scale, halves(k, angle) / scale


def by_difference(q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
    d, lag = q.shape[-1], (positions_q.double()[:, None] - positions_k.double()).clamp_min(0)
    weight = (lag[..., None] * factors(d).log() / EXTRAPOLATING["scale_base"]).exp().to(q.dtype).repeat(1, 1, 2)
    a, b = (halves(x, t.double()[:, None] * frequencies(d)) for x, t in ((q, positions_q), (k, positions_k)))
    return torch.einsum("...td,...sd,tsd->...ts", a, b, weight)


@pytest.mark.parametrize(("dtype", "last"), [(torch.float32, 88.7), (torch.float16, 11.1)])
def test_4_the_first_position_at_which_each_dtype_loses_a_score(dtype, last):
    width = EXTRAPOLATING["width"]
    horizon = last * EXTRAPOLATING["scale_base"] / -float(factors(width)[0].log())  # where the slowest factor overflows
    report = ec.audit(from_one_origin, head_dim=width, dtype=dtype, length=10_001)
    lost = found(report, "growth")
    assert 0.9 * horizon <= lost.where["s"] <= 1.1 * horizon and str(dtype).removeprefix("torch.") in lost.message
    short = ec.audit(from_one_origin, head_dim=width, dtype=dtype, length=int(0.5 * horizon))
    sound(short)
    assert 0.9 * horizon <= found(short, "growth", "risk").where["position"] <= 1.1 * horizon


def test_4_scores_of_the_case_by_the_difference_and_by_ours():
    expect = case(4)["expect"]
    q, k = ([((a * j) % n - c) / 4 for j in range(8)] for a, n, c in ((3, 7, 3), (5, 9, 4)))
    q, k = (torch.tensor([[row]], dtype=torch.float32) for row in (q, k))
    for (m, n), want in zip(EXTRAPOLATING["times"], expect["scores"], strict=True):
        got = float(by_difference(q, k, torch.tensor([m]), torch.tensor([n])))
        assert got == pytest.approx(want, rel=expect["rel_tol"], abs=expect["abs_tol"])
    sound(ec.audit(by_difference, head_dim=8, length=10_001))
    report = ec.audit(ec.xpos(8, pairing="half"), length=10_001)
    sound(report)
    assert report.form == "4S" and "growth" in report.checked


@pytest.mark.parametrize("limit", [20.0, 60.0])
def test_4_clamped_exponents_change_the_law_instead(limit):
    def clamped(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        fall = (0.5 * positions.double())[:, None].clamp(max=limit)
        return q * (-fall).exp().to(q.dtype), k * fall.exp().to(k.dtype)

    shift = found(ec.audit(clamped, head_dim=4, length=400), "shift_invariance")
    assert shift.where["t"] + shift.where["shift"] > 2 * limit


# --- 5: decays and gates -----------------------------------------------------------------------------------------------------------------


def split(rate: float) -> Scores:
    """exp(G_t) on queries and exp(-G_s) on keys."""

    def scores(q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
        return (q * (-rate * positions_q.float())[:, None].exp().to(q.dtype)) @ (
            k * (rate * positions_k.float())[:, None].exp().to(k.dtype)
        ).mT

    return scores


def together(rate: float) -> Scores:
    def scores(q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
        lag = (positions_q.double()[:, None] - positions_k.double()).clamp_min(0)
        return q @ k.mT * (-rate * lag).exp().to(q.dtype)

    return scores


@pytest.mark.parametrize("rate", [30.0, pytest.param(12.6, marks=pytest.mark.slow), 1.0])
def test_5_exponents_split_over_two_factors_overflow_where_the_product_is_small(rate):
    """The gates of the case sum to 151 over one chunk of 12: exp(151) is formed on the way to numbers below 1."""
    assert -sum(case(5)["given"]["log_gate_per_step"]) > 150
    lost = found(ec.audit(split(rate), head_dim=2, heads=1, length=200), "growth")
    assert lost.where["s"] <= math.ceil(104 / rate)  # 88.7, and what is left below the smallest number
    report = ec.audit(together(rate), head_dim=2, heads=1, length=200)
    sound(report)
    assert report.blocks[0].kind == "D" and report.blocks[0].rate.value == pytest.approx(rate, rel=1e-6)


def test_5_a_decay_of_zero_is_a_valid_one():
    """A floor below the rate (a gate that is clamped away from 0) changes it: what is recovered is the floor."""

    def floored(q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
        return together(max(0.0, 1e-3))(q, k, positions_q, positions_k)

    assert ec.audit(together(0.0), head_dim=2, heads=1, length=200).form == "2Z"
    assert ec.audit(floored, head_dim=2, heads=1, length=200).form == "2D"


@pytest.mark.parametrize("recipe", ["mamba2", "gla", "fox"])
def test_5_ours_with_gates_pass_cache_rows_and_documents(recipe):
    """Learned clocks are set aside and said to be; the cache and rows of what they drive are run."""
    report = ec.audit(getattr(ec, recipe)(4, heads=1), length=64)
    sound(report)
    assert any("learns from activations" in note for note in report.notes)


# --- 17: slopes --------------------------------------------------------------------------------------------------------------------------


def biased(slopes: Tensor) -> Scores:
    def scores(q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
        lag = positions_q.double()[:, None] - positions_k.double()
        return q @ k.mT - (slopes.double()[:, None, None] * lag).to(q.dtype)

    return scores


@pytest.mark.parametrize("heads", case(17)["given"]["heads"])
def test_17_both_recipes_are_told_apart_and_named(heads):
    expect = case(17)["expect"]
    published, single = (
        torch.tensor(expect[name][str(heads)], dtype=torch.float64) for name in ("published_code", "single_geometric_sequence")
    )
    report = ec.audit(biased(published), heads=heads, head_dim=4, length=64)
    sound(report)
    assert "slopes" not in {f.rule for f in report.findings} and report.nearest.startswith("alibi")
    got = ec.encoding(report.spec).lifts()[0].slope.detach().double().reshape(-1)
    assert float((got / published - 1).abs().max()) <= expect["rel_tol"]
    other = ec.audit(biased(single), heads=heads, head_dim=4, length=64)
    if heads & (heads - 1) == 0:  # a power of two: both are one
        assert "slopes" not in {f.rule for f in other.findings}
        return
    slope = found(other, "slopes", "risk")
    assert "one geometric sequence" in slope.message and slope.where["head"] == 0
    assert (slope.measured, slope.limit) == (pytest.approx(float(single[0]), rel=1e-6), pytest.approx(float(published[0]), rel=1e-6))


@pytest.mark.parametrize("heads", [6, pytest.param(12, marks=pytest.mark.slow)])
def test_17_against_a_config_that_names_the_heads_it_is_a_fault(heads, tmp_path, capsys):
    """On the command line, as a file of the user's own: the config of a model is right, and the exponents off by one are not."""
    config = {"model_type": "bloom", "n_head": heads, "hidden_size": 4 * heads, "n_layer": 1}
    sound(ec.audit(config, length=64))
    code = f"""
import torch

def off_by_one(q, k, positions_q, positions_k):
    slopes = torch.tensor([2.0 ** (-8 * i / {heads}) for i in range({heads})])
    return q @ k.mT - slopes[:, None, None] * (positions_q[:, None] - positions_k)
"""
    path = tmp_path / f"biases_of_{heads}.py"
    path.write_text(code)
    words = ["audit", f"{path}:off_by_one", "--head-dim", "4", "--heads", str(heads), "--length", "64", "--json"]
    assert main([*words, "--fail-on", "advice"]) == 1
    slopes = next(f for f in json.loads(capsys.readouterr().out)["findings"] if f["rule"] == "slopes")
    assert slopes["measured"] == 1.0 and slopes["where"]["head"] == 0  # the first slope is never 1


def test_17_a_shard_that_counts_its_own_heads():
    """The second half of 8 heads has the slopes of heads 4 .. 7; with those of heads 0 .. 3 of 4 it looks sound by itself: which heads a
    shard holds is known to its caller alone. Explicit slopes, and what is measured, stand in the report to be compared."""
    whole = torch.tensor(case(17)["expect"]["published_code"]["8"], dtype=torch.float64)
    for slopes in (whole[4:], whole[:4]):
        report = ec.audit(biased(slopes), heads=4, head_dim=4, length=64)
        sound(report)
        got = ec.encoding(report.spec).lifts()[0].slope.detach().double().reshape(-1)
        assert torch.allclose(got, slopes, rtol=1e-6)
    enc = ec.alibi(4, heads=4, slopes=whole[4:].tolist())
    sound(ec.audit(enc, length=64))


# --- 18: linear biases -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "first"), [(torch.bfloat16, 256), (torch.float16, 2048)])
def test_18_slope_times_position_in_a_low_dtype_merges_neighbours(dtype, first):
    slope = case(18)["given"]["low_dtype"]["slope"]

    def low(q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
        bias = slope * positions_k.to(dtype) - (slope * positions_q.to(dtype))[:, None]
        return q @ k.mT + bias.to(q.dtype)

    report = ec.audit(low, heads=1, head_dim=4, length=case(18)["given"]["low_dtype"]["query_time"] + 1)
    assert found(report, "precision").where["positions"] == [first, first + 1]
    assert f"positions are rounded before use: {first} and {first + 1} are one" in found(report, "shift_invariance").message

    def exact(q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
        return q @ k.mT - (slope * (positions_q.double()[:, None] - positions_k.double())).to(q.dtype)

    sound(ec.audit(exact, heads=1, head_dim=4, length=4097))
    one = torch.zeros(1, 1, 4, dtype=torch.float64)
    at = torch.tensor([case(18)["given"]["low_dtype"]["query_time"]])
    near = [float(exact(one, one, at, torch.tensor([s]))) for s in case(18)["given"]["low_dtype"]["key_times"]]
    assert near[1] - near[0] == pytest.approx(case(18)["expect"]["low_dtype_bias_difference"], abs=case(18)["expect"]["low_dtype_abs_tol"])


def test_18_the_key_only_form_is_advice_and_a_reward_for_distance_is_not_silent():
    slope = case(18)["given"]["slope"]

    def key_only(q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
        return q @ k.mT + (slope * positions_k.double()).to(q.dtype)

    report = ec.audit(key_only, heads=1, head_dim=4, length=128)
    sound(report)
    assert "a constant for each query, which softmax does not see" in found(report, "shift_invariance", "advice").message
    flipped = ec.audit(biased(torch.tensor([-slope])), heads=1, head_dim=4, length=128)
    assert any("lag" in f.message and f.rule == "slopes" for f in flipped.at_least("risk")), flipped


def test_18_both_directions_are_two_sided_or_signed_and_the_report_says_which():
    slope = case(18)["given"]["slope"]

    def absolute(q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
        return q @ k.mT - (slope * (positions_q.double()[:, None] - positions_k.double()).abs()).to(q.dtype)

    report = ec.audit(absolute, heads=1, head_dim=4, length=128)
    sound(report)
    assert "two_sided" in report.nearest and "past and future" in found(report, "even", "advice").message
    signed = ec.audit(biased(torch.tensor([slope])), heads=1, head_dim=4, length=128)
    assert signed.nearest.startswith("alibi") and "even" not in {f.rule for f in signed.findings}


def test_18_bias_of_the_case_is_what_the_sound_function_adds():
    given, expect = case(18)["given"], case(18)["expect"]
    zero = torch.zeros(1, 2, 4, dtype=torch.float64), torch.zeros(1, 5, 4, dtype=torch.float64)
    got = biased(torch.tensor([given["slope"]]))(*zero, torch.tensor(given["query_times"]), torch.tensor(given["key_times"]))[0]
    for row, want in zip(got.tolist(), expect["bias"], strict=True):
        for value, wanted in zip(row, want, strict=True):
            assert wanted is None or value == pytest.approx(wanted, abs=expect["abs_tol"])
    assert faults(ec.audit(biased(torch.tensor([given["slope"]])), heads=1, head_dim=4, length=64)) == set()
