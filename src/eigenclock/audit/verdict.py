"""What an audit could not judge: OK is said only where linearity and shift invariance were measured on scores, and hold."""

from collections.abc import Mapping, Sequence

import torch

from eigenclock.audit.measure.claims import trusted
from eigenclock.audit.measure.samples import best, lags_of, many, said
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.linearity import normed

LAW = ("linearity", "shift_invariance")
"""The rules that measure the law."""


def unjudged(probe: Probe, ran: Mapping[str, Sequence[str]], findings: Sequence[Finding]) -> tuple[str, ...]:
    """Why the law of a probe, or of one of its layer types, is not known to hold, in words; empty where it was measured and holds.

    ``ran`` has the rules that ran on each part, "" for the probe itself; ``findings`` name the part they are of as their layer.
    """
    parts = {"": probe, **probe.layers}
    if probe.scores is None and any(part.scores is not None for part in probe.layers.values()):
        del parts[""]  # its layer types are measured in its place
    why = []
    for layer, part in parts.items():
        own = [finding for finding in findings if finding.where.get("layer", "") == layer]
        reason = _of_part(part, ran.get(layer, ()), own)
        why += [f"{layer}: {reason}" if layer and reason else reason] if reason else []
    return tuple(why + ([_assumed(probe)] if _assumed(probe) else []))


def _of_part(part: Probe, ran: Sequence[str], findings: Sequence[Finding]) -> str:
    if part.scores is None:
        known = part.unread or part.outside or part.refused
        return "no scores can be read from it" + (f": {known}" if known else ", so that nothing is known of its law")
    missing = [name for name in LAW if name not in ran]
    if missing:
        return f"{' and '.join(missing)} could not be measured"
    if not _telling(part):
        return "none of its scores is a finite number other than 0"
    found = {f.rule for f in findings}
    broken = ["linearity"] if "linearity" in found and not normed(part) else []
    broken += ["translation invariance"] if "shift_invariance" in found and said(part, "translation invariance") else []
    if broken:
        return f"{' and '.join(broken)} {'does' if len(broken) == 1 else 'do'} not hold, and it claims no law that it could be held to"
    return ""


def _telling(part: Probe) -> bool:
    """Whether any score says something."""
    q, k = part.content(4)
    z = many(best(part), part, q, k, lags_of(part), 0.0)
    return bool((torch.isfinite(z) & (z != 0)).any())


def _assumed(probe: Probe) -> str:
    """That the law measured is that of an assumption: its model type is not known here, and its model's code was not run."""
    as_read = any(part.as_read for part in (probe, *probe.layers.values()))
    kind = str((probe.config or {}).get("model_type") or "")
    if not as_read or not kind or trusted(probe):
        return ""
    return f"how a model of type {kind!r} turns is not known here: what was measured is what its config was taken for"
