"""Learned numbers: how they are read, what a text says of them, and the precision in which a formula is held to them."""

import math

import pytest
import torch

import eigenclock as ec
from eigenclock.encodings.spec import START_VALUES
from eigenclock.errors import ConfigError
from eigenclock.testing import LawError, check_encoding

F64 = torch.float64


def nudge(enc: ec.Encoding, by: float = 0.25) -> None:
    """A step of training: every learned number is moved on the scale on which it is learned."""
    with torch.no_grad():
        for leaf in enc.parameters():
            leaf.add_(by)


def test_values_are_those_in_use():
    enc = ec.damped_rope(8, heads=2, half_life=5.0, learn=("freq", "rate"))
    start = enc.learned_values()
    assert set(start) == {"freq", "rate"}
    nudge(enc)
    values = enc.learned_values()
    for name, value in values.items():
        assert value.dtype == F64 and not value.requires_grad
        torch.testing.assert_close(value, start[name] * math.exp(0.25), rtol=1e-6, atol=0)
    q, k = torch.randn(2, 1, 2, 6, 8, dtype=F64)
    fixed = ec.damped_rope(8, heads=2, freq=values["freq"], rate=values["rate"])
    torch.testing.assert_close(ec.scores(q, k, enc), ec.scores(q, k, fixed), rtol=0, atol=1e-12)


def test_sums_products_and_both_sides_name_theirs():
    one, other = ec.alibi(4, heads=2, learn=("slope",)), ec.rope(4, heads=2, learn=("freq",))
    assert set((one * other).learned_values()) == {"left.slope", "right.freq"}
    assert set((other + ec.nope(2, heads=2)).learned_values()) == {"left.freq"}
    assert set(ec.two_sided(one).learned_values()) == {"inner.slope"}
    assert ec.rope(4).learned_values() == {} and ec.fox(4, heads=2).learned_values() == {}


@pytest.mark.parametrize(
    "make",
    [
        lambda: ec.alibi(4, heads=2, learn=("slope",)),
        lambda: ec.rope(4, heads=2, learn=("freq",)) * ec.alibi(4, heads=2),
        lambda: ec.two_sided(ec.decay_bias(4, heads=2, half_life=3.0, learn=("rate",))),
        lambda: ec.t5_bias(4, heads=2),
    ],
)
def test_a_text_says_when_it_gives_start_values(make):
    enc = make()
    start = str(enc)
    assert START_VALUES not in start
    nudge(enc)
    assert str(enc) == start + START_VALUES
    assert repr(enc).startswith(str(enc))
    again = ec.encoding(str(enc))
    assert str(again) == start
    check_encoding(enc)
    enc.reset_parameters()
    assert str(enc) == start


def test_the_words_in_the_middle_of_a_text_are_refused():
    enc = ec.alibi(4, heads=2, learn=("slope",))
    nudge(enc)
    with pytest.raises(ConfigError, match="expected recipes"):
        ec.encoding(f"{enc} * rope", head_dim=4, heads=2)


def test_a_cache_and_a_state_go_on_after_a_step():
    enc = ec.damped_rope(8, heads=2, half_life=5.0, learn=("rate",))
    q, k, v = torch.randn(3, 1, 2, 4, 8)
    _, cache = ec.cached_attention(q, k, v, enc)
    _, state = ec.linear_attention(q, k, v, enc)
    nudge(enc)
    ec.cached_attention(q, k, v, enc, cache=cache)
    ec.linear_attention(q, k, v, enc, state=state)


def biased(slope: float):
    """scale * q . k - slope (t - s), the formula of ALiBi with one slope."""

    def formula(q, k, t, s):
        return q @ k.mT * q.shape[-1] ** -0.5 - slope * (t[:, None] - s)

    return formula


def test_a_formula_is_met_to_the_precision_of_what_is_learned():
    enc = ec.alibi(4, heads=1, slopes=[0.1], learn=("slope",))
    times = torch.tensor([0, 1, 2, 5, 600, 1100])
    gap = abs(float(enc.learned_values()["slope"]) - 0.1) * 1100
    assert gap > 1e-9 * 110  # beyond the limit for fixed numbers, which are kept in float64
    check_encoding(enc, times=times, formula=biased(0.1))
    check_encoding(ec.alibi(4, heads=1, slopes=[0.1]), times=times, formula=biased(0.1))
    with pytest.raises(LawError, match="formula"):
        check_encoding(enc, times=times, formula=biased(0.1 * (1 + 3e-6)))
    with pytest.raises(LawError, match="formula"):
        check_encoding(ec.alibi(4, heads=1, slopes=[0.1]), times=times, formula=biased(0.1 * (1 + 1e-7)))


def test_judging_leaves_the_numbers_as_they_were():
    enc = ec.alibi(4, heads=1, slopes=[0.1], learn=("slope",))
    before = enc.learned_values()["slope"]
    check_encoding(enc, formula=biased(0.1))
    assert torch.equal(before, enc.learned_values()["slope"])


def test_version():
    from importlib.metadata import version

    assert ec.__version__ == version("eigenclock")
