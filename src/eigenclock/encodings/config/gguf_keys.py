"""GGUF metadata: the keys of llama.cpp in the words of Hugging Face, the layout by architecture."""

from collections.abc import Mapping
from typing import Any

from eigenclock.encodings.config.families import ORIGINAL
from eigenclock.encodings.config.keys import Account, number, unknown, whole
from eigenclock.encodings.config.source import Source, uniform
from eigenclock.errors import ConfigError, UnsupportedError

DIVISORS = "rope_freqs.weight"  # tensors, handed on among the keys where a file has them
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"

# Architectures whose tensors hold pairs of neighbouring rows, and those that pair row i with row i + n/2.
_INTERLEAVED = """
llama llama4 llada deci baichuan internlm2 minicpm xverse command-r cohere2 olmo arctic deepseek chatglm granite granitemoe chameleon
plm bailingmoe smollm3 arcee ernie4_5 ernie4_5-moe mistral3 llama-embed maincoder
"""
_HALF = """
falcon grok dbrx stablelm bitnet qwen qwen2 qwen2moe qwen3 qwen3moe dream olmo2 olmoe phi2 phi3 phimoe plamo gemma gemma2 gemma3
starcoder2 openelm gptneox codeshell orion nemotron exaone exaone4 minicpm3 dots1 gpt-oss seed_oss smallthinker apertus minimax-m2
qwen3next hunyuan-dense hunyuan-moe afmoe mimo2
"""
INTERLEAVED, HALF = frozenset(_INTERLEAVED.split()), frozenset(_HALF.split())
M_ROPE = {"qwen2vl": False, "qwen3vl": True, "qwen3vlmoe": True}
_ABSOLUTE = frozenset(("gpt2", "starcoder", "bert", "nomic-bert"))
_PATTERNS = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "cohere2": 4, "exaone4": 4}  # every n-th layer attends to everything
_SCALING = {
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": ORIGINAL,
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
    "rope.scaling.finetuned": "finetuned",
}
_ROPE = (
    *_SCALING,
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.dimension_count",
    "rope.dimension_count_swa",
    "rope.dimension_sections",
    "rope.scaling.type",
    "rope.scaling.attn_factor",
    "rope.scale_linear",
)


def from_gguf(keys: Mapping[str, Any], account: Account) -> Source:
    """The metadata of a GGUF file.

    Raises: ConfigError where a rope key is unknown or a needed one missing; UnsupportedError where the architecture has no law here.
    """
    arch = str(keys["general.architecture"])
    own = {key.removeprefix(f"{arch}."): value for key, value in keys.items() if key.startswith(f"{arch}.")}
    for key, value in own.items():
        if key.startswith("rope.") and key not in _ROPE:
            raise unknown(f"{arch}.{key}", value, "the metadata", [f"{arch}.{name}" for name in _ROPE])
    if arch in _ABSOLUTE:
        raise UnsupportedError(f"got the GGUF architecture {arch!r}, which has learned absolute positions, outside the group")
    if "attention.key_length_mla" in own or arch == "deepseek2":
        raise UnsupportedError(f"got the GGUF architecture {arch!r} with latent attention; expected its Hugging Face config instead")
    if "attention.head_count" not in own:
        raise ConfigError(f"got no {arch}.attention.head_count in the metadata; expected the keys of a GGUF model")
    heads = whole(uniform(own["attention.head_count"], f"{arch}.attention.head_count"), f"{arch}.attention.head_count")
    out: dict[str, Any] = {"num_attention_heads": heads}
    if "attention.head_count_kv" in own:
        out["num_key_value_heads"] = uniform(own["attention.head_count_kv"], f"{arch}.attention.head_count_kv")
    for name, key in (("hidden_size", "embedding_length"), ("num_hidden_layers", "block_count"), ("head_dim", "attention.key_length")):
        if key in own:
            out[name] = own[key]
    if "context_length" in own:
        out["max_position_embeddings"] = own["context_length"]
    if number(own.get("attention.max_alibi_bias", 0), f"{arch}.attention.max_alibi_bias", least=0) > 0:
        out |= {"model_type": "mpt", "attn_config": {"alibi": True, "alibi_bias_max": own["attention.max_alibi_bias"]}}
        return Source(out, "gguf")
    return _rotary(arch, own, keys, out, account)


def _rotary(arch: str, own: Mapping[str, Any], keys: Mapping[str, Any], out: dict[str, Any], account: Account) -> Source:
    if "rope.dimension_count" in own:
        out["rotary_dim"] = uniform(own["rope.dimension_count"], f"{arch}.rope.dimension_count")
        if own.get("rope.dimension_count_swa", out["rotary_dim"]) != out["rotary_dim"]:
            raise UnsupportedError(f"got {arch}.rope.dimension_count_swa that differs from rope.dimension_count; expected one width")
    theta = own.get("rope.freq_base", 10000.0)
    if "rope.freq_base" not in own:
        account.warn(f"{arch}.rope.freq_base is not named: 10000 is used, as llama.cpp does")
    out["rope_theta"] = number(theta, f"{arch}.rope.freq_base", above=0)
    section = _section(arch, own, keys, account)
    if "rope.dimension_sections" in own or arch in M_ROPE:
        if arch not in M_ROPE:
            raise UnsupportedError(f"got {arch}.rope.dimension_sections; expected one of {', '.join(M_ROPE)}, whose axes are known")
        sizes = [n for n in own.get("rope.dimension_sections", ()) if n]
        section |= {"mrope_section": sizes or None, "mrope_interleaved": M_ROPE[arch]}
    if section:
        out["rope_scaling"] = section
    if "rope.freq_base_swa" in own:
        out["rope_local_base_freq"] = own["rope.freq_base_swa"]
    if arch in _PATTERNS and own.get("attention.sliding_window"):
        pattern = own.get("attention.sliding_window_pattern", _PATTERNS[arch])
        if isinstance(pattern, list | tuple):
            out["layer_types"] = ["sliding_attention" if slides else "full_attention" for slides in pattern]
        else:
            out["sliding_window_pattern"] = pattern
    if arch == "gemma3" and "rope.freq_base_swa" not in own:
        account.warn("gemma3.rope.freq_base_swa is not named: 10000 is used for sliding layers, as the model has it")
        out["rope_local_base_freq"] = 10000.0
    if arch in ("smollm3", "llama4", "cohere2", "exaone4"):
        out["model_type"] = {"llama4": "llama4_text"}.get(arch, arch)
    divisors = keys.get(DIVISORS)
    return Source(out, "gguf", _pairing(arch), 1, None if divisors is None else tuple(float(d) for d in divisors))


def _pairing(arch: str) -> str | None:
    if arch in INTERLEAVED:
        return "interleaved"
    return "half" if arch in HALF or arch in M_ROPE else None


def _section(arch: str, own: Mapping[str, Any], keys: Mapping[str, Any], account: Account) -> dict[str, Any]:
    """The scaling of a file; longrope's lists are tensors, and so are the divisors of Llama 3.1."""
    kind = own.get("rope.scaling.type", "linear" if "rope.scale_linear" in own or "rope.scaling.factor" in own else "none")
    given = {_SCALING[key]: own[key] for key in _SCALING if key in own}
    if "rope.scale_linear" in own:
        given.setdefault("factor", own["rope.scale_linear"])
    attn = own.get("rope.scaling.attn_factor")
    if kind == "none" and given.keys() - {"finetuned", ORIGINAL}:
        raise ConfigError(f"got {arch}.rope.scaling keys {sorted(given)} under rope.scaling.type='none'; expected a type that reads them")
    if LONG in keys or kind == "longrope":
        if LONG not in keys or SHORT not in keys:
            raise ConfigError(f"got longrope without the tensors {LONG} and {SHORT}; expected the path of the file, not its keys alone")
        given |= {"rope_type": "longrope", "long_factor": list(keys[LONG]), "short_factor": list(keys[SHORT])}
        return given | ({} if attn is None else {"attention_factor": attn})
    if kind == "none" or (kind == "linear" and "factor" not in given):
        return {}
    if attn is not None and kind == "yarn" and attn != 1:
        account.warn(f"{arch}.rope.scaling.attn_factor={attn!r} is not read: llama.cpp multiplies yarn's own amplitude by it")
    return given | {"rope_type": kind}
