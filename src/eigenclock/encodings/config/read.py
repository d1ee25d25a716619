"""A config as encodings: one per layer type, with the conventions of the model."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eigenclock.encodings.base import Encoding
from eigenclock.encodings.config import families
from eigenclock.encodings.config.biases import biased, mpt_that_turns
from eigenclock.encodings.config.build import amplitude_of, rotary
from eigenclock.encodings.config.families import ORIGINAL
from eigenclock.encodings.config.hybrids import CROSS
from eigenclock.encodings.config.installed import installed, stored, without
from eigenclock.encodings.config.keys import Account, first_of, longest_of, number
from eigenclock.encodings.config.layers import does_not_turn, layer_types, rotary_top, sections, sizes, without_position
from eigenclock.encodings.config.patches import read_tower, tower_of
from eigenclock.encodings.config.per_layer import FULL, SLIDING, Part, of_types, split
from eigenclock.encodings.config.result import Conventions, Encodings
from eigenclock.encodings.config.section import Section, read_section
from eigenclock.encodings.config.source import Source, load, understand
from eigenclock.encodings.config.switches import qwen_base
from eigenclock.encodings.config.temperature import SECTION_BETA, by_position
from eigenclock.encodings.nope import nope
from eigenclock.errors import ConfigError, UnsupportedError

_YARN = 0.1  # the slope of yarn's amplitude over ln(factor)


def encodings(
    config: Any,
    *,
    head_dim: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    pairing: str | None = None,
    length: float | None = None,
) -> Encodings:
    """The encodings of a model from its config: {layer type: encoding}, and the conventions found.

    Reads Hugging Face configs old and new, the original params.json of Llama, nanochat configs, GGUF metadata, and what was saved with an
    encoding installed. Every key of the rotary section is used, named in a warning, or refused.

    Args:
        config: a dict, a JSON or GGUF file, a folder with config.json or params.json, or an object with ``to_dict()``.
        head_dim, heads, kv_heads: sizes, where the config does not name them.
        pairing: "half" or "interleaved", where the config does not settle the layout.
        length: the length at which a schedule that depends on it (dynamic, longrope) is frozen; left out, its original length.
    Units: radians per token.
    Raises: ConfigError where a key is unknown, misspelt, missing or contradictory; UnsupportedError where the positions of the model are
        outside the group.

    >>> encs = encodings({"head_dim": 64, "num_attention_heads": 8, "rope_theta": 5e5})
    >>> print(encs["full_attention"])
    rope(head_dim=64, heads=8, theta=500000.0, pairing='half')
    >>> encodings({"head_dim": 64, "rope_scaling": {"rope_type": "linear", "factor": 2.0}})
    Traceback (most recent call last):
    ...
    eigenclock.errors.ConfigError: got no rope_theta in rope_parameters or at the top of the config; expected the base: ...
    """
    loaded, account = load(config), Account()
    if (ours := stored(loaded)) is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about numbers that are no longer at work
            own = encodings(without(loaded, ours), head_dim=head_dim, heads=heads, kv_heads=kv_heads, pairing=pairing, length=length)
        return installed(ours, own)
    source = understand(loaded, account)
    given = {"head_dim": head_dim, "heads": heads, "kv_heads": kv_heads}
    model_type = str(source.config.get("model_type") or "")
    if model_type in families.OUTSIDE:
        raise _outside(source.config, model_type)
    bias = families.BIASES.get(model_type)
    off = bias is not None and not bias.turned_on(source.config)
    turning = mpt_that_turns(source, account) if off and model_type == "mpt" else None
    if (tower := tower_of(source.config)) is not None:
        found = read_tower(source.config, tower, given, account)
    elif turning is not None:
        found = _rotary(turning, model_type, given, pairing, length, account)
    elif bias is not None and bias.turned_on(source.config):
        found = biased(source, model_type, given, account)
    elif bias is not None and bias.off:
        raise UnsupportedError(f"got model_type {model_type!r} with alibi off: it has {bias.off}, outside the group")
    else:
        found = _rotary(source, model_type, given, pairing, length, account)
    for text in found.warnings:
        warnings.warn(text, UserWarning, stacklevel=2)
    return found


def _outside(config: Mapping[str, Any], model_type: str) -> UnsupportedError:
    kind = config.get("position_embedding_type", "absolute")
    if isinstance(inner := config.get("attn"), Mapping) and inner.get("layers"):
        return UnsupportedError(
            f"got model_type {model_type!r} with attention in the layers {inner['layers']!r} and a recurrence in the others; the keys in "
            "attn are not read: expected ec.rope and its kin by hand"
        )
    if kind != "absolute":
        return UnsupportedError(
            f"got position_embedding_type={kind!r} with model_type {model_type!r}, whose class in transformers 5 has one kind of "
            "positions only; expected the config of code that is known here, or the encoding by hand"
        )
    return UnsupportedError(f"got model_type {model_type!r}: it has {families.OUTSIDE[model_type]}, outside the group")


def _rotary(
    source: Source,
    model_type: str,
    given: Mapping[str, int | None],
    pairing: str | None,
    length: float | None,
    account: Account,
) -> Encodings:
    config = _with_defaults(source.config, model_type, account)
    if not does_not_turn(config, model_type):
        _check_kind(config, account)
    layers = layer_types(config, model_type)
    skipped = without_position(config, model_type, layers, account)
    layers = layers or (FULL,) * len(skipped)
    keys, parts = split(config, model_type, layers, skipped) if layers else ((), _unnumbered(config, model_type, source, account))
    found = _sections(config, model_type, parts, source, account)
    longest = longest_of(config, families.LONGEST, families.OTHER_LENGTHS, account)
    sign = source.sign or (-1 if model_type in families.MINUS else 1)
    turned = any(section is not None for section in found.values())
    source = replace(source, sign=sign, pairing=_pairing(source, model_type, config, pairing, account) if turned else None)
    several = len({part.kind for part in parts.values() if part.turns}) > 1
    assignment = families.M_ROPE.get(model_type, ((), None))[1]
    out: dict[str, Encoding] = {}
    read: list[Section] = []
    for name, part in parts.items():
        here = {**config, **part.own}
        size = sizes(here, model_type, given, account)
        section = found[name]
        if section is None:
            out[name] = nope(size.head_dim, heads=size.heads, kv_heads=size.kv_heads)
            continue
        where = f"rope_parameters[{part.kind!r}]" if several else "rope_parameters"
        read.append(read_section(_complete(section, here, model_type, length, account), where, longest, account, assignment))
        out[name] = rotary(read[-1], size, source, _rotary_dim(here), longest, length, account)
    for kind in dict.fromkeys(layers):
        if kind in families.NO_ENCODING:
            what = "attend to another sequence" if kind == CROSS else "are no softmax attention"
            account.note(f"layers of type {kind} {what} and have no encoding here")
    said = Conventions(
        source.name,
        model_type or None,
        source.pairing,
        sign,
        amplitude_of(read, scaled=config.get("qk_nope_head_dim") is not None),
        scale=_scale(config, model_type, read),
        temperature=by_position(config, model_type, found, account),
    )
    return Encodings(out, said, keys, tuple(account.notes), tuple(account.warnings))


def _unnumbered(config: Mapping[str, Any], model_type: str, source: Source, account: Account) -> dict[str, Part]:
    """What goes under each layer type of a config that does not say how many layers there are."""
    if does_not_turn(config, model_type):
        return of_types(config, model_type, (FULL,), (FULL,))
    if model_type in families.NOPE_ON_FULL:
        return of_types(config, model_type, (SLIDING, FULL), (FULL,))
    return of_types(config, model_type, tuple(sections(config, model_type, (), source.theta, account)), ())


def _sections(
    config: Mapping[str, Any], model_type: str, parts: Mapping[str, Part], source: Source, account: Account
) -> dict[str, dict[str, Any] | None]:
    """The raw section under each key; None where nothing turns."""
    turning = tuple(dict.fromkeys(part.kind for part in parts.values() if part.turns))
    if not turning:
        rotary_top(config, model_type, account)  # its keys are checked even where nothing reads them
    return {
        name: sections({**config, **part.own}, model_type, turning, source.theta, account)[part.kind] if part.turns else None
        for name, part in parts.items()
    }


def _with_defaults(config: Mapping[str, Any], model_type: str, account: Account) -> Mapping[str, Any]:
    """The config with the sizes and the share of the head that turns, where its model type has them by default and it says nothing."""
    for key in families.UNREAD.get(model_type, ()):
        if config.get(key) is not None:
            account.warn(f"{key}={config[key]!r} is not read by the {model_type} class of transformers 5, and not used here")
            config = {name: value for name, value in config.items() if name != key}
    for key, value in families.DEFAULT_SIZES.get(model_type, {}).items():
        if config.get(key) is None:
            account.note(f"{key} is named nowhere: {value:g} is used, the default of {model_type}")
            config = {**config, key: value}
    if model_type in families.DEFAULT_SECTIONS and not any(config.get(key) for key in (*families.SECTIONS, *families.THETA)):
        account.warn(f"rope_parameters are named nowhere: those of the {model_type} class of transformers 5 are used")
        return {**config, "rope_parameters": families.DEFAULT_SECTIONS[model_type]}
    share = families.DEFAULT_SHARE.get(model_type)
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    parts = [given, *(part for part in given.values() if isinstance(part, Mapping))] if isinstance(given, Mapping) else []
    if share is None or any(key in config for key in (*families.SHARE, *families.ROTARY_DIM)) or any(families.SHARE[0] in p for p in parts):
        return config
    account.note(f"partial_rotary_factor is named nowhere: {share:g} is used, the default of {model_type}")
    return {**config, "partial_rotary_factor": share}


def _check_kind(config: Mapping[str, Any], account: Account) -> None:
    kind = config.get("position_embedding_type", config.get("position_embeddings_type"))
    model_type = str(config.get("model_type"))
    for key in families.TURN_SWITCHES:
        if config.get(key, True) not in (True, None):
            raise ConfigError(f"got {key}={config[key]!r}; expected true, or another model_type: positions of another kind are not read")
    if model_type in families.TURN_BEFORE_PROJECTION and (kind is None or str(kind).startswith("rotary")):
        said = "no position" if kind is None else "a rotation before queries and keys are projected, so scores are no function of the lag"
        raise UnsupportedError(f"got model_type {model_type!r} with position_embeddings_type={kind!r}: its attention has {said}")
    if kind is not None and not str(kind).startswith(("rope", "rotary")):
        if model_type in families.HALF | families.INTERLEAVED and model_type not in families.ASK_FOR_KIND:
            account.note(f"position_embedding_type={kind!r} is not read by the {model_type} class of transformers 5, which turns")
            return
        means = families.OTHER_KINDS.get(str(kind))
        text = f": {means}, not read here" if means else "; expected 'rope': other kinds are not read"
        raise UnsupportedError(f"got position_embedding_type={kind!r}{text}")


def _complete(
    section: Mapping[str, Any], config: Mapping[str, Any], model_type: str, length: float | None, account: Account
) -> Mapping[str, Any]:
    """A section with what its model type reads elsewhere or under another name."""
    out, kind = dict(section), section.get("rope_type", section.get("type"))
    if config.get(ORIGINAL) is not None and kind in ("yarn", "longrope", "su", "llama3", "dynamic"):
        inside = out.setdefault(ORIGINAL, config[ORIGINAL])
        if inside != config[ORIGINAL]:
            raise ConfigError(f"got {ORIGINAL}={config[ORIGINAL]!r} at the top of the config and {inside!r} inside; expected one")
    if model_type == "qwen" and kind in (None, "default") and (factor := qwen_base(config, length, account)) != 1:
        out |= {"rope_type": "ntk", "factor": factor}
    if model_type.startswith("hunyuan_v1"):
        account.note(
            f"{model_type}: its norms have weights per channel and act after the turn; where these differ within a pair, scores depend on "
            "more than differences of positions"
        )
    if kind in ("yarn", "longrope", "su") and _norm_after(config, model_type):
        account.note(f"{model_type} divides queries and keys by their norms after they turn: the amplitude of {kind} has no effect")
        out["attention_factor"] = 1.0
    if model_type in SECTION_BETA:
        out.pop("llama_4_scaling_beta", None)
    if model_type.startswith("phi3") and "short_factor" in out and kind == "yarn":
        out = {key: value for key, value in out.items() if key != "type"} | {"rope_type": "longrope"}
    if model_type == "phimoe" and "short_mscale" in out:
        short, long = out.pop("short_mscale"), out.pop("long_mscale", None)
        if short != long:
            raise UnsupportedError(f"got short_mscale={short!r} and long_mscale={long!r}; expected them equal: an amplitude has one value")
        out["attention_factor"] = short
    if model_type.startswith("hunyuan") and (sections := out.get("mrope_section") or out.get("xdrope_section")):
        raise UnsupportedError(
            f"got the sections {sections!r} for {model_type}: its class in transformers 5 turns the two channels of a pair by different "
            "axes, which depends on more than differences of positions, outside the group; for text, whose axes are equal, leave them out"
        )
    if model_type.startswith("hunyuan") and kind == "dynamic" and out.get("alpha"):
        account.note(f"rope_type='dynamic' with alpha={out['alpha']!r} is a larger base for every length; the other keys have no effect")
        out = {"rope_type": "ntk", "factor": out["alpha"], "rope_theta": out.get("rope_theta")}
    if model_type in families.M_ROPE:
        out = _with_axes(out, model_type, account)
    return out


def _norm_after(config: Mapping[str, Any], model_type: str) -> bool:
    switch = families.NORM_AFTER.get(model_type)
    return model_type in families.NORM_AFTER and (switch is None or bool(config.get(switch, True)))


def _with_axes(section: dict[str, Any], model_type: str, account: Account) -> dict[str, Any]:
    """A section of a model with several axes, with what its class does where the section says nothing."""
    usual, assignment = families.M_ROPE[model_type]
    sections = section.get("mrope_section") or usual
    flag = section.pop("mrope_interleaved", None)
    if flag is not None and bool(flag) != (assignment == "interleaved"):
        account.warn(f"mrope_interleaved={flag!r} has no effect: the {model_type} class shares its pairs out {assignment}")
    if assignment == "alternating" and isinstance(sections, list | tuple) and len(sections) == 3:
        sections = [sections[2], sections[0], sections[1]]  # the config has height, width, time
    return section | {"mrope_section": sections}


def _rotary_dim(config: Mapping[str, Any]) -> int | None:
    named = first_of(config, families.ROTARY_DIM)
    if named is None:
        return None
    width = number(named[1], named[0], above=0)
    if width % 2:
        raise ConfigError(f"got {named[0]}={width}; expected an even width: rotations act on pairs of channels")
    return int(width)


def _pairing(source: Source, model_type: str, config: Mapping[str, Any], given: str | None, account: Account) -> str:
    """Which channels turn together: what the source says, else what its model type does."""
    if given not in (None, "half", "interleaved"):
        raise ConfigError(f"got pairing={given!r}; expected 'half' or 'interleaved'")
    found = source.pairing
    if found is None and source.name == "huggingface":
        found = "half" if model_type in families.HALF else "interleaved" if model_type in families.INTERLEAVED else None
        key, flag = first_of(config, families.INTERLEAVE) or ("", None)
        asked = "interleaved" if flag else "half"
        if flag is not None and (found is None or model_type in families.ASK_FOR_LAYOUT):
            found = asked
        elif flag is not None and asked != found:
            account.warn(f"{key}={flag!r} is not read by the {model_type} class of transformers 5, whose layout is {found}")
    if found is not None:
        if given not in (None, found):
            raise ConfigError(f"got pairing={given!r} in the call, but the config is of a model with the {found} pairing")
        return found
    if given is None and source.name == "gguf":
        raise ConfigError("got a GGUF architecture whose layout is not known; expected pairing='half' or 'interleaved' in the call")
    if model_type:
        layout = "half pairing is assumed, as in most of transformers, that " if given is None else "it is assumed that "
        check = "give pairing=, and check the rest against its code" if given is None else "check that against its code"
        rest = "every layer turns unless the config says otherwise, and that its scale is the plain one"
        account.warn(f"model_type {model_type!r} is not known here: {layout}{rest}; {check}")
    if given is None and not model_type and source.name == "huggingface":
        account.note(
            "no model_type is named: half pairing is assumed, as in most of transformers, that every layer turns unless the config says "
            "otherwise, and that its scale is the plain one"
        )
    return given or "half"


def _scale(config: Mapping[str, Any], model_type: str, read: list[Section]) -> float | None:
    """The factor on the inner product where it is not 1/sqrt(head_dim)."""
    if (value := config.get("query_pre_attn_scalar")) is not None:
        return number(value, "query_pre_attn_scalar", above=0) ** -0.5
    if (value := config.get("attention_multiplier")) is not None:
        return number(value, "attention_multiplier", above=0)
    if model_type in families.SCALE_ONE:
        return 1.0
    if model_type in families.HALF_SCALE and (width := config.get("attention_head_dim")) is not None:
        return (number(width, "attention_head_dim", above=0) / 2) ** -0.5
    fixed, turned = config.get("qk_nope_head_dim"), config.get("qk_rope_head_dim")
    if fixed is not None and turned is not None and read and read[0].rope_type == "yarn":
        values, width = read[0].values, fixed + turned
        every = values.get("mscale_all_dim", 0)
        return (_YARN * every * math.log(values["factor"]) + 1) ** 2 / math.sqrt(width) if every else None
    return None
