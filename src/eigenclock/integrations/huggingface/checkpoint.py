"""A Llama-type model from its GGUF file, with the rows of its query and key projections in the layout that transformers turns."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eigenclock.encodings.config.gguf_file import keys_of, open_gguf
from eigenclock.errors import UnsupportedError
from eigenclock.integrations.layout import convert

NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def from_gguf(path: str | os.PathLike[str], dtype: torch.dtype = torch.float32) -> Any:
    """A transformers Llama model from a GGUF file, its weights in ``dtype`` and its frequencies in float32.

    GGUF keeps the rows of the query and key projections interleaved, (2i, 2i + 1), as Llama was trained; transformers turns halves,
    (i, i + d/2). Loaded as they are the weights fit, and the model writes nonsense; here they are converted.

    Raises: UnsupportedError for another architecture, or without the packages transformers and gguf; ConfigError where the file is no
        GGUF file.
    """
    try:
        import gguf
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise UnsupportedError(f"reading a GGUF file takes the package {error.name}: pip install 'eigenclock[hf]'") from None
    reader = open_gguf(Path(path))
    about = keys_of(reader)
    if about.get("general.architecture") != "llama":
        raise UnsupportedError(f"got a GGUF file of {about.get('general.architecture')!r}; expected the architecture 'llama'")

    def get(name: str) -> Any:
        return about[f"llama.{name}"]

    def token(name: str) -> Any:
        field = reader.fields.get(f"tokenizer.ggml.{name}_token_id")
        return None if field is None else field.contents()

    heads, kv_heads = get("attention.head_count"), get("attention.head_count_kv")
    tensors = {t.name: t for t in reader.tensors}
    config = LlamaConfig(
        hidden_size=get("embedding_length"), intermediate_size=get("feed_forward_length"), num_hidden_layers=get("block_count"),
        num_attention_heads=heads, num_key_value_heads=kv_heads, vocab_size=int(tensors["token_embd.weight"].shape[1]),
        max_position_embeddings=get("context_length"), rms_norm_eps=get("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": get("rope.freq_base")}, tie_word_embeddings="output.weight" not in tensors,
        bos_token_id=token("bos"), eos_token_id=token("eos"), pad_token_id=token("padding"),
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    rows = {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads}
    state = dict(_weights(tensors, gguf, rows, dtype))
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # no weight, and no cast may touch it
    model.tie_weights()
    return model.eval()


def _weights(tensors: dict[str, Any], gguf: Any, rows: dict[str, int], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Names of transformers and weights, queries and keys in halves."""
    for name, tensor in tensors.items():
        base, _, kind = name.rpartition(".")
        weight = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy()).to(dtype)
        if base in OUTER:
            yield f"{OUTER[base]}.{kind}", weight
            continue
        _, block, part = base.split(".")
        if part not in NAMES:
            raise UnsupportedError(f"got the tensor {name}; expected those of a Llama model without biases")
        if NAMES[part] in rows:
            weight = convert(weight, heads=rows[NAMES[part]], to="half")
        yield f"model.layers.{block}.{NAMES[part]}.{kind}", weight
