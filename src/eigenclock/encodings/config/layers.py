"""The layers of a model: their types, which of them turn, the sizes of their heads, and the rotary section of each type."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eigenclock.encodings.config import families
from eigenclock.encodings.config.hybrids import kinds_of
from eigenclock.encodings.config.keys import Account, first_of, misspelt, number, whole
from eigenclock.encodings.config.per_layer import FULL, LINEAR, SLIDING, lists_of, predicted, without_base
from eigenclock.encodings.config.section import SECTION_KEYS, type_of
from eigenclock.encodings.config.switches import check_top
from eigenclock.errors import ConfigError


@dataclass(frozen=True)
class Sizes:
    """Heads of one layer type; ``fixed`` channels stand before those that may turn (latent attention)."""

    head_dim: int
    heads: int
    kv_heads: int | None
    fixed: int = 0


def layer_types(config: Mapping[str, Any], model_type: str) -> tuple[str, ...]:
    """The type of every layer; empty where the config names no number of layers."""
    named = first_of(config, families.LAYERS)
    count = None if named is None else whole(named[1], named[0])
    if count is None and (lists := lists_of(config)):
        count = max(len(next(iter(lists.values()))) - predicted(config), 0)
    given = config.get("layer_types", config.get("layers_block_type"))
    if given is not None:
        if not isinstance(given, Sequence) or isinstance(given, str) or not all(isinstance(kind, str) for kind in given):
            raise ConfigError(f"got layer_types={given!r}; expected a list of names, one per layer")
        if count is not None and named is not None and len(given) not in (count, count + predicted(config)):
            raise ConfigError(f"got layer_types with {len(given)} entries and {named[0]}={count}; expected one per layer")
        return tuple(given[:count])
    if count is None:
        return ()
    if (kinds := config.get("attn_type_list")) is not None:  # MiniMax: 1 is attention, 0 is linear
        if not isinstance(kinds, Sequence) or len(kinds) != count or any(kind not in (0, 1) for kind in kinds):
            raise ConfigError(f"got attn_type_list={kinds!r} for {count} layers; expected 0 (linear) or 1 (softmax attention) for each")
        return tuple(FULL if kind else LINEAR for kind in kinds)
    if (local := config.get("hybrid_layer_pattern")) is not None:  # MiMo-V2: 1 has a window, 0 attends to everything
        if not isinstance(local, Sequence) or len(local) != count or any(flag not in (0, 1) for flag in local):
            raise ConfigError(f"got hybrid_layer_pattern={local!r} for {count} layers; expected 0 (full) or 1 (a window) for each")
        return tuple(SLIDING if flag else FULL for flag in local)
    if (kinds := kinds_of(config, model_type, count)) is not None:
        return kinds
    every = config.get("full_attention_interval", 4 if model_type in families.DEFAULT_INTERVAL else None)
    if every is not None:
        return tuple(LINEAR if (i + 1) % whole(every, "full_attention_interval") else FULL for i in range(count))
    if model_type in families.LISTED:
        raise ConfigError(
            f"got model_type {model_type!r} without layer_types; expected them: they say which layers turn, and their pattern is no number"
        )
    pattern = first_of(config, families.PATTERN) or ("", families.DEFAULT_PATTERN.get(model_type))
    if pattern[1] is None:
        return (FULL,) * count
    if isinstance(pattern[1], str):  # as in "LLLG": local layers, then one that attends to everything
        if set(pattern[1]) - set("LG") or not pattern[1]:
            raise ConfigError(f"got {pattern[0]}={pattern[1]!r}; expected letters L (a window) and G (everything), or a number")
        return tuple(SLIDING if pattern[1][i % len(pattern[1])] == "L" else FULL for i in range(count))
    every = whole(pattern[1], pattern[0])
    first = 0 if model_type in families.FULL_FIRST or (not model_type and pattern[0] == "global_attn_every_n_layers") else 1
    return tuple(SLIDING if (i + first) % every else FULL for i in range(count))


def without_position(config: Mapping[str, Any], model_type: str, layers: tuple[str, ...], account: Account) -> tuple[bool, ...]:
    """Which layers do not turn although others do; empty where none is named."""
    flags = config.get("no_rope_layers")
    if not flags and model_type in families.FLAGGED and layers:
        every = config.get("no_rope_layer_interval")
        every = whole(4 if every is None else every, "no_rope_layer_interval")
        flags = [int((i + 1) % every != 0) for i in range(len(layers))]
    if flags:
        if not isinstance(flags, Sequence) or any(flag not in (0, 1) for flag in flags):
            raise ConfigError(f"got no_rope_layers={flags!r}; expected one flag per layer, 1 where it turns and 0 where it has no position")
        if layers and len(flags) != len(layers):
            raise ConfigError(f"got no_rope_layers with {len(flags)} entries for {len(layers)} layers; expected one per layer")
        still = ", ".join(str(i) for i, flag in enumerate(flags) if not flag)
        text = "no_rope_layers is read as 1 = the layer turns, 0 = it has no position; " + (
            f"{sum(map(int, flags))} of {len(flags)} layers turn, not those with the index {still}" if still else "every layer turns"
        )
        (account.note if model_type in families.FLAGGED else account.warn)(text)
        return tuple(not flag for flag in flags)
    if does_not_turn(config, model_type):
        switch = families.TURN_BY_SWITCH.get(model_type)
        account.note(f"{model_type}: no layer has a position" + (f"; they turn where {switch[0]} is {switch[1]!r}" if switch else ""))
        return (True,) * len(layers)
    if model_type in families.NOPE_ON_FULL:
        return _without_window(config, model_type, layers, account)
    return without_base(config, len(layers))


def does_not_turn(config: Mapping[str, Any], model_type: str) -> bool:
    """Whether a model has attention without positions, always or by a switch."""
    switch = families.TURN_BY_SWITCH.get(model_type)
    return model_type in families.WITHOUT_POSITION or (switch is not None and config.get(switch[0]) != switch[1])


def _without_window(config: Mapping[str, Any], model_type: str, layers: tuple[str, ...], account: Account) -> tuple[bool, ...]:
    """Which layers do not turn in a model that turns those with a window; every one of them where it names none, but for a few types."""
    if config.get("sliding_window", 0) is None:
        if model_type in families.TURN_WITHOUT_WINDOW:
            return ()
        if model_type in families.WINDOW_TURNS:
            raise ConfigError(f"got model_type {model_type!r} with sliding_window=None, where no layer turns; expected its window")
    account.note(f"{model_type}: layers of type {FULL} have no position")
    dense = config.get("mlp_layer_types")
    forced = model_type == "cohere2_moe" and config.get("prefix_dense_sliding_window_pattern", 1) == 1
    if forced and isinstance(dense, Sequence) and len(dense) == len(layers) and "dense" in dense:
        account.note("cohere2_moe: layers with a dense MLP turn whatever their type")
        return tuple(kind == FULL and mlp != "dense" for kind, mlp in zip(layers, dense, strict=True))
    return tuple(kind == FULL for kind in layers)


def sizes(config: Mapping[str, Any], model_type: str, given: Mapping[str, int | None], account: Account) -> Sizes:
    """The heads of a layer: from its config, else from the caller.

    Raises: ConfigError where the width of a head is named nowhere, or the caller and the config disagree.
    """
    heads = _size(config, families.HEADS, given.get("heads"), "heads")
    rotary, fixed = config.get("qk_rope_head_dim"), config.get("qk_nope_head_dim")
    if rotary is not None and fixed is not None:
        account.note("latent attention: each head has its fixed channels first, then those that turn; one turned key serves all heads")
        fixed = int(number(fixed, "qk_nope_head_dim", least=0))
        return Sizes(fixed + whole(rotary, "qk_rope_head_dim"), heads or 1, None, fixed)
    if model_type in families.HALF_SCALE:  # kv_channels is the width before two streams are joined
        config = {key: value for key, value in config.items() if key != "kv_channels"}
    width = _size(config, families.HEAD_DIM, given.get("head_dim"), "head_dim")
    if width is None:
        hidden = first_of(config, families.HIDDEN)
        if hidden is None or heads is None:
            raise ConfigError(
                "got a config without head_dim, or hidden_size and num_attention_heads; expected them, or head_dim= in the call"
            )
        total = whole(hidden[1], hidden[0])
        if total % heads:
            raise ConfigError(f"got {hidden[0]}={total} and {heads} heads, which do not divide it; expected head_dim in the config")
        width = total // heads
    if model_type == "falcon":
        config = _falcon(config)
    if model_type in families.TILED_KEYS:
        account.note(f"{model_type}: head h reads key head h mod n; the encoding takes keys that were repeated so, one for each head")
        return Sizes(width, heads or 1, None)
    kv_heads = _size(config, families.KV_HEADS, given.get("kv_heads"), "kv_heads")
    if kv_heads is not None and (heads or 1) % kv_heads:
        raise ConfigError(
            f"got num_attention_heads={heads or 1} and num_key_value_heads={kv_heads}; expected heads to be a multiple of them"
        )
    return Sizes(width, heads or 1, None if kv_heads in (None, heads) else kv_heads)


def _size(config: Mapping[str, Any], names: tuple[str, ...], given: int | None, what: str) -> int | None:
    named = first_of(config, names)
    if named is None:
        return given
    value = whole(named[1], named[0])
    if given is not None and given != value:
        raise ConfigError(f"got {what}={given} in the call and {named[0]}={value} in the config; expected them equal")
    return value


def _falcon(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Falcon reads num_kv_heads only in its new architecture; before it, all heads share one key or none do."""
    if config.get("new_decoder_architecture"):
        return config
    return {**config, "num_kv_heads": 1 if config.get("multi_query", True) else config.get("num_kv_heads")}


def rotary_top(config: Mapping[str, Any], model_type: str, account: Account) -> dict[str, Any]:
    """The rotary keys at the top of a config, under the names they have in a section; strangers are refused or named."""
    check_top(config, model_type, account)
    found = {"rope_theta": first_of(config, families.THETA), "partial_rotary_factor": first_of(config, families.SHARE)}
    return {name: value[1] for name, value in found.items() if value is not None}


def raw_section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section under its new or its old name.

    Raises: ConfigError where both are there and disagree.
    """
    both = [(name, config[name]) for name in families.SECTIONS if config.get(name)]
    for name, value in both:
        if not isinstance(value, Mapping):
            raise ConfigError(f"got {name}={value!r}; expected an object of keys and values")
    if len(both) == 2 and _plain(both[0][1]) != _plain(both[1][1]):
        raise ConfigError("got rope_parameters and rope_scaling that disagree; expected one of them")
    return _without_repeats(both[0][1]) if both else {}


def _without_repeats(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """A section per layer type without the keys beside them that every one of them repeats, as some classes of transformers write it."""
    inner = [value for value in section.values() if isinstance(value, Mapping)]
    beside = {key: value for key, value in section.items() if not isinstance(value, Mapping)}
    if not inner or any(key not in one or one[key] != value for one in inner for key, value in beside.items()):
        return section
    return {key: value for key, value in section.items() if isinstance(value, Mapping)}


def _plain(section: Mapping[str, Any]) -> dict[str, Any]:
    if is_nested(section):
        return {key: None if value is None else _plain(value) for key, value in section.items()}
    return {key: value for key, value in section.items() if key not in ("type", "rope_type", "rope_theta")} | {
        "rope_type": type_of(section, "rope_parameters")
    }


def is_nested(section: Mapping[str, Any]) -> bool:
    """Whether a section holds one section per layer type.

    Raises: ConfigError where it mixes both.
    """
    inner = [key for key, value in section.items() if isinstance(value, Mapping) or (value is None and key not in SECTION_KEYS)]
    if inner and len(inner) != len(section):
        flat = [key for key in section if key not in inner]
        raise ConfigError(f"got {flat} beside the layer types {inner} in one rotary section; expected keys or layer types, not both")
    return bool(inner)


def sections(
    config: Mapping[str, Any], model_type: str, kinds: tuple[str, ...], theta: float | None, account: Account
) -> dict[str, dict[str, Any] | None]:
    """The raw section of every layer type, with what stands at the top of the config filled in; None where a type does not turn.

    Raises: ConfigError where a layer type has none, or top and section contradict each other.
    """
    given, top = raw_section(config), rotary_top(config, model_type, account)
    local = first_of(config, families.LOCAL_THETA)
    if is_nested(given):
        if local is not None:
            raise ConfigError(f"got {local[0]} beside a section per layer type; expected rope_theta in the section of {SLIDING!r}")
        return _nested(given, top, kinds or tuple(given), account)
    flat = _filled(given, top, "rope_parameters", account, strict=True)
    if flat.get("rope_theta") is None and not config.get("rope_parameters"):  # the section of old has no base of its own
        if (default := _default_theta(model_type, theta, account)) is not None:
            flat["rope_theta"] = default
        elif not given:
            raise ConfigError(
                f"got a config (model_type {model_type or 'not named'}) without rope_theta or rope_parameters; expected the base, if the "
                "model turns its queries and keys: positions of another kind are not read"
            )
    if local is None and model_type not in families.DEFAULT_LOCAL_THETA:
        return dict.fromkeys(kinds or (FULL,), flat)
    if local is None:
        local = ("the base of sliding layers", families.DEFAULT_LOCAL_THETA[model_type])
        account.warn(f"rope_local_base_freq is named nowhere: {local[1]:g} is used for sliding layers, the default of {model_type}")
    sliding = {"rope_theta": local[1]} | {k: v for k, v in flat.items() if k == "partial_rotary_factor"}
    return {kind: sliding if kind == SLIDING else flat for kind in kinds or (FULL, SLIDING)}


def _nested(given: Mapping[str, Any], top: Mapping[str, Any], kinds: tuple[str, ...], account: Account) -> dict[str, dict[str, Any] | None]:
    out: dict[str, dict[str, Any] | None] = {}
    for kind in kinds:
        if kind not in given:
            near = misspelt(kind, given)
            raise ConfigError(
                f"got layers of type {kind!r}, which rope_parameters does not have"
                + (f" (but {near!r})" if near else "")
                + f"; expected a section, or null, for each of {', '.join(kinds)}"
            )
        where = f"rope_parameters[{kind!r}]"
        if given[kind] is not None and given[kind].get("truncate") is False:
            account.warn(f"{where}.truncate=False is used; transformers 5 ignores it in a section per layer type")
        out[kind] = None if given[kind] is None else _filled(given[kind], top, where, account, strict=False)
    for kind in given:
        if kind not in kinds:
            account.warn(f"rope_parameters[{kind!r}] has no effect: no layer is of that type")
    return out


def _filled(section: Mapping[str, Any], top: Mapping[str, Any], where: str, account: Account, strict: bool) -> dict[str, Any]:
    out = dict(section)
    for key, value in top.items():
        inside = out.get(key)
        if inside is None:
            out[key] = value
        elif inside != value and strict:
            raise ConfigError(f"got {key}={value!r} at the top of the config and {inside!r} in {where}; expected one of them")
        elif inside != value:
            account.warn(f"{key}={value!r} at the top of the config has no effect on {where}, which has {inside!r}")
    return out


def _default_theta(model_type: str, theta: float | None, account: Account) -> float | None:
    if theta is not None or model_type in families.THETA_IN_NO_KEY:
        value = 10000.0 if theta is None else theta
        if model_type in families.ASK_FOR_KIND:
            account.note(f"position_embedding_type names a rotation: its base, {value:g}, is written into the code of the model")
            return value
        account.note(f"rope_theta is named nowhere: {value:g} is written into the code of the model")
        return value
    if model_type in (families.HALF | families.INTERLEAVED) - families.NEED_SECTION:
        value = families.DEFAULT_THETA.get(model_type, 10000.0)
        account.warn(f"rope_theta is named nowhere: {value:g} is used, the default of {model_type}")
        return value
    return None
