"""The learned clock: sums of gated increments, exact over long sequences, safe from casts, refused where it cannot hold."""

import copy
import math
import pickle
from itertools import pairwise

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


@pytest.mark.parametrize("gate", GATES)
def test_a_clock_is_pickled_with_its_numbers(gate):
    clock, x = made(gate=gate), torch.randn(2, 4, 5)
    again = pickle.loads(pickle.dumps(clock))
    assert torch.equal(again(x=x).ticks, clock(x=x).ticks) and again.spec() == clock.spec()


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
    for run in (ec.attention, lambda *a, **k: ec.linear_attention(*a, **k)[0]):
        gated = ec.gla(8, heads=2, features=5, clock=ec.Cumulative(5, per="block", gate="forget16", base=ec.Timestamps("s")))
        for bad in (torch.nan, torch.inf):
            spoilt = x.index_fill(1, torch.tensor(2), bad)
            with pytest.raises(ec.ClockError, match=r"NaN or infinite increments .* token 2 \(row 0\)"):
                run(q, q, q, gated, x=spoilt, times=torch.arange(4))
        with pytest.raises(ec.ClockError, match="no activations"):
            run(q, q, q, gated)
        with pytest.raises(ec.ClockError, match="no activations"):
            run(q, q, q, gated, times=torch.arange(4))
        for times in (torch.arange(3), torch.arange(12).view(3, 4), torch.zeros(1, 3, 4)):
            with pytest.raises(ec.ShapeError, match="got times of shape"):
                run(q, q, q, gated, x=x.expand(2, -1, -1), times=times)
        with pytest.raises(ec.ClockError, match="go back at token 2"):
            run(q, q, q, gated, x=x, times=torch.tensor([0, 5, 3, 7]))
        for gate in ("signed", "half_turn"):
            with pytest.raises(ec.ClockError, match="either sign"):
                run(q, q, q, ec.damped_rope(8, heads=2, rate=0.1, clock=ec.Cumulative(5, gate=gate, per="block")), x=x)
    with pytest.raises(ec.ClockError, match="either sign"):
        ec.attention(q, q, q, ec.decay(8, heads=2, rate=0.1, clock=ec.Cumulative(5, gate="signed")), x=x)
    with pytest.raises(ec.ClockError, match="sums along one sequence"):
        ec.attention(q, q, q, fox, x=x, key_x=x, times=torch.arange(4), key_times=torch.arange(4))
    with pytest.raises(ec.UnknownNameError, match="softplus"):
        ec.Cumulative(5, gate="softpuls")
    with pytest.raises(ec.ConfigError, match="Cumulative"):
        ec.fox(8, heads=2, clock=ec.Index())
    for wrong in ({"features": 0}, {"features": 5, "rank": 0}, {"features": 5, "base": "index"}, {"features": 5, "base": ec.Axes()}):
        with pytest.raises(ec.ConfigError, match="expected a"):
            ec.Cumulative(**wrong)
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


STAMPS = 1_700_000_000_123_456_789 + torch.tensor([0, 5, 5, 60_000_000_001, 61_000_000_000, 3_600_000_000_000, 3_600_000_000_007])
BASES = {
    "index": ec.Index(),
    "timestamps": ec.Timestamps("ns", per="min"),
    "sessions": ec.Sessions("00:00-24:00", unit="ns", per="min"),
    "column": ec.Column("trades"),
}


def pieces(clock: ec.Cumulative, times, x: Tensor, cuts: list[int], mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Ticks of a sequence read in pieces, on one count."""
    ticks, origin, since = [], None, None
    for a, b in pairwise([0, *cuts, x.shape[1]]):
        some = None if mask is None else mask[:, a:b]
        read = clock(times[..., a:b], x=x[:, a:b], mask=some, origin=origin, since=since)
        origin, since = clock.continued(read, True), read.last
        ticks.append(read.ticks)
    return torch.cat(ticks, 2), since


@pytest.mark.parametrize("base", BASES)
def test_gaps_between_pieces_count(base):
    """Nanoseconds since 1970, token by token and in pieces: the numbers of the whole, and the last stamp to the last digit."""
    torch.manual_seed(0)
    clock, x = made(base=copy.deepcopy(BASES[base])), torch.randn(2, 7, 5, dtype=F64)
    whole = clock(STAMPS, x=x)
    scale = 1.0 if base in ("index", "column") else 60e9
    steps = torch.cat([torch.zeros(1, dtype=F64), STAMPS.diff().double() / scale])
    expected = (WRITTEN["softplus"](projected(clock, x))[..., 0] * steps).cumsum(2)
    assert torch.allclose(whole.ticks, expected, rtol=1e-12, atol=0)
    for cuts in ([3], [1, 2, 6], [1, 2, 3, 4, 5, 6], [0, 7]):
        ticks, last = pieces(clock, STAMPS, x, cuts)
        assert torch.allclose(ticks, whole.ticks, rtol=1e-12, atol=0)
        assert last is not None and last.dtype == torch.int64 and last.flatten().tolist() == [STAMPS[-1]]


def test_gaps_between_pieces_count_real_tokens_only():
    """Padding may hold any time, on either side and over whole pieces; a row that begins late begins at its first real token."""
    torch.manual_seed(0)
    clock, x = made(base=ec.Timestamps("ns")), torch.randn(3, 7, 5, dtype=F64)
    mask = torch.tensor([[1, 1, 0, 0, 1, 0, 1], [0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0]], dtype=torch.bool)
    times = torch.where(mask, STAMPS, torch.iinfo(torch.int64).max // 3)
    for given in (times, STAMPS, times[:, None].expand(-1, 2, -1)):
        whole = clock(given, x=x, mask=mask)
        for row in range(3):
            real = mask[row]
            alone = clock(STAMPS[real], x=x[row : row + 1, real]).ticks
            assert torch.allclose(whole.ticks[row : row + 1, :, real], alone, rtol=1e-12, atol=0)
        assert whole.last is not None
        assert whole.last.flatten(1)[:, 0].tolist() == [int(STAMPS[6]), int(STAMPS[5]), torch.iinfo(torch.int64).min]
        for cuts in ([1], [2, 4], [1, 2, 3, 4, 5, 6]):
            ticks, last = pieces(clock, given, x, cuts, mask)
            assert torch.allclose(ticks, whole.ticks, rtol=1e-12, atol=0)
            assert torch.equal(last.flatten(), whole.last.flatten())
    halves, _ = pieces(clock, times.double(), x, [2], mask)
    assert torch.allclose(halves, clock(times.double(), x=x, mask=mask).ticks, rtol=1e-12, atol=0)


def test_gradients_reach_times_over_a_gap():
    torch.manual_seed(0)
    clock, x = made(base=ec.Timestamps("s")), torch.randn(1, 6, 5, dtype=F64)
    times = torch.tensor([0.0, 1.5, 1.5, 4.0, 9.0, 9.5], dtype=F64, requires_grad=True)
    weight = torch.randn(1, 2, 6, dtype=F64)
    expected = torch.autograd.grad((clock(times, x=x).ticks * weight).sum(), times)[0]
    found = torch.autograd.grad((pieces(clock, times, x, [2, 4])[0] * weight).sum(), times)[0]
    assert torch.allclose(found, expected, rtol=1e-12)


def test_padding_may_hold_nan():
    """Neither the ticks nor the gradients of the weights see it."""
    torch.manual_seed(0)
    clock, x = made(), torch.randn(1, 6, 5)
    mask = torch.tensor([[True, True, False, True, True, False]])
    grads = []
    for given in (x, x.masked_fill(~mask[..., None], torch.nan)):
        ticks = clock(x=given, mask=mask).ticks
        grads.append(torch.autograd.grad(ticks.sum(), list(clock.parameters())))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_linear_attention_goes_on_over_gaps():
    """Nanosecond stamps, token by token and in pieces, with padding: outputs and gradients of one call."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 7, 4, dtype=F64, requires_grad=True) for _ in range(3))
    x = torch.randn(2, 7, 5, dtype=F64, requires_grad=True)
    mask = torch.tensor([[1, 1, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0, 1]], dtype=torch.bool)
    enc = ec.gla(4, heads=2, features=5, clock=ec.Cumulative(5, per="block", gate="forget16", base=ec.Timestamps("ns", per="min")))
    leaves, g = [q, k, v, x, *enc.parameters()], torch.randn(2, 2, 7, 4, dtype=F64) * mask[:, None, :, None]
    for padding in (None, mask):
        whole, _ = ec.linear_attention(q, k, v, enc, times=STAMPS, x=x, mask=padding)
        wanted = torch.autograd.grad(whole, leaves, g)
        for cuts in ([3], [1, 2, 3, 4, 5, 6], [2, 2, 5]):
            out, state = [], None
            for a, b in pairwise([0, *cuts, 7]):
                now = slice(a, b)
                some = None if padding is None else padding[:, now]
                piece, state = ec.linear_attention(
                    q[:, :, now], k[:, :, now], v[:, :, now], enc, times=STAMPS[now], x=x[:, now], mask=some, state=state
                )  # fmt: skip
                out.append(piece)
            found = torch.cat(out, 2)
            rows = slice(None) if padding is None else mask[:, None, :, None].expand_as(whole)
            assert torch.allclose(found[rows], whole[rows], rtol=0, atol=1e-11)
            for mine, theirs in zip(torch.autograd.grad(found, leaves, g), wanted, strict=True):
                low = mine.dtype == torch.float32  # learned numbers
                assert torch.allclose(mine, theirs, rtol=1e-5 if low else 1e-9, atol=1e-7 if low else 1e-11)


def test_pieces_may_come_in_other_types():
    """Integers then floats, also before the first real token, and numpy stamps whose unit is not the clock's."""
    torch.manual_seed(0)
    clock, x = made(base=ec.Timestamps("s", per="min")), torch.randn(2, 6, 5, dtype=F64)
    times = torch.tensor([0, 3, 3, 60, 75, 600])
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 0, 1]], dtype=torch.bool)
    stamps = (times.numpy() * 1000 + 1_600_000_000_000).astype("datetime64[ms]")
    for whole, parts, some in (
        (times, (times[:3], times[3:].double()), None),
        (times, (times[:3].int(), times[3:].double()), mask),
        (times, (times[:3].double(), times[3:]), mask),
        (stamps, (stamps[:3], stamps[3:]), mask),
    ):
        first = clock(parts[0], x=x[:, :3], mask=None if some is None else some[:, :3])
        rest = clock(
            parts[1], x=x[:, 3:], mask=None if some is None else some[:, 3:], origin=clock.continued(first, True), since=first.last
        )
        expected = clock(whole, x=x, mask=some).ticks
        assert torch.allclose(torch.cat([first.ticks, rest.ticks], 2), expected, rtol=1e-12, atol=1e-15)
        plain = clock(times, x=x, mask=some).ticks
        assert torch.allclose(expected, plain, rtol=1e-12, atol=1e-15)


def test_a_base_that_reads_stamps_wants_them():
    """A gate on elapsed seconds has nothing to multiply without stamps: no step of 1 stands in for them."""
    clock = ec.Cumulative(4, base=ec.Timestamps("ns")).bind(1, 1)
    with pytest.raises(ec.ClockError, match="got no times"):
        clock(x=torch.randn(1, 3, 4))
    assert ec.Cumulative(4).bind(1, 1)(x=torch.randn(1, 3, 4)).ticks.shape == (1, 1, 3)
