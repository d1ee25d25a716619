"""Precision: the first pair of neighbouring positions that the dtype merges."""

import torch
from torch import Tensor

from eigenclock.audit.measure.causes import powers_of
from eigenclock.audit.measure.samples import most_of, name_of, needs_scores
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule
from eigenclock.errors import EigenclockError

MOST, ROWS, CANDIDATES = 1 << 16, 512, 16
"""How many positions are tried one by one, how many at once, and how many that seem merged are looked at."""
SOURCE = "whole numbers are exact up to 2^8 in bfloat16, 2^11 in float16, 2^24 in float32"


def _check(probe: Probe) -> list[Finding]:
    last, first = float(probe.length - 1), first_merged(probe)
    if first is None:
        return []
    first = _before(probe, first)
    if first >= 0:
        message = f"positions {first:.0f} and {first + 1:.0f} are one in {name_of(probe.dtype)}: every score with them is bit-equal"
        advice = "build positions as integers or in float32, whatever the dtype of the vectors, and cast cos and sin, not the positions"
        return [Finding("precision", "fault", message, first, last, {"positions": [first, first + 1]}, advice, SOURCE)]
    return _beyond(probe)


def first_merged(probe: Probe) -> float | None:
    """The first position within the length that is one with its successor; -1 where none is, None where not even 0 and 1 are told apart."""
    inside = [t for t in powers_of(probe.length) if t + 1 <= probe.length - 1]
    first = _merged(probe, inside)
    return first if first is None or first < 0 else _first(probe, inside, first)


def _beyond(probe: Probe) -> list[Finding]:
    tried = [float(2**j) for j in range(8, 26) if probe.length - 1 <= 2**j <= 16 * probe.length]
    try:
        first = _merged(probe, [0.0, *tried])
        first = first if first is None or first < probe.length else _first(probe, [float(probe.length - 1)], first)
    except (EigenclockError, ValueError, IndexError, RuntimeError, AssertionError):
        return []
    if first is None or first < 0:
        return []
    message = f"positions {first:.0f} and {first + 1:.0f}, beyond the length, are one in {name_of(probe.dtype)}"
    where = {"positions": [first, first + 1]}
    return [
        Finding(
            "precision", "risk", message, first, float(probe.length), where, "keep positions in wider numbers before going there", SOURCE
        )
    ]


def _first(probe: Probe, tried: list[float], found: float) -> float:
    """The first position between one that was tried and kept, and the next one tried, which is merged: where a table ends, say."""
    low, high = max((t for t in tried if t < found), default=found), found
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _merged(probe, [0.0, middle]) == middle else (middle, high)
    return high


def _before(probe: Probe, found: float) -> float:
    """The first of all positions that is one with its successor, where it lies before one that was found; else that one.

    Neighbours that score a key at 0 alike, and are scored alike by the last query, come into question: O(length) scores.
    """
    assert probe.scores is not None
    n = min(int(found) + 1 if found >= 0 else probe.length, most_of(probe, MOST))
    q, k = probe.content(2, seed=22)
    at = torch.arange(n)
    as_query, as_key = [], []
    for some in at.split(ROWS):
        as_query.append(probe.scores(q[:, :1].expand(-1, some.numel(), -1), k, some, torch.zeros(2, dtype=torch.int64)))
        as_key.append(probe.scores(q, k[:, :1].expand(-1, some.numel(), -1), torch.full((2,), n - 1), some))
    rows = torch.cat([torch.cat(as_query, 1).transpose(0, 1).flatten(1), torch.cat(as_key, 2).permute(2, 0, 1).flatten(1)], -1)
    alike = (rows[1:] == rows[:-1]).all(-1) & torch.isfinite(rows[1:]).all(-1)
    for t in alike.nonzero().flatten().tolist()[:CANDIDATES]:
        if _merged(probe, [0.0, float(t)]) == t:
            return float(t)
    return found


def _contents(probe: Probe) -> tuple[Tensor, Tensor] | None:
    """Contents that tell positions 0 and 1 apart clearly: random ones, else none at all, which leave a bias alone."""
    random = probe.content(4, seed=3)
    for q, k in (random, (torch.zeros_like(random[0]), torch.zeros_like(random[1]))):
        z = _pair(probe, q, k, 0.0)
        if float((z[0] - z[1]).abs().max()) > 8 * probe.unit_roundoff * float(z.abs().nan_to_num(posinf=0.0, neginf=0.0).max()):
            return q, k
    return None


def _merged(probe: Probe, times: list[float]) -> float | None:
    """The first of the times that is one with its successor; -1 where none is; None where not even 0 and 1 are told apart clearly."""
    both = _contents(probe)
    if both is None:
        return None
    for t in times:
        z = _pair(probe, *both, t)
        if torch.equal(z[0], z[1]) and bool(torch.isfinite(z).all()) and bool(z.any()):  # all 0: they vanished, which is growth's
            return t
    return -1.0


def _pair(probe: Probe, q: Tensor, k: Tensor, t: float) -> Tensor:
    """Scores (2, H, n, n) of queries at t + 1 with keys at t, and with keys at t + 1."""
    assert probe.scores is not None
    n = q.shape[1]
    queries = torch.full((n,), int(t) + 1)  # int64: float64 has no neighbours beyond 2^53
    keys = torch.tensor([int(t), int(t) + 1]).repeat_interleave(n)
    return torch.stack(probe.scores(q, k.repeat(1, 2, 1), queries, keys).split(n, -1))


RULE = Rule("precision", "which neighbouring positions does the dtype merge", needs_scores, _check)
