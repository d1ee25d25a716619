"""Heads that are treated alike are measured on a few of them, all others each by itself; the spec is that of the whole."""

from typing import Any

import pytest

import eigenclock as ec
from eigenclock.audit.heads import ALIKE, fewer, resized
from eigenclock.audit.subjects import read
from eigenclock.audit.subjects.options import Options

LENGTH = 128
CONFIG: dict[str, Any] = {"model_type": "llama", "hidden_size": 128, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16}


@pytest.mark.parametrize(
    "enc",
    [
        ec.alibi(8, heads=4),
        ec.rope(8, heads=4) * ec.alibi(8, heads=4),
        ec.damped_rope(8, heads=4, rate=[[0.1] * 4, [0.1] * 4, [0.1] * 4, [0.2] * 4]),
        ec.decay(4, heads=4, rate=[[0.1], [0.1], [0.2], [0.1]]) + ec.nope(4, heads=4),
        ec.rope(8, heads=ALIKE),
    ],
    ids=str,
)
def test_heads_that_differ_are_all_measured(enc):
    assert fewer(enc, LENGTH) is None


@pytest.mark.parametrize("enc", [ec.rope(8, heads=6, kv_heads=2), ec.nope(4, heads=6) + ec.damped_rope(4, heads=6, rate=0.1)], ids=str)
def test_heads_that_are_alike_are_measured_on_a_few(enc):
    small = fewer(enc, LENGTH)
    assert small is not None and small.heads == ALIKE and small.form == enc.form
    back = resized(small, enc.heads, enc.kv_heads)
    assert back is not None and str(back) == str(enc)


@pytest.mark.parametrize(
    "config",
    [
        {**CONFIG, "rope_theta": 5e5},
        {"head_dim": 16, "num_attention_heads": 8, "num_key_value_heads": 4, "rope_theta": 5e5},
    ],
    ids=["its model's code", "as it was read"],
)
@pytest.mark.peer("transformers")
def test_the_spec_of_a_config_has_all_heads(config):
    assert read(config, Options(length=LENGTH)).heads == ALIKE
    report = ec.audit(config, length=LENGTH)
    assert report.ok and report.spec == "rope(head_dim=16, heads=8, kv_heads=4, theta=500000.0, pairing='half')", report


def test_a_config_whose_heads_have_slopes_of_their_own_is_judged_head_by_head():
    config = {"model_type": "bloom", "hidden_size": 96, "n_head": 6}
    assert read(config, Options(length=LENGTH)).heads == 6
    assert ec.audit(config, length=LENGTH).spec == "alibi(head_dim=16, heads=6)"


SCALED = {
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "linear": {"rope_type": "linear", "factor": 4.0},
}


@pytest.mark.peer("transformers")
@pytest.mark.parametrize("name", SCALED)
def test_the_spec_of_a_scaled_config_is_its_schedule_and_gives_the_same_scores(name):
    config = {**CONFIG, "rope_theta": 1e4, "max_position_embeddings": 256, "rope_scaling": SCALED[name]}
    report = ec.audit(config, length=LENGTH)
    assert report.ok and report.spec is not None and f"freq={name}(" in report.spec, report
    assert report.nearest is not None and report.nearest.endswith("as its config says")
    assert str(ec.encoding(report.spec)) == str(ec.encodings(config)["full_attention"])


@pytest.mark.peer("transformers")
def test_each_layer_type_is_said_in_the_words_of_its_own_section():
    config = {**CONFIG, "model_type": "gemma3_text", "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    report = ec.audit(config, length=LENGTH)
    assert report.nearest is not None and report.nearest.count("as its config says") == 2


@pytest.mark.peer("transformers")
def test_a_table_that_its_config_does_not_say_is_shown_as_it_is():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(LlamaConfig(**{k: v for k, v in CONFIG.items() if k != "model_type"}))
    rotary.inv_freq *= 0.5
    report = ec.audit(rotary, length=LENGTH)
    assert report.spec is not None and "as its config says" not in str(report.nearest)
