"""Reach: the last position a subject takes. Tables end, and what lies beyond must be refused, not wrapped around."""

from dataclasses import replace

from eigenclock.audit.measure.samples import many, needs_scores
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule

SOURCE = "a table of n positions knows 0 .. n - 1"


def refused_at(probe: Probe, position: int) -> str | None:
    """Why a position is not taken, in words; None where it is."""
    assert probe.scores is not None
    q, k = probe.content(1)
    try:
        many(probe.scores, probe, q, k, [0.0], float(position))
    except Exception as error:  # code of others refuses with whatever it happens to run into
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return None


def within_reach(probe: Probe) -> Probe:
    """The probe for as many positions as it takes, with a note where those are fewer than it was asked for."""
    if probe.scores is None or refused_at(probe, probe.length - 1) is None or refused_at(probe, 1) is not None:
        return probe
    low, high = 1, probe.length - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if refused_at(probe, middle) is None else (low, middle)
    note = f"positions from {high} on are refused: judged for {high} positions in place of {probe.length}"
    return replace(probe, length=high, notes=(*probe.notes, note))


def _check(probe: Probe) -> list[Finding]:
    why = refused_at(probe, probe.length)
    if why is None:
        return []
    message = f"positions end at {probe.length - 1}: the next one is refused ({why})"
    return [
        Finding("reach", "advice", message, probe.length, None, {"position": probe.length}, "a longer table, for more positions", SOURCE)
    ]


RULE = Rule("reach", "how many positions does it take", needs_scores, _check)
