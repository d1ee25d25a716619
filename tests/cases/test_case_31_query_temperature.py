"""Case 31: a temperature on queries is read as one, in words that are its formula, beside an encoding that knows nothing of it."""

import math
import re
from typing import Any
from unittest import mock

import pytest
import torch

import eigenclock as ec
from cases.reading import read

F64 = torch.float64


def of_words(text: str | None, t: float) -> float:
    """The number that the words of ``conventions.temperature`` give at a position."""
    formula = (text or "").partition(" times ")[2].replace("^", "**").replace("floor", "math.floor")
    formula = re.sub(r"([\d.]) ln\(", r"\1 * math.log(", formula)
    return eval(formula, {"math": math, "t": t})


def config(beta: float = 0.1, length: int = 1024, **extra: Any) -> dict[str, Any]:
    section = {"rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": beta, "original_max_position_embeddings": length}
    sizes = {"head_dim": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 4096}
    return {"model_type": "ministral3", **sizes, "rope_parameters": section, **extra}


def test_the_words_give_the_numbers_of_the_case(case):
    given, expect = case["given"], case["expect"]
    found = read(config())
    numbers = [of_words(found.conventions.temperature, t) for t in given["positions"]]
    assert numbers == pytest.approx(expect["temperature"], abs=expect["abs_tol"])
    assert any("llama_4_scaling_beta" in text and "not part of it" in text for text in found.notes)


def test_the_encoding_beside_it_depends_on_differences_alone(case):
    """What the model computes, over the temperature of the query, is the score of the encoding, which is a function of the lag."""
    found = read(config())
    times = torch.tensor(case["given"]["positions"])
    torch.manual_seed(0)
    q, k = (torch.randn(16, dtype=F64).expand(1, 2, 5, 16) for _ in "qk")
    factor = torch.tensor(case["expect"]["temperature"], dtype=F64)[:, None]
    scores = ec.scores(q * factor, k, found.only, times=times, causal=False) / factor
    moved = ec.scores(q, k, found.only, times=times + 777, causal=False)
    assert torch.allclose(scores, moved, rtol=0, atol=1e-9)
    assert str(found.only) == "rope(head_dim=16, heads=2, theta=10000.0, pairing='half')"


@pytest.mark.parametrize("beta", [0.05, 0.1, 0.25])
@pytest.mark.parametrize("length", [64, 8192])
def test_other_numbers(beta, length):
    text = read(config(beta, length)).conventions.temperature
    for t in (0, length - 1, length, 3 * length + 1):
        assert of_words(text, t) == pytest.approx(1 + beta * math.log(1 + t // length), rel=1e-12)


@pytest.mark.parametrize("beta", ["0.1", True, float("nan")])
def test_numbers_that_are_none_are_refused(beta):
    with pytest.raises(ec.ConfigError, match="beta"):
        read(config(beta))


def test_a_model_that_does_not_read_the_key_has_no_temperature_and_says_so():
    found = read({**config(), "model_type": "llama"})
    assert found.conventions.temperature is None
    assert any("llama_4_scaling_beta" in text for text in found.warnings)


# The real models: their queries with the temperature over those without.


@pytest.mark.peer("transformers")
@pytest.mark.parametrize("kind", ["ministral3", "mistral4", "llama4_text", "beam"])
def test_the_words_are_what_real_layers_multiply_by(kind):
    from config.compared import MOST, inputs_of
    from config.real_attention import run
    from config.shrunk import model_of, shrunk, under

    given = shrunk(kind) if kind in ("llama4_text", "beam") else under(shrunk(kind), "yarn")
    if kind == "llama4_text":
        given.floor_scale = 3
    elif kind != "beam":
        given.rope_parameters["llama_4_scaling_beta"] = 0.3
    encs = read(given)
    layer = next((i for i, turns in enumerate(encs.rotates) if not turns), 0)
    model = model_of(given, MOST)
    inputs, times = inputs_of(model, 1)
    if kind == "llama4_text":  # its temperature counts by itself, whatever position_ids say
        times = torch.arange(len(times))
    warm = run(model, inputs).seen
    if kind == "beam":
        from transformers.models.beam import modeling_beam

        with mock.patch.object(modeling_beam, "compute_attention_scaling", return_value=torch.ones(())):
            plain = run(model, inputs).seen
    else:
        given.rope_parameters["llama_4_scaling_beta"] = 0.0
        for part in model.modules():
            if hasattr(part, "attn_temperature_tuning"):
                part.attn_temperature_tuning = False
        plain = run(model, inputs).seen
    ratio = (warm[layer].q / plain[layer].q).mean((0, 2))
    expected = torch.tensor([of_words(encs.conventions.temperature, t) for t in times.tolist()], dtype=F64)
    assert expected.max() > 1.009
    assert torch.allclose(ratio, expected, rtol=1e-5)
    assert ("without position" in encs.conventions.temperature) == (not encs.rotates[layer])
