"""Any nondecreasing column as time: exact differences, its own unit in half-lives and windows, and the calls of attention."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import eigenclock as ec
from eigenclock.testing import check_clock

F64 = torch.float64


@pytest.mark.parametrize("decreasing", ["refuse", "sort"])
def test_laws(decreasing):
    check_clock(ec.Column("shares", decreasing=decreasing), torch.tensor([10**18, 10**18 + 1, 10**18 + 700, 10**18 + 90_000]))
    check_clock(ec.Column("km"), torch.tensor([0.25, 0.5, 7.125, 1e3], dtype=F64))


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=30), st.integers(-(2**62), 2**62 - 2**46))
def test_differences_are_those_of_the_integers(steps, start):
    """The oracle counts in Python's integers; every total here is below 2^53, so that float64 holds it."""
    total = [start + sum(steps[: k + 1]) for k in range(len(steps))]
    ticks = ec.Column("trades")(torch.tensor(total)).ticks
    assert [int(tick) for tick in ticks] == [value - total[0] for value in total]


@pytest.mark.parametrize("shape", [(7,), (2, 7), (2, 4, 7)])
@pytest.mark.parametrize("dtype", [torch.int64, F64])
def test_one_origin_for_each_row(shape, dtype):
    values = (torch.arange(7) ** 2 + 10 * torch.arange(torch.Size(shape[:-1]).numel()).reshape(*shape[:-1], 1)).to(dtype)
    reading = ec.Column()(values)
    assert torch.equal(reading.ticks, (torch.arange(7) ** 2).double().expand(shape))
    assert torch.equal(reading.origin, values[..., :1])
    later = ec.Column()(values + 100, origin=reading.origin).ticks
    assert torch.equal(later, reading.ticks + 100)


def test_a_sum_in_float32_is_refused_and_one_in_integers_is_not():
    size = torch.tensor([16_777_216, 1, 1, 1, 1])
    assert ec.Column("shares")(size.cumsum(-1)).ticks.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ec.ClockError, match="float32"):
        ec.Column("shares")(size.float().cumsum(-1))


def test_numpy_and_lists_are_read():
    for values in (np.array([5, 5, 9]), np.array([5.0, 5.0, 9.0]), [5, 5, 9]):
        assert ec.Column()(values).ticks.tolist() == [0, 0, 4]


# --- in attention ------------------------------------------------------------------------------------------------------------------


def volumes(*shape: int) -> torch.Tensor:
    """Running totals in shares, one trade in ten of size 0, so that ties are there."""
    random = torch.Generator().manual_seed(0)
    size = torch.randint(1, 500, shape, generator=random)
    return torch.where(torch.rand(shape, generator=random) < 0.1, 0, size).cumsum(-1) + 10**15


def qkv(length: int) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    return [torch.randn(2, 4, length, 8, dtype=F64, generator=random) for _ in range(3)]


RECIPES = {
    "damped_rope": lambda **options: ec.damped_rope(8, heads=4, **options),
    "decay_bias": lambda **options: ec.decay_bias(8, heads=4, **options),
}


@pytest.mark.parametrize("shape", [(200,), (2, 200), (2, 4, 200)], ids=str)
@pytest.mark.parametrize("recipe", RECIPES)
def test_attention_equals_the_oracle(recipe, shape):
    """Over a column, and over the same numbers given to the plain index clock."""
    q, k, v = qkv(200)
    total = volumes(*shape)
    enc = RECIPES[recipe](half_life=10_000, clock=ec.Column("shares"))
    z = ec.scores(q, k, enc, times=total)
    torch.testing.assert_close(z, ec.scores(q, k, RECIPES[recipe](half_life=10_000), times=total), rtol=0, atol=0)
    torch.testing.assert_close(ec.attention(q, k, v, enc, times=total), z.softmax(-1) @ v, rtol=0, atol=1e-10)


def test_half_lives_are_in_shares():
    q = torch.ones(1, 1, 3, 4, dtype=F64)
    total = torch.tensor([0, 700, 1000])
    for half_life in (1000, "1000shares", "1000 shares", "1e3 shares"):
        z = ec.scores(q, q, ec.decay(4, half_life=half_life, clock=ec.Column("shares")), times=total)[0, 0, 2]
        torch.testing.assert_close(z, 2 * 0.5 ** torch.tensor([1.0, 0.3, 0.0], dtype=F64))
    spread = ec.decay_bias(4, heads=2, half_life=("100 shares", "10000 shares"), clock=ec.Column("shares"))
    assert str(ec.encoding(str(spread))) == str(spread)


@pytest.mark.parametrize("window", ["5000 shares", "5e3shares"])
def test_windows_are_in_shares(window):
    q, k, v = qkv(200)
    total = volumes(200)
    enc = ec.damped_rope(8, heads=4, half_life=2000, clock=ec.Column("shares"))
    z = ec.scores(q, k, enc, times=total, window=window)
    near = (total[:, None] - total < 5000).tril()
    assert torch.equal((z > -torch.inf)[0, 0], near)
    assert not bool(near.all(-1).any()) and bool((near.sum(-1) > 1).any())
    torch.testing.assert_close(ec.attention(q, k, v, enc, times=total, window=window), z.softmax(-1) @ v, rtol=0, atol=1e-10)


@pytest.mark.parametrize("half_life", ["30min", "1000 lots", "1000 s"])
def test_time_is_refused_where_shares_are_counted(half_life):
    with pytest.raises(ec.ConfigError) as error:
        ec.decay(4, half_life=half_life, clock=ec.Column("shares"))
    assert half_life in str(error.value) and "'1000 shares'" in str(error.value)


def test_a_column_in_hours_takes_durations():
    rates = ec.decay(4, half_life="30min", clock=ec.Column("h")).generator().rate
    torch.testing.assert_close(rates, torch.full_like(rates, 2 * np.log(2)))


def test_going_back_is_refused_or_sorted():
    q, k, v = qkv(4)
    total = torch.tensor([0, 300, 200, 900])
    with pytest.raises(ec.ClockError, match="go back at token 2"):
        ec.attention(q, k, v, ec.decay(8, half_life=100, clock=ec.Column("shares")), times=total)
    order = torch.tensor([0, 2, 1, 3])
    enc = ec.decay(8, half_life=100, clock=ec.Column("shares", decreasing="sort"))
    expected = ec.attention(*(x[:, :, order] for x in (q, k, v)), enc, times=total[order])
    torch.testing.assert_close(ec.attention(q, k, v, enc, times=total)[:, :, order], expected)


@pytest.mark.parametrize("unit", ["10 shares", "", "in shares", None, 3])
def test_a_unit_is_one_word(unit):
    with pytest.raises(ec.ConfigError, match="one word"):
        ec.Column(unit)


def test_it_has_no_count_of_its_own():
    with pytest.raises(ec.ClockError, match="running total of shares"):
        ec.attention(*qkv(3), ec.rope(8, clock=ec.Column("shares")))


def test_specs():
    enc = ec.rope(8, clock=ec.Column("km", decreasing="sort"))
    assert enc.clock.spec() == {"name": "column", "unit": "km", "decreasing": "sort"}
    for spec in (str(enc), enc.spec):
        assert ec.encoding(spec).clock.spec() == enc.clock.spec()
    assert ec.encoding("rope(clock=column)", head_dim=8).clock.spec() == ec.Column().spec()


def test_a_window_names_the_unit_and_a_plain_number_counts_keys():
    enc, total = ec.rope(4, clock=ec.Column("shares")), torch.tensor([0, 5, 5, 10, 12, 30])
    q, eye = torch.zeros(1, 1, 6, 4), torch.eye(6)[None, None]
    seen = {window: (ec.attention(q, q, eye, enc, times=total, window=window)[0, 0] > 0).sum(-1).tolist() for window in ("7 shares", 3)}
    assert seen == {"7 shares": [1, 2, 3, 3, 2, 1], 3: [1, 2, 3, 3, 3, 3]}
    with pytest.raises(ec.errors.ConfigError, match="counts shares"):
        ec.attention(q, q, eye, enc, times=total, window="7s")
