"""Case 29: switches that change positions without saying rope are read or named, and two lengths are not two names of one."""

import warnings
from typing import Any

import pytest
import torch

import eigenclock as ec

F64 = torch.float64
PLAIN = {"model_type": "llama", "head_dim": 16, "num_attention_heads": 2, "rope_theta": 1e4, "num_hidden_layers": 1}


def heard(config: Any, **keywords: Any) -> tuple[ec.Encodings, str]:
    """What is read, and every warning given with it."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = ec.encodings(config, **keywords)
    return found, " / ".join(str(w.message) for w in said)


def frequencies(encoding: ec.Encoding) -> torch.Tensor:
    return encoding.generator().split().turns[0].freq.reshape(-1)


@pytest.mark.parametrize("without", [(), ("max_position_embeddings",)])
def test_both_switches_of_the_case_are_named_and_both_lengths_are_read(case, without):
    config = {key: value for key, value in case["given"]["config"].items() if key not in without}
    found, said = heard(config)
    assert "use_dynamic_ntk" in said
    assert "use_logn_attn" in said
    assert "two names of one number" not in said
    assert any("seq_length=8192" in text and "32768" in text for text in found.notes) == (not without)


def test_the_base_of_the_case_for_its_length(case):
    expect = case["expect"]["if_read"]
    found, said = heard(case["given"]["config"], length=expect["length"])
    freq = frequencies(found.only)
    assert float(freq[-1]) == pytest.approx(expect["last_frequency"], rel=expect["rel_tol"])
    assert torch.allclose(freq, expect["base"] ** (-torch.arange(16, dtype=F64) / 16), rtol=expect["rel_tol"], atol=0)
    assert any("use_dynamic_ntk" in text for text in found.notes)
    assert "use_logn_attn" in said


# The kind: other lengths, other switches, other model types.


@pytest.mark.parametrize(
    ("length", "alpha"), [(1, 1), (8192, 1), (8193, 3), (16384, 3), (16385, 7), (32768, 7), (32769, 15), (65536, 15), (100000, 31)]
)
def test_the_base_grows_in_steps(case, length, alpha):
    found, _ = heard(case["given"]["config"], length=length)
    base = 10000.0 * alpha ** (32 / 30)
    assert torch.allclose(frequencies(found.only), base ** (-torch.arange(16, dtype=F64) / 16), rtol=1e-9, atol=0)


def test_the_temperature_of_logn_is_in_words(case):
    found, _ = heard(case["given"]["config"])
    assert found.conventions.temperature == "queries beyond 8192 tokens times ln(t + 1) / ln(8192)"
    off, said = heard({**case["given"]["config"], "use_logn_attn": False, "use_dynamic_ntk": False})
    assert (off.conventions.temperature, said) == (None, "")


def test_without_a_trained_length_the_switches_are_named_still(case):
    config = {key: value for key, value in case["given"]["config"].items() if key != "seq_length"}
    _, said = heard(config)
    assert "use_dynamic_ntk" in said
    assert "use_logn_attn" in said


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_dynamic_ntk", True),
        ("use_logn_attn", True),
        ("ntk_alpha", 8.0),
        ("position_interpolation_factor", 4.0),
        ("yarn", {"factor": 16.0}),
        ("attn_temperature_tuning", 4),
        ("log_scaling_n_floor", 8192),
        ("xpos_scale_base", 512),
        ("swa_base_freq", 1e4),
        ("compress_theta", 1e4),
        ("position_encoding_kind", "sinusoidal"),
        ("rope_something", 3),
        ("nope_layers", [1]),
        ("theta", 5e5),
    ],
)
def test_a_key_that_bears_on_positions_is_named(key, value):
    _, said = heard({**PLAIN, key: value})
    assert key in said


@pytest.mark.parametrize("key", ["use_dynamic_ntk", "use_logn_attn", "alibi", "ntk_alpha", "position_interpolation_factor", "yarn"])
@pytest.mark.parametrize("off", [None, False, 0, "", [], {}])
def test_a_switch_that_is_off_says_nothing(key, off):
    _, said = heard({**PLAIN, key: off})
    assert said == ""


@pytest.mark.parametrize("kind", ["llama", "opt_of_ours", None])
def test_alibi_beside_rope_is_refused(kind):
    config = {**PLAIN, "model_type": kind, "alibi": True}
    with pytest.raises(ec.UnsupportedError, match="alibi"):
        heard({key: value for key, value in config.items() if value is not None})


@pytest.mark.parametrize("beside", ["max_seq_len", "max_sequence_length", "seq_length", "model_max_length"])
def test_a_length_beside_the_longest_one_is_no_contradiction(beside):
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    config = {**PLAIN, "max_position_embeddings": 64, beside: 32, "rope_scaling": scaling}
    found, _ = heard(config, length=128)
    alone, _ = heard({key: value for key, value in config.items() if key != beside}, length=128)
    assert str(found.only) == str(alone.only)
    assert any(beside in text for text in found.notes)
    only, _ = heard({key: value for key, value in config.items() if key != "max_position_embeddings"}, length=64)
    assert "original_length=32" in str(only.only)


def test_two_names_of_the_longest_context_still_have_to_agree():
    with pytest.raises(ec.ConfigError, match="n_positions"):
        heard({**PLAIN, "max_position_embeddings": 64, "n_positions": 32})


def test_ntk_means_another_law_elsewhere_and_a_note_says_so():
    found, _ = heard({**PLAIN, "rope_scaling": {"rope_type": "ntk", "factor": 4.0}})
    assert torch.allclose(frequencies(found.only), (1e4 * 4 ** (8 / 7)) ** (-torch.arange(8, dtype=F64) / 8), rtol=1e-9)
    assert any("vLLM" in text for text in found.notes)


@pytest.mark.parametrize(
    "key", ["rotary_emb_scale_base", "use_long_rope", "rope_theta_base", "partial_rotary_factor_swa", "rope_scaling_kind"]
)
def test_a_name_with_a_word_more_is_no_misspelling(key):
    """A key of other code, as flash-attention's rotary_emb_scale_base: it is named, and no other name is proposed."""
    _, said = heard({**PLAIN, key: 4})
    assert key in said


@pytest.mark.parametrize("key", ["rope_tetha", "rope_thetas", "ropetheta", "rotary_dims", "partial_rotary_facter"])
def test_a_misspelling_is_one_still(key):
    with pytest.raises(ec.ConfigError, match="did you mean"):
        heard({**PLAIN, key: 4})


@pytest.mark.parametrize("key", ["rotary", "rope", "use_rope", "use_rotary_embedding"])
def test_a_model_that_does_not_turn_is_not_read_as_one_that_does(key):
    assert heard({**PLAIN, key: True})[1] == ""
    with pytest.raises(ec.ConfigError, match=key):
        heard({**PLAIN, key: False})
