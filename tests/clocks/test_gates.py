"""Lower bounds of the forget gate: the formula, its limits, its gradients, and the bounds of a deep model."""

import math

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from eigenclock.clocks.gates import bounded

F64 = torch.float64


def written(z: Tensor, bound: float) -> Tensor:
    """-log (bound + (1 - bound) / (1 + e^-z)) = log (1 + e^-z) - log (1 + bound e^-z), without a threshold in the logarithms."""
    return (1 + (-z).exp()).log() - (1 + bound * (-z).exp()).log()


@pytest.mark.parametrize("bound", [1e-6, 0.04, 0.5, 0.99])
def test_bounded_gate(bound):
    z = torch.linspace(-30, 20, 301, dtype=F64, requires_grad=True)
    out, expected = bounded(z, bound), written(z, bound)
    assert torch.allclose(out, expected, rtol=1e-12, atol=1e-14)
    g = torch.randn_like(z)
    assert torch.allclose(torch.autograd.grad(out, z, g)[0], torch.autograd.grad(expected, z, g)[0], rtol=1e-10, atol=1e-14)


def test_bounded_gate_has_limits_for_every_number():
    z = torch.tensor([-1e4, -100.0, 100.0, 1e4], requires_grad=True)
    out = bounded(z, 0.25)
    assert torch.allclose(out, torch.tensor([math.log(4), math.log(4), 0.0, 0.0]), rtol=1e-3, atol=1e-6)
    assert bool(torch.isfinite(torch.autograd.grad(out.sum(), z)[0]).all())
    assert torch.allclose(bounded(torch.tensor([20.0, 40.0]), 0.25), 0.75 * torch.tensor([-20.0, -40.0]).exp(), rtol=1e-5)  # not 0


def test_bounds_reach_the_clock_and_its_spec():
    enc = ec.hgrn2(4, heads=2, features=3, lower_bound=0.7)
    x = torch.randn(1, 50, 3) * 30
    f = (-enc.clock.increments(x)).exp()
    assert float(f.min()) > 0.7 - 1e-6 and float(f.min()) < 0.71 and float(f.max()) <= 1
    again = ec.encoding(str(enc))
    assert str(again) == str(enc) and torch.equal(again.clock.increments(x), enc.clock.increments(x))
    given = ec.hgrn2(4, heads=2, clock=ec.Cumulative(3, per="block", gate="forget", lower_bound=0.7))
    assert torch.equal(given.clock.increments(x), enc.clock.increments(x)) and "lower_bound=0.7" in str(given)
    assert str(ec.encoding(str(given))) == str(given)


def test_bounds_rise_with_depth():
    """HGRN: the running sum of softmax over layers less its first term, for one number or one per channel."""
    assert torch.allclose(ec.hgrn2_bounds(torch.zeros(5, dtype=F64)), torch.arange(5, dtype=F64) / 5)
    logits = torch.randn(6, 3, dtype=F64)
    bounds = ec.hgrn2_bounds(logits)
    share = logits.exp() / logits.exp().sum(0)
    for layer in range(6):
        assert torch.allclose(bounds[layer], share[1 : layer + 1].sum(0), atol=1e-12)
    assert bool((bounds.diff(dim=0) > 0).all()) and bool((bounds < 1).all())


@pytest.mark.parametrize("bound", [-0.1, 1.0, True, "half", float("nan")])
def test_no_bound_outside_its_range(bound):
    with pytest.raises(ec.ConfigError, match="from 0 to below 1"):
        ec.Cumulative(3, gate="forget", lower_bound=bound)


def test_a_bound_belongs_to_the_forget_gate():
    with pytest.raises(ec.ConfigError, match="gate='forget'"):
        ec.Cumulative(3, lower_bound=0.5)
    with pytest.raises(ec.ConfigError, match="beside a clock"):
        ec.hgrn2(4, heads=2, lower_bound=0.5, clock=ec.Cumulative(3, per="block"))


@pytest.mark.parametrize(("layer", "layers"), [(3, 3), (-1, 3), (0, 0), (1.0, 3), (True, 3)])
@pytest.mark.parametrize("make", [ec.lightning, ec.minimax])
def test_layers_of_lightning(make, layer, layers):
    with pytest.raises(ec.ConfigError, match="0 <= layer < layers"):
        make(4, heads=2, layer=layer, layers=layers)
