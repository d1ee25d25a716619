"""Case 40: bases, shares and sizes in lists with one entry per layer are read for each layer, or refused in words."""

import warnings

import pytest
import torch

import eigenclock as ec
from cases.reading import frequencies, read

F64 = torch.float64
FULL, SLIDING = "full_attention", "sliding_attention"
SIZES = {"head_dim": 16, "num_attention_heads": 4, "num_hidden_layers": 4}
TYPES = [FULL, SLIDING, SLIDING, FULL]


def geometric(theta: float, width: int) -> torch.Tensor:
    return theta ** (-torch.arange(0, width, 2, dtype=F64) / width)


@pytest.mark.parametrize("name", [FULL, SLIDING])
def test_numbers_of_the_case(case, name):
    expect = case["expect"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ec.encodings(case["given"]["config"])
    wanted = torch.tensor(expect[name]["frequencies"], dtype=F64)
    assert torch.allclose(frequencies(found[name]), wanted, rtol=expect["rel_tol"], atol=0)
    assert 2 * len(wanted) == expect[name]["rotary_width"]
    assert found[name].head_dim == expect[FULL]["head_dim"]
    assert [i for i, key in enumerate(found.layers) if key == name] == expect["layers"][name]
    assert found.conventions.pairing == "half"


def test_the_file_of_the_case_is_audited(case, tmp_path):
    report = ec.audit(case["given"]["config"])
    assert report.ok
    assert not any("misspel" in finding.message or "did you mean" in finding.message for finding in report.findings)


def test_lists_may_hold_the_layers_that_predict_further_tokens(case):
    config = case["given"]["config"]
    longer = {key: [*config[key], config[key][1]] for key in ("rope_theta", "partial_rotary_factors", "layer_types")}
    found = read({**config, **longer, "num_nextn_predict_layers": 1})
    expected = read(config)
    assert (dict(found.items()).keys(), found.layers) == (dict(expected.items()).keys(), expected.layers)
    assert [str(one) for one in found.values()] == [str(one) for one in expected.values()]


def test_other_heads_of_one_layer_type(case):
    other = {"attention_type": SLIDING, "num_attention_heads": 12, "num_attention_groups": 4, "head_dim": 64, "true_head_dim": 64}
    found = read({**case["given"]["config"], "attention_other_setting": other})
    assert (found[SLIDING].heads, found[SLIDING].kv_heads) == (12, 4)
    assert (found[FULL].heads, found[FULL].kv_heads) == (8, 2)


# The kind: lists under other names, and layers of one type that differ.


@pytest.mark.parametrize("key", ["rope_theta", "rotary_emb_base", "layer_rope_theta"])
@pytest.mark.parametrize("types", [TYPES, None])
def test_bases_per_layer(key, types):
    bases = [1e6, 1e4, 1e4, 1e6]
    found = read({**SIZES, key: bases} | ({"layer_types": types} if types else {}))
    assert found.layers == ((FULL, SLIDING, SLIDING, FULL) if types else (FULL, f"{FULL}_2", f"{FULL}_2", FULL))
    for i, theta in enumerate(bases):
        assert torch.allclose(frequencies(found.layer(i)), geometric(theta, 16), rtol=1e-7)


@pytest.mark.parametrize("none", [0, 0.0, None])
def test_a_base_of_none_is_a_layer_without_position(none):
    found = read({**SIZES, "layer_rope_theta": [1e4, 1e4, 1e4, none]})
    assert list(found.rotates) == [True, True, True, False]
    assert found.layers[3] == f"{FULL}_nope"


def test_a_list_counts_before_the_base_of_the_section():
    section = {"rope_type": "default", "rope_theta": 1e4}
    found = read(
        {**SIZES, "model_type": "granite_swa", "layer_types": TYPES, "rope_parameters": section, "layer_rope_theta": [5e5, 0, 0, 5e5]}
    )
    assert torch.allclose(frequencies(found.layer(0)), geometric(5e5, 16), rtol=1e-7)
    assert list(found.rotates) == [True, False, False, True]


@pytest.mark.parametrize("key", ["partial_rotary_factor", "partial_rotary_factors", "rotary_pct"])
def test_shares_per_layer(key):
    found = read({**SIZES, "rope_theta": 1e4, "layer_types": TYPES, key: [0.5, 1.0, 1.0, 0.5]})
    assert [2 * len(frequencies(found.layer(i))) for i in range(4)] == [8, 16, 16, 8]


def test_heads_per_layer():
    config = {
        "head_dim": 16,
        "num_transformer_layers": 3,
        "rope_freq_constant": 10000,
        "num_query_heads": [4, 4, 8],
        "num_kv_heads": [2, 2, 4],
    }
    found = read(config)
    assert [(found.layer(i).heads, found.layer(i).kv_heads) for i in range(3)] == [(4, 2), (4, 2), (8, 4)]
    found = read({**SIZES, "rope_theta": 1e4, "num_attention_heads_per_layer": [4, 8, 8, 4], "layer_types": TYPES})
    assert (found[FULL].heads, found[SLIDING].heads) == (4, 8)


def test_a_scaling_that_some_types_leave_out():
    scaling = {"rope_type": "linear", "factor": 4.0}
    config = {**SIZES, "rope_theta": 1e4, "rope_scaling": scaling, "layer_types": TYPES}
    found = read({**config, "yarn_only_types": [SLIDING]})
    assert torch.allclose(frequencies(found[SLIDING]), geometric(1e4, 16) / 4, rtol=1e-7)
    assert torch.allclose(frequencies(found[FULL]), geometric(1e4, 16), rtol=1e-7)
    both = read(config)
    assert torch.allclose(frequencies(both[FULL]), geometric(1e4, 16) / 4, rtol=1e-7)
    default = read({**config, "model_type": "step3p5"})
    assert torch.allclose(frequencies(default[FULL]), geometric(1e4, 16) / 4, rtol=1e-7)
    assert torch.allclose(frequencies(default[SLIDING]), geometric(1e4, 16), rtol=1e-7)


@pytest.mark.parametrize("key", ["rope_theta", "partial_rotary_factors", "num_key_value_heads"])
@pytest.mark.parametrize("values", [[1, 1, 1], [1] * 5, []])
def test_lists_of_another_length_are_refused(key, values):
    with pytest.raises(ec.ConfigError, match=key):
        read({**SIZES, "rope_theta": 1e4, "layer_types": TYPES, key: values})


@pytest.mark.parametrize("key", ["rope_theta", "partial_rotary_factors", "num_attention_heads"])
@pytest.mark.parametrize("wrong", ["2", True, float("nan"), -1.0])
def test_an_entry_that_is_no_number_is_refused_by_name(key, wrong):
    with pytest.raises(ec.ConfigError, match=rf"{key}\[1\]"):
        read({**SIZES, "rope_theta": 1e4, "layer_types": TYPES, key: [1, wrong, 1, 1]})
