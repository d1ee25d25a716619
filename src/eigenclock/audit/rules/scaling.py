"""Scaling: the table the model builds, and the turn of its scores, are those its config asks for, in each layer type."""

from collections.abc import Iterable

import torch
from torch import Tensor

from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.claims import claims, lengths_of, matched, near_misses, off, read_again, trusted, turn_of
from eigenclock.audit.rules.rule import Rule
from eigenclock.audit.rules.samples import SINGLE, name_of
from eigenclock.audit.rules.tables import rounded_to, uninitialised
from eigenclock.audit.rules.turning import applies as turning_applies
from eigenclock.audit.rules.turning import turning
from eigenclock.encodings import Encoding

SOURCE = "the formulas of the schedules (PI 2306.15595, YaRN 2309.00071, LongRoPE 2402.13753, Llama 3), in float64"
LISTS = "no_rope_layers: 1 turns, 0 does not (SmolLM3, Llama 4); no_rope_layer_interval: every n-th layer does not"
LIMIT = 64 * SINGLE
"""Relative error of a frequency: theta^(-2i/d) in float32 errs by ln(theta) / 2 and some steps more of rounding, below 16 of them."""
CLEAR, RADIANS = 5e-4, 0.1
"""What makes an error a fault: more than float16 rounds a frequency by, or an angle at the last position that scores show."""


def _applies(probe: Probe) -> str | None:
    if not probe.tables:
        return "it builds no rotary table that can be read"
    return None if any(True for _ in matched(probe)) else "no config says what the table should be"


def _check(probe: Probe) -> list[Finding]:
    found = []
    for layer, table, enc in matched(probe):
        turn = turn_of(enc)
        if turn is None or uninitialised(table.inv_freq):
            continue
        claimed = min((turn.freq, *_frozen(probe, layer)), key=lambda freq: float(off(table.inv_freq, freq).max()))
        gaps = off(table.inv_freq, claimed)
        value = float(gaps.max())
        if value <= LIMIT:
            continue
        pair = int((gaps > LIMIT).int().argmax())
        why = _rounded(table.inv_freq, claimed) or explained(table.inv_freq, near_misses(probe, layer))
        mixed = why.startswith("it is the table of")
        asks = "the config asks for" if probe.config is not None else "its own parameters ask for"
        numbers = [float(x[pair]) if pair < x.numel() else 0.0 for x in (table.inv_freq, claimed)]
        message = f"pair {pair} turns by {numbers[0]:.6g} per position, {asks} {abs(numbers[1]):.6g}" + (f": {why}" if why else "")
        if not why and not trusted(probe):
            message += ", as far as such configs are understood here"
        where = {"pair": pair, "pairs off": int((gaps > LIMIT).sum())} | ({"layer": layer} if layer else {})
        advice = "give each layer type the parameters of its own" if mixed else "check which dict the code reads the rotary keys from"
        late = (
            float((table.inv_freq.detach().double().cpu().abs() - claimed.abs()).abs().max())
            if table.inv_freq.shape == claimed.shape
            else 1e9
        )
        clear = value > CLEAR or late * (probe.length - 1) > RADIANS
        severity = "advice" if not (why or trusted(probe)) else "fault" if clear else "risk"
        found.append(Finding("layer_types" if mixed else "scaling", severity, message, float(gaps.max()), LIMIT, where, advice, SOURCE))
    return found


def _rounded(inv_freq: Tensor, claimed: Tensor) -> str:
    """That a table is the one claimed, rounded to 16 bits, in words; empty where it is not."""
    narrow = rounded_to(inv_freq.detach().double().cpu().flatten())
    if narrow is None or float(off(inv_freq, claimed).max()) > torch.finfo(narrow).eps:
        return ""
    return f"every frequency was rounded to {name_of(narrow)}"


def _frozen(probe: Probe, layer: str) -> list[Tensor]:
    """The frequencies of a length-dependent schedule at the lengths it may be frozen at."""
    if probe.config is None or not any(word in str(probe.config) for word in ("dynamic", "longrope", "'su'")):
        return []
    out = []
    for length in (*lengths_of(probe.config), float(probe.length)):
        found = read_again(probe.config, probe, length)
        enc = found.get(layer) or (next(iter(found.values())) if len(found) == 1 else None)
        turn = None if enc is None else turn_of(enc)
        out += [] if turn is None else [turn.freq]
    return out


def explained(inv_freq: Tensor, misses: Iterable[tuple[str, Encoding]]) -> str:
    """The near miss that the table follows, in words; empty where it follows none."""
    for words, enc in misses:
        turn = turn_of(enc)
        if turn is not None and float(off(inv_freq, turn.freq).max()) <= 1e-5:
            return words
    return ""


def _scaling(probe: Probe) -> list[Finding]:
    found = [finding for finding in _check(probe) if finding.rule == "scaling"] if _applies(probe) is None else []
    return found + [finding for finding in turning(probe, CLEAR, RADIANS) if finding.rule == "scaling"]


def _layers_apply(probe: Probe) -> str | None:
    if probe.turns or _unlike(probe):
        return None
    return _applies(probe) or (None if len(probe.tables) > 1 else "all its layers share one table")


def _layer_types(probe: Probe) -> list[Finding]:
    found = _check(probe) if _applies(probe) is None else []
    found += turning(probe, CLEAR, RADIANS) if len(claims(probe)) > 1 else []
    return _unlike(probe) + _still(probe) + [finding for finding in found if finding.rule == "layer_types"]


def _unlike(probe: Probe) -> list[Finding]:
    """Layers that do not treat the same vectors as the first of their type does; what each of them does wrong, other rules say."""
    found = []
    for name in probe.layers:
        kind, _, layer = name.rpartition(", ")
        if layer.startswith("layer "):
            words = (
                f"{layer} does not turn, or decode, the same queries and keys as the first layer {f'of type {kind} ' if kind else ''}does"
            )
            advice = "nothing, if layers are meant to differ; else look for one that was patched or given the table of others"
            found.append(Finding("layer_types", "advice", words, None, None, {"layer": name}, advice, SOURCE))
    return found


def _still(probe: Probe) -> list[Finding]:
    """Layers of a live model that turn where the config says they do not, or the other way round."""
    said = probe.encodings.rotates if probe.encodings is not None and trusted(probe) else ()
    odd: dict[tuple[bool, bool | None], list[int]] = {}
    for index, turns in probe.turns.items():
        wanted = said[index] if index < len(said) else None
        if turns != wanted and (wanted is not None or not turns):
            odd.setdefault((turns, wanted), []).append(index)
    found = []
    for (turns, wanted), indices in odd.items():
        which = f"layer {indices[0]}" if len(indices) == 1 else f"layers {', '.join(map(str, indices))}"
        message = f"queries and keys of {which} are {'' if turns else 'not '}turned by their position, " + (
            "those of other layers are" if wanted is None else f"and the config says that {'they are' if wanted else 'they have none'}"
        )
        advice = "check how the list of layers without a position is read, and whether each layer is given cos and sin"
        severity = "advice" if wanted is None else "fault"
        found.append(Finding("layer_types", severity, message, None, None, {"layer": indices[0]}, advice, LISTS))
    return found


RULE = Rule(
    "scaling",
    "is the scaling of the config in the table the model builds, and in its scores",
    lambda probe: _applies(probe) if turning_applies(probe) is not None else None,
    _scaling,
)
LAYERS = Rule(
    "layer_types",
    "does each layer type have its own parameters, and each layer those of its type",
    _layers_apply,
    _layer_types,
)
