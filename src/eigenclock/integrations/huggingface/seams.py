"""Where a transformers model keeps its position mechanism: one rotary module, and an attention module in each layer."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from eigenclock.errors import UnsupportedError

MODEL_TYPES = (
    "cohere", "gemma", "gemma3_text", "gpt_neox", "granite", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3",
)  # fmt: skip
"""Model types whose decoder has the seam and is tested with it."""


@dataclass(frozen=True)
class Seams:
    """The places of one model: its decoder, the attention of each layer, sizes, and the kind of each layer."""

    decoder: Any
    attentions: tuple[Any, ...]
    heads: int
    kv_heads: int
    head_dim: int
    layer_types: tuple[str, ...]

    @property
    def config(self) -> Any:
        return self.decoder.config


def find_seams(model: nn.Module) -> Seams:
    """The places of a transformers decoder.

    Raises: UnsupportedError where the model has no known seam.
    """
    config = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    if config is None or kind not in MODEL_TYPES:
        what = f"a model of type {kind!r}" if kind else type(model).__name__
        raise UnsupportedError(
            f"got {what}; expected a transformers decoder of one of the types {', '.join(MODEL_TYPES)}: "
            "for others call ec.attention in the model's own code"
        )
    if not getattr(config, "is_causal", True) or getattr(config, "use_bidirectional_attention", False):
        raise UnsupportedError("got a model that attends to later tokens as well; expected a causal decoder")
    if getattr(config, "attn_logit_softcapping", None) is not None:
        raise UnsupportedError("got a model with attn_logit_softcapping; expected plain softmax: eigenclock does not cap logits")
    decoder: Any = getattr(model, "base_model", model)
    attentions = tuple(getattr(layer, "self_attn", None) or layer.attention for layer in decoder.layers)
    first = attentions[0]
    head_dim = getattr(first, "head_dim", None) or first.head_size
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    types = getattr(config, "layer_types", None) or ("full_attention",) * len(attentions)
    return Seams(decoder, attentions, config.num_attention_heads, kv_heads, head_dim, tuple(types))
