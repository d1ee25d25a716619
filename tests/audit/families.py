"""Tiny models of transformers with random weights, built from configs: families with a rotation, families without, and faulty twins."""

from typing import Any

import torch
from torch import Tensor

SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 40,
    "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = SIZES | {"num_key_value_heads": 2}
WIDE = GROUPED | {"head_dim": 8}
TWO_KINDS = WIDE | {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}
OLDER: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 40, "n_positions": 256}

ROTARY: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "mistral": WIDE,
    "qwen2": GROUPED,
    "qwen3": WIDE,  # a norm of each head before the action
    "gemma2": WIDE,  # capped logits
    "gemma3_text": TWO_KINDS,  # a base for each kind of layer
    "gpt_neox": SIZES | {"rotary_pct": 0.5},  # one projection, head by head
    "phi3": GROUPED,  # one projection, queries then keys then values
    "phi": SIZES,  # half of the channels
    "cohere": GROUPED,  # interleaved
    "glm": WIDE,  # interleaved, half of the channels
    "gptj": OLDER | {"rotary_dim": 4},
    "olmo2": GROUPED,  # a norm of all heads together
    "granite": GROUPED,
    "smollm3": GROUPED | {"no_rope_layers": [1, 0]},  # layers without an action
    "stablelm": GROUPED,
    "exaone4": TWO_KINDS,  # norms on (B, H, T, D)
    "ernie4_5": WIDE,
    "qwen3_next": WIDE | {
        "layer_types": ["linear_attention", "full_attention"], "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },  # the first layer is a recurrence
}  # fmt: skip

BIASED: dict[str, dict[str, Any]] = {
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 40},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "vocab_size": 40, "max_seq_len": 256},
    "falcon": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 40, "alibi": True},
}

OUTSIDE: dict[str, dict[str, Any]] = {
    "gpt2": OLDER,
    "bert": SIZES,
    "opt": {
        "hidden_size": 32,
        "ffn_dim": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 40,
        "word_embed_proj_dim": 32,
    },
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 40},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 40},
    "rwkv": {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 40},
}


def tiny(kind: str, **changed: Any) -> Any:
    """A model of a family, its weights from a seed."""
    from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM

    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**{**{**ROTARY, **BIASED, **OUTSIDE}[kind], **changed})
    try:
        return AutoModelForCausalLM.from_config(config).eval()
    except ValueError:
        return AutoModel.from_config(config).eval()


# --- faulty twins ----------------------------------------------------------------------------------------------------------------------


def counting(first: int, later: int) -> Any:
    """A Llama that counts by itself, padding included, whatever positions it is given: from ``first`` in the prompt, then from ``later``
    on behind what is in the cache; None there keeps what is given."""
    model = tiny("llama")
    inner, plain = model.model, model.model.forward

    def forward(input_ids: Tensor, position_ids: Tensor | None = None, cache: Any = None, **rest: Any) -> Any:
        past = 0 if cache is None else cache.get_seq_length()
        start = later if past else first
        if start is not None:
            position_ids = (torch.arange(input_ids.shape[1]) + past + start).expand(input_ids.shape)
        return plain(input_ids, position_ids=position_ids, cache=cache, **rest)

    inner.forward = forward
    return model


def sharing_rows() -> Any:
    """A Llama whose rotary module takes the positions of the first row for all rows."""
    from transformers.models.llama import modeling_llama

    class Shared(modeling_llama.LlamaRotaryEmbedding):
        def forward(self, x: Tensor, position_ids: Tensor) -> Any:
            return super().forward(x, position_ids[:1].expand_as(position_ids))

    model = tiny("llama")
    model.model.rotary_emb = Shared(model.config)
    return model


def mixing_frequencies() -> Any:
    """A Llama whose frequencies follow the length of the sequence."""
    return tiny("llama", max_position_embeddings=16, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0})
