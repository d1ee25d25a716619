"""What a config does not say and its model type does: layout, defaults, layer patterns, biases. One line per family."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from eigenclock.errors import ConfigError

HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads")
HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model", "dim")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "n_head_kv", "multi_query_group_num", "num_attention_groups")
HEAD_DIM = ("head_dim", "attention_head_dim", "kv_channels")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers")
THETA = ("rope_theta", "rotary_emb_base", "rotary_base", "rope_base", "global_rope_theta", "rope_freq_constant", "rotary_embedding_base")
LOCAL_THETA = ("rope_local_base_freq", "local_rope_theta")
SHARE = ("partial_rotary_factor", "rotary_pct", "rotary_percent", "rotary_emb_fraction", "rope_pct", "rope_percent")
ROTARY_DIM = ("rotary_dim", "rotary_ndims")
ORIGINAL = "original_max_position_embeddings"
LONGEST = ("max_position_embeddings", "n_positions")
# Lengths beside those two: some are the longest context, some the trained one, and a config may hold both.
OTHER_LENGTHS = ("max_seq_len", "max_sequence_length", "seq_length", "model_max_length")
LENGTHS = (*LONGEST, *OTHER_LENGTHS)
PATTERN = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")
SECTIONS = ("rope_parameters", "rope_scaling")

INTERLEAVE = ("rope_interleave", "rope_interleaved", "rotary_emb_interleaved")
# Whether queries and keys turn at all, in code beside transformers.
TURN_SWITCHES = ("rotary", "rope", "use_rope", "use_rotary", "use_rotary_embedding", "use_rotary_embeddings")

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
    *INTERLEAVE,
    *TURN_SWITCHES,
    "no_rope_layers",
    "no_rope_layer_interval",
    "alibi",
    "alibi_bias_max",
    "rope_ratio",
    "position_embedding_type",
    "position_embeddings_type",
    "layer_rope_theta",
    "partial_rotary_factors",
    "yarn_only_types",
)

_HALF = """
esm qwen llama mistral mixtral ministral ministral3 qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next gemma gemma2 gemma3_text gemma3n_text
gemma4_text phi phi3 phimoe gpt_neox gpt_neox_japanese falcon stablelm persimmon nemotron olmo olmo2 olmo3 olmoe starcoder2 granite
granitemoe smollm3 gpt_oss arcee apertus exaone exaone4 seed_oss hunyuan_v1_dense minimax minimax_m2 nanochat jetmoe dbrx bitnet diffllama
lfm2 dots1 qwen2_vl_text qwen2_vl qwen2_5_vl_text qwen2_5_vl qwen3_vl_text qwen3_vl_moe_text glm4_moe modernbert-decoder vaultgemma afmoe
qwen3_5_text qwen3_5_moe_text bamba falcon_h1 cwm flex_olmo doge recurrent_gemma apertus1p5_text aria_text beam emu3_text_model exaone_moe
flint gemma4_unified_text granitemoeshared granite_swa granitemoe_swa hrm_text hunyuan_v1_moe hy_v3 hy_v4 hyperclovax internlm3
iquestcoder jais2 kolibri1 lara_mini lfm3 mellum minicpm3 minimax_m3_vl_text mllama_text_model moshi mimo_v2_flash olmo_hybrid sarvam_moe
nv_esm solar_open step3p5 glm4v_moe_text glm_image_text paddleocr_vl_text qwen2_5_omni_text qwen3_omni_moe_text granitemoehybrid
cosmos3_edge_text deepseek_ocr2_text diffusion_gemma_text embedding_gemma2_text eurobert granite4_vision_text granite_docling_text gte
higgs_audio_v2 jina_embeddings_v3 laguna lfm2_moe modernbert molmo2_text muse_glimmer_text muse_spark_text nomic_bert qwen2_5_omni_talker
ultrabert unlimited_ocr_text dia_encoder zamba2 csm csm_depth_decoder_model neomme
"""
_INTERLEAVED = """
hy_v4_vl_text roformer gptj codegen cohere cohere2 deepseek_v2 deepseek_v3 glm glm4 ernie4_5 ernie4_5_moe helium llama4_text moonshine
longcat_flash youtu glm4_moe_lite axk1 axk2 cohere2_moe deepseek_v32 ernie4_5_vl_moe_text glm4v_text glm_moe_dsa glm_ocr_text mistral4
sarvam_mla openai_privacy_filter
"""
# Model types whose attention asks its config for the layout; the others that are known turn as they do, whatever a flag says.
ASK_FOR_LAYOUT = frozenset(("deepseek_v3", "mistral4", "axk1", "youtu", "glm4_moe_lite", "sarvam_mla"))
ASK_FOR_KIND = frozenset(("esm", "nv_esm"))  # and for the kind of their positions
HALF, INTERLEAVED = frozenset(_HALF.split()), frozenset(_INTERLEAVED.split())
MINUS = frozenset(("nanochat",))  # both sides turn by minus frequency times time

# The base a model type turns with where its config names none, as transformers 5 states it; 10000 for the others.
DEFAULT_THETA: Mapping[str, float] = {
    "apertus": 12e6,
    "apertus1p5_text": 12e6,
    "bitnet": 5e5,
    "cohere": 5e5,
    "cosmos3_edge_text": 1e8,
    "csm": 5e5,
    "csm_depth_decoder_model": 5e5,
    "cwm": 1e6,
    "ernie4_5": 5e5,
    "ernie4_5_moe": 5e5,
    "ernie4_5_vl_moe_text": 5e5,
    "emu3_text_model": 1e6,
    "exaone": 5e5,
    "flex_olmo": 5e5,
    "gemma3_text": 1e6,
    "gemma3n_text": 1e6,
    "gpt_oss": 1.5e5,
    "gte": 1.6e5,
    "helium": 1e5,
    "jina_embeddings_v3": 2e4,
    "hy_v3": 11158840.0,
    "lfm2": 1e6,
    "lfm2_moe": 1e6,
    "llama4_text": 5e5,
    "longcat_flash": 1e7,
    "mellum": 5e5,
    "minimax": 1e6,
    "minimax_m2": 5e6,
    "minimax_m3_vl_text": 5e6,
    "mixtral": 1e6,
    "mllama_text_model": 5e5,
    "modernbert": 1.6e5,
    "modernbert-decoder": 1.6e5,
    "nomic_bert": 1e3,
    "olmo3": 5e5,
    "paddleocr_vl_text": 5e5,
    "phimoe": 1e6,
    "qwen2_5_omni_text": 1e6,
    "qwen2_5_omni_talker": 1e6,
    "qwen2_5_vl_text": 1e6,
    "qwen2_vl_text": 1e6,
    "qwen3_omni_moe_text": 1e6,
    "qwen3_vl_moe_text": 5e5,
    "qwen3_vl_text": 5e5,
    "sarvam_moe": 8e6,
    "smollm3": 2e6,
    "solar_open": 1e6,
}
# The base of sliding layers where a model has two.
DEFAULT_LOCAL_THETA: Mapping[str, float] = {"gemma3_text": 1e4, "gemma3n_text": 1e4, "modernbert": 1e4, "modernbert-decoder": 1e4}
# Types whose class has a schedule of its own, or a base per layer type, where the config has none: it has to be there.
_SECTIONED = """
diffusion_gemma_text embedding_gemma2_text laguna muse_glimmer_text muse_spark_text ultrabert higgs_audio_v2 openai_privacy_filter neomme
"""
NEED_SECTION = frozenset(_SECTIONED.split())
THETA_IN_NO_KEY = frozenset(("gptj", "codegen", "roformer", "esm", "nv_esm"))  # 10000 is written into the model

# The share of the head that turns where the config does not say, and all of it elsewhere.
DEFAULT_SHARE: Mapping[str, float] = {
    "gpt_neox": 0.25,
    "stablelm": 0.25,
    "qwen3_next": 0.25,
    "qwen3_5_text": 0.25,
    "qwen3_5_moe_text": 0.25,
    "recurrent_gemma": 0.5,
    "phi": 0.5,
    "persimmon": 0.5,
    "nemotron": 0.5,
    "glm": 0.5,
    "glm4": 0.5,
    "glm4_moe": 0.5,
    "glm4v_moe_text": 0.5,
    "bamba": 0.5,
}

_GRANITES = "granite granite_swa granitemoe granitemoe_swa granitemoeshared granitemoehybrid granite4_vision_text"
# Numbers that released configs leave out.
DEFAULT_SIZES: Mapping[str, Mapping[str, float]] = {
    "codegen": {"rotary_dim": 64},
    "gptj": {"rotary_dim": 64},
    **{name: {"attention_multiplier": 1.0} for name in _GRANITES.split()},
    "granite_docling_text": {"attention_multiplier": 0.015625},
    "vaultgemma": {"query_pre_attn_scalar": 256},
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
    "gemma4_unified_text": 6,
    "modernbert": 3,
    "modernbert-decoder": 3,
    "afmoe": 4,
    "cohere2": 4,
    "exaone4": 4,
    "exaone_moe": 4,
    "kolibri1": 5,
    "olmo3": 4,
    "vaultgemma": 2,
}
FULL_FIRST = frozenset(("modernbert", "modernbert-decoder"))  # of every n layers the first attends to everything, in the others the last
DEFAULT_INTERVAL = frozenset(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"))  # every fourth layer is attention, the others are linear
# Layers that attend to everything do not turn, those with a window do. A few turn every layer where the config names no window.
TURN_WITHOUT_WINDOW = frozenset(("exaone4", "exaone_moe", "kolibri1"))
NOPE_ON_FULL = TURN_WITHOUT_WINDOW | frozenset(("afmoe", "cohere2", "cohere2_moe", "flint", "lara_mini"))
# Queries and keys are divided by their norms after they turn, which takes a factor on both away; the switch that says so, or none.
NORM_AFTER: Mapping[str, str | None] = {
    "hunyuan_v1_dense": None,
    "hunyuan_v1_moe": None,
    "llama4_text": "use_qk_norm",
    "nanochat": None,
}
WITHOUT_POSITION = frozenset(("jamba", "nemotron_h", "kimi_linear", "zamba"))  # attention between recurrences, which order the tokens
# No layer turns unless a key says so.
TURN_BY_SWITCH: Mapping[str, tuple[str, Any]] = {
    "granitemoehybrid": ("position_embedding_type", "rope"),
    "zamba2": ("use_mem_rope", True),
}
HALF_SCALE = frozenset(("zamba", "zamba2"))  # heads are twice as wide as the scale says
TILED_KEYS = frozenset(("jetmoe",))  # head h reads key head h mod n, where others read h // (heads / n)
WIDE_KEYS = frozenset(("mimo_v2_flash",))  # twice as many key heads in layers with a window
WINDOW_TURNS = frozenset(("cohere2", "cohere2_moe", "flint"))  # without a window no layer turns
# Which layers have a window follows no pattern that a number could give: the config has to name them.
LISTED = frozenset(("cohere2_moe", "flint", "lara_mini", "granite_swa", "granitemoe_swa", "beam", "lfm3", "mimo_v2_flash"))
FLAGGED = frozenset(("smollm3", "llama4_text"))  # no_rope_layers: 1 turns, 0 does not

M_ROPE: Mapping[str, tuple[tuple[int, ...], str]] = {  # sections where none are named, and how pairs are shared out
    "cohere_compass_text": ((24, 20, 20), "interleaved"),
    "cosmos3_edge_text": ((24, 20, 20), "interleaved"),
    "ernie4_5_vl_moe_text": ((22, 22, 20), "alternating"),  # height, width, time
    "glm4v_text": ((8, 12, 12), "contiguous"),
    "glm4v_moe_text": ((8, 12, 12), "contiguous"),
    "glm_image_text": ((8, 12, 12), "contiguous"),
    "glm_ocr_text": ((8, 12, 12), "contiguous"),
    "hy_v4_vl_text": ((24, 20, 20), "interleaved"),
    "paddleocr_vl_text": ((16, 24, 24), "contiguous"),
    "qwen2_vl_text": ((16, 24, 24), "contiguous"),
    "qwen2_5_vl_text": ((16, 24, 24), "contiguous"),
    "qwen2_5_omni_text": ((16, 24, 24), "contiguous"),
    "qwen3_omni_moe_text": ((24, 20, 20), "interleaved"),
    "qwen3_vl_text": ((24, 20, 20), "interleaved"),
    "qwen3_vl_moe_text": ((24, 20, 20), "interleaved"),
    "qwen3_5_text": ((11, 11, 10), "interleaved"),
    "qwen3_5_moe_text": ((11, 11, 10), "interleaved"),
    "qwen4_exp_text": ((11, 11, 10), "interleaved"),
}

WIDE_ON_FULL = frozenset(("gemma4_text", "gemma4_unified_text"))  # wider heads where a layer attends to everything
# The factor on the inner product of models that scale queries by their norms alone.
SCALE_ONE = frozenset(
    ("gemma3n_text", "gemma4_text", "gemma4_unified_text", "diffusion_gemma_text", "embedding_gemma2_text", "dia_encoder")
)
# What stands in a config of these types and is not read by their class in transformers 5.
UNREAD: Mapping[str, tuple[str, ...]] = {
    "axk2": ("rope_interleave",),
    "deepseek_v32": ("rope_interleave",),
    "glm_moe_dsa": ("rope_interleave",),
    "minimax_m3_vl_text": ("rotary_dim",),
    "mimo_v2_flash": ("rope_theta", "partial_rotary_factor", "rope_scaling", "swa_rope_theta"),
}
# The layer types that a flat scaling is meant for, where the others turn by their plain base.
SCALED_TYPES: Mapping[str, tuple[str, ...]] = {"step3p5": ("full_attention",)}
# The sections of model types whose class has one for each layer type, where the config has none.
_GEMMA4: Mapping[str, Mapping[str, Any]] = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
}
DEFAULT_SECTIONS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": _GEMMA4,
    "lfm3": {**_GEMMA4, "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5}},
    "mimo_v2_flash": {
        "full_attention": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.334},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.334},
    },
}

NO_ENCODING = frozenset(
    ("linear_attention", "mamba", "mamba2", "conv", "recurrent", "lightning_attention", "moe", "mlp", "cross_attention")
)

_RECURRENT = """
mamba mamba2 falcon_mamba rwkv rwkv5 rwkv6 rwkv7 delta_net gated_deltanet gated_delta_product gla hgrn hgrn2 gsa lightnet retnet linear_attn
xlstm
"""
OUTSIDE: Mapping[str, str] = {
    **dict.fromkeys(
        ("gpt2", "gpt_bigcode", "gpt_neo", "opt", "openai-gpt", "xglm", "biogpt", "bert", "roberta", "nanogpt"),
        "learned absolute positions, a table with one row per position that is added to the embeddings",
    ),
    **dict.fromkeys(("t5", "mt5", "umt5", "longt5"), "a learned bias per bucket of the lag, which is not continuous in time"),
    **dict.fromkeys(_RECURRENT.split(), "a recurrence in place of attention"),
    **dict.fromkeys(("rwkv6", "rwkv7", "gla", "hgrn2"), "no rotation, a recurrence with a decay per channel in place of attention"),
}

# What stands under position_embedding_type where it is no rotation, and what it means.
OTHER_KINDS: Mapping[str, str] = {
    "absolute": "learned absolute positions, which are added to the embeddings",
    "learned": "learned absolute positions, which are added to the embeddings",
    "sine": "fixed absolute positions, which are added to the embeddings",
    "relative": "the bias of Transformer-XL, sinusoids of the lag through a projection (ec.transformer_xl by hand)",
    "relative_key": "a learned vector per lag beside each key",
    "relative_key_query": "a learned vector per lag beside each query and key",
    "alibi": "ALiBi, which is read for BLOOM, MPT, Falcon and BERT (ec.alibi by hand)",
}
# Conformers whose "rotary" turns what queries and keys are projected from.
TURN_BEFORE_PROJECTION = frozenset(("wav2vec2-conformer", "wav2vec2-bert", "seamless_m4t", "seamless_m4t_v2"))


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
    "bert_alibi": Bias(lambda config: True, "added to the scaled logit"),
    "mpt": Bias(lambda config: bool(_mpt(config).get("alibi", True)), "added to the scaled logit", OUTSIDE["gpt2"]),
    "falcon": Bias(lambda config: bool(config.get("alibi", False)), "added before the scale, so divided by sqrt(head_dim) with it"),
}
