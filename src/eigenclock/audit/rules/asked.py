"""The law at the places the caller asked for, whatever the other rules sampled."""

from collections.abc import Iterator

import torch

from eigenclock.audit.measure.samples import floor_of, many, needs_scores, rounding, said, size_at
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule

SOURCE = "axiom 2 of the derivation: score(t, s) = score(t - s, 0)"


def measured(probe: Probe) -> Iterator[tuple[float, float, tuple[float, float], float]]:
    """For each pair of times (t, s) the scores there and at (t - s, 0), of the head and content that differ most, and the difference
    as a part of the largest score at that lag."""
    assert probe.scores is not None
    q, k = probe.content(4)
    for t, s in probe.asked:
        there, moved = (many(probe.scores, probe, q, k, [t - s], at) for at in (s, max(s - t, 0.0)))
        size = size_at(there, moved[None], floor_of(probe.dtype))
        gap = (there - moved).abs().nan_to_num(nan=torch.inf)
        place = torch.unravel_index(gap.argmax(), gap.shape)
        yield t, s, (float(there[place]), float(moved[place])), float((gap[place] / size).nan_to_num(posinf=1e30))


def in_words(probe: Probe) -> tuple[str, ...]:
    """What was measured at each pair, as notes for the report."""
    if probe.scores is None:
        return ()
    places = ((t, s, max(t - s, 0.0), max(s - t, 0.0), both) for t, s, both, _ in measured(probe))
    return tuple(f"asked at t = {t:g}, s = {s:g}: {both[0]:.9g}; at {a:g}, {b:g}: {both[1]:.9g}" for t, s, a, b, both in places)


def _applies(probe: Probe) -> str | None:
    if not probe.asked:
        return "no places were asked for"
    return needs_scores(probe)


def _check(probe: Probe) -> list[Finding]:
    found = []
    for t, s, both, value in measured(probe):
        limit = rounding(probe, max(t, s))
        if value <= limit or said(probe, "translation invariance"):
            continue
        origin = f"({max(t - s, 0.0):g}, {max(s - t, 0.0):g})"
        message = f"the score at t = {t:g}, s = {s:g} is {both[0]:.9g}, at the same lag from the origin {origin} {both[1]:.9g}"
        advice = "the score must be q^T exp((t - s) L) k: look for what depends on one position alone"
        found.append(Finding("asked", "fault", message, value, limit, {"t": t, "s": s}, advice, SOURCE))
    return found


RULE = Rule("asked", "does the law hold at the times that the caller names", _applies, _check)
