"""Keys of a config that bear on positions and are read nowhere: named, refused, or read where a model type tells what they mean."""

import math
from collections.abc import Mapping
from typing import Any

from eigenclock.encodings.config import families
from eigenclock.encodings.config.keys import Account, misspelt, number, unknown
from eigenclock.encodings.config.section import INSIDE_ONLY
from eigenclock.errors import ConfigError, UnsupportedError

_ROTARY = ("rope", "rotary", "alibi")
# Parts of names that say something of positions without saying rope.
_POSITIONAL = (
    *("ntk", "yarn", "logn", "xpos", "position", "pos_emb", "interpolation", "extrapolat", "relative_att", "attn_scale", "log_scaling"),
    *("floor_scale", "attn_temperature", "long_context", "theta", "base_freq", "nope"),
)
_READ = frozenset(
    (
        *families.ROTARY_TOP,
        *families.LENGTHS,
        *("layer_types", "use_mem_rope", "llama_4_scaling", "per_layer_config", "position_id_per_seconds"),
    )
)
_OBJECTS: Mapping[str, tuple[str, ...]] = {"mpt": ("attn_config",), "dbrx": ("attn_config",)}
_READ_BY: Mapping[str, tuple[str, ...]] = {  # what the rest of the reader takes from configs of these types alone
    "qwen": ("use_dynamic_ntk",),
    "roformer": ("rotary_value",),
    "llama4_text": ("attn_temperature_tuning", "attn_scale", "floor_scale"),
}


def check_top(config: Mapping[str, Any], model_type: str, account: Account) -> None:
    """Names what stands at the top of a config, bears on positions and is not read.

    Raises: ConfigError where a key has no effect there, or is a misspelling of one that has; UnsupportedError where it asks for a law that
        its model type does not have here.
    """
    for key, value in config.items():
        if key in _READ or value is None:
            continue
        if key in INSIDE_ONLY or key == "rope_type":
            raise ConfigError(f"got {key}={value!r} at the top of the config, where nothing reads it; expected it in rope_parameters")
        low = key.lower()
        about = any(word in low for word in _ROTARY)
        like = _like(key)
        if near := misspelt(key, like, 0.8 if about else 0.9):
            raise unknown(key, value, "the config", [near])
        if about or (any(word in low for word in _POSITIONAL) and not _off(value)):
            if key in _READ_BY.get(model_type, ()) or ((model_type, key) == ("qwen", "use_logn_attn") and config.get("seq_length")):
                continue
            account.warn(f"{key}={value!r} is not read here; check that it does not change positions")
    for key, inner in config.items():
        if isinstance(inner, Mapping) and key not in _READ and not inner.get("model_type"):
            _check_inside(key, inner, model_type, account)
    if config.get("rope_ratio") is not None:
        raise ConfigError(f"got rope_ratio={config['rope_ratio']!r}; expected rope_theta, which is 10000 times that ratio")
    if config.get("rotary_value"):
        account.warn(f"rotary_value={config['rotary_value']!r}: values are turned by their own position too, which no encoding does")
    if config.get("alibi") and model_type not in families.BIASES:
        raise UnsupportedError(
            f"got alibi={config['alibi']!r} under model_type {model_type!r}; ALiBi is read for {', '.join(sorted(families.BIASES))} only: "
            "expected one of them, or ec.alibi"
        )


def _check_inside(name: str, inner: Mapping[str, Any], model_type: str, account: Account) -> None:
    """Names what bears on positions in an object of its own, such as ``attn_config``, of which nothing is read."""
    if name in _OBJECTS.get(model_type, ()) or not any(word in name.lower() for word in ("attn", "attention", "pos")):
        return
    for key, value in inner.items():
        if any(word in str(key).lower() for word in (*_ROTARY, *_POSITIONAL)) and key not in families.LENGTHS and not _off(value):
            account.warn(f"{name}.{key}={value!r} is not read here; check that it does not change positions")


def _like(key: str) -> list[str]:
    """The known keys that a key could be a misspelling of: none where it is one of them with whole words added or left out."""
    words = set(filter(None, key.lower().split("_")))
    known = {name: set(name.split("_")) for name in families.ROTARY_TOP}
    if any(words > others for others in known.values() if len(others) > 1):
        return []
    return [name for name, others in known.items() if not words < others]


def _off(value: Any) -> bool:
    """Whether a switch is off: false, nothing, or empty; 0 too, but not a string that says something."""
    return not value or (isinstance(value, str) and value.lower() in ("none", "false", "absolute_none"))


def qwen_base(config: Mapping[str, Any], length: float | None, account: Account) -> float:
    """The factor on the base of Qwen's first models for a length: 1 up to seq_length, then 2^ceil(log2(length / seq_length) + 1) - 1.

    >>> qwen_base({"use_dynamic_ntk": True, "seq_length": 8192}, 20000, Account())
    7.0
    """
    if not config.get("use_dynamic_ntk"):
        return 1.0
    trained = config.get("seq_length")
    if trained is None:
        account.warn("use_dynamic_ntk is given without seq_length: the base is that of the trained length, whatever length is asked for")
        return 1.0
    trained = number(trained, "seq_length", above=0)
    if length is None:
        account.warn(
            f"use_dynamic_ntk makes the base larger beyond seq_length={trained:g}: it is that of seq_length here; give length= for another"
        )
        return 1.0
    steps = math.ceil(math.log2(number(length, "length", above=0) / trained) + 1)
    factor = max(2.0**steps - 1, 1.0)
    account.note(f"use_dynamic_ntk: for a length of {length:g} the base is that of ntk with a factor of {factor:g}")
    return factor


__all__ = ["check_top", "qwen_base"]
