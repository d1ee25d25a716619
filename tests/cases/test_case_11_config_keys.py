"""Case 11: a key that moved, contradicts another one, is misspelt or unknown is an error or a warning that names it, never ignored."""

import re
import warnings

import pytest
import torch

import eigenclock as ec

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
LONGROPE = {
    "rope_type": "longrope",
    "factor": 4.0,
    "original_max_position_embeddings": 4096,
    "short_factor": [1.0] * 4,
    "long_factor": [1.0, 2.0, 3.0, 4.0],
}
SECTIONS = {
    "linear": {"rope_type": "linear", "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64},
    "yarn": YARN,
    "longrope": LONGROPE,
    "llama3": LLAMA3,
}


def frequencies(encoding: ec.Encoding) -> torch.Tensor:
    """Read off L itself, in the half layout: the block of pair i is [[., f], [-f, .]] on channels (i, i + n)."""
    width = encoding.head_dim
    matrix = encoding.generator().matrix().detach().double().reshape(-1, width, width)[0]
    i = torch.arange(width // 2)
    return matrix[i, i + width // 2]


def quietly(config, width=8, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return ec.encodings(config, head_dim=width, **keywords)


def loudly(config, width=8):
    """What is read, and everything that was said about it."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = ec.encodings(config, head_dim=width)
    said = [str(w.message) for w in heard]
    assert said == list(found.warnings)
    return found, " / ".join(said)


def test_old_and_new_names_of_the_case_are_equal(case):
    given, expect = case["given"], case["expect"]
    for one, other in expect["equal"]:
        a, b = (quietly(given["configs"][name], given["width"]) for name in (one, other))
        assert {key: str(encoding) for key, encoding in a.items()} == {key: str(encoding) for key, encoding in b.items()}


@pytest.mark.parametrize(
    ("name", "key"),
    [("old", "old_frequencies"), ("new", "old_frequencies"), ("old_alias", "linear_frequencies"), ("new_alias", "linear_frequencies")],
)
def test_numbers_of_the_case(case, name, key):
    given, expect = case["given"], case["expect"]
    found = frequencies(quietly(given["configs"][name], given["width"])["full_attention"])
    assert torch.allclose(found, torch.tensor(expect[key], dtype=torch.float64), rtol=expect["rel_tol"], atol=0)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("number_as_text", ["rope_theta", "'1000000.0'"]),
        ("no_theta_in_replacement", ["rope_theta"]),
        ("unknown_key", ["attn_factor", "attention_factor"]),
        ("unknown_type", ["rope_type", "'spiral'"]),
    ],
)
def test_errors_of_the_case_name_the_key(case, name, words):
    with pytest.raises(ec.ConfigError) as refusal:
        ec.encodings(case["given"]["configs"][name], head_dim=case["given"]["width"])
    for word in words:
        assert word in str(refusal.value)


def test_the_conflict_of_the_case_uses_the_factor_and_reports_the_ratio(case):
    found, said = loudly(case["given"]["configs"]["conflict"], case["given"]["width"])
    for word in ("factor", "original_max_position_embeddings", "2", "4"):
        assert re.search(rf"\b{word}\b", said)
    expected = ec.rope(8, pairing="half", freq=ec.yarn(2.0, 32768, theta=1e6))
    assert torch.equal(frequencies(found.only), frequencies(expected))


# The kind: other widths, bases, types and keys.


@pytest.mark.parametrize("theta", [1e4, 5e5, 7.5, 10000])
@pytest.mark.parametrize("width", [2, 8, 64, 128, 96])
@pytest.mark.parametrize("form", ["old", "new", "new per layer type", "gpt-neox"])
def test_the_base_is_found_under_every_name(form, width, theta):
    config = {
        "old": {"rope_theta": theta, "rope_scaling": None},
        "new": {"rope_parameters": {"rope_theta": theta}},
        "new per layer type": {"rope_parameters": {"full_attention": {"rope_theta": theta, "rope_type": "default"}}},
        "gpt-neox": {"rotary_emb_base": theta, "rotary_pct": 1.0},
    }[form]
    found = frequencies(quietly(config, width).only)
    assert torch.allclose(found, theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width), rtol=3e-7, atol=0)


@pytest.mark.parametrize("name", SECTIONS)
def test_old_and_new_names_are_equal_for_every_type(name):
    keywords = {"length": 64} if name in ("dynamic", "longrope") else {}
    section = SECTIONS[name]
    old = {("type" if key == "rope_type" else key): value for key, value in section.items()}
    config = {"rope_theta": 5e5} | ({"max_position_embeddings": 64} if name == "dynamic" else {})
    forms = [
        config | {"rope_scaling": section},
        config | {"rope_scaling": old},
        config | {"rope_parameters": section},
        config | {"rope_parameters": section, "rope_scaling": old},
        {key: value for key, value in config.items() if key != "rope_theta"} | {"rope_parameters": section | {"rope_theta": 5e5}},
    ]
    assert len({str(quietly(form, **keywords).only) for form in forms}) == 1


def test_types_that_were_renamed_are_read():
    long = LONGROPE | {"rope_type": "su"}
    assert len({str(quietly({"rope_theta": 1e4, "rope_scaling": section}, length=99).only) for section in (LONGROPE, long)}) == 1
    axes = {"mrope_section": [2, 1, 1]}
    forms = [axes | {"type": "mrope"}, axes | {"rope_type": "default", "type": "mrope"}, axes]
    assert len({str(quietly({"rope_theta": 1e4, "rope_scaling": section}).only) for section in forms}) == 1


@pytest.mark.parametrize("name", SECTIONS)
def test_every_type_without_a_base_is_refused(name):
    with pytest.raises(ec.ConfigError, match="rope_theta"):
        ec.encodings({"rope_parameters": SECTIONS[name], "max_position_embeddings": 64}, head_dim=8)


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, section in SECTIONS.items() for key in section if key != "rope_type"])
@pytest.mark.parametrize("wrong", ["2.0", True, float("nan"), -1, [2.0]])
def test_every_number_that_is_none_is_refused_by_name(name, key, wrong):
    section = SECTIONS[name] | {key: wrong}
    with pytest.raises(ec.ConfigError, match=key):
        ec.encodings({"rope_theta": 1e4, "rope_scaling": section}, head_dim=8)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (name, key)
        for name, section in SECTIONS.items()
        for key in section
        if key != "rope_type" and (name, key) not in (("longrope", "factor"), ("dynamic", "original_max_position_embeddings"))
    ],
)
def test_every_missing_key_is_refused_by_name(name, key):
    section = {k: v for k, v in SECTIONS[name].items() if k != key}
    with pytest.raises(ec.ConfigError, match=key):
        ec.encodings({"rope_theta": 1e4, "rope_scaling": section}, head_dim=8)


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, section in SECTIONS.items() for key in section if key != "rope_type"])
def test_every_misspelt_key_is_refused_with_the_right_one(name, key):
    section = {(k if k != key else k[:-2] + k[-1]): v for k, v in SECTIONS[name].items()}  # one letter is missing
    with pytest.raises(ec.ConfigError) as refusal:
        ec.encodings({"rope_theta": 1e4, "rope_scaling": section}, head_dim=8)
    assert repr(key[:-2] + key[-1]) in str(refusal.value)
    assert repr(key) in str(refusal.value)


@pytest.mark.parametrize("key", ["rop_theta", "rope_thet", "partial_rotary_facto", "rope_parameter", "rope_scalling", "no_rope_layer"])
def test_misspelt_keys_at_the_top_are_refused(key):
    with pytest.raises(ec.ConfigError, match=repr(key)):
        ec.encodings({"rope_theta": 1e4, key: 0.5}, head_dim=8)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_type", "yarn"),
        ("beta_fast", 32),
        ("attention_factor", 0.9),
        ("mscale", 1.0),
        ("long_factor", [1.0]),
        ("low_freq_factor", 1.0),
    ],
)
def test_keys_that_only_a_section_reads_are_refused_at_the_top(key, value):
    with pytest.raises(ec.ConfigError, match=key):
        ec.encodings({"rope_theta": 1e4, key: value}, head_dim=8)


@pytest.mark.parametrize(
    ("section", "key"),
    [
        (SECTIONS["linear"] | {"attention_factor": 0.9}, "attention_factor"),
        (SECTIONS["linear"] | {"original_max_position_embeddings": 64}, "original_max_position_embeddings"),
        ({"rope_type": "default", "factor": 2.0}, "factor"),
        (LLAMA3 | {"beta_fast": 32}, "beta_fast"),
        (YARN | {"low_freq_factor": 1.0}, "low_freq_factor"),
        (YARN | {"mscale": 0.7}, "mscale"),
        (YARN | {"mscale": 0.7, "mscale_all_dim": 1.0, "attention_factor": 0.9}, "mscale"),
        (YARN | {"llama_4_scaling_beta": 0.1}, "llama_4_scaling_beta"),
    ],
)
def test_known_keys_without_effect_are_named_in_a_warning(section, key):
    _, said = loudly({"rope_theta": 1e4, "rope_scaling": section})
    assert key in said


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}},
        {"rope_theta": 1e4, "rotary_emb_base": 1e6},
        {"rope_theta": 1e4, "partial_rotary_factor": 0.5, "rotary_pct": 0.25},
        {"rope_theta": 1e4, "partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 1.0, "rope_theta": 1e4}},
        {"rope_theta": 1e4, "partial_rotary_factor": 0.5, "rotary_dim": 2},
        {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2.0}},
        {"rope_theta": 1e4, "rope_scaling": SECTIONS["linear"], "rope_parameters": {"rope_type": "linear", "factor": 4.0}},
        {"rope_theta": 1e4, "rope_scaling": YARN, "original_max_position_embeddings": 2048},
        {"rope_theta": 1e4, "num_attention_heads": 4, "n_head": 8},
        {"rope_theta": 1e4, "head_dim": 16},
        {"text_config": {"rope_theta": 1e4}, "rope_theta": 1e6},
    ],
)
def test_contradictions_are_refused(config):
    with pytest.raises(ec.ConfigError, match=r"expected (one|it|them|both|a|that)|expected rope_theta"):
        ec.encodings(config, head_dim=8)


@pytest.mark.parametrize("factor", [0.5, 0, -2.0, 0.999])
@pytest.mark.parametrize("name", SECTIONS)
def test_a_factor_below_one_is_refused(name, factor):
    with pytest.raises(ec.ConfigError, match="factor"):
        ec.encodings({"rope_theta": 1e4, "rope_scaling": SECTIONS[name] | {"factor": factor}, "max_position_embeddings": 64}, head_dim=8)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"rope_theta": 1e4, "partial_rotary_factor": 0.625}, "partial_rotary_factor"),  # 5 of 8 channels
        ({"rope_theta": 1e4, "rotary_dim": 3}, "rotary_dim"),
        ({"rope_theta": 1e4, "partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"rope_theta": 1e4, "partial_rotary_factor": 0.0}, "partial_rotary_factor"),
        ({"rope_theta": 1e4, "rotary_dim": 16}, "rotary_dim"),
        ({"rope_theta": 1e4, "rope_scaling": LONGROPE | {"short_factor": [1.0] * 3}}, "short_factor"),
        ({"rope_theta": 1e4, "rope_scaling": LONGROPE | {"long_factor": [1.0] * 5}}, "long_factor"),
        ({"rope_theta": 1e4, "rope_scaling": {"mrope_section": [1, 1, 1]}}, "mrope_section"),
        ({"rope_theta": 1e4, "num_hidden_layers": 3, "layer_types": ["full_attention"]}, "layer_types"),
        ({"rope_theta": 1e4, "num_hidden_layers": 3, "no_rope_layers": [1, 0]}, "no_rope_layers"),
    ],
)
def test_widths_and_lists_that_do_not_fit_are_refused_by_name(config, key):
    with pytest.raises(ec.ConfigError, match=key):
        ec.encodings(config, head_dim=8)


def test_an_odd_head_is_refused_by_name():
    with pytest.raises(ec.ConfigError, match="head_dim"):
        ec.encodings({"rope_theta": 1e4, "head_dim": 7})


@pytest.mark.parametrize("factor", [2.0, 4.0, 8.0])
@pytest.mark.parametrize("longest", [16384, 32768, 131072])
@pytest.mark.parametrize("name", ["yarn", "longrope"])
def test_an_implied_ratio_is_reported_exactly_where_it_differs(name, longest, factor):
    section = SECTIONS[name] | {"factor": factor}
    found, said = loudly({"rope_theta": 1e4, "max_position_embeddings": longest, "rope_scaling": section})
    assert ("original_max_position_embeddings" in said and f"{longest / 4096:g}" in said) == (longest / 4096 != factor)
    assert f"factor={factor}" in str(found.only)


def test_a_base_that_nothing_names_is_the_default_of_a_known_model_said_aloud():
    found, said = loudly({"model_type": "llama"})
    assert "rope_theta" in said
    assert "10000" in said
    assert torch.allclose(frequencies(found.only), 1e4 ** (-torch.arange(4, dtype=torch.float64) / 4))
    with pytest.raises(ec.ConfigError, match="rope_theta"):
        ec.encodings({"model_type": "nobody_knows"}, head_dim=8)
