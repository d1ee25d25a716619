"""The learned clock: sums of gated increments, exact over long sequences, safe from casts, refused where it cannot hold."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import eigenclock as ec
from eigenclock.clocks.gates import GATES

F64 = torch.float64


def made(features: int = 5, heads: int = 2, blocks: int = 3, **options) -> ec.Cumulative:
    return ec.Cumulative(features, **options).bind(heads, blocks)


def projected(clock: ec.Cumulative, x: Tensor) -> Tensor:
    """x W1 .. + b, (B, H, T, n), written out."""
    assert clock.weight is not None and clock.bias is not None
    z = x
    for matrix in clock.weight:
        z = torch.einsum("btf,fn->btn", z, matrix.double())
    return (z + clock.bias.double()).unflatten(-1, (clock.heads, -1)).permute(0, 2, 1, 3)


WRITTEN = {
    "softplus": lambda z: (1 + z.exp()).log(),
    "forget": lambda z: -torch.sigmoid(z).log(),
    "forget16": lambda z: -torch.sigmoid(z).log() / 16,
    "forget_late": lambda z: -torch.sigmoid(z).log(),
    "exponential": lambda z: z.exp(),
    "reciprocal": lambda z: 1 / ((1 + z.exp()).log() + 1),
    "signed": lambda z: z,
    "half_turn": lambda z: math.pi * z.tanh(),
}


def test_every_gate_is_written_out():
    assert set(WRITTEN) == set(GATES)


@pytest.mark.parametrize("per", ["all", "head", "block"])
@pytest.mark.parametrize("gate", WRITTEN)
def test_ticks_are_sums_of_gates(gate, per):
    torch.manual_seed(0)
    clock, x = made(gate=gate, per=per), torch.randn(2, 11, 5, dtype=F64)
    expected = WRITTEN[gate](projected(clock, x)).cumsum(2)
    expected = expected if per == "block" else expected[..., 0]
    assert torch.allclose(clock(x=x).ticks, expected, rtol=1e-9, atol=1e-9)


def test_powers_of_one_number_and_low_rank():
    torch.manual_seed(0)
    x = torch.randn(1, 6, 5, dtype=F64)
    clock = made(gate="reciprocal", per="block", powers=True)
    f = WRITTEN["reciprocal"](projected(clock, x))
    assert torch.allclose(clock(x=x).ticks, torch.cat([f, f**2, f**3], -1).cumsum(2), rtol=1e-9)
    assert [tuple(p.shape) for p in made(rank=2, per="block").weight] == [(5, 2), (2, 6)]


def test_start_of_softplus_is_log_uniform_between_a_thousandth_and_a_tenth():
    start = F.softplus(made(heads=200).bias.double())
    assert 1e-3 <= float(start.min()) < 2e-3 and 0.05 < float(start.max()) <= 0.1
    assert abs(float(start.log().mean()) - math.log(1e-2)) < 0.3


@pytest.mark.parametrize("cut", [0, 1, 5, 12])
@pytest.mark.parametrize("per", ["head", "block"])
def test_pieces_continue(cut, per):
    torch.manual_seed(0)
    clock, x = made(per=per), torch.randn(2, 12, 5, dtype=F64)
    whole = clock(x=x).ticks
    if not cut or cut == 12:
        return
    first = clock(x=x[:, :cut])
    rest = clock(x=x[:, cut:], origin=clock.continued(first, False))
    assert torch.allclose(torch.cat([first.ticks, rest.ticks], 2), whole, rtol=0, atol=1e-12)


def test_neighbours_stay_exact_after_a_million_steps():
    """Differences of neighbouring ticks keep 1e-5 of themselves, which one float32 cannot hold."""
    clock = made(features=1, heads=1)
    x = torch.randn(1, 1_000_000, 1, generator=torch.Generator().manual_seed(0))
    ticks, steps = clock(x=x).ticks[0, 0], clock.increments(x)[0, 0, :, 0].double()
    gaps = ticks.diff()
    assert float(((gaps - steps[1:]) / steps[1:]).abs().max()) < 1e-5
    low = steps.float().cumsum(0).diff().double()
    assert float(((low - steps[1:]) / steps[1:]).abs().max()) > 1e-2


def test_gate_times_elapsed_time():
    torch.manual_seed(0)
    clock, x = made(base=ec.Timestamps("s", per="min")), torch.randn(1, 5, 5, dtype=F64)
    stamps = torch.tensor([[0, 30, 30, 90, 600]])
    gaps = torch.tensor([0, 0.5, 0.0, 1.0, 8.5], dtype=F64)
    expected = (WRITTEN["softplus"](projected(clock, x))[..., 0] * gaps).cumsum(2)
    assert torch.allclose(clock(stamps, x=x).ticks, expected, rtol=1e-9)
    assert clock.unit == "min"


def test_padding_stops_the_clock():
    torch.manual_seed(0)
    clock, x = made(), torch.randn(1, 6, 5, dtype=F64)
    ticks = clock(x=x, mask=torch.tensor([[False, False, True, True, False, True]])).ticks
    assert torch.equal(ticks[..., :2], torch.zeros(1, 2, 2, dtype=F64)) and torch.equal(ticks[..., 3], ticks[..., 4])


def test_weights_stay_in_float32_and_come_back():
    enc = ec.fox(8, heads=2, features=5)
    names = dict(enc.named_parameters())
    assert sorted(names) == ["clock.bias", "clock.weight.0"]
    low = copy.deepcopy(enc).bfloat16()
    assert all(torch.equal(a, b) and a.dtype == torch.float32 for a, b in zip(low.parameters(), enc.parameters(), strict=True))
    with torch.no_grad():
        enc.clock.bias += 1
    fresh = ec.encoding(enc.spec)
    fresh.load_state_dict(enc.state_dict())
    assert torch.equal(fresh.clock.bias, enc.clock.bias)
    enc.clock.reset_parameters()
    assert torch.equal(enc.clock.bias, ec.encoding(enc.spec).clock.bias)


def test_bad_input_is_one_clear_error():
    q = torch.randn(1, 2, 4, 8)
    x = torch.randn(1, 4, 5)
    fox = ec.fox(8, heads=2, features=5)
    with pytest.raises(ec.ClockError, match="no activations"):
        ec.attention(q, q, q, fox)
    with pytest.raises(ec.ShapeError, match=r"\(batch, time, 5\)"):
        ec.attention(q, q, q, fox, x=x[..., :4])
    with pytest.raises(ec.ClockError, match="NaN"):
        ec.attention(q, q, q, fox, x=x * torch.nan)
    with pytest.raises(ec.ClockError, match="either sign"):
        ec.attention(q, q, q, ec.decay(8, heads=2, rate=0.1, clock=ec.Cumulative(5, gate="signed")), x=x)
    with pytest.raises(ec.ClockError, match="sums along one sequence"):
        ec.attention(q, q, q, fox, x=x, key_x=x, times=torch.arange(4), key_times=torch.arange(4))
    with pytest.raises(ec.UnknownNameError, match="softplus"):
        ec.Cumulative(5, gate="softpuls")
    with pytest.raises(ec.ConfigError, match="Cumulative"):
        ec.fox(8, heads=2, clock=ec.Index())
    clock = ec.Cumulative(5)
    ec.rope(8, heads=2, clock=clock)
    with pytest.raises(ec.ConfigError, match="one clock for each encoding"):
        ec.rope(8, heads=4, clock=clock)


def test_decode_equals_the_full_pass():
    """One query at a time against all keys so far, with the activations of the keys."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 20, 8, dtype=F64)
    x = torch.randn(2, 20, 5, dtype=F64)
    for enc in (ec.fox(8, heads=4, features=5), ec.wall(8, heads=4, features=5), ec.carope(8, heads=4, features=5)):
        full = ec.attention(q, k, v, enc, x=x)
        for end in (2, 9, 20):
            out = ec.attention(q[:, :, end - 1 : end], k[:, :, :end], v[:, :, :end], enc, key_x=x[:, :end])
            assert torch.allclose(out, full[:, :, end - 1 : end], rtol=0, atol=1e-11)


def test_forgetting_attention_written_out():
    """The sum of log f over s + 1 .. t, pair by pair, and gradients to the gate."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 9, 4, dtype=F64, requires_grad=True) for _ in range(3))
    x = torch.randn(1, 9, 5, dtype=F64, requires_grad=True)
    enc = ec.fox(4, heads=2, features=5)
    log_f = F.logsigmoid(projected(enc.clock, x))[..., 0]
    z = torch.full((1, 2, 9, 9), -math.inf, dtype=F64)
    for t in range(9):
        for s in range(t + 1):
            z[:, :, t, s] = (q[:, :, t] * k[:, :, s]).sum(-1) / 2 + log_f[:, :, s + 1 : t + 1].sum(-1)
    expected, out = z.softmax(-1) @ v, ec.attention(q, k, v, enc, x=x)
    assert torch.allclose(out, expected, rtol=0, atol=1e-10)
    g = torch.randn_like(out)
    wanted = (q, k, v, x, *enc.parameters())
    for a, b in zip(torch.autograd.grad(out, wanted, g), torch.autograd.grad(expected, wanted, g), strict=True):
        assert torch.allclose(a.double(), b.double(), rtol=1e-5, atol=1e-7)
