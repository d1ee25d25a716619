"""Continuity: near positions give near scores, and positions between the whole ones are used as they are."""

import torch

from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule
from eigenclock.audit.rules.samples import best, many, needs_scores, rounding, said
from eigenclock.theory.axioms.residuals import jump_of
from eigenclock.theory.axioms.sampling import Sampling

SOURCE = "axiom 4 of the derivation: scores are continuous in time"


def _applies(probe: Probe) -> str | None:
    return needs_scores(probe) or (None if probe.fractional else "it takes whole positions only")


def _check(probe: Probe) -> list[Finding]:
    fn = best(probe)
    q, k = probe.content(2)
    ends = tuple(float(u) for u in (0, 0.5, 1, 2, 3, 4.25, 8, 16.5, 40) if u < probe.length)

    def f(u: float) -> torch.Tensor:
        return many(fn, probe, q, k, [u], 0.0).flatten()

    limit = max(rounding(probe, 64, exact=True), 1e-3)
    jump = jump_of(f, ends, "lag", Sampling(limit=limit))
    if jump.holds is not False or jump.witness is None:
        return []
    high = jump.witness.times[-1]
    whole = abs(high - round(high)) < 1e-6 and bool(torch.equal(f(1.0), f(1.25)) or torch.equal(f(1.0), f(0.75)))
    severity = "advice" if said(probe, "continuity") else "fault" if whole else "advice"
    message = (
        f"positions that are not whole are rounded without a word: {jump.witness}" if whole else f"scores jump with the lag: {jump.witness}"
    )
    advice = "refuse times that are not whole, or use them as they are" if whole else "give it whole positions only"
    return [Finding("continuity", severity, message, jump.value, limit, {"lag": high}, advice, SOURCE)]


RULE = Rule("continuity", "do near positions give near scores", _applies, _check)
