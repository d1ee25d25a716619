"""What a subject claims: the frequencies, amplitude and layout of its config, layer type by layer type, and near misses of them."""

import copy
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from eigenclock.audit.probe import Probe, RotaryTable
from eigenclock.encodings import Encoding
from eigenclock.encodings.config import encodings
from eigenclock.encodings.config.families import BIASES, HALF, INTERLEAVED
from eigenclock.encodings.config.patches import TOWERS
from eigenclock.errors import EigenclockError
from eigenclock.theory.split import Turn

SECTIONS = ("rope_parameters", "rope_scaling")


def turn_of(enc: Encoding) -> Turn | None:
    """The rotation of an encoding, where it is one on one time that all heads share."""
    turns = enc.generator().split().turns
    if len(turns) != 1 or turns[0].axes != 1 or turns[0].freq.ndim != 1 or turns[0].clock is not None:
        return None
    return turns[0]


def amplitude_of(enc: Encoding) -> float:
    """The factor that the encoding puts on the channels that turn, of queries."""
    q = torch.ones(1, enc.heads, 1, enc.head_dim, dtype=torch.float64)
    return float(enc.read_in(q, q[:, : enc.kv_heads or enc.heads])[0].detach().abs().max())


def claims(probe: Probe) -> dict[str, Encoding]:
    """Layer type -> the encoding its config asks for; "" for an encoding that speaks for itself."""
    if probe.encodings is not None:
        return dict(probe.encodings)
    return {}


def length_schedule(enc: Encoding) -> Any:
    """The schedule of an encoding whose frequencies follow the length of the sequence; None where it has none."""
    return next((v for v in getattr(enc, "options", {}).values() if getattr(v, "length_dependent", False)), None)


def frozen(probe: Probe) -> bool:
    """Whether the frequencies may be those of another length than the one the config was read for."""
    return any(word in str(probe.config) for word in ("dynamic", "longrope", "'su'"))


def trusted(probe: Probe) -> bool:
    """Whether its config is of a model whose way of reading it is known here, so that a difference is the model's."""
    kinds = [(probe.config or {}).get("model_type")]
    text = (probe.config or {}).get("text_config")
    if isinstance(text, Mapping):
        kinds = [text.get("model_type")]
    return all(not kind or str(kind) in HALF | INTERLEAVED or str(kind) in BIASES or str(kind) in TOWERS for kind in kinds)


def matched(probe: Probe) -> Iterator[tuple[str, RotaryTable, Encoding]]:
    """Each table with what the config asks for in its layers."""
    asked = {name: enc for name, enc in claims(probe).items() if turn_of(enc) is not None}
    for name, table in probe.tables.items():
        if name in asked:
            yield name, table, asked[name]
        elif len(asked) == 1 and len(probe.tables) == 1:
            yield name, table, next(iter(asked.values()))


def off(table: Tensor, claimed: Tensor) -> Tensor:
    """How far each frequency of a table is from the one claimed, as a part of it (n,); a missing one counts as 0."""
    n = max(table.numel(), claimed.numel())
    a, b = (torch.cat([x.detach().double().abs().cpu(), x.new_zeros(n - x.numel(), dtype=torch.float64)]) for x in (table, claimed))
    return (a - b).abs() / torch.maximum(a, b).clamp_min(1e-300)


def lengths_of(config: Mapping[str, Any]) -> list[float | None]:
    """The lengths at which a length-dependent schedule of the config may be frozen: its own choice, short ones and long ones."""
    named = [config.get(key) for key in ("original_max_position_embeddings", "max_position_embeddings")]
    sections = [s for key in SECTIONS for s in sections_of(config.get(key))]
    named += [s.get("original_max_position_embeddings") for s in sections]
    return [None, *sorted({float(n) + more for n in named if isinstance(n, int | float) for more in (0, 1)})]


def sections_of(given: Any) -> list[dict[str, Any]]:
    """The rotary sections in a value of the config: one, or one for each layer type."""
    if not isinstance(given, Mapping):
        return []
    inner = [dict(value) for value in given.values() if isinstance(value, Mapping)]
    return inner or [dict(given)]


def read_again(config: Mapping[str, Any], probe: Probe, length: float | None = None) -> Mapping[str, Encoding]:
    """The encodings of a changed config; empty where it can't be read."""
    known = probe.encodings
    pairing = known.conventions.pairing if known is not None else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return encodings(config, head_dim=None if "head_dim" in config else probe.head_dim, pairing=pairing, length=length)
    except (EigenclockError, TypeError, ValueError):
        return {}


def at_lengths(probe: Probe, layer: str, *more: float) -> Iterator[tuple[float | None, Tensor]]:
    """The frequencies (n,) that a layer's schedule has at each length it may be frozen at, and at some more: none where it follows none."""
    for length in (*lengths_of(probe.config), *more) if probe.config is not None and frozen(probe) else ():
        found = read_again(probe.config or {}, probe, length)
        enc = found.get(layer) or (next(iter(found.values())) if len(found) == 1 else None)
        turn = None if enc is None else turn_of(enc)
        if turn is not None:
            yield length, turn.freq


def near_misses(probe: Probe, layer: str) -> Iterator[tuple[str, Encoding]]:
    """What else a table may follow, in words: no scaling at all, another reading of a key, the parameters of other layers."""
    for name, enc in claims(probe).items():
        if name != layer and turn_of(enc) is not None:
            yield f"it is the table of the {name} layers", enc
    if probe.config is None:
        return
    for words, change in (("the scaling is left out", _plain), ("truncate is not read", _truncate), ("the factor is not read", _factor)):
        config = _changed(probe.config, change)
        found = read_again(config, probe)
        if layer in found:
            yield words, found[layer]
        elif len(found) == 1:
            yield words, next(iter(found.values()))


def _changed(config: Mapping[str, Any], change: Any) -> dict[str, Any]:
    out = copy.deepcopy(dict(config))
    for key in SECTIONS:
        given = out.get(key)
        if isinstance(given, dict):
            inner = [value for value in given.values() if isinstance(value, dict)]
            for section in inner or [given]:
                change(section)
    return out


def _plain(section: dict[str, Any]) -> None:
    kept = {key: section[key] for key in ("rope_theta", "partial_rotary_factor", "mrope_section") if key in section}
    section.clear()
    section.update(kept | {"rope_type": "default"})


def _truncate(section: dict[str, Any]) -> None:
    if section.get("rope_type", section.get("type")) == "yarn":
        section["truncate"] = not section.get("truncate", True)


def _factor(section: dict[str, Any]) -> None:
    if "factor" in section:
        section["factor"] = 1.0
