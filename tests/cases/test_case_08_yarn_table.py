"""Case 08: the table of YaRN: which pairs are blended, in which variable, and between which bounds."""

import math

import pytest
import torch

import eigenclock as ec

F64 = torch.float64


def longhand(width, theta, length, factor, fast, slow, truncate) -> tuple[list[float], tuple[float, float]]:
    """The rule of the case, pair by pair."""

    def bound(turns):
        return width * math.log(length / (2 * math.pi * turns)) / (2 * math.log(theta))

    low, high = bound(fast), bound(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    out = []
    for i in range(width // 2):
        w = theta ** (-2 * i / width)
        ramp = min(max((i - low) / max(high - low, 1e-3), 0.0), 1.0)
        out.append(w * (1 - ramp) + w / factor * ramp)
    return out, (low, high)


@pytest.mark.parametrize("truncate", [True, False])
def test_numbers_of_the_case(case, truncate):
    given, expect = case["given"], case["expect"]
    wanted = expect[f"truncate_{str(truncate).lower()}"]
    bounds = {"beta_fast": given["beta_fast"], "beta_slow": given["beta_slow"], "truncate": truncate}
    schedule = ec.yarn(given["factor"], given["original_length"], theta=given["theta"], **bounds)
    n = given["width"] // 2
    assert torch.allclose(schedule(n).values, torch.tensor(wanted["frequencies"], dtype=F64), rtol=expect["rel_tol"], atol=0)
    assert schedule.bounds(n) == pytest.approx(wanted["bounds"], rel=expect["rel_tol"])
    assert abs(schedule(n).attention_scale - expect["amplitude"]) <= expect["amplitude_abs_tol"]
    assert torch.equal(ec.rope(given["width"], freq=schedule).generator().freq, schedule(n).values)


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("width", [2, 4, 16, 64, 128])
@pytest.mark.parametrize(
    ("theta", "length", "factor"), [(1e4, 4096, 4.0), (1.5e5, 4096, 32.0), (1e6, 32768, 4.0), (1e4, 2048, 1.5), (5e5, 300, 8.0)]
)
@pytest.mark.parametrize(("fast", "slow"), [(32.0, 1.0), (16.0, 2.0), (4.0, 4.0)])
def test_other_widths_bases_and_lengths(width, theta, length, factor, fast, slow, truncate):
    schedule = ec.yarn(factor, length, beta_fast=fast, beta_slow=slow, truncate=truncate, theta=theta)
    wanted, bounds = longhand(width, theta, length, factor, fast, slow, truncate)
    assert torch.allclose(schedule(width // 2).values, torch.tensor(wanted, dtype=F64), rtol=1e-12, atol=0)
    assert schedule.bounds(width // 2) == pytest.approx(bounds, rel=1e-12)


def test_one_base_per_head_is_one_table_per_head():
    both = ec.yarn(4.0, 4096, theta=(1e4, 5e5))
    for row, theta in enumerate((1e4, 5e5)):
        one = ec.yarn(4.0, 4096, theta=theta)
        assert torch.equal(both(16).values[row], one(16).values) and both.bounds(16)[row] == one.bounds(16)


@pytest.mark.parametrize("width", [16, 64])
def test_factor_1_changes_no_bit(case, width):
    for schedule in (ec.yarn(1.0, 4096), ec.yarn(1.0, 4096, truncate=False, mscale=0.7, mscale_all_dim=0.3)):
        spectrum = schedule(width // 2)
        assert torch.equal(spectrum.values, ec.geometric(1e4)(width // 2).values) and spectrum.attention_scale == 1.0


def test_the_limit_of_the_upper_bound_is_the_width(case):
    """Not the last pair: with bounds 5 and 11 of 8 pairs the last one is blended, not divided."""
    given = case["given"]
    schedule = ec.yarn(given["factor"], 200_000, theta=given["theta"])
    assert schedule.bounds(8) == (5.0, 10.0)
    last = float(schedule(8).values[7] / ec.geometric(1e4)(8).values[7])
    assert last == pytest.approx(1 - 0.4 * 0.75) and last > 0.25


def test_all_pairs_fast_or_all_slow():
    """Beyond the limits nothing is left to blend: every pair turns more often than beta_fast, or less often than beta_slow."""
    base = ec.geometric(100.0)(4).values
    assert torch.equal(ec.yarn(4.0, 1e9, theta=100.0)(4).values, base)
    assert torch.allclose(ec.yarn(4.0, 0.5, theta=100.0)(4).values, base / 4, rtol=1e-14)


def test_refusals():
    with pytest.raises(ec.ConfigError, match=r"beta_fast=1\.0 and beta_slow=32\.0"):
        ec.yarn(4.0, 4096, beta_fast=1.0, beta_slow=32.0)
    with pytest.raises(ec.ConfigError, match="original_length=None"):
        ec.yarn(4.0)
    with pytest.raises(ec.ConfigError, match="original_length=None"):
        ec.encoding("rope(freq=yarn(factor=4.0))", head_dim=64, heads=1)
    with pytest.raises(ec.ConfigError, match="did you mean 'beta_fast'"):
        ec.encoding("rope(freq=yarn(factor=4.0, original_length=4096, betafast=32))", head_dim=64, heads=1)
