"""Configs of transformers against its own modules: frequencies, layouts and biases, and the way back into its keys."""

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import eigenclock as ec

pytestmark = pytest.mark.peer("transformers")
F64 = torch.float64

DECODERS = {  # config class: module under transformers.models, prefix of its rotary class
    "LlamaConfig": ("llama", "Llama"),
    "Qwen2Config": ("qwen2", "Qwen2"),
    "Qwen3Config": ("qwen3", "Qwen3"),
    "Qwen3NextConfig": ("qwen3_next", "Qwen3Next"),
    "MistralConfig": ("mistral", "Mistral"),
    "MixtralConfig": ("mixtral", "Mixtral"),
    "GemmaConfig": ("gemma", "Gemma"),
    "Gemma2Config": ("gemma2", "Gemma2"),
    "Gemma3TextConfig": ("gemma3", "Gemma3"),
    "Gemma4TextConfig": ("gemma4", "Gemma4Text"),
    "Phi3Config": ("phi3", "Phi3"),
    "PhiConfig": ("phi", "Phi"),
    "GPTNeoXConfig": ("gpt_neox", "GPTNeoX"),
    "GPTJConfig": ("gptj", "GPTJ"),
    "FalconConfig": ("falcon", "Falcon"),
    "SmolLM3Config": ("smollm3", "SmolLM3"),
    "GptOssConfig": ("gpt_oss", "GptOss"),
    "DeepseekV2Config": ("deepseek_v2", "DeepseekV2"),
    "DeepseekV3Config": ("deepseek_v3", "DeepseekV3"),
    "CohereConfig": ("cohere", "Cohere"),
    "Cohere2Config": ("cohere2", "Cohere2"),
    "Llama4TextConfig": ("llama4", "Llama4Text"),
    "GlmConfig": ("glm", "Glm"),
    "StableLmConfig": ("stablelm", "StableLm"),
    "NanoChatConfig": ("nanochat", "NanoChat"),
    "ApertusConfig": ("apertus", "Apertus"),
    "Olmo3Config": ("olmo3", "Olmo3"),
    "Exaone4Config": ("exaone4", "Exaone4"),
    "Ernie4_5Config": ("ernie4_5", "Ernie4_5"),
    "HeliumConfig": ("helium", "Helium"),
    "Qwen2VLTextConfig": ("qwen2_vl", "Qwen2VL"),
    "Qwen3VLTextConfig": ("qwen3_vl", "Qwen3VLText"),
}


def default(name: str, **keys: Any) -> Any:
    import transformers

    return getattr(transformers, name)(**keys)


def read(config: Any, **keywords: Any) -> ec.Encodings:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ec.encodings(config, **keywords)


def theirs(name: str, config: Any, layer_type: str, times: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """q and k turned by the modules of transformers, (1, H, T, width) at integer times (T,)."""
    module, prefix = DECODERS[name]
    code = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    rotary = getattr(code, f"{prefix}RotaryEmbedding")(config)
    x, position = torch.zeros(1), times[None]
    if name == "GPTJConfig":
        sin, cos = rotary(x, position)
        return tuple(code.apply_rotary_pos_emb(y.transpose(1, 2), sin, cos).transpose(1, 2) for y in (q, k))  # type: ignore[return-value]
    if name.startswith("Qwen") and "VL" in name:
        position = position.expand(3, -1, -1)
    nested = any(isinstance(part, dict) for part in config.rope_parameters.values())
    table = rotary(x, position, layer_type=layer_type) if nested else rotary(x, position)
    if name == "DeepseekV2Config":
        return code.apply_rotary_emb(q, k, table)
    if name == "Llama4TextConfig":
        return tuple(y.transpose(1, 2) for y in code.apply_rotary_emb(q.transpose(1, 2), k.transpose(1, 2), table))  # type: ignore[return-value]
    if name == "DeepseekV3Config":
        return code.apply_rotary_pos_emb_interleave(q, k, *table)
    if name == "Gemma4TextConfig":
        return code.apply_rotary_pos_emb(q, *table), code.apply_rotary_pos_emb(k, *table)
    return code.apply_rotary_pos_emb(q, k, *table)


def assert_scores_agree(name: str, config: Any, encodings: ec.Encodings) -> None:
    """Scores of random queries and keys, those of transformers in float32 angles, for every layer type that turns."""
    times = torch.tensor([0, 1, 2, 5, 11, 40])
    checked = 0
    for layer_type, encoding in encodings.items():
        form = encoding.generator().form
        if form.kinds == {"Z"}:
            continue
        head, fixed = encoding.head_dim, config.to_dict().get("qk_nope_head_dim") or 0
        q, k = torch.randn(2, 1, 1, len(times), head).unbind(0)
        width = head - fixed
        turned = config.rotary_dim if name == "GPTJConfig" else width
        if name in ("PhiConfig", "StableLmConfig"):  # their attention takes the share of the head, not the function
            turned = int(width * config.rope_parameters["partial_rotary_factor"])
        a, b = theirs(name, config, layer_type, times, q[..., fixed : fixed + turned], k[..., fixed : fixed + turned])
        a = torch.cat([q[..., :fixed], a, q[..., fixed + turned :]], -1)
        b = torch.cat([k[..., :fixed], b, k[..., fixed + turned :]], -1)
        given = times[:, None].expand(-1, 3).clone() if encoding.clock.width > 1 else times
        enc = ec.encoding(encoding.spec | {"heads": 1, "kv_heads": None} if "op" not in encoding.spec else one_head(encoding.spec))
        z = ec.scores(q, k, enc, times=given, scale=1.0, causal=False)
        assert torch.allclose(z, (a.to(F64) @ b.to(F64).mT), rtol=0, atol=3e-5 * head**0.5), layer_type
        checked += 1
    assert checked


def one_head(spec: dict[str, Any]) -> dict[str, Any]:
    if "op" in spec:
        return spec | {"parts": [one_head(part) for part in spec["parts"]]}
    return {key: value for key, value in spec.items() if key != "kv_heads"} | {"heads": 1}


@pytest.mark.parametrize("name", DECODERS)
def test_default_configs_turn_as_their_models_do(name):
    config = default(name)
    assert_scores_agree(name, config, read(config))


@pytest.mark.parametrize("name", [*DECODERS, "BloomConfig", "MptConfig", "CodeGenConfig"])
def test_default_configs_come_back_from_our_keys(name):
    found = read(default(name))
    back = read(ec.to_config(found))
    assert {key: str(value) for key, value in back.items()} == {key: str(value) for key, value in found.items()}
    assert (back.layers, back.conventions.pairing, back.conventions.sign) == (
        found.layers,
        found.conventions.pairing,
        found.conventions.sign,
    )


@pytest.mark.parametrize("name", [name for name in DECODERS if name not in ("GPTJConfig", "Qwen2VLTextConfig", "Qwen3VLTextConfig")])
def test_transformers_reads_our_keys(name):
    """A config of transformers made from our keys turns as the encoding does."""
    found = read(default(name))
    keys = {key: value for key, value in ec.to_config(found).items() if key != "model_type"}
    assert_scores_agree(name, default(name, **keys), found)


LISTS = {"long_factor": [1.0 + i / 8 for i in range(8)], "short_factor": [1.0 + i / 64 for i in range(8)]}
RELEASED = {  # configs as they were released, with small sizes: what they leave out, transformers fills in
    "llama 2": {"model_type": "llama", "rope_scaling": None},
    "llama 2 with yarn": {
        "model_type": "llama",
        "rope_scaling": {"type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "finetuned": True},
        "max_position_embeddings": 131072,
    },
    "llama 3.1": {
        "model_type": "llama",
        "num_key_value_heads": 2,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    },
    "llama 4": {
        "model_type": "llama4_text",
        "head_dim": 16,
        "num_key_value_heads": 2,
        "num_hidden_layers": 8,
        "no_rope_layers": [],
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 16.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    },
    "qwen 2.5 with yarn": {
        "model_type": "qwen2",
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
        "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
    },
    "phi 3.5": {
        "model_type": "phi3",
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "longrope", **LISTS},
        "pad_token_id": 0,
    },
    "phi 2": {"model_type": "phi", "partial_rotary_factor": 0.5, "rope_theta": 10000.0},
    "deepseek v3": {
        "model_type": "deepseek_v3",
        "num_key_value_heads": 4,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "max_position_embeddings": 163840,
        "rope_theta": 10000,
        "rope_scaling": {
            "type": "yarn",
            "factor": 40,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
        },
    },
    "gpt-oss": {
        "model_type": "gpt_oss",
        "head_dim": 16,
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_theta": 150000,
        "max_position_embeddings": 131072,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    "gemma 2": {"model_type": "gemma2", "head_dim": 16, "num_key_value_heads": 2, "rope_theta": 10000.0, "num_hidden_layers": 4},
    "gemma 3": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 12,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "head_dim": 16,
        "num_key_value_heads": 2,
    },
    "gemma 3, the least said": {
        "model_type": "gemma3_text",
        "hidden_size": 64,
        "num_attention_heads": None,
        "num_hidden_layers": 7,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
    "gpt-neox": {"model_type": "gpt_neox", "rotary_emb_base": 10000, "rotary_pct": 0.25},
    "gpt-neox, the least said": {"model_type": "gpt_neox"},
    "stablelm": {"model_type": "stablelm", "rope_theta": 10000, "num_key_value_heads": 4},
    "smollm 3": {
        "model_type": "smollm3",
        "num_key_value_heads": 2,
        "num_hidden_layers": 8,
        "no_rope_layers": [1, 1, 1, 0] * 2,
        "rope_theta": 5000000.0,
    },
    "command r7b": {
        "model_type": "cohere2",
        "num_key_value_heads": 2,
        "num_hidden_layers": 8,
        "rope_theta": 50000,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "rotary_pct": 1.0,
        "position_embedding_type": "rope_gptj",
    },
    "qwen 3 next": {"model_type": "qwen3_next", "head_dim": 16, "num_key_value_heads": 2, "num_hidden_layers": 4, "rope_theta": 10000000},
    "falcon": {"model_type": "falcon", "alibi": False, "multi_query": True, "new_decoder_architecture": False},
}


@pytest.mark.parametrize("name", RELEASED)
def test_released_configs_mean_what_transformers_reads_in_them(name):
    """The same dict, once as it is and once after transformers has filled in and moved its keys."""
    from transformers import CONFIG_MAPPING

    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4}
    config = {key: value for key, value in (sizes | RELEASED[name]).items() if value is not None or key == "rope_scaling"}
    ours, filled = read(config), CONFIG_MAPPING[config["model_type"]](**{k: v for k, v in config.items() if k != "model_type"})
    other = read(filled)
    assert ours.rotates == other.rotates
    assert ours.conventions == other.conventions
    for i, kind in enumerate(ours.layers):
        if kind == "linear_attention":
            assert other.layers[i] == kind
            continue
        a, b = ours.layer(i), other.layer(i)
        assert (a.head_dim, a.heads, a.kv_heads, a.form) == (b.head_dim, b.heads, b.kv_heads, b.form)
        assert torch.allclose(a.generator().matrix(), b.generator().matrix(), rtol=1e-6, atol=0)
        q = torch.randn(1, a.heads, 2, a.head_dim, dtype=F64)
        assert torch.allclose(a.read_in(q, q)[0], b.read_in(q, q)[0])


SECTIONS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    "yarn with its own amplitude": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 512,
        "attention_factor": 0.87,
        "beta_fast": 20.0,
        "beta_slow": 2.0,
    },
    "yarn, not truncated": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "truncate": False},
    "yarn with mscale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 512,
        "mscale": 0.7,
        "mscale_all_dim": 1.3,
    },
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "original_max_position_embeddings": 512,
        "short_factor": [1.0 + i / 64 for i in range(32)],
        "long_factor": [1.0 + i / 8 for i in range(32)],
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "original_max_position_embeddings": 512,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
    "proportional, scaled": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 2.0},
    "partial": {"rope_type": "default", "partial_rotary_factor": 0.5},
    "partial, linear": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.25},
}


def small(section: dict[str, Any], theta: float) -> Any:
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 3}
    sizes["max_position_embeddings"] = 2048
    name = "StableLmConfig" if "partial_rotary_factor" in section and section["rope_type"] != "proportional" else "LlamaConfig"
    return name, default(name, **sizes, rope_parameters=section | {"rope_theta": theta})


@pytest.mark.parametrize("theta", [1e4, 5e5])
@pytest.mark.parametrize("kind", SECTIONS)
def test_every_schedule_has_their_frequencies_and_amplitude(kind, theta):
    _, config = small(dict(SECTIONS[kind]), theta)
    found = read(config)
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if config.rope_parameters["rope_type"] == "default":
        from transformers.models.stablelm.modeling_stablelm import StableLmRotaryEmbedding

        rotary = StableLmRotaryEmbedding(config)
        inverse, amplitude = rotary.inv_freq, rotary.attention_scaling
    else:
        inverse, amplitude = ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](config, "cpu")
    ours = found.only.values["freq"].value()  # type: ignore[union-attr,operator,index]
    assert torch.allclose(ours, inverse.double(), rtol=1e-6, atol=1e-12)
    assert getattr(found.only, "amplitude", 1.0) == pytest.approx(amplitude, rel=1e-7)


@pytest.mark.parametrize("kind", [kind for kind in SECTIONS if kind != "proportional, scaled"])
def test_every_schedule_turns_as_theirs_and_comes_back(kind):
    name, config = small(dict(SECTIONS[kind]), 1e4)
    found = read(config)
    assert_scores_agree(name, config, found)
    keys = ec.to_config(found)
    back = read(keys)
    assert str(back.only) == str(found.only)
    again = default(name, **{key: value for key, value in keys.items() if key != "model_type"})
    assert str(read(again).only) == str(found.only)


@pytest.mark.parametrize(("length", "which"), [(100, "short_factor"), (512, "short_factor"), (513, "long_factor"), (2000, "long_factor")])
def test_longrope_takes_the_list_of_the_length_asked_for(length, which):
    _, config = small(dict(SECTIONS["longrope"]), 1e4)
    found = read(config, length=length)
    expected = 1e4 ** (-torch.arange(32, dtype=F64) / 32) / torch.tensor(SECTIONS["longrope"][which], dtype=F64)
    assert torch.allclose(found.only.values["freq"].value(), expected, rtol=1e-12)  # type: ignore[union-attr,operator,index]


def bloom_bias(heads: int, length: int, width: int) -> Tensor:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    return build_alibi_tensor(torch.ones(1, length, dtype=torch.long), heads, torch.float32).reshape(heads, 1, length)


def mpt_bias(heads: int, length: int, width: int) -> Tensor:
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    return build_mpt_alibi_tensor(heads, length)


def falcon_bias(heads: int, length: int, width: int) -> Tensor:
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    return build_alibi_tensor(torch.ones(1, length, dtype=torch.long), heads, torch.float32).reshape(heads, 1, length) / width**0.5


@pytest.mark.parametrize("heads", [4, 12])
@pytest.mark.parametrize(
    ("name", "keys", "bias", "tolerance"),
    [
        ("BloomConfig", lambda heads: {"hidden_size": 16 * heads, "n_head": heads}, bloom_bias, 1e-5),
        ("MptConfig", lambda heads: {"d_model": 16 * heads, "n_heads": heads}, mpt_bias, 1e-5),
        # Falcon rounds slopes and products to bfloat16: eight bits of the largest bias are left.
        ("FalconConfig", lambda heads: {"hidden_size": 16 * heads, "num_attention_heads": heads, "alibi": True}, falcon_bias, 2**-7),
    ],
    ids=["bloom", "mpt", "falcon"],
)
def test_the_three_conventions_of_alibi(
    name: str, keys: Callable[[int], dict[str, int]], bias: Callable[..., Tensor], tolerance: float, heads: int
):
    """Softmax forgets what a row has in common, so biases are compared as differences along the keys."""
    found = read(default(name, **keys(heads)))
    length, width = 32, 16
    q = torch.zeros(1, heads, length, width, dtype=F64)
    ours = ec.scores(q, q[:, : found.only.kv_heads or heads], found.only)[0, :, -1]
    given = bias(heads, length, width)[:, -1].to(F64)
    difference = (ours - ours[:, -1:]) - (given - given[:, -1:])
    assert bool((difference.abs().amax(-1) <= tolerance * given.abs().amax(-1)).all())
