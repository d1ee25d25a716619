"""Tiny models of every family that has the seam, with random weights."""

from typing import Any

import pytest
import torch

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 101, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 100, "max_position_embeddings": 512,
}  # fmt: skip
EXTRA: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "head_dim": 16, "num_hidden_layers": 4, "sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gemma": {"head_dim": 16}, "qwen3": {"head_dim": 16}, "mistral": {"sliding_window": 9, "head_dim": 16},
    "smollm3": {"num_hidden_layers": 4, "no_rope_layer_interval": 2},
    "qwen2": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
}  # fmt: skip
CLASSES = {
    "cohere": "Cohere", "gemma": "Gemma", "gemma3_text": "Gemma3Text", "gpt_neox": "GPTNeoX", "granite": "Granite", "llama": "Llama",
    "mistral": "Mistral", "olmo2": "Olmo2", "phi3": "Phi3", "qwen2": "Qwen2", "qwen3": "Qwen3", "smollm3": "SmolLM3",
}  # fmt: skip


def tiny(kind: str = "llama", **options: Any) -> Any:
    """A causal language model of the family with 64 channels and random weights, in evaluation mode."""
    import transformers

    sizes = SIZES | EXTRA.get(kind, {}) | options
    if kind == "gpt_neox":
        sizes.pop("num_key_value_heads")
    config = getattr(transformers, f"{CLASSES[kind]}Config")(**sizes)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(2, 100, (2, 24), generator=torch.Generator().manual_seed(3))
