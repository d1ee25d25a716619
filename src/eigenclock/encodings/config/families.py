"""What a config does not say and its model type does: layout, defaults, layer patterns, biases. One line per family."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from eigenclock.errors import ConfigError

HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model", "dim")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "n_head_kv", "multi_query_group_num")
HEAD_DIM = ("head_dim", "attention_head_dim", "kv_channels")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
THETA = ("rope_theta", "rotary_emb_base", "rotary_base", "rope_base", "global_rope_theta")
LOCAL_THETA = ("rope_local_base_freq", "local_rope_theta")
SHARE = ("partial_rotary_factor", "rotary_pct", "rotary_percent", "rotary_emb_fraction", "rope_pct", "rope_percent")
ROTARY_DIM = ("rotary_dim", "rotary_ndims")
ORIGINAL = "original_max_position_embeddings"
LONGEST = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
PATTERN = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")
SECTIONS = ("rope_parameters", "rope_scaling")

# Keys at the top of a config that have to do with position, beside those above.
ROTARY_TOP = (
    *THETA,
    *LOCAL_THETA,
    *SHARE,
    *ROTARY_DIM,
    *SECTIONS,
    ORIGINAL,
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "rope_interleave",
    "rope_interleaved",
    "no_rope_layers",
    "no_rope_layer_interval",
    "alibi",
    "alibi_bias_max",
    "rope_ratio",
    "rotary",
    "position_embedding_type",
)

_HALF = """
llama mistral mixtral ministral ministral3 qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next gemma gemma2 gemma3_text gemma3n_text gemma4_text
phi phi3 phimoe gpt_neox gpt_neox_japanese falcon stablelm persimmon nemotron olmo olmo2 olmo3 olmoe starcoder2 granite granitemoe
smollm3 gpt_oss arcee apertus exaone exaone4 seed_oss hunyuan_v1_dense minimax minimax_m2 nanochat jetmoe dbrx bitnet diffllama jamba
lfm2 dots1 qwen2_vl_text qwen2_vl qwen2_5_vl_text qwen2_5_vl qwen3_vl_text qwen3_vl_moe_text glm4_moe modernbert-decoder vaultgemma
afmoe qwen3_5_text qwen3_5_moe_text bamba falcon_h1 cwm flex_olmo doge recurrent_gemma
"""
_INTERLEAVED = """
gptj codegen cohere cohere2 deepseek_v2 deepseek_v3 glm glm4 ernie4_5 ernie4_5_moe helium llama4_text moonshine longcat_flash youtu
glm4_moe_lite
"""
HALF, INTERLEAVED = frozenset(_HALF.split()), frozenset(_INTERLEAVED.split())
MINUS = frozenset(("nanochat",))  # both sides turn by minus frequency times time

# The base a model type turns with where its config names none, as transformers 5 states it; 10000 for the others.
DEFAULT_THETA: Mapping[str, float] = {
    "apertus": 12e6,
    "bitnet": 5e5,
    "cohere": 5e5,
    "cwm": 1e6,
    "ernie4_5": 5e5,
    "ernie4_5_moe": 5e5,
    "exaone": 5e5,
    "flex_olmo": 5e5,
    "gemma3_text": 1e6,
    "gemma3n_text": 1e6,
    "gpt_oss": 1.5e5,
    "helium": 1e5,
    "lfm2": 1e6,
    "llama4_text": 5e5,
    "longcat_flash": 1e7,
    "minimax": 1e6,
    "minimax_m2": 5e6,
    "mixtral": 1e6,
    "modernbert-decoder": 1.6e5,
    "olmo3": 5e5,
    "phimoe": 1e6,
    "qwen2_5_vl_text": 1e6,
    "qwen2_vl_text": 1e6,
    "qwen3_vl_moe_text": 5e5,
    "qwen3_vl_text": 5e5,
    "smollm3": 2e6,
}
# The base of sliding layers where a model has two.
DEFAULT_LOCAL_THETA: Mapping[str, float] = {"gemma3_text": 1e4, "gemma3n_text": 1e4, "modernbert-decoder": 1e4}
THETA_IN_NO_KEY = frozenset(("gptj", "codegen"))  # 10000 is written into the model

# The share of the head that turns where the config does not say, and all of it elsewhere.
DEFAULT_SHARE: Mapping[str, float] = {
    "gpt_neox": 0.25,
    "stablelm": 0.25,
    "qwen3_next": 0.25,
    "phi": 0.5,
    "persimmon": 0.5,
    "nemotron": 0.5,
    "glm": 0.5,
    "glm4": 0.5,
    "glm4_moe": 0.5,
    "bamba": 0.5,
}

# Numbers that released configs leave out.
DEFAULT_SIZES: Mapping[str, Mapping[str, int]] = {
    "gemma2": {"query_pre_attn_scalar": 256},
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256},
}

# Every n-th layer attends to everything, the others within a window, where the config names neither layer types nor a pattern.
DEFAULT_PATTERN: Mapping[str, int] = {
    "gemma2": 2,
    "gpt_oss": 2,
    "gemma3_text": 6,
    "gemma3n_text": 5,
    "gemma4_text": 6,
    "cohere2": 4,
    "olmo3": 4,
    "vaultgemma": 2,
}
DEFAULT_INTERVAL = frozenset(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"))  # every fourth layer is attention, the others are linear
NOPE_ON_FULL = frozenset(("cohere2", "exaone4"))  # layers that attend to everything do not turn, where others have a window
FLAGGED = frozenset(("smollm3", "llama4_text"))  # no_rope_layers: 1 turns, 0 does not

M_ROPE: Mapping[str, tuple[tuple[int, ...], bool]] = {  # sections where none are named, and whether they are interleaved
    "qwen2_vl_text": ((16, 24, 24), False),
    "qwen2_5_vl_text": ((16, 24, 24), False),
    "qwen3_vl_text": ((24, 20, 20), True),
    "qwen3_vl_moe_text": ((24, 20, 20), True),
    "qwen3_5_text": ((11, 11, 10), True),
    "qwen3_5_moe_text": ((11, 11, 10), True),
}

NO_ENCODING = frozenset(("linear_attention", "mamba", "mamba2", "conv", "recurrent", "lightning_attention", "moe", "mlp"))

OUTSIDE: Mapping[str, str] = {
    **dict.fromkeys(
        ("gpt2", "gpt_bigcode", "gpt_neo", "opt", "openai-gpt", "xglm", "biogpt", "bert", "roberta", "nanogpt"),
        "learned absolute positions, a table with one row per position that is added to the embeddings",
    ),
    **dict.fromkeys(("t5", "mt5", "umt5", "longt5"), "a learned bias per bucket of the lag, which is not continuous in time"),
    **dict.fromkeys(("mamba", "mamba2", "rwkv"), "a recurrence in place of attention"),
}


@dataclass(frozen=True)
class Bias:
    """ALiBi as a family has it: ``turned_on`` from its config, and the factor on the published slopes that makes them ours."""

    turned_on: Callable[[Mapping[str, Any]], bool]
    placement: str
    off: str = ""


def _mpt(config: Mapping[str, Any]) -> Mapping[str, Any]:
    given = config.get("attn_config") or {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"got attn_config={given!r}; expected an object of keys and values")
    return given


BIASES: Mapping[str, Bias] = {
    "bloom": Bias(lambda config: True, "added to the scaled logit"),
    "mpt": Bias(lambda config: bool(_mpt(config).get("alibi", True)), "added to the scaled logit", OUTSIDE["gpt2"]),
    "falcon": Bias(lambda config: bool(config.get("alibi", False)), "added before the scale, so divided by sqrt(head_dim) with it"),
}
