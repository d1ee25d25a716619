"""The model: equal starts, and no trace of order but the encoding's."""

import pytest
import torch

from eigenclock.lab.model import SmallGPT
from eigenclock.lab.settings import DEFAULT_ENCODINGS

SIZES = dict(vocabulary=11, layers=2, width=16, heads=2)


def other_weights(model: SmallGPT) -> dict[str, torch.Tensor]:
    own = {id(weight) for weight in model.position_parameters()}
    return {name: weight for name, weight in model.named_parameters() if id(weight) not in own}


@pytest.mark.parametrize("spec", DEFAULT_ENCODINGS[1:])
def test_all_encodings_start_from_the_same_weights(spec):
    plain, model = other_weights(SmallGPT("nope", **SIZES, seed=5)), other_weights(SmallGPT(spec, **SIZES, seed=5))
    assert plain.keys() == model.keys()
    assert all(torch.equal(plain[name], model[name]) for name in plain)


def test_another_seed_is_another_start():
    one, two = SmallGPT("nope", **SIZES, seed=0), SmallGPT("nope", **SIZES, seed=1)
    assert not torch.equal(one.embed.weight, two.embed.weight)


@pytest.mark.parametrize("spec", DEFAULT_ENCODINGS)
def test_later_text_does_not_change_earlier_predictions(spec):
    model = SmallGPT(spec, **SIZES, seed=0)
    tokens = torch.randint(11, (2, 20))
    changed = tokens.clone()
    changed[:, 12:] = (changed[:, 12:] + 1) % 11
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :12], after[:, :12], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(before[:, 12:], after[:, 12:], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("spec", DEFAULT_ENCODINGS)
def test_order_of_the_past_is_seen_through_the_encoding_alone(spec):
    model = SmallGPT(spec, **SIZES | dict(layers=1), seed=0).double()
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]])
    shuffled = torch.tensor([[4, 2, 7, 1, 3, 6, 5, 8]])
    same = torch.allclose(model(tokens)[:, -1], model(shuffled)[:, -1], rtol=0, atol=1e-9)
    assert same == (spec == "nope")
