"""Numbers that layers have in place of those of the model: lists with one entry per layer, and settings of a layer type."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eigenclock.encodings.config import families
from eigenclock.encodings.config.keys import number
from eigenclock.errors import ConfigError

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
# Keys that hold one entry per layer, and what an entry is called where a config has one number for all layers.
_BASES = (*families.THETA, "layer_rope_theta")
_SIZES = (*families.HEADS, *families.KV_HEADS, *families.HEAD_DIM)
LISTS: Mapping[str, str] = {
    **{name: name for name in (*families.THETA, *families.SHARE, *_SIZES)},
    "layer_rope_theta": "rope_theta",
    "partial_rotary_factors": "partial_rotary_factor",
    "num_attention_heads_per_layer": "num_attention_heads",
    "num_key_value_heads_per_layer": "num_key_value_heads",
}


@dataclass(frozen=True)
class Part:
    """Layers that share one encoding: their type, what they have in place of the numbers of the model, and whether they turn."""

    kind: str
    own: Mapping[str, Any]
    turns: bool = True


def lists_of(config: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """The keys of a config that hold one entry per layer."""
    return {key: config[key] for key in LISTS if isinstance(config.get(key), list | tuple)}


def without_base(config: Mapping[str, Any], count: int) -> tuple[bool, ...]:
    """Which layers do not turn because their base is 0 or null; empty where no base is given per layer."""
    for key, values in lists_of(config).items():
        if key in _BASES:
            _check_length(config, key, values, count)
            off = tuple(not base for base in values[:count])
            return off if any(off) else ()
    return ()


def _check_length(config: Mapping[str, Any], key: str, values: Sequence[Any], count: int) -> None:
    if not count or len(values) not in (count, count + predicted(config)):
        raise ConfigError(f"got {key} with {len(values)} entries for {count} layers; expected one per layer")


def split(
    config: Mapping[str, Any], model_type: str, layers: tuple[str, ...], skipped: tuple[bool, ...]
) -> tuple[tuple[str, ...], dict[str, Part]]:
    """The key of every layer, and what goes under each key.

    Layers of one type share its name; those without position are "<type>_nope" where others of their type turn, and those with other
    numbers than the first of their type "<type>_2", "<type>_3" and so on.
    """
    parts: dict[str, Part] = {}
    keys: list[str] = []
    turning = {kind for i, kind in enumerate(layers) if not (skipped and skipped[i])}
    for i, kind in enumerate(layers):
        if kind in families.NO_ENCODING:
            keys.append(kind)
            continue
        turns = not (skipped and skipped[i])
        part = Part(kind, _of_type(config, model_type, kind) | _of_layer(config, i, len(layers), turns), turns)
        base = kind if turns or kind not in turning else f"{kind}_nope"
        name, n = base, 1
        while name in parts and parts[name] != part:
            n += 1
            name = f"{base}_{n}"
        parts[name] = part
        keys.append(name)
    return tuple(keys), parts


def of_types(config: Mapping[str, Any], model_type: str, kinds: Sequence[str], still: Sequence[str]) -> dict[str, Part]:
    """What goes under each layer type where nothing says how many layers there are."""
    return {kind: Part(kind, _of_type(config, model_type, kind), kind not in still) for kind in kinds}


def _of_type(config: Mapping[str, Any], model_type: str, kind: str) -> dict[str, Any]:
    """What a layer type has of its own: wider heads (Gemma 4), other heads (Step 3.5), no scaling."""
    out: dict[str, Any] = {}
    scaled = config.get("yarn_only_types") or families.SCALED_TYPES.get(model_type)
    if scaled:
        if not isinstance(scaled, Sequence) or isinstance(scaled, str):
            raise ConfigError(f"got yarn_only_types={scaled!r}; expected a list of layer types")
        if kind not in scaled:
            out |= {key: None for key in families.SECTIONS if config.get(key)}
    other = config.get("attention_other_setting")
    if isinstance(other, Mapping) and other.get("attention_type", SLIDING) == kind:
        out |= {key: value for key, value in other.items() if key in _SIZES}
    if model_type in families.WIDE_KEYS and kind == SLIDING and isinstance(keys := config.get("num_key_value_heads"), int):
        out["num_key_value_heads"] = 2 * keys
    if model_type in families.WIDE_ON_FULL and kind == FULL and config.get("per_layer_config") is None:
        wide, keys = config.get("global_head_dim", 512), config.get("num_global_key_value_heads")
        shared = config.get("attention_k_eq_v", True) and keys is not None
        out |= {"head_dim": wide} | ({"num_key_value_heads": keys} if shared else {})
    return out


def _of_layer(config: Mapping[str, Any], index: int, count: int, turns: bool) -> dict[str, Any]:
    given = config.get("per_layer_config") or {}
    if not isinstance(given, Mapping) or any(not str(i).isdigit() or not isinstance(values, Mapping) for i, values in given.items()):
        raise ConfigError(f"got per_layer_config={given!r}; expected an object of keys and values for the number of a layer")
    named = next((values for i, values in given.items() if int(i) == index), {})
    out = {key: value for key, value in named.items() if key in LISTS}
    for key, values in lists_of(config).items():
        _check_length(config, key, values, count)
        name, value = LISTS[key], values[index]
        if key in _BASES and not turns:
            continue
        out[name] = number(value, f"{key}[{index}]", above=0)
        section = config.get("rope_parameters")
        if key == "layer_rope_theta" and isinstance(section, Mapping):  # this list counts before the base of the section
            out["rope_parameters"] = {**section, "rope_theta": out.pop(name)}
    return out


def predicted(config: Mapping[str, Any]) -> int:
    """How many layers that predict further tokens stand at the end of lists, beyond the layers of the model."""
    count = config.get("num_nextn_predict_layers")
    return count if isinstance(count, int) and count > 0 else 0


__all__ = ["FULL", "LISTS", "SLIDING", "Part", "lists_of", "of_types", "predicted", "split", "without_base"]
