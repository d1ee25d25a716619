"""Layer types: each with its own parameters, each layer with those of its type, and turning where the config says so."""

from eigenclock.audit.measure.built import CLEAR, RADIANS, SOURCE, applies, built
from eigenclock.audit.measure.claims import claims, trusted
from eigenclock.audit.measure.turning import turning
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule

LISTS = "no_rope_layers: 1 turns, 0 does not (SmolLM3, Llama 4); no_rope_layer_interval: every n-th layer does not"


def _applies(probe: Probe) -> str | None:
    if probe.turns or _unlike(probe):
        return None
    return applies(probe) or (None if len(probe.tables) > 1 else "all its layers share one table")


def _check(probe: Probe) -> list[Finding]:
    found = built(probe) if applies(probe) is None else []
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
    "layer_types",
    "does each layer type have its own parameters, and each layer those of its type",
    _applies,
    _check,
)
