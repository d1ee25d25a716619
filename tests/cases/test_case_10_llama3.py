"""Case 10: the blend of Llama 3.1 is linear in the frequency, and none of its numbers is guessed."""

import math

import pytest
import torch

import eigenclock as ec
from eigenclock.schedules import Spectrum

F64 = torch.float64


def read(config, theta: float) -> ec.llama3:
    return ec.llama3(
        config["factor"],
        config["original_max_position_embeddings"],
        low_freq_factor=config["low_freq_factor"],
        high_freq_factor=config["high_freq_factor"],
        theta=theta,
    )


def longhand(width, theta, factor, low, high, length) -> tuple[list[float], list[str]]:
    """Band by band, on wavelengths as the authors write it, the blend on turns."""
    out, bands = [], []
    for i in range(width // 2):
        w = theta ** (-2 * i / width)
        wavelength = 2 * math.pi / w
        if wavelength < length / high:
            out.append(w)
            bands.append("keep")
        elif wavelength > length / low:
            out.append(w / factor)
            bands.append("divide")
        else:
            smooth = (length / wavelength - low) / (high - low)
            out.append((1 - smooth) * w / factor + smooth * w)
            bands.append("blend")
    return out, bands


def test_numbers_of_the_case(case):
    given, expect = case["given"], case["expect"]
    n, schedule = given["width"] // 2, read(given["config"], given["theta"])
    spectrum = schedule(n)
    assert torch.allclose(spectrum.values, torch.tensor(expect["frequencies"], dtype=F64), rtol=expect["rel_tol"], atol=0)
    assert spectrum.attention_scale == 1.0
    base = ec.geometric(given["theta"])(n).values
    for kept, band in zip((spectrum.values / base).tolist(), expect["bands"], strict=True):
        assert band == ("keep" if kept == 1 else "divide" if abs(kept - 1 / 8) < 1e-15 else "blend")
    assert torch.equal(ec.rope(given["width"], freq=schedule).generator().freq, spectrum.values)


def test_linear_in_frequency_not_in_wavelength(case):
    """Half way between the bounds in turns the factor is the mean of 1 and 1/s; half way in wavelength it is not."""
    config = case["given"]["config"]
    length, s = config["original_max_position_embeddings"], config["factor"]
    middle, other = 2.5 * 2 * math.pi / length, 2 * math.pi / ((length + length / 4) / 2)
    fixed = read(config, lambda n: Spectrum(torch.tensor([middle, other], dtype=F64)))  # a schedule of one's own
    got = (fixed(2).values / torch.tensor([middle, other], dtype=F64)).tolist()
    assert got[0] == pytest.approx((1 + 1 / s) / 2, rel=1e-12)
    assert got[1] == pytest.approx(0.2 + 0.8 / s, rel=1e-12) and abs(got[1] - got[0]) > 0.1


@pytest.mark.parametrize("width", [2, 32, 64, 128])
@pytest.mark.parametrize(
    ("theta", "factor", "low", "high", "length"),
    [(5e5, 8.0, 1.0, 4.0, 8192), (5e5, 32.0, 1.0, 4.0, 8192), (1e4, 1.0, 1.0, 2.0, 64), (1e6, 3.5, 0.5, 40.0, 1000.5)],
)
def test_other_widths_bases_and_bounds(width, theta, factor, low, high, length):
    schedule = ec.llama3(factor, length, low_freq_factor=low, high_freq_factor=high, theta=theta)
    wanted, _ = longhand(width, theta, factor, low, high, length)
    assert torch.allclose(schedule(width // 2).values, torch.tensor(wanted, dtype=F64), rtol=1e-13, atol=0)
    assert torch.equal(
        schedule(width // 2).values, ec.ntk_by_parts(factor, length, beta_fast=high, beta_slow=low, theta=theta)(width // 2).values
    )


@pytest.mark.parametrize("missing", ["low_freq_factor", "high_freq_factor"])
def test_a_missing_bound_is_named(missing):
    bounds = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    del bounds[missing]
    with pytest.raises(ec.ConfigError, match=f"{missing}=None"):
        ec.llama3(8.0, 8192, **bounds)
    with pytest.raises(ec.ConfigError, match=f"{missing}=None"):
        ec.encoding({"name": "rope", "freq": {"name": "llama3", "factor": 8.0, "original_length": 8192, **bounds}}, head_dim=8, heads=1)


def test_other_refusals():
    with pytest.raises(ec.UnknownNameError, match="did you mean 'llama3'"):
        ec.encoding("rope(freq=lama3(factor=8.0))", head_dim=64, heads=1)
    for low, high in ((4.0, 1.0), (2.0, 2.0)):
        with pytest.raises(ec.ConfigError, match=f"high_freq_factor={high} and low_freq_factor={low}"):
            ec.llama3(8.0, 8192, low_freq_factor=low, high_freq_factor=high)
    with pytest.raises(ec.ConfigError, match="original_length=None"):
        ec.llama3(8.0, low_freq_factor=1.0, high_freq_factor=4.0)
