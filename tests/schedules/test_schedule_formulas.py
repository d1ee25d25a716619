"""Each schedule against its formula written out pair by pair in Python floats."""

import math

import pytest
import torch

import eigenclock as ec
from eigenclock.schedules import Spectrum

F64 = torch.float64
SIZES = [(8, 1e4), (64, 5e5), (128, 1e4), (6, 50.0), (2, 1e4)]


def same(schedule, n: int, expected: list[float], scale: float = 1.0) -> None:
    spectrum = schedule(n)
    assert torch.allclose(spectrum.values, torch.tensor(expected, dtype=F64), rtol=2e-14, atol=0)
    assert math.isclose(spectrum.attention_scale, scale, rel_tol=1e-15)


def plain(d: int, theta: float) -> list[float]:
    return [theta ** (-2 * i / d) for i in range(d // 2)]


@pytest.mark.parametrize(("d", "theta"), SIZES)
@pytest.mark.parametrize("s", [1.0, 1.7, 8.0, 32])
def test_linear_ntk_and_dynamic(d, theta, s):
    n = d // 2
    same(ec.linear(s, theta), n, [w / s for w in plain(d, theta)])
    other = theta if d == 2 else theta * s ** (d / (d - 2))
    same(ec.ntk(s, theta), n, plain(d, other))
    grown = s * 3 - (s - 1)
    same(ec.dynamic(s, 1000, theta=theta).at(3000), n, plain(d, theta if d == 2 else theta * grown ** (d / (d - 2))))


@pytest.mark.parametrize(("d", "theta"), SIZES)
@pytest.mark.parametrize(("s", "length", "fast", "slow"), [(4.0, 4096, 32.0, 1.0), (16.0, 2048, 8.0, 0.5), (1.0, 300.5, 32.0, 1.0)])
def test_by_parts(d, theta, s, length, fast, slow):
    expected = []
    for w in plain(d, theta):
        turns = length * w / (2 * math.pi)
        kept = 0.0 if turns < slow else 1.0 if turns > fast else (turns - slow) / (fast - slow)
        expected.append((1 - kept) * w / s + kept * w)
    same(ec.ntk_by_parts(s, length, fast, slow, theta), d // 2, expected)


@pytest.mark.parametrize(("d", "theta"), SIZES)
def test_resonance(d, theta):
    same(ec.resonance(theta), d // 2, [2 * math.pi / round(2 * math.pi / w) for w in plain(d, theta)])


def test_resonance_comes_back_after_whole_steps():
    """One pair: the score at a lag is the score one wavelength later."""
    schedule = ec.resonance(lambda n: Spectrum(torch.full((n,), 0.3, dtype=F64)))  # 20.94 steps, so 21
    q, k = torch.randn(2, 1, 1, 50, 2, dtype=F64)
    z = ec.scores(q, k[:, :, :1].expand_as(k), ec.rope(2, freq=schedule))[0, 0]
    assert torch.allclose(z[42, 0:42], z[42, 21:42].repeat(2), rtol=0, atol=1e-12)
    other = ec.scores(q, k[:, :, :1].expand_as(k), ec.rope(2, freq=[0.3]))[0, 0]
    assert not torch.allclose(other[42, 0:42], other[42, 21:42].repeat(2), rtol=0, atol=1e-3)
    assert ec.resonance(lambda n: Spectrum(torch.tensor([20.0, 0.0], dtype=F64)))(2).values.tolist() == [2 * math.pi, 0.0]


def test_a_scaled_clock_is_position_interpolation():
    """What the docstring of linear says: tau = t / s."""
    q, k = torch.randn(2, 1, 2, 30, 16, dtype=F64)
    t = torch.arange(30, dtype=F64) * 3 + 100
    for s in (2.0, 5.5):
        slow = ec.scores(q, k, ec.rope(16), times=t / s)
        assert torch.allclose(ec.scores(q, k, ec.rope(16, freq=ec.linear(s)), times=t), slow, rtol=0, atol=1e-11)


def test_drope_sees_no_positions():
    enc = ec.rope(16, heads=2, freq=ec.drope())
    assert enc.form == ec.JordanForm("16Z") and enc.acts_on == "nothing" and not list(enc.state_dict())
    q, k, v = torch.randn(3, 1, 2, 30, 16, dtype=F64)
    assert torch.equal(ec.attention(q, k, v, enc), ec.attention(q, k, v, ec.nope(16)))
    assert torch.allclose(ec.scores(q, k, enc), ec.scores(q, k, ec.nope(16)), rtol=0, atol=1e-14)
    with pytest.raises(ec.ConfigError, match="starts at 0"):
        ec.rope(16, freq=ec.drope(), learn="freq")


def test_inner_schedules_are_changed_in_turn():
    """p-RoPE interpolated, Gemma's dual bases per head, YaRN rounded to whole wavelengths with its amplitude kept."""
    kept = [w / 8 if i < 8 else 0.0 for i, w in enumerate(plain(64, 1e6))]
    same(ec.linear(8.0, ec.proportional(0.25, 1e6)), 32, kept)
    assert torch.equal(ec.ntk(4.0, (1e4, 1e6))(8).values[1], ec.ntk(4.0, 1e6)(8).values)
    inner = ec.yarn(4.0, 4096)
    wanted = [2 * math.pi / round(2 * math.pi / w) for w in inner(8).values.tolist()]
    same(ec.resonance(inner), 8, wanted, scale=0.1 * math.log(4) + 1)
    same(ec.linear(2.0, ec.longrope([1.0], [3.0], 16, attention_factor=1.5)).at(17), 1, [1 / 6], scale=1.5)
