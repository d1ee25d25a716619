"""Contragredience: a query and a key at one position score alike wherever that is, so that one side undoes the other."""

import math

import torch

from eigenclock.audit.measure.causes import grid_of
from eigenclock.audit.measure.matrices import action_matrices
from eigenclock.audit.measure.pairs import blocks_at, read_pairs
from eigenclock.audit.measure.samples import best, coarse, many, needs_scores, rounding, said, times_of
from eigenclock.audit.measure.shifts import keeps_rows
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule
from eigenclock.theory.axioms.sampling import told_apart

SOURCE = "section 1 of the derivation: queries take exp(tL)^T, keys exp(-sL)"


def _check(probe: Probe) -> list[Finding]:
    assert probe.scores is not None
    q, k = (x.to(probe.dtype) for x in coarse(probe))
    grid = grid_of(probe.length)
    z = torch.stack([many(probe.scores, probe, q, k, [0.0], t)[:, 0] for t in grid])  # (T, H, P)
    size = float(z.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs()[0].max()) or 1.0
    gap = ((z - z[0]).abs() / size).nan_to_num(nan=1e30, posinf=1e30).flatten(1).amax(-1)
    limits = torch.tensor([rounding(probe, t) for t in grid])
    bad = gap > limits
    if not bool(bad.any()):
        return _offset(probe)
    if keeps_rows(probe.scores, probe):
        return []
    first = int(bad.int().argmax())
    place = int((z[first] - z[0]).abs().flatten().argmax())
    head = place // z.shape[-1]
    numbers = float(z[0].flatten()[place]), float(z[first].flatten()[place])
    severity = "advice" if said(probe, "translation invariance") else "fault"
    was, now = told_apart(*numbers)
    message = f"a query and a key both at 0 score {was}, both at {grid[first]:g} {now}: one side does not undo the other"
    advice = "keys take the inverse transpose of what queries take: a factor e^(at) on queries is e^(-as) on keys"
    where: dict[str, float | int | str] = {"t": grid[first], "s": grid[first]}
    still = _still(probe, grid[first])
    if still:
        message += f"; the {still} do not move at all, so that scores follow the absolute position of the other side"
        advice = "move both sides, each by its own position"
        where["still"] = still
    elif _summed(probe, grid[first], head):
        message += "; the keys turn the same way as the queries do in a score, so that scores follow the sum of both positions"
        advice = "turn queries and keys by one function: its transpose within the product makes the difference of the two"
    elif probe.action is not None and _same_map(probe, grid[first]):
        message += "; both sides take one map that is no rotation"
        pair = _determinant(probe, grid[first])
        if pair is not None:
            message += f": pair {pair[0]} has the determinant {pair[1]:.10g}, so that norms change"
            where |= {"pair": pair[0], "determinant": pair[1]}
            if pair[2]:
                message += ", as those of all pairs do"
            else:
                advice = (
                    "both sides must be turned and nothing else: round cos and sin no further than the vectors, and one layout throughout"
                )
    return [Finding("contragredience", severity, message, float(gap.max()), float(limits[first]), where, advice, SOURCE)]


def _offset(probe: Probe) -> list[Finding]:
    """Keys that stand a constant later than their positions: legal, since the lag alone counts, but A(0) is not the identity."""
    pairs = None if probe.encoding is not None else read_pairs(best(probe), probe)
    if pairs is None or not bool((pairs.freq.abs() > 8 * pairs.error).all()):
        return []
    phase = blocks_at(best(probe), probe, pairs, [0.0], [0.0])[0, 0].angle()
    slow = int(pairs.freq.abs().argmin())
    offset, doubt = -float(phase[slow] / pairs.freq[slow]), 64 * rounding(probe, 1.0, exact=True)
    left = (phase + pairs.freq * offset + math.pi).remainder(2 * math.pi) - math.pi
    if float(phase.abs().max()) <= doubt or float(left.abs().max()) > 1e-3 + doubt / float(pairs.freq[slow].abs()):
        return []
    offset = round(offset, 6)
    message = (
        f"a query and a key at one position are {offset:g} apart: keys stand {abs(offset):g} {'later' if offset > 0 else 'earlier'} than "
    )
    message += "their positions, everywhere alike, so that scores follow the lag and A(0) is not the identity"
    advice = "nothing, if it is meant: the lag alone counts; a spec has no such offset, and scores at lag 0 are not those of the vectors"
    return [Finding("contragredience", "advice", message, offset, 0.0, {"offset": offset}, advice, SOURCE)]


def _still(probe: Probe, t: float) -> str:
    """The side that its position does not move, where the other one moves."""
    fn = best(probe)
    q, k = coarse(probe)
    n = q.shape[1]
    zero, there = (torch.full((n,), time, dtype=torch.float64) for time in (0.0, t))
    q, k, zero, there = q.to(probe.dtype), k.to(probe.dtype), times_of(zero), times_of(there)
    z, by_query, by_key = fn(q, k, zero, zero), fn(q, k, there, zero), fn(q, k, zero, there)
    if torch.equal(z, by_key) and not torch.equal(z, by_query):
        return "keys"
    return "queries" if torch.equal(z, by_query) and not torch.equal(z, by_key) else ""


def _summed(probe: Probe, t: float, head: int) -> bool:
    """Whether in a head both at one position score what a query at twice that one scores a key at 0."""
    fn, (q, k) = best(probe), (x.to(probe.dtype) for x in coarse(probe))
    if 2 * t > probe.length - 1:
        return False
    both, one = (many(fn, probe, q, k, *at)[head] for at in (([0.0], t), ([2 * t], 0.0)))
    return float((both - one).abs().max()) <= rounding(probe, 2 * t) * (float(one.abs().max()) or 1.0)


def _determinant(probe: Probe, t: float) -> tuple[int, float, bool] | None:
    """The pair whose area the action changes most at a time, by how much, and whether all change alike; None without such pairs."""
    pairs, found = read_pairs(best(probe), probe), action_matrices(probe, [0.0, t])
    if pairs is None or found is None or found[1].shape[-1] != found[1].shape[-2]:
        return None
    a, b = pairs.first, pairs.second
    zero, moved = (m[a, a] * m[b, b] - m[a, b] * m[b, a] for m in found[1])
    parts = moved / zero
    worst = int((parts - 1).abs().argmax())
    return worst, float(parts[worst]), bool(((parts / parts[worst] - 1).abs() <= 16 * probe.unit_roundoff).all())


def _same_map(probe: Probe, t: float) -> bool:
    """Whether the action changes queries and keys alike and changes their length."""
    assert probe.action is not None
    x = probe.content(8)[1]
    q = x.repeat_interleave(probe.heads // probe.kv_heads, 0)
    moved = [part.double() for part in probe.action(q, x, torch.full((8,), int(t)))]
    alike = torch.allclose(moved[0], moved[1].repeat_interleave(probe.heads // probe.kv_heads, 0), rtol=1e-2, atol=1e-2)
    grown = moved[1].norm(dim=-1) / x.double().norm(dim=-1).clamp_min(1e-300)
    return alike and bool(((grown - 1).abs() > rounding(probe, t)).any())


RULE = Rule("contragredience", "do the two sides undo each other at equal positions", needs_scores, _check)
