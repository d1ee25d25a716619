"""The params.json of vendors: Llama's, Mistral's and DeepSeek's own formats share names, and mean different laws by them."""

from collections.abc import Mapping
from typing import Any

from eigenclock.encodings.config.families import ORIGINAL, ROTARY_TOP
from eigenclock.encodings.config.keys import Account, check_dialect, number, unknown
from eigenclock.encodings.config.source import Source
from eigenclock.errors import ConfigError

_SIZES = ("dim", "n_layers", "n_heads", "n_kv_heads", "head_dim")
_LATENT = ("qk_rope_head_dim", "qk_nope_head_dim")
_LLAMA_ROPE = ("rope_theta", "use_scaled_rope", "rope_scaling_factor", "rope_high_freq_factor", "nope_layer_interval")
# What else Llama's and Mistral's own files hold; anything else is named, since the file may be of another model.
_LLAMA_FILE = """
vocab_size multiple_of ffn_dim_multiplier ffn_exp_multiplier norm_eps max_seq_len max_batch_size quantization_args lora_args vision_args
moe_args use_qk_norm attention_chunk_size use_kv_cache vision_chunk_size vision_max_num_chunks vision_num_cross_attention_layers
model_parallel_size attn_temperature_tuning floor_scale attn_scale dtype
"""
_MISTRAL_FILE = """
hidden_dim sliding_window moe vision_encoder max_position_embeddings tied_embeddings use_biases causal quantization q_lora_rank kv_lora_rank
v_head_dim multimodal ada_rms_norm_t_cond
"""
_FAMILIAR = frozenset((_LLAMA_FILE + _MISTRAL_FILE).split())
_TELLING = ("multiple_of", "norm_eps", "ffn_dim_multiplier", "use_scaled_rope", "yarn", "llama_4_scaling", "hidden_dim")
_YARN = {"factor": "factor", ORIGINAL: ORIGINAL, "beta": "beta_fast", "alpha": "beta_slow"}
# DeepSeek's ModelArgs: what its code uses where a file says nothing.
_DEEPSEEK: Mapping[str, float] = {"original_seq_len": 4096, "rope_factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0}


def from_params(config: Mapping[str, Any], account: Account) -> Source:
    """A params.json in the words of Hugging Face: neighbouring pairs in all of them.

    Raises: ConfigError where a key means nothing in the format that the others tell.
    """
    if any(key in config for key in ("yarn", "llama_4_scaling", "hidden_dim")):
        return _mistral(config, account)
    if any(key in config for key in _LATENT):
        return _deepseek(config, account)
    return _llama(config, account)


def _sizes(config: Mapping[str, Any], *more: str) -> dict[str, Any]:
    return {key: config[key] for key in (*_SIZES, *more) if config.get(key) is not None}


def _strangers(config: Mapping[str, Any], known: tuple[str, ...], account: Account, whose: str) -> None:
    strange = sorted(key for key, value in config.items() if key not in known and key not in _FAMILIAR and value is not None)
    if strange:
        account.warn(
            f"read as the params.json of {whose} (neighbouring pairs, sizes from dim and n_heads), although {', '.join(strange)} "
            f"{'is no key' if len(strange) == 1 else 'are no keys'} of it: check that the model is one of those"
        )
    elif not any(key in config for key in _TELLING):
        account.note(f"no key names the model: dim and n_heads are read as the params.json of {whose}, with neighbouring pairs")


def _llama(config: Mapping[str, Any], account: Account) -> Source:
    """Llama's: the scaling of 3.1 behind a flag, layers without position of Llama 4 behind an interval."""
    check_dialect(config, (*_LLAMA_ROPE, *ROTARY_TOP, "max_position_embeddings"), "params.json")
    _strangers(config, (*_SIZES, *_LLAMA_ROPE, *ROTARY_TOP), account, "Llama")
    out = _sizes(config, "rope_theta")
    if config.get("use_scaled_rope"):
        factor = config.get("rope_scaling_factor")
        if factor is None:
            account.warn("use_scaled_rope names no factor: the 8 of Llama 3.1 is used; the small models of 3.2 were released with 32")
        high = config.get("rope_high_freq_factor")
        out["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": 8.0 if factor is None else factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0 if high is None else high,
            ORIGINAL: 8192,
        }
    elif config.get("rope_scaling_factor") is not None:
        raise ConfigError("got rope_scaling_factor without use_scaled_rope; expected both")
    if config.get("nope_layer_interval") is not None:
        keys = ("attn_temperature_tuning", "floor_scale", "attn_scale")
        out |= {"model_type": "llama4_text", "no_rope_layer_interval": config["nope_layer_interval"], "attn_temperature_tuning": False}
        out |= {key: config[key] for key in keys if config.get(key) is not None}
    return Source(out, "meta", "interleaved", 1, theta=10000.0)


def _mistral(config: Mapping[str, Any], account: Account) -> Source:
    """Mistral's: yarn with names of its own (beta is beta_fast, alpha is beta_slow), an amplitude behind apply_scale."""
    known = ("rope_theta", "yarn", "llama_4_scaling", "max_position_embeddings", *_LATENT)
    check_dialect(config, known, "params.json")
    _strangers(config, (*_SIZES, *known), account, "Mistral")
    out = _sizes(config, "rope_theta", "llama_4_scaling", "max_position_embeddings", *_LATENT)
    if config.get("rope_theta") is None:
        account.warn("rope_theta is named nowhere: 10000 is used, the base of the first releases; Mistral's own code takes 1000000 today")
        out["rope_theta"] = 10000.0
    if config.get("yarn") is not None:
        out["rope_scaling"] = _yarn(config["yarn"], account)
        if "qk_rope_head_dim" in out and "attention_factor" not in out["rope_scaling"]:
            account.warn(
                "yarn.apply_scale under latent attention is read as a factor on cos and sin; some servers put it on the scale instead"
            )
    return Source(out, "mistral", "interleaved", 1)


def _yarn(given: Any, account: Account) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"got yarn={given!r}; expected an object of keys and values")
    for key, value in given.items():
        if key not in (*_YARN, "apply_scale"):
            raise unknown(key, value, "yarn", (*_YARN, "apply_scale"))
    apply = given.get("apply_scale")
    if apply is None:
        account.warn("yarn.apply_scale is named nowhere: true is used, so cos and sin are multiplied by 0.1 ln(factor) + 1")
    elif not isinstance(apply, bool):
        raise ConfigError(f"got yarn.apply_scale={apply!r}; expected true or false")
    out = {ours: given[theirs] for theirs, ours in _YARN.items() if given.get(theirs) is not None}
    return {"rope_type": "yarn", **out} | ({"attention_factor": 1.0} if apply is False else {})


def _deepseek(config: Mapping[str, Any], account: Account) -> Source:
    """DeepSeek's: latent attention; its code scales by YaRN once max_seq_len is above original_seq_len."""
    known = ("rope_theta", *_DEEPSEEK, *_LATENT, "max_seq_len")
    for key in _LATENT:
        if config.get(key) is None:
            raise ConfigError(
                f"got {', '.join(k for k in _LATENT if k in config)} without {key}; expected both: latent attention has two parts"
            )
    check_dialect(config, known, "params.json")
    out = _sizes(config, "rope_theta", *_LATENT)
    given = {key: number(config[key], key, above=0) for key in (*_DEEPSEEK, "max_seq_len") if config.get(key) is not None}
    if not given:
        account.warn(
            "the file names no scaling, so plain frequencies are given; DeepSeek's own code scales by YaRN (rope_factor=40 from "
            "original_seq_len=4096) once max_seq_len is above 4096, as its default of 16384 is: add max_seq_len to have that read"
        )
        return Source(out, "deepseek", "interleaved", 1, theta=10000.0)
    values = {**_DEEPSEEK, **given}
    if values.get("max_seq_len", 16384) > values["original_seq_len"]:
        for key, value in _DEEPSEEK.items():
            if key not in given:
                account.note(f"{key} is named nowhere: {value:g} is used, the default of DeepSeek's code")
        out["rope_scaling"] = {
            "rope_type": "yarn",
            "factor": values["rope_factor"],
            ORIGINAL: values["original_seq_len"],
            **{key: values[key] for key in ("beta_fast", "beta_slow", "mscale")},
            "mscale_all_dim": values["mscale"],
        }
    return Source(out, "deepseek", "interleaved", 1, theta=10000.0)


__all__ = ["from_params"]
