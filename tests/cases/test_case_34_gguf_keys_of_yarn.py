"""Case 34: the keys that llama.cpp writes are read as llama.cpp computes, and architectures get the law they have."""

import math
from typing import Any

import pytest
import torch

import eigenclock as ec
from cases.reading import frequencies, read

F64 = torch.float64


def amplitude(encoding: ec.Encoding) -> float:
    """What queries and keys are multiplied by: a score at lag 0 has its square."""
    x = torch.ones(1, encoding.heads, 1, encoding.head_dim, dtype=F64)
    keys = x[:, : encoding.kv_heads or encoding.heads]
    return math.sqrt(float(ec.scores(x, keys, encoding, scale=1.0)[0, 0, 0, 0]) / encoding.head_dim)


def metadata(arch: str, **keys: Any) -> dict[str, Any]:
    plain = {"block_count": 4, "context_length": 262144, "embedding_length": 64, "attention.head_count": 4, "rope.freq_base": 1e6}
    given = plain | {key.replace("__", "."): value for key, value in keys.items()}
    return {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in given.items()}


YARN = {"rope__scaling__type": "yarn", "rope__scaling__factor": 16.0, "rope__scaling__original_context_length": 16384}


def test_numbers_of_the_case(case):
    given, expect = case["given"]["metadata"], case["expect"]
    found = read(given)
    assert torch.allclose(frequencies(found.only), torch.tensor(expect["frequencies"], dtype=F64), rtol=expect["rel_tol"], atol=0)
    assert found.conventions.pairing == expect["layout"]
    with_key, without = expect["amplitude"]["yarn_log_multiplier 1 (mscale over mscale_all_dim)"], expect["amplitude"]["without the key"]
    assert amplitude(found.only) == pytest.approx(with_key, rel=expect["rel_tol"])
    plain = read({key: value for key, value in given.items() if "yarn_log_multiplier" not in key})
    assert amplitude(plain.only) == pytest.approx(without, rel=expect["rel_tol"])
    assert torch.equal(frequencies(plain.only), frequencies(found.only))


def test_the_temperature_of_the_case_is_named_in_a_note(case):
    found = read(case["given"]["metadata"])
    assert any("temperature_scale" in text for text in found.notes)
    assert found.conventions.temperature == "queries times 1 + 0.1 ln(1 + floor(t / 16384))"


@pytest.mark.parametrize(
    ("key", "value"), [("rope.scaling.yarn_ext_factor", 1.0), ("rope.scaling.yarn_attn_factor", 1.0), ("rope.scaling.alpha", 0.0)]
)
def test_the_other_keys_of_the_case_are_no_strangers(case, key, value):
    assert key in case["given"]["other_keys_of_the_format"]
    found = read({**case["given"]["metadata"], f"mistral3.{key}": value})
    assert str(found.only) == str(read(case["given"]["metadata"]).only)


# The kind: other multipliers, factors and keys.


@pytest.mark.parametrize("multiplier", [0.0, 0.707, 1.0])
@pytest.mark.parametrize("attn", [None, 1.0, 0.9])
@pytest.mark.parametrize("factor", [2.0, 40.0])
def test_the_amplitude_is_that_of_llama_cpp(multiplier, attn, factor):
    keys = YARN | {"rope__scaling__factor": factor, "rope__scaling__yarn_log_multiplier": multiplier}
    found = read(metadata("llama", **keys, **({} if attn is None else {"rope__scaling__attn_factor": attn})))
    log = math.log(factor)
    expected = (1.0 if attn is None else attn) * (0.1 * log + 1) / (0.1 * multiplier * log + 1)
    assert amplitude(found.only) == pytest.approx(expected, rel=1e-9)


def test_a_larger_base_by_alpha():
    found = read(metadata("hunyuan-dense", rope__scaling__alpha=1000.0))
    assert torch.allclose(frequencies(found.only), (1e6 * 1000 ** (8 / 7)) ** (-torch.arange(8, dtype=F64) / 8), rtol=1e-9)


@pytest.mark.parametrize(
    ("keys", "error", "word"),
    [
        (YARN | {"rope__scaling__yarn_ext_factor": 0.5}, ec.UnsupportedError, "yarn_ext_factor"),
        (YARN | {"rope__scaling__alpha": 8.0}, ec.UnsupportedError, "alpha"),
        (YARN | {"rope__scaling__yarn_log_multiplier": "1"}, ec.ConfigError, "yarn_log_multiplier"),
        (YARN | {"rope__scaling__yarn_logmul": 1.0}, ec.ConfigError, "yarn_logmul"),
        (YARN | {"attention__temperature_scale": 0.1, "attention__temperature_length": 0}, ec.ConfigError, "original_max_position"),
        ({"attention__key_length": 16, "attention__key_length_swa": 8}, ec.UnsupportedError, "key_length_swa"),
    ],
)
def test_what_is_not_read_is_refused_by_name(keys, error, word):
    with pytest.raises(error, match=word):
        read(metadata("llama", **keys))


def test_a_factor_that_llama_cpp_replaces_is_named():
    found = read(metadata("llama", **YARN, rope__scaling__yarn_attn_factor=0.8))
    assert any("yarn_attn_factor" in text for text in found.warnings)
    assert amplitude(found.only) == pytest.approx(0.1 * math.log(16) + 1)


def test_the_scale_of_a_file_is_found():
    assert read(metadata("granite", attention__scale=0.0078125)).conventions.scale == 0.0078125
    assert read(metadata("llama")).conventions.scale is None


@pytest.mark.parametrize("scale", [0.1, 0.25])
def test_the_temperature_counts_from_the_trained_length(scale):
    found = read(metadata("mistral3", **YARN, attention__temperature_scale=scale))
    assert found.conventions.temperature == f"queries times 1 + {scale:g} ln(1 + floor(t / 16384))"


@pytest.mark.peer("gguf")
def test_no_rope_key_of_the_format_is_a_stranger():
    from gguf.constants import Keys

    names = [value for key, value in vars(Keys.Rope).items() if not key.startswith("_")]
    assert len(names) > 12
    for name in names:
        key = name.format(arch="qwen3vl")
        value: Any = {"type": "yarn", "sections": [3, 3, 2, 0]}.get(key.rpartition("_")[2].rpartition(".")[2], 1.0)
        if key.endswith(("dimension_count", "dimension_count_swa")):
            value = 16
        try:
            read({**metadata("qwen3vl"), key: value})
        except ec.EigenclockError as refusal:
            assert "unknown" not in str(refusal), key


ROTATIONS = {
    "nomic-bert": "half",
    "modern-bert": "half",
    "jina-bert-v3": "half",
    "neo-bert": "interleaved",
    "glm4": "interleaved",
    "glm4moe": "half",
    "granitehybrid": "interleaved",
    "deepseek": "interleaved",
    "hunyuan-dense": "half",
    "step35": "half",
}


@pytest.mark.parametrize(("arch", "pairing"), ROTATIONS.items())
def test_architectures_that_turn(arch, pairing):
    found = read(metadata(arch))
    assert found.conventions.pairing == pairing
    assert torch.allclose(frequencies(found.only), 1e6 ** (-torch.arange(8, dtype=F64) / 8), rtol=1e-9)


@pytest.mark.parametrize(("arch", "pairing"), [("glm4", "interleaved"), ("glm4moe", "half")])
def test_architectures_with_several_axes_where_the_file_says_so(arch, pairing):
    found = read(metadata(arch, rope__dimension_sections=[2, 3, 3, 0]))
    assert (found.conventions.pairing, found.only.clock.width) == ("half", 3)
    plain = read(metadata(arch, rope__dimension_sections=[0, 0, 0, 0]))
    assert (plain.conventions.pairing, plain.only.clock.width) == (pairing, 1)


@pytest.mark.parametrize(("arch", "layers"), [("bloom", 4), ("refact", 4), ("baichuan", 40)])
def test_architectures_with_alibi_that_no_key_names(arch, layers):
    found = read(metadata(arch, block_count=layers))
    assert str(found.only) == str(ec.alibi(16, heads=4))
    if arch == "baichuan":
        assert "rope(" in str(read(metadata(arch, block_count=32)).only)


def test_an_encoder_has_alibi_on_both_sides():
    found = read(metadata("jina-bert-v2"))
    assert str(found.only) == str(ec.two_sided(ec.alibi(16, heads=4)))
    q, k = torch.randn(2, 1, 4, 5, 16, dtype=F64)
    slopes = 2.0 ** (-8 * torch.arange(1, 5, dtype=F64) / 4)
    t = torch.arange(5, dtype=F64)
    expected = q @ k.mT / 4 - slopes[:, None, None] * (t[:, None] - t).abs()
    assert torch.allclose(ec.scores(q, k, found.only, causal=False), expected)


@pytest.mark.parametrize(
    ("arch", "words"),
    [("gpt2", "learned absolute"), ("bert", "learned absolute"), ("mpt", "max_alibi_bias"), ("t5", "bucket"), ("mamba2", "recurrence")],
)
def test_architectures_outside_the_group(arch, words):
    with pytest.raises(ec.UnsupportedError, match=words):
        read(metadata(arch))


@pytest.mark.parametrize("arch", ["jamba", "nemotron_h"])
def test_architectures_without_positions(arch):
    assert str(read(metadata(arch)).only) == "nope(head_dim=16, heads=4)"


@pytest.mark.parametrize("arch", ["cohere2", "exaone4", "exaone-moe", "afmoe", "smollm3"])
def test_architectures_of_which_every_fourth_layer_does_not_turn(arch):
    assert list(read(metadata(arch, attention__sliding_window=512)).rotates) == [True, True, True, False]


def test_heads_per_layer():
    found = read(metadata("deci", attention__head_count=[4, 4, 8, 8], attention__head_count_kv=[2, 2, 4, 4], attention__key_length=16))
    assert [(found.layer(i).heads, found.layer(i).kv_heads) for i in range(4)] == [(4, 2), (4, 2), (8, 4), (8, 4)]


@pytest.mark.parametrize("arch", ["lfm2", "jamba", "granitehybrid", "nemotron_h"])
def test_layers_without_heads_do_not_attend(arch):
    found = read(metadata(arch, attention__head_count_kv=[0, 2, 0, 2]))
    assert [name in found for name in found.layers] == [False, True, False, True]
    assert found.layer(1).kv_heads == 2
    both = read(metadata(arch, attention__head_count=[0, 4, 0, 4], attention__head_count_kv=[0, 2, 0, 2], attention__key_length=16))
    assert str(dict(both)) == str(dict(found))


@pytest.mark.parametrize(("extra", "expected"), [({}, [3]), ({"full_attention_interval": 2}, [1, 3])])
def test_layers_that_attend_at_an_interval(extra, expected):
    found = read(metadata("qwen3next", **extra))
    assert [i for i, name in enumerate(found.layers) if name in found] == expected


@pytest.mark.parametrize(("flag", "turns"), [(None, True), (True, True), (False, False)])
@pytest.mark.parametrize("arch", ["granite", "granitemoe", "granitehybrid"])
def test_the_switch_of_granite(arch, flag, turns):
    found = read(metadata(arch, **({} if flag is None else {"rope__scaling__finetuned": flag})))
    assert found.rotates == (turns,) * 4


@pytest.mark.parametrize("wrong", [[4, -1, 4, 4], [4, None, 4, 4], [0, 0, 0, 0], "4", [4, 2.5, 4, 4]])
def test_heads_that_are_no_numbers_are_refused(wrong):
    with pytest.raises(ec.ConfigError, match="head_count"):
        read(metadata("lfm2", attention__head_count_kv=wrong))


def test_an_architecture_that_is_not_known_is_never_read_in_silence():
    with pytest.raises(ec.ConfigError, match="layout is not known"):
        read(metadata("of_tomorrow"))
    found = read(metadata("of_tomorrow"), pairing="half")
    assert any("'of_tomorrow' is not known here" in text and "every layer turns" in text for text in found.warnings)
    assert not any("not known here" in text for text in read(metadata("llama")).warnings)
