"""Encodings as the config of a model: the keys of Hugging Face, where it has words for them."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from eigenclock.clocks import Axes
from eigenclock.encodings.base import Encoding, Recipe, Sum
from eigenclock.encodings.config import families
from eigenclock.encodings.config.build import RENAMED
from eigenclock.encodings.config.families import ORIGINAL
from eigenclock.encodings.config.layers import FULL
from eigenclock.encodings.config.result import Encodings
from eigenclock.errors import ConfigError, UnsupportedError
from eigenclock.schedules import SCHEDULES, alibi_slopes, geometric, ntk, proportional
from eigenclock.schedules import linear as linear_schedule

_WORDS = {ours: theirs for theirs, ours in RENAMED.items()}
_HUGGINGFACE = ("linear", "dynamic", "yarn", "longrope", "llama3")  # schedules that transformers has under the same name
_CHOICES = ("length", "use")  # what a schedule has chosen for a length, which a config does not say
_AXES = Axes(("time", "height", "width"), order="time").spec()
_LATENT = ("deepseek_v2", "deepseek_v3")
_PER_TYPE = ("gemma3_text", "gemma3n_text", "gemma4_text", "modernbert-decoder")  # read nested sections only


def to_config(encodings: Encoding | Mapping[str, Encoding], *, model_type: str | None = None) -> dict[str, Any]:
    """The keys of a Hugging Face config that say what these encodings do: sizes, and ``rope_parameters`` flat or per layer type.

    Reading them back with :func:`encodings` gives the same law, and transformers computes the same frequencies from them. What a schedule
    chose for a length is not written (a config leaves that to the call), nor is the scale of the inner product (:class:`Conventions`),
    which is no part of an encoding.

    Args:
        encodings: one encoding, or one per layer type.
        model_type: the model they are written for, which settles the layout; left out, the one they were read from, or none.
    Raises: UnsupportedError where Hugging Face has no words for an encoding; ConfigError where the layers of one model disagree on sizes.

    >>> import eigenclock as ec
    >>> to_config(ec.rope(64, heads=8, pairing="half", freq=ec.linear(4.0, theta=5e5)))["rope_parameters"]
    {'rope_type': 'linear', 'rope_theta': 500000.0, 'factor': 4.0}
    """
    layers: tuple[str, ...] = ()
    if isinstance(encodings, Encodings):
        layers, model_type = encodings.layers, model_type or encodings.conventions.model_type
    each = {FULL: encodings} if isinstance(encodings, Encoding) else dict(encodings)
    if not each:
        raise ConfigError("got no encodings; expected at least one layer type")
    kind = model_type or ""
    specs = {name: _parts(encoding) for name, encoding in each.items()}
    if any(spec["name"] == "alibi" for spec in specs.values()):
        return _alibi(specs, kind, layers)
    parameters = {name: _parameters(spec, kind) for name, spec in specs.items() if spec["name"] != "nope"}
    if not parameters:
        raise UnsupportedError("got encodings without position (nope) alone; expected one that turns: Hugging Face has no key for none")
    flagged = kind in families.FLAGGED or kind in families.NOPE_ON_FULL or any(name.endswith("_nope") for name in specs)
    null = [] if flagged else [name for name in specs if name not in parameters]
    return _sizes(specs, kind) | _sections(parameters, null, kind) | _layers(specs, parameters, null, kind, layers)


def _parts(encoding: Encoding) -> dict[str, Any]:
    """The spec of an encoding, schedules as values, with the channels that stand after or before those that turn."""
    if isinstance(encoding, Sum):
        first, second = _parts(encoding.left), _parts(encoding.right)
        if first["name"] == "nope" and second["name"] == "rope":
            return second | {"_before": first["head_dim"]}
        if second["name"] == "nope" and first["name"] == "m_rope":
            return first | {"_after": second["head_dim"]}
    if not isinstance(encoding, Recipe) or encoding.name not in ("rope", "m_rope", "alibi", "nope"):
        raise UnsupportedError(
            f"got {encoding}; Hugging Face has keys for rope, m_rope, alibi and nope: keep the spec in the config instead"
        )
    spec = encoding.spec | {key: value for key, value in encoding.options.items() if callable(value)}
    if "clock" in spec and (spec["name"] != "m_rope" or spec["clock"] != _AXES):
        raise UnsupportedError(f"got {encoding} with a clock of its own; the keys of Hugging Face count tokens only")
    if "learn" in spec:
        raise UnsupportedError(f"got {encoding} with numbers that are learned; a config holds fixed ones only")
    return spec


def _sections(parameters: dict[str, dict[str, Any]], null: list[str], kind: str) -> dict[str, Any]:
    """The rotary keys of the config, with what a model type reads at the top."""
    first = next(iter(parameters.values()))
    if kind in families.THETA_IN_NO_KEY:
        if len(parameters) > 1 or (first["rope_type"], first["rope_theta"]) != ("default", 10000.0):
            raise UnsupportedError(f"got {first}; {kind} has 10000 written into its code and no schedule")
        return {"rotary_dim": first["rotary_dim"]}
    out: dict[str, Any] = {}
    for name, key in (("dynamic", "max_position_embeddings"), ("longrope", ORIGINAL if kind.startswith("phi3") else None)):
        lengths = {section[ORIGINAL] for section in parameters.values() if section["rope_type"] == name}
        if key and lengths:
            if len(lengths) > 1:
                raise UnsupportedError(f"got {name} with original lengths {sorted(lengths)}; Hugging Face has one {key} for a model")
            out[key] = lengths.pop()
    if kind == "phimoe":  # its own names for the amplitude, one for each list
        for section in parameters.values():
            if section["rope_type"] == "longrope" and (amplitude := section.pop("attention_factor", None)) is not None:
                section |= {"short_mscale": amplitude, "long_mscale": amplitude}
    parameters = {
        name: {key: v for key, v in section.items() if key != "rotary_dim" and (section["rope_type"], key) != ("dynamic", ORIGINAL)}
        for name, section in parameters.items()
    }
    flat = next(iter(parameters.values()))
    if kind not in _PER_TYPE and not null and all(section == flat for section in parameters.values()):
        return out | {"rope_parameters": flat}
    if any(section.get("truncate") is False for section in parameters.values()):
        raise UnsupportedError("got yarn with truncate=False for some layer types; transformers reads truncate for all of them only")
    return out | {"rope_parameters": parameters | dict.fromkeys(null)}


def _layers(specs: Mapping[str, Any], parameters: Mapping[str, Any], null: list[str], kind: str, layers: tuple[str, ...]) -> dict[str, Any]:
    """The types of the layers, and by flags which of them do not turn, where a model type reads flags."""
    out: dict[str, Any] = {}
    still = [name for name in specs if name not in parameters and name not in null]
    if layers:
        out["num_hidden_layers"] = len(layers)
        if set(layers) - {FULL, f"{FULL}_nope"}:
            out["layer_types"] = [name.removesuffix("_nope") for name in layers]
    if still and not (kind in families.NOPE_ON_FULL and still == [FULL]):
        if kind not in families.FLAGGED or not layers:
            raise UnsupportedError(
                f"got {still} without position; expected the Encodings of a model that reads no_rope_layers, "
                f"such as {', '.join(sorted(families.FLAGGED))}"
            )
        out["no_rope_layers"] = [int(name in parameters) for name in layers]
    return out


def _sizes(specs: Mapping[str, Mapping[str, Any]], kind: str) -> dict[str, Any]:
    if len({(spec["heads"]) for spec in specs.values()}) != 1:
        raise ConfigError("got layer types with different numbers of heads; expected one for the whole model")
    first = next(iter(specs.values()))
    heads = first["heads"]
    out: dict[str, Any] = {"model_type": kind} if kind else {}
    names = {"gptj": ("n_head", "n_embd"), "codegen": ("n_head", "n_embd")}.get(kind, ("num_attention_heads", "hidden_size"))
    out[names[0]] = heads
    if any("_before" in spec for spec in specs.values()):
        turned = next(spec for spec in specs.values() if "_before" in spec)
        if kind not in _LATENT:
            raise UnsupportedError(
                f"got channels before those that turn; expected model_type= one of {', '.join(_LATENT)}, which has a key for them"
            )
        return out | {"qk_nope_head_dim": turned["_before"], "qk_rope_head_dim": turned["head_dim"]}
    widths = {name: spec["head_dim"] + spec.get("_after", 0) for name, spec in specs.items()}
    keys = {name: spec.get("kv_heads") or heads for name, spec in specs.items()}
    if len(set(widths.values())) == 1:
        out[names[1]] = heads * widths[next(iter(widths))]
        if names[1] == "hidden_size" and kind != "falcon":
            out["head_dim"] = widths[next(iter(widths))]
    elif kind == "gemma4_text":
        out |= {"head_dim": widths["sliding_attention"], "global_head_dim": widths["full_attention"]}
    else:
        raise UnsupportedError(f"got heads of different widths {widths}; Hugging Face has one head_dim for a model")
    if len(set(keys.values())) == 1:
        count = keys[next(iter(keys))]
        return out | (_falcon_keys(count, heads) if kind == "falcon" else {"num_key_value_heads": count})
    if kind == "gemma4_text":
        return out | {"num_key_value_heads": keys["sliding_attention"], "num_global_key_value_heads": keys["full_attention"]}
    raise UnsupportedError(f"got different numbers of key heads {keys}; Hugging Face has one num_key_value_heads for a model")


def _falcon_keys(count: int, heads: int) -> dict[str, Any]:
    if count in (1, heads):
        return {"new_decoder_architecture": False, "multi_query": count == 1, "num_kv_heads": count}
    return {"new_decoder_architecture": True, "num_kv_heads": count}


def _parameters(spec: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The rotary section of one layer type."""
    usual = "half" if kind in families.HALF or not kind else "interleaved" if kind in families.INTERLEAVED else None
    pairing = spec.get("pairing", "interleaved")
    if usual is not None and pairing != usual:
        raise UnsupportedError(
            f"got the {pairing} pairing; {f'model_type {kind!r}' if kind else 'most of Hugging Face'} turns the {usual} one: "
            f"convert the weights with ec.convert(to={usual!r}) and give pairing={usual!r}, or name a model_type that turns so"
        )
    out = _frequencies(spec, kind)
    if kind in families.MINUS:
        out.pop("_minus")
    elif out.pop("_minus", False):
        raise UnsupportedError("got negative frequencies; Hugging Face turns by plus the angle, but for nanochat")
    if spec["name"] == "m_rope":
        n = spec["head_dim"] // 2
        rest = 3 * n // 8
        out["mrope_section"] = list(spec.get("sections") or (n - 2 * rest, rest, rest))
        _assign(out, spec.get("assignment", "contiguous"), kind)
    head, width = spec["head_dim"] + spec.get("_after", 0), spec.get("rotary_dim") or spec["head_dim"]
    if kind in families.THETA_IN_NO_KEY:
        return out | {"rotary_dim": width}
    if (width != head or kind in families.DEFAULT_SHARE) and "partial_rotary_factor" not in out:
        share = width / head
        if int(head * share) != width:
            raise UnsupportedError(
                f"got {width} of {head} channels, a share that no float gives back exactly; expected another rotary width"
            )
        out["partial_rotary_factor"] = share
    return out


def _assign(out: dict[str, Any], assignment: str, kind: str) -> None:
    """How the pairs of several axes are shared out, in the words of a model type."""
    usual = families.M_ROPE.get(kind, ((), "contiguous"))[1]
    if "alternating" in (assignment, usual) and assignment != usual:
        raise UnsupportedError(
            f"got pairs that are shared out {assignment}; {f'model_type {kind!r}' if kind else 'Hugging Face without a model_type'} has "
            f"them {usual}: name a model_type that shares them out so"
        )
    if assignment == "alternating":
        time, *others = out["mrope_section"]
        out["mrope_section"] = [*others, time]
    if assignment == "interleaved":
        out["mrope_interleaved"] = True


def _frequencies(spec: Mapping[str, Any], kind: str) -> dict[str, Any]:
    freq, theta = spec.get("freq"), spec.get("theta", 10000.0)
    if isinstance(theta, list):
        raise UnsupportedError("got a base per head; Hugging Face has one base for a layer")
    if freq is None:
        return {"rope_type": "default", "rope_theta": theta}
    if not callable(freq):
        return _written_out(freq, kind)
    return _scheduled(freq, (spec.get("rotary_dim") or spec["head_dim"]) // 2)


def _written_out(freq: Any, kind: str) -> dict[str, Any]:
    """Frequencies as numbers: a plain base backwards is nanochat's; a config has no place for others."""
    numbers = freq if isinstance(freq, list) else [freq]
    if kind in families.MINUS and not any(isinstance(f, list) for f in numbers) and len(numbers) > 1 and numbers[0] == -1:
        n = len(numbers)
        theta = float(f"{(-numbers[1]) ** -n:.12g}")
        if all(abs(a + b) <= 1e-12 * abs(b) for a, b in zip(numbers, geometric(theta)(n).values.tolist(), strict=True)):
            return {"rope_type": "default", "rope_theta": theta, "_minus": True}
    raise UnsupportedError("got frequencies written out one by one; Hugging Face has no key for them: expected a base or a schedule")


def _scheduled(schedule: Any, pairs: int) -> dict[str, Any]:
    """A schedule in the words of Hugging Face.

    Raises: UnsupportedError where it has none.
    """
    name = next(n for n, made in SCHEDULES.items() if made is type(schedule))
    if isinstance(schedule, geometric | ntk | proportional) or name in _HUGGINGFACE:
        inner = schedule.theta
        if isinstance(schedule, linear_schedule) and isinstance(inner, proportional):
            return _scheduled(inner, pairs) | {"factor": schedule.factor}
        if callable(inner) or isinstance(inner, tuple):
            raise UnsupportedError(f"got {schedule}; Hugging Face has one schedule on one base for a layer")
        if isinstance(schedule, geometric):
            return {"rope_type": "default", "rope_theta": inner}
        if isinstance(schedule, ntk):  # the same frequencies from a larger base, with no schedule left
            return {"rope_type": "default", "rope_theta": inner * schedule.factor ** (pairs / (pairs - 1)) if pairs > 1 else inner}
        if isinstance(schedule, proportional):
            return {"rope_type": "proportional", "rope_theta": inner, "partial_rotary_factor": schedule.share}
        values = {f.name: getattr(schedule, f.name) for f in fields(schedule) if f.name not in ("theta", *_CHOICES)}
        given = {_WORDS.get(k, k): list(v) if isinstance(v, tuple) else v for k, v in values.items() if v is not None}
        return {"rope_type": name, "rope_theta": inner} | (_yarn(given) if name == "yarn" else given)
    raise UnsupportedError(f"got the schedule {name}; Hugging Face has default, {', '.join(_HUGGINGFACE)} and proportional")


def _yarn(given: dict[str, Any]) -> dict[str, Any]:
    """transformers takes both coefficients of the amplitude or none, so others are written as the amplitude itself."""
    scales = (given.pop("mscale"), given.pop("mscale_all_dim"))
    if scales == (1.0, 0.0) or "attention_factor" in given:
        return given
    if all(scales):
        return given | {"mscale": scales[0], "mscale_all_dim": scales[1]}
    raise UnsupportedError(f"got yarn with mscale={scales[0]} and mscale_all_dim={scales[1]}; expected both, or attention_factor")


def _alibi(specs: Mapping[str, Mapping[str, Any]], kind: str, layers: tuple[str, ...]) -> dict[str, Any]:
    if len(specs) != 1 or kind not in families.BIASES:
        raise UnsupportedError(
            f"got ALiBi for {f'model_type {kind!r}' if kind else 'no model_type'}; Hugging Face has it in {', '.join(families.BIASES)} only"
        )
    spec = next(iter(specs.values()))
    heads, head = spec["heads"], spec["head_dim"]
    published = alibi_slopes()(heads).values
    slopes, keys = spec.get("slopes"), spec.get("kv_heads") or heads
    names = {"bloom": ("hidden_size", "n_head", "n_layer"), "mpt": ("d_model", "n_heads", "n_layers")}
    hidden, count, depth = names.get(kind, ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    out: dict[str, Any] = {"model_type": kind, hidden: heads * head, count: heads} | ({depth: len(layers)} if layers else {})
    largest = _largest_exponent(slopes, published) if kind == "mpt" else 8
    expected = published / head**0.5 if kind == "falcon" else published ** (largest / 8)
    if (slopes is not None or kind == "falcon") and not _close(slopes, expected):
        raise UnsupportedError(
            f"got slopes that are not the published ones{' over sqrt(head_dim)' if kind == 'falcon' else ''}; {kind} has no key for them"
        )
    if kind == "falcon":
        return out | {"alibi": True} | _falcon_keys(keys, heads)
    if keys != heads:
        raise UnsupportedError(f"got {keys} key heads for {heads} heads; {kind} has one key for each head")
    return out | ({"attn_config": {"alibi": True, "alibi_bias_max": largest}} if kind == "mpt" else {})


def _close(slopes: Any, expected: Any) -> bool:
    return isinstance(slopes, list) and all(abs(a - b) <= 1e-12 * b for a, b in zip(slopes, expected.tolist(), strict=True))


def _largest_exponent(slopes: Any, published: Any) -> float:
    """MPT's alibi_bias_max m: slopes are the published ones to the power m / 8."""
    if not isinstance(slopes, list) or slopes[0] <= 0:
        return 8
    exponent = float(f"{8 * math.log(slopes[0]) / math.log(float(published[0])):.12g}")
    return int(exponent) if exponent == int(exponent) else exponent
