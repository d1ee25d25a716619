"""Contragredience: a query and a key at one position score alike wherever that is, so that one side undoes the other."""

import torch

from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.causes import grid_of
from eigenclock.audit.rules.rule import Rule
from eigenclock.audit.rules.samples import coarse, many, needs_scores, rounding, said
from eigenclock.audit.rules.shift_invariance import keeps_rows

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
    if not bool(bad.any()) or keeps_rows(probe.scores, probe):
        return []
    first = int(bad.int().argmax())
    place = int((z[first] - z[0]).abs().flatten().argmax())
    numbers = float(z[0].flatten()[place]), float(z[first].flatten()[place])
    severity = "advice" if said(probe, "translation invariance") else "fault"
    message = (
        f"a query and a key both at 0 score {numbers[0]:.6g}, both at {grid[first]:g} {numbers[1]:.6g}: one side does not undo the other"
    )
    if probe.action is not None and _same_map(probe, grid[first]):
        message += "; both sides take one map that is no rotation"
    advice = "keys take the inverse transpose of what queries take: a factor e^(at) on queries is e^(-as) on keys"
    where = {"t": grid[first], "s": grid[first]}
    return [Finding("contragredience", severity, message, float(gap.max()), float(limits[first]), where, advice, SOURCE)]


def _same_map(probe: Probe, t: float) -> bool:
    """Whether the action changes queries and keys alike and changes their length."""
    assert probe.action is not None
    x = probe.content(8)[1]
    q = x.repeat_interleave(probe.heads // probe.kv_heads, 0)
    moved = [part.double() for part in probe.action(q, x, torch.full((8,), int(t)))]
    alike = torch.allclose(moved[0], moved[1].repeat_interleave(probe.heads // probe.kv_heads, 0), rtol=1e-2, atol=1e-2)
    grown = moved[1].norm(dim=-1) / x.double().norm(dim=-1).clamp_min(1e-300)
    return alike and bool(((grown - 1).abs() > 1e-3).any())


RULE = Rule("contragredience", "do the two sides undo each other at equal positions", needs_scores, _check)
