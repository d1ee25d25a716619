"""GGUF metadata: the keys of llama.cpp in the words of Hugging Face, the layout by architecture."""

import math
from collections.abc import Mapping
from typing import Any

from eigenclock.encodings.config.families import ORIGINAL
from eigenclock.encodings.config.keys import Account, number, unknown, whole
from eigenclock.encodings.config.source import Source, uniform
from eigenclock.errors import ConfigError, UnsupportedError

DIVISORS = "rope_freqs.weight"  # tensors, handed on among the keys where a file has them
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"

# The rotation of each architecture, as llama.cpp has it: neighbouring rows of a tensor form pairs, or row i and row i + n/2 do.
_INTERLEAVED = """
llama llama4 llada deci baichuan internlm2 minicpm xverse command-r cohere2 cohere2moe olmo arctic deepseek deepseek2 deepseek2-ocr chatglm
granite granitemoe granitehybrid chameleon plm bailingmoe neo-bert smollm3 arcee ernie4_5 ernie4_5-moe mistral3 mistral4 llama-embed
maincoder glm4 glm-dsa
"""
_HALF = """
falcon falcon-h1 grok dbrx jina-bert-v3 modern-bert nomic-bert nomic-bert-moe eurobert stablelm bitnet qwen qwen2 qwen2moe qwen3 qwen3moe
dream llada-moe rnd1 olmo2 olmoe phi2 phi3 phimoe plamo plamo2 plamo3 gemma gemma2 gemma3 gemma3n gemma4 gemma-embedding starcoder2 openelm
gptneox codeshell orion nemotron exaone exaone4 exaone-moe minicpm3 bailingmoe2 dots1 hunyuan-dense hunyuan-moe jais2 gpt-oss lfm2 lfm2moe
smallthinker seed_oss grovemoe apertus minimax-m2 cogvlm pangu-embedded afmoe qwen3next mimo2 step35 glm4moe
"""
INTERLEAVED, HALF = frozenset(_INTERLEAVED.split()), frozenset(_HALF.split())
M_ROPE = {"qwen2vl": False, "paddleocr": False, "qwen3vl": True, "qwen3vlmoe": True, "qwen35": True, "qwen35moe": True}
M_ROPE_BY_SECTIONS = {"glm4": False, "glm4moe": False}  # on one axis where the file has no sections
_OUTSIDE = {
    **dict.fromkeys(("gpt2", "starcoder", "bert"), "learned absolute positions"),
    **dict.fromkeys(("t5", "t5encoder"), "a learned bias per bucket of the lag"),
    **dict.fromkeys(("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"), "a recurrence in place of attention"),
}
_ALIBI = frozenset(("bloom", "refact", "jina-bert-v2"))  # the largest exponent is 8, and no key says so
_BOTH_SIDES = frozenset(("jina-bert-v2",))  # an encoder: the bias falls with the size of the lag
_STILL = frozenset(("jamba", "nemotron_h", "nemotron_h_moe"))  # attention without positions between recurrences
_MODEL_TYPES = {  # architectures of which some layers do not turn, under the names of Hugging Face
    **{arch: arch for arch in ("smollm3", "cohere2", "exaone4", "afmoe")},
    "llama4": "llama4_text",
    "exaone-moe": "exaone_moe",
}
# Every n-th layer attends to everything.
_INTERVAL = frozenset(("qwen3next", "qwen35", "qwen35moe"))  # every fourth layer attends, the others are linear
_PATTERNS = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "cohere2": 4, "exaone4": 4, "exaone-moe": 4, "afmoe": 4}
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
    "rope.scaling.alpha",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_log_multiplier",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scale_linear",
)


_YARN = {"yarn_ext_factor": 1.0, "yarn_attn_factor": 1.0, "yarn_log_multiplier": 0.0, "attn_factor": 1.0}


def from_gguf(keys: Mapping[str, Any], account: Account) -> Source:
    """The metadata of a GGUF file.

    Raises: ConfigError where a rope key is unknown or a needed one missing; UnsupportedError where the architecture has no law here.
    """
    arch = str(keys["general.architecture"])
    own = {key.removeprefix(f"{arch}."): value for key, value in keys.items() if key.startswith(f"{arch}.")}
    for key, value in own.items():
        if key.startswith("rope.") and key not in _ROPE:
            raise unknown(f"{arch}.{key}", value, "the metadata", [f"{arch}.{name}" for name in _ROPE])
    if arch in _OUTSIDE:
        raise UnsupportedError(f"got the GGUF architecture {arch!r}, which has {_OUTSIDE[arch]}, outside the group")
    if "attention.key_length_mla" in own or arch == "deepseek2":
        raise UnsupportedError(f"got the GGUF architecture {arch!r} with latent attention; expected its Hugging Face config instead")
    if own.get("attention.key_length_swa", own.get("attention.key_length")) != own.get("attention.key_length"):
        raise UnsupportedError(f"got {arch}.attention.key_length_swa, another width of heads where layers have a window; expected one")
    if "attention.head_count" not in own:
        raise ConfigError(f"got no {arch}.attention.head_count in the metadata; expected the keys of a GGUF model")
    out: dict[str, Any] = {}
    for name, key in (("num_attention_heads", "attention.head_count"), ("num_key_value_heads", "attention.head_count_kv")):
        if key in own:
            out[name] = _heads(own[key], f"{arch}.{key}")
    for name, key in (("hidden_size", "embedding_length"), ("num_hidden_layers", "block_count"), ("head_dim", "attention.key_length")):
        if key in own:
            out[name] = own[key]
    if "context_length" in own:
        out["max_position_embeddings"] = own["context_length"]
    if own.get("attention.scale"):
        out["attention_multiplier"] = number(own["attention.scale"], f"{arch}.attention.scale", above=0)
    if (largest := _alibi(arch, own, account)) > 0:
        out |= {"model_type": "mpt", "attn_config": {"alibi": True, "alibi_bias_max": largest}}
        return Source(out, "gguf", both_sides=arch in _BOTH_SIDES)
    if arch in ("mpt", "jais"):
        raise UnsupportedError(f"got the GGUF architecture {arch!r} without attention.max_alibi_bias: its positions are learned then")
    out |= _recurrences(arch, own)
    if arch in _STILL or (arch.startswith("granite") and own.get("rope.scaling.finetuned") is False):  # Granite's switch for its rotation
        return Source(out | {"model_type": "jamba"}, "gguf")
    return _rotary(arch, own, keys, out, account)


def _heads(value: Any, key: str) -> Any:
    """A number of heads, or one per layer where layers differ; what stands under layers without any is of no effect."""
    if not isinstance(value, list | tuple):
        return whole(value, key)
    given = [0 if n == 0 else whole(n, f"{key}[{i}]") for i, n in enumerate(value)]
    some = [n for n in given if n]
    return whole(max(some, default=0), key) if len(set(some)) < 2 else [n or max(some) for n in given]


def _recurrences(arch: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Which layers attend: those with heads, and every n-th where an interval says so."""
    lists = [own[key] for key in ("attention.head_count", "attention.head_count_kv") if isinstance(own.get(key), list | tuple)]
    if any(0 in one for one in lists):
        return {"layer_types": ["full_attention" if all(heads) else "recurrent" for heads in zip(*lists, strict=False)]}
    every = own.get("full_attention_interval", 4 if arch in _INTERVAL else None)
    return {} if every is None else {"full_attention_interval": every}


def _alibi(arch: str, own: Mapping[str, Any], account: Account) -> float:
    """The largest exponent of ALiBi; 0 where an architecture turns instead."""
    given = number(own.get("attention.max_alibi_bias", 0), f"{arch}.attention.max_alibi_bias", least=0)
    if given > 0 or arch not in (*_ALIBI, "baichuan"):
        return given
    if arch == "baichuan" and own.get("block_count") != 40:
        return 0
    account.note(f"{arch}{' with 40 layers' if arch == 'baichuan' else ''} has ALiBi with exponents up to 8, written into llama.cpp")
    return 8


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
    sizes = [n for n in own.get("rope.dimension_sections", ()) if n]
    if sizes or arch in M_ROPE:
        if arch not in M_ROPE | M_ROPE_BY_SECTIONS:
            known = ", ".join(M_ROPE | M_ROPE_BY_SECTIONS)
            raise UnsupportedError(f"got {arch}.rope.dimension_sections; expected one of {known}, whose axes are known")
        section |= {"mrope_section": sizes or None, "mrope_interleaved": (M_ROPE | M_ROPE_BY_SECTIONS)[arch]}
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
    if arch in _MODEL_TYPES:
        out["model_type"] = _MODEL_TYPES[arch]
    _temperature(arch, own, out, account)
    divisors = keys.get(DIVISORS)
    if _pairing(arch) is None:
        account.warn(
            f"the GGUF architecture {arch!r} is not known here: it is assumed that every layer turns, and that its scale is the plain one; "
            "check that against its code"
        )
    pairing = "half" if sizes else _pairing(arch)  # llama.cpp turns several axes by halves only
    return Source(out, "gguf", pairing, 1, None if divisors is None else tuple(float(d) for d in divisors))


def _temperature(arch: str, own: Mapping[str, Any], out: dict[str, Any], account: Account) -> None:
    """A factor on queries by their position: 1 + scale ln(1 + floor(t / length)), the length that of the trained context by default."""
    slope = number(own.get("attention.temperature_scale", 0), f"{arch}.attention.temperature_scale")
    if slope == 0:
        if own.get("attention.temperature_length"):
            account.warn(f"{arch}.attention.temperature_length={own['attention.temperature_length']!r} is not read: a factor on queries")
        return
    length = own.get("attention.temperature_length", own.get("rope.scaling.original_context_length", own.get("context_length")))
    account.note(f"{arch}.attention.temperature_scale={slope:g} is a factor on queries by their position, which no encoding has")
    out["llama_4_scaling"] = {"beta": slope, ORIGINAL: length}


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
    alpha = number(own.get("rope.scaling.alpha", 0), f"{arch}.rope.scaling.alpha", least=0)
    if kind == "none" and given.keys() - {"finetuned", ORIGINAL}:
        raise ConfigError(f"got {arch}.rope.scaling keys {sorted(given)} under rope.scaling.type='none'; expected a type that reads them")
    if LONG in keys or kind == "longrope":
        if LONG not in keys or SHORT not in keys:
            raise ConfigError(f"got longrope without the tensors {LONG} and {SHORT}; expected the path of the file, not its keys alone")
        given |= {"rope_type": "longrope", "long_factor": list(keys[LONG]), "short_factor": list(keys[SHORT])}
        return given | ({} if attn is None else {"attention_factor": attn})
    plain = kind == "none" or (kind == "linear" and given.get("factor", 1) in (0, 1))
    if alpha:
        if not plain:
            raise UnsupportedError(f"got {arch}.rope.scaling.alpha={alpha:g} beside rope.scaling.type={kind!r}; expected one of them")
        return {"rope_type": "ntk", "factor": alpha}
    if plain:
        return {}
    if kind == "yarn":
        amplitude = _amplitude(arch, own, given, account)
        usual = own.get("rope.scaling.yarn_log_multiplier", 0) == 0 and attn in (None, 1)
        given |= {} if usual else {"attention_factor": amplitude}
    return given | {"rope_type": kind}


def _amplitude(arch: str, own: Mapping[str, Any], given: Mapping[str, Any], account: Account) -> float:
    """The factor on cos and sin of llama.cpp under YaRN: attn_factor (0.1 ln f + 1) / (0.1 m ln f + 1) with the log multiplier m."""
    keys = {key: number(own.get(f"rope.scaling.{key}", usual), f"{arch}.rope.scaling.{key}") for key, usual in _YARN.items()}
    if keys["yarn_ext_factor"] >= 0 and keys["yarn_ext_factor"] != 1:
        raise UnsupportedError(
            f"got {arch}.rope.scaling.yarn_ext_factor={keys['yarn_ext_factor']:g}; expected 1, the whole of yarn's blend"
        )
    if keys["yarn_attn_factor"] not in (1, -1):
        account.warn(
            f"{arch}.rope.scaling.yarn_attn_factor={keys['yarn_attn_factor']:g} is not used: llama.cpp puts yarn's amplitude in its place"
        )
    log = math.log(max(number(given.get("factor", 1), f"{arch}.rope.scaling.factor", above=0), 1))
    return keys["attn_factor"] * (0.1 * log + 1) / (0.1 * keys["yarn_log_multiplier"] * log + 1)
