"""Continuity: near positions give near scores, and positions between the whole ones are used as they are."""

import torch

from eigenclock.audit.measure.samples import best, hidden_from, many, needs_scores, rounding, said
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule
from eigenclock.theory.axioms.residuals import jump_of
from eigenclock.theory.axioms.sampling import Sampling

SOURCE = "axiom 4 of the derivation: scores are continuous in time"


def _applies(probe: Probe) -> str | None:
    return needs_scores(probe) or (None if probe.fractional or _cuts(probe) else "it takes whole positions only")


def _cuts(probe: Probe) -> bool:
    """Whether positions between whole ones are taken, and treated as whole ones."""
    if probe.kind in ("config", "model", "checkpoint") or probe.length < 3:
        return False  # its positions count tokens
    q, k = probe.content(2)
    try:
        whole, between, next_one = (many(best(probe), probe, q, k, [u], 0.0) for u in (1.0, 1.25, 2.0))
    except Exception:  # it refuses them, with whatever it happens to run into
        return False
    return torch.equal(whole, between) and not torch.equal(whole, next_one)  # else the position of the query does not matter at all


def _check(probe: Probe) -> list[Finding]:
    if not probe.fractional:
        message = "positions between whole ones are taken, and cut to whole ones without a word: 1.25 scores as 1"
        return [Finding("continuity", "advice", message, None, None, {"lag": 1.25}, "refuse times that are not whole, or use them", SOURCE)]
    fn = best(probe)
    q, k = probe.content(2)
    last = probe.length if (window := hidden_from(probe)) is None else window  # a mask begins at once, and is not the law
    ends = tuple(float(u) for u in (0, 0.5, 1, 2, 3, 4.25, 8, 16.5, 40) if u < last - 0.5)

    def f(u: float) -> torch.Tensor:
        return many(fn, probe, q, k, [u], 0.0).flatten()

    limit = max(rounding(probe, 64, exact=True), 1e-3)
    jump = jump_of(f, ends, "lag", Sampling(limit=limit))
    if jump.holds is not False or jump.witness is None:
        return []
    high = jump.witness.times[-1]
    whole = abs(2 * high - round(2 * high)) < 1e-6 and bool(torch.equal(f(1.0), f(1.25)) or torch.equal(f(1.0), f(0.75)))
    severity = "advice" if said(probe, "continuity") else "fault" if whole else "advice"
    message = (
        f"positions that are not whole are rounded without a word: {jump.witness}" if whole else f"scores jump with the lag: {jump.witness}"
    )
    advice = "refuse times that are not whole, or use them as they are" if whole else "give it whole positions only"
    return [Finding("continuity", severity, message, jump.value, limit, {"lag": high}, advice, SOURCE)]


RULE = Rule("continuity", "do near positions give near scores", _applies, _check)
