"""Default configs of transformers with small sizes, under the rotary laws that a config can name, and models built from them."""

import importlib
import inspect
from typing import Any

import torch
from torch import nn

LAYERS = 4
LENGTH = 256
COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth")
SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "encoder_hidden_size", "embedding_size", "embedding_dim"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_hidden_size", "ffn_dim", "d_ff", "n_inner", "block_ff_dim", "out_hidden_size"), 64),
    **dict.fromkeys(("shared_expert_intermediate_size", "moe_intermediate_size", "moe_ffn_hidden_size"), 32),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(COUNTS, LAYERS),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "n_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "num_experts_per_token", "moe_topk"), 2),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "vocab_size_per_layer_input": 128,
    "expert_ffn_hidden_size": 32,
    "attn_logit_softcapping": 1e6,  # no cap: it is no position
}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
SIXTEENS = {"factor": 1.0, "mrope_section": [16] * 4, "xdrope_section": [16] * 4}
EXTRA: dict[str, dict[str, Any]] = {  # what a type needs beside these, most of it because its default is nothing
    "bamba": {"mamba_n_heads": 16, "mamba_d_head": 64, "attn_layer_indices": [1, 3]},
    "dbrx": {"attn_config": {"rope_theta": 500000.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense"] * LAYERS},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
    "dory": {"n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "eomt_dinov3": {"image_size": 64},
    "ernie4_5_vl_moe_text": {"moe_intermediate_size": [32, 32]},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "glm4v_text": {"head_dim": 128, "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5, "mrope_section": [8, 12, 12]}},
    "glm_image_text": {"head_dim": 128, "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5, "mrope_section": [8, 12, 12]}},
    "glm4_moe": {"head_dim": 32},
    "glm4v_moe_text": {"head_dim": 128},
    "granitemoehybrid": {"mamba_n_heads": 16, "mamba_d_head": 64, "layer_types": ["mamba", "attention"] * 2},
    "helium": {"head_dim": 16},
    "hunyuan_vl_text": {"head_dim": 128, "rope_parameters": {**PLAIN, "rope_type": "xdrope", "alpha": 1000.0, **SIXTEENS}},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "mamba_dt_rank": 8, "use_mamba_kernels": False},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "llama4_vision_model": {"image_size": 56, "intermediate_size": 768},
    "nemotron": {"num_key_value_heads": 2},
    "pixtral": {"hidden_size": 256, "head_dim": 64},
    "qwen3_omni_moe_text": {"head_dim": 128},
    "sapiens2": {"num_key_value_heads_per_layer": [4, 2, 2, 4]},
    "sam3_vit_model": {"image_size": 56, "window_size": 2, "global_attn_indexes": [0, 1, 2, 3]},
    "step3p5": {"sliding_window": 64},
    "zamba": {
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "num_key_value_heads": 4,
        "mamba_dt_rank": 8,
        "use_mamba_kernels": False,
        "layers_block_type": ["linear_attention", "linear_attention", "hybrid", "hybrid"],
    },
    "zamba2": {
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "kv_channels": 16,
        "num_key_value_heads": 4,
        "num_query_groups": 4,
        "mamba_headdim": 16,
        "hidden_size": 64,
        "use_mem_rope": True,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "hybrid_layer_ids": [1, 3],
    },
}
LAWS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8.0, "beta_slow": 1.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "longrope": {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 64},
}
OUTPUTS = (
    *("model_type", "architectures", "transformers_version", "dtype", "torch_dtype", "_attn_implementation"),
    *("stage_names", "out_features", "out_indices", "_out_features", "_out_indices"),
)  # what a config says of itself, and which of its many layers a backbone gives out
KEPT = ("rope_theta", "partial_rotary_factor", "llama_4_scaling_beta")  # what a section keeps under another law
OWN = ("proportional", "xdrope", "axial")  # laws that come with a model of theirs


class CannotRun(Exception):
    """Why a model type has no attention to compare with."""


def defaults(kind: str) -> Any:
    """The default config of a model type."""
    from transformers import CONFIG_MAPPING

    try:
        return CONFIG_MAPPING[kind]()
    except Exception as error:
        raise CannotRun(f"its config has no default: {said(error)}") from error


def shrunk(kind: str) -> Any:
    """The default config of a model type with small sizes; heads keep the widths that rotary sections need."""
    config = defaults(kind)
    fields = config.to_dict()
    given = {key: value for key, value in SMALL.items() if isinstance(fields.get(key), int | float)}
    if given.get("num_key_value_heads") and fields["num_key_value_heads"] == fields.get("num_attention_heads"):
        given["num_key_value_heads"] = 4
    count = next((fields[key] for key in COUNTS if isinstance(fields.get(key), int)), None)
    given |= {key: _layers(value) for key, value in fields.items() if isinstance(value, list) and len(value) == count}
    if isinstance(fields.get("rotary_dim"), int):
        given["rotary_dim"] = 8
    if fields.get("per_layer_config"):
        given["per_layer_config"] = {}
    given |= _head(fields, given) | EXTRA.get(kind, {})
    try:
        return type(config)(**{**{key: value for key, value in fields.items() if key not in OUTPUTS}, **given})
    except Exception as error:
        raise CannotRun(f"its config cannot be made small: {said(error)}") from error


def _layers(given: list[Any]) -> list[Any]:
    """A list per layer made short, with every kind that it has."""
    kinds = [one for i, one in enumerate(given) if one not in given[:i]]
    return (kinds * LAYERS)[:LAYERS] if len(kinds) > 1 else given[:LAYERS]


def _head(fields: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Heads keep their default width, which shares and sections are made for; models without a key for it get it by their hidden size."""
    if isinstance(fields.get("head_dim"), int) or fields.get("qk_rope_head_dim") or not fields.get("rope_parameters"):
        return {}
    for total, heads in (("hidden_size", "num_attention_heads"), ("embed_dim", "num_heads"), ("d_model", "num_attention_heads")):
        if isinstance(fields.get(total), int) and isinstance(fields.get(heads), int):
            width = fields[total] // fields[heads]
            return {"head_dim": width} if "head_dim" in fields else {total: given.get(heads, fields[heads]) * width}
    return {}


def under(config: Any, law: str) -> Any:
    """The config with a law in each of its rotary sections on one axis.

    Raises: CannotRun where it has no section, or only sections on several axes or with laws of their own.
    """
    if law == "default":
        return config
    fields = config.to_dict()
    given = fields.get("rope_parameters")
    if not isinstance(given, dict) or not given:
        raise CannotRun("its config has no rope_parameters")
    width = _width(fields)
    changed = 0

    def change(section: Any) -> Any:
        nonlocal changed
        if not isinstance(section, dict) or section.get("mrope_section") or section.get("rope_type") in OWN:
            return section
        changed += 1
        kept = {key: value for key, value in section.items() if key in KEPT} | LAWS[law]
        if "llama_4_scaling_beta" in kept:  # its temperature reads this too
            kept.setdefault("original_max_position_embeddings", LENGTH // 4)
        if law == "longrope":
            pairs = int(width * section.get("partial_rotary_factor", 1.0)) // 2
            kept["short_factor"] = [1.0 + i / 8 for i in range(pairs)]
            kept["long_factor"] = [1.0 + i / 2 for i in range(pairs)]
        return kept

    nested = any(isinstance(value, dict) for value in given.values())
    config.rope_parameters = {key: change(value) for key, value in given.items()} if nested else change(given)
    config.max_position_embeddings = LENGTH
    if fields.get("original_max_position_embeddings") is not None:
        config.original_max_position_embeddings = LENGTH // 4
    if not changed:
        raise CannotRun("its rotary section has several axes, or a law of its own")
    return config


def _width(fields: dict[str, Any]) -> int:
    """How wide the part of a head is that a rotary section is about."""
    named = fields.get("qk_rope_head_dim") or fields.get("head_dim") or fields.get("attention_head_dim") or fields.get("kv_channels")
    if isinstance(named, int):
        return named
    try:
        return fields["hidden_size"] // fields["num_attention_heads"]
    except (KeyError, TypeError):
        raise CannotRun("its config names no width of heads") from None


def model_of(config: Any, most: int) -> nn.Module:
    """A model of a config with random weights, in float32 and with the attention that transformers writes out.

    Raises: CannotRun where there is no class for it, it is too large, or it cannot be built.
    """
    one = _class_of(config)
    try:
        with torch.device("meta"):
            count = sum(p.numel() for p in one(config).parameters())
    except Exception as error:
        raise CannotRun(f"{one.__name__} cannot be built: {said(error)}") from error
    if count > most:
        raise CannotRun(f"{one.__name__} has {count / 1e6:.0f} million parameters however small its config is made")
    torch.manual_seed(0)
    try:
        model = one._from_config(config, attn_implementation="eager").float().eval()
    except Exception as error:
        raise CannotRun(f"{one.__name__} cannot be built: {said(error)}") from error
    for name, value in model.named_parameters():  # default weights are small: logits would be too
        if value.ndim >= 2 and any(word in name for word in ("q", "k", "attn", "attention")):
            nn.init.normal_(value, std=0.3)
    return model


def _class_of(config: Any) -> Any:
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    named = MODEL_MAPPING_NAMES.get(config.model_type)
    named = named[0] if isinstance(named, tuple) else named
    if named is not None and hasattr(transformers, named):
        return getattr(transformers, named)
    try:
        code = importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
    except ImportError as error:
        raise CannotRun(f"no model class: {said(error)}") from error
    found = [
        one
        for one in vars(code).values()
        if inspect.isclass(one) and issubclass(one, transformers.PreTrainedModel) and one.config_class is type(config)
        if not one.__name__.endswith("PreTrainedModel")
    ]
    if not found:
        raise CannotRun("no model class takes its config")
    return found[0]


def said(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:150]}"
