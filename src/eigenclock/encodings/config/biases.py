"""Models with ALiBi, and those that share their model type with them and turn instead."""

import math
from collections.abc import Mapping
from typing import Any

from eigenclock.encodings.alibi import alibi
from eigenclock.encodings.config import families
from eigenclock.encodings.config.keys import Account, number
from eigenclock.encodings.config.layers import layer_types, sizes
from eigenclock.encodings.config.per_layer import FULL
from eigenclock.encodings.config.result import Conventions, Encodings
from eigenclock.encodings.config.source import Source
from eigenclock.encodings.two_sided import two_sided
from eigenclock.errors import ConfigError, UnsupportedError
from eigenclock.schedules import alibi_slopes


def biased(source: Source, model_type: str, given: Mapping[str, int | None], account: Account) -> Encodings:
    """ALiBi: BLOOM and MPT add the bias to the scaled logit, Falcon before the scale, and MPT sets the largest exponent.

    Raises: ConfigError where a number is none, or rope stands beside it.
    """
    config, bias = source.config, families.BIASES[model_type]
    size = sizes(config, model_type, given, account)
    slopes: Any = None
    published = alibi_slopes()(size.heads).values
    inner = config.get("attn_config") or {} if model_type == "mpt" else {}
    if model_type == "falcon":
        slopes = (published / math.sqrt(size.head_dim)).tolist()
        account.note("falcon rounds its slopes and biases to bfloat16; here they are exact")
    if (largest := number(inner.get("alibi_bias_max", 8), "attn_config.alibi_bias_max", above=0)) != 8:
        slopes = (published ** (largest / 8)).tolist()
        account.warn(f"attn_config.alibi_bias_max={largest:g} is used; transformers 5 computes the bias of MPT with 8 whatever it says")
    if inner.get("rope"):
        raise ConfigError("got attn_config.rope beside alibi; expected one of them")
    encoding = alibi(size.head_dim, heads=size.heads, kv_heads=size.kv_heads, slopes=slopes)
    if source.both_sides:
        account.note("the bias falls with the size of the lag, for keys before and after the query: attend with causal=False")
        encoding = two_sided(encoding)
    scale = inner.get("softmax_scale")
    said = Conventions(
        source.name, model_type, bias=bias.placement, scale=None if scale is None else number(scale, "softmax_scale", above=0)
    )
    return Encodings({FULL: encoding}, said, layer_types(config, model_type), tuple(account.notes), tuple(account.warnings))


def mpt_that_turns(source: Source, account: Account) -> Source | None:
    """The config of an MPT that turns, in the words of other models; None where attn_config.rope is off.

    Raises: ConfigError or UnsupportedError where its rotation is one that is not read.
    """
    inner = source.config.get("attn_config") or {}
    if not inner.get("rope"):
        return None
    account.warn("attn_config.rope is read as the code of MosaicML has it; the mpt class of transformers 5 ignores it and adds ALiBi")
    keys = ("d_model", "hidden_size", "n_heads", "num_attention_heads", "n_layers", "num_hidden_layers", "max_seq_len")
    out = {key: source.config[key] for key in keys if source.config.get(key) is not None}
    out |= {"model_type": "mpt", "rope_theta": inner.get("rope_theta", 10000)}
    if inner.get("kv_n_heads") is not None:
        out["num_key_value_heads"] = inner["kv_n_heads"]
    how = inner.get("rope_impl", "dail")
    if how not in ("dail", "hf"):
        raise ConfigError(f"got attn_config.rope_impl={how!r}; expected 'dail' or 'hf'")
    details = inner.get(f"rope_{how}_config") or {}
    if not isinstance(details, Mapping):
        raise ConfigError(f"got attn_config.rope_{how}_config={details!r}; expected an object of keys and values")
    kind = details.get("type", "original" if how == "dail" else "no_scaling")
    if how == "dail" and kind != "original":
        raise UnsupportedError(f"got attn_config.rope_dail_config.type={kind!r}; expected 'original': others are not read")
    if how == "hf" and kind != "no_scaling":
        out["rope_scaling"] = {"rope_type": kind, "factor": details.get("factor", 1.0)}
    if (scale := inner.get("softmax_scale")) is not None:
        out["attention_multiplier"] = number(scale, "softmax_scale", above=0)
    return Source(out, source.name, "half")


__all__ = ["biased", "mpt_that_turns"]
