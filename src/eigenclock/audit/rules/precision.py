"""Precision: the first pair of neighbouring positions that the dtype merges."""

import torch
from torch import Tensor

from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.causes import powers_of
from eigenclock.audit.rules.rule import Rule
from eigenclock.audit.rules.samples import name_of, needs_scores, times_of
from eigenclock.errors import EigenclockError

SOURCE = "whole numbers are exact up to 2^8 in bfloat16, 2^11 in float16, 2^24 in float32"


def _check(probe: Probe) -> list[Finding]:
    last = float(probe.length - 1)
    inside = [t for t in powers_of(probe.length) if t + 1 <= last]
    first = _merged(probe, inside)
    if first is None:
        return []
    if first >= 0:
        message = f"positions {first:g} and {first + 1:g} are one in {name_of(probe.dtype)}: every score with them is bit-equal"
        advice = "build positions as integers or in float32, whatever the dtype of the vectors, and cast cos and sin, not the positions"
        return [Finding("precision", "fault", message, first, last, {"positions": [first, first + 1]}, advice, SOURCE)]
    return _beyond(probe)


def _beyond(probe: Probe) -> list[Finding]:
    tried = [float(2**j) for j in range(8, 26) if probe.length <= 2**j <= 16 * probe.length]
    try:
        first = _merged(probe, [0.0, *tried])
    except (EigenclockError, ValueError, IndexError, RuntimeError, AssertionError):
        return []
    if first is None or first < 0:
        return []
    message = f"positions {first:g} and {first + 1:g}, beyond the length, are one in {name_of(probe.dtype)}"
    where = {"positions": [first, first + 1]}
    return [
        Finding(
            "precision", "risk", message, first, float(probe.length), where, "keep positions in wider numbers before going there", SOURCE
        )
    ]


def _merged(probe: Probe, times: list[float]) -> float | None:
    """The first of the times that is one with its successor; -1 where none is; None where not even 0 and 1 are told apart clearly."""
    n = 4
    q, k = probe.content(n, seed=3)
    for t in times:
        z = _pair(probe, q, k, t)
        gap = (z[0] - z[1]).abs()
        if t == times[0] and not float(gap.max()) > 8 * probe.unit_roundoff * float(z.abs().nan_to_num(posinf=0.0, neginf=0.0).max()):
            return None
        if torch.equal(z[0], z[1]) and bool(torch.isfinite(z).all()):
            return t
    return -1.0


def _pair(probe: Probe, q: Tensor, k: Tensor, t: float) -> Tensor:
    """Scores (2, H, n, n) of queries at t + 1 with keys at t, and with keys at t + 1."""
    assert probe.scores is not None
    n = q.shape[1]
    queries = times_of(torch.full((n,), t + 1, dtype=torch.float64))
    keys = times_of(torch.tensor([t, t + 1], dtype=torch.float64).repeat_interleave(n))
    return torch.stack(probe.scores(q, k.repeat(1, 2, 1), queries, keys).split(n, -1))


RULE = Rule("precision", "which neighbouring positions does the dtype merge", needs_scores, _check)
