"""Case 12: each layer type has its own parameters, and layers without rotation are those the model means."""

import pytest
import torch

import eigenclock as ec
from cases.reading import read

FULL, SLIDING = "full_attention", "sliding_attention"


def angles(encoding: ec.Encoding, time: float) -> torch.Tensor:
    """The angles after so much time, read off the action on the first channel of each pair, in turns below pi."""
    n = encoding.head_dim // 2
    matrix = encoding.generator().matrix().detach().double().reshape(-1, 2 * n, 2 * n)[0]
    i = torch.arange(n)
    return time * matrix[i, i + n]


def of_the_case(given):
    return {"layer_types": given["layer_types"], "rope_parameters": given["rope_parameters"], "head_dim": given["width"]}


def test_numbers_of_the_case(case):
    given, expect = case["given"], case["expect"]
    found = read(of_the_case(given))
    for kind, key in ((FULL, "angles_full"), (SLIDING, "angles_sliding")):
        assert torch.allclose(angles(found[kind], given["time"]), torch.tensor(expect[key]).double(), rtol=0, atol=expect["abs_tol"])
    assert found.layers == tuple(given["layer_types"])
    assert [str(found.layer(i)) for i in range(4)] == [str(found[kind]) for kind in given["layer_types"]]


def test_the_flags_of_the_case_are_read_and_it_is_said_how(case):
    given = case["given"]
    flags = given["no_rotary_layers_flag"]
    with pytest.warns(UserWarning, match="1 = the layer turns"):
        found = ec.encodings(of_the_case(given) | {"no_rope_layers": flags})
    assert found.rotates == tuple(bool(flag) for flag in flags)
    assert "1 = the layer turns" in str(found)
    assert "3 of 4 layers turn" in str(found)
    assert found.layer(3).acts_on == "nothing"
    assert torch.allclose(angles(found[SLIDING], given["time"]), torch.tensor(case["expect"]["angles_sliding"]).double(), atol=1e-4)


def test_a_layer_type_without_parameters_is_refused_by_name(case):
    config = of_the_case(case["given"])
    for kind in (FULL, SLIDING):
        fewer = {key: value for key, value in config["rope_parameters"].items() if key != kind}
        with pytest.raises(ec.ConfigError, match=kind):
            ec.encodings(config | {"rope_parameters": fewer})


# The kind: other models, patterns and flags.


@pytest.mark.parametrize("theta", [(1e6, 1e4), (5e5, 5e5), (1e4, 1e6)])
@pytest.mark.parametrize("width", [2, 8, 64])
def test_each_type_keeps_its_own_numbers(width, theta):
    parameters = {FULL: {"rope_type": "linear", "factor": 4.0, "rope_theta": theta[0]}, SLIDING: {"rope_theta": theta[1]}}
    found = read({"head_dim": width, "layer_types": [SLIDING, FULL], "rope_parameters": parameters})
    i = -torch.arange(0, width, 2, dtype=torch.float64) / width
    assert torch.allclose(angles(found[FULL], 1.0), theta[0] ** i / 4, rtol=1e-12)
    assert torch.allclose(angles(found[SLIDING], 1.0), theta[1] ** i, rtol=1e-12)


def test_a_misspelt_layer_type_is_named_with_the_right_one(case):
    config = of_the_case(case["given"])
    renamed = {("full_atention" if key == FULL else key): value for key, value in config["rope_parameters"].items()}
    with pytest.raises(ec.ConfigError, match="full_attention.*full_atention"):
        ec.encodings(config | {"rope_parameters": renamed})


def test_a_layer_type_that_no_layer_has_is_named_in_a_warning(case):
    config = of_the_case(case["given"]) | {"layer_types": [FULL, FULL]}
    with pytest.warns(UserWarning, match=SLIDING):
        found = ec.encodings(config)
    assert list(found) == [FULL]


def test_flat_keys_beside_layer_types_are_refused(case):
    config = of_the_case(case["given"])
    with pytest.raises(ec.ConfigError, match="factor"):
        ec.encodings(config | {"rope_parameters": config["rope_parameters"] | {"factor": 8.0}})


def test_flat_keys_that_every_layer_type_repeats_are_no_contradiction(case):
    """As the class of OLMo 3 writes a section that it was given flat."""
    types = {kind: {"rope_type": "default", "rope_theta": 5e5} for kind in (FULL, SLIDING)}
    config = of_the_case(case["given"]) | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5, **types}}
    assert str(read(config)) == str(read(config | {"rope_parameters": types}))
    with pytest.raises(ec.ConfigError, match="rope_theta"):
        ec.encodings(config | {"rope_parameters": config["rope_parameters"] | {"rope_theta": 1e4}})


def test_a_type_set_to_null_does_not_turn(case):
    config = of_the_case(case["given"])
    found = read(config | {"rope_parameters": config["rope_parameters"] | {FULL: None}})
    assert found.rotates == (True, True, False, True)


def test_gemma_3_as_it_was_saved_before_sections_had_types():
    old = {"model_type": "gemma3_text", "head_dim": 8, "num_hidden_layers": 12, "sliding_window_pattern": 6, "rope_theta": 1e6}
    old |= {"rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    found = read(old)
    i = -torch.arange(4, dtype=torch.float64) / 4
    assert found.layers == (*(SLIDING,) * 5, FULL) * 2
    assert torch.allclose(angles(found[FULL], 1.0), 1e6**i / 8)
    assert torch.allclose(angles(found[SLIDING], 1.0), 1e4**i)


def test_gemma_4_keeps_the_highest_quarter_on_wider_heads():
    config = {"model_type": "gemma4_text", "head_dim": 16, "global_head_dim": 32, "num_hidden_layers": 6, "num_attention_heads": 2}
    config["rope_parameters"] = {
        SLIDING: {"rope_type": "default", "rope_theta": 1e4},
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    }
    found = read(config)
    expected = 1e6 ** (-torch.arange(16, dtype=torch.float64) / 16) * (torch.arange(16) < 4)
    assert (found[SLIDING].head_dim, found[FULL].head_dim) == (16, 32)
    assert torch.allclose(angles(found[FULL], 1.0), expected)


@pytest.mark.parametrize("model_type", ["smollm3", "llama4_text"])
@pytest.mark.parametrize("every", [2, 3, 4])
def test_every_nth_layer_without_rotation(model_type, every):
    base = {"model_type": model_type, "head_dim": 8, "num_hidden_layers": 12, "rope_theta": 1e4}
    expected = tuple((i + 1) % every != 0 for i in range(12))
    assert read(base | {"no_rope_layer_interval": every}).rotates == expected
    assert read(base | {"no_rope_layers": [int(turns) for turns in expected]}).rotates == expected


@pytest.mark.parametrize("flags", [[3, 7, 11], [1, 0, 2], ["yes"], "1110", [0.5, 1]])
def test_flags_that_could_be_numbers_of_layers_are_refused(flags):
    with pytest.raises(ec.ConfigError, match="no_rope_layers"):
        ec.encodings({"head_dim": 8, "rope_theta": 1e4, "no_rope_layers": flags})


@pytest.mark.parametrize("model_type", ["cohere2", "exaone4"])
def test_layers_that_attend_to_everything_do_not_turn(model_type):
    config = {"model_type": model_type, "head_dim": 8, "rope_theta": 1e4, "layer_types": [SLIDING, SLIDING, FULL]}
    assert read(config).rotates == (True, True, False)


def test_layers_that_are_no_softmax_attention_have_no_encoding():
    config = {"head_dim": 8, "rope_theta": 1e4, "layer_types": ["linear_attention", FULL]}
    found = read(config)
    assert list(found) == [FULL]
    assert found.rotates == (False, True)
    assert "linear_attention" in str(found)
    with pytest.raises(ec.UnsupportedError, match="linear_attention"):
        found.layer(0)
