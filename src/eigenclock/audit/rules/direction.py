"""Direction: what a decay does to keys after the query."""

import torch

from eigenclock.audit.measure.samples import best, many, needs_scores
from eigenclock.audit.measure.shifts import ahead, exact_law, lags_either_way
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule

SOURCE = "exp(-a(t - s)) grows without bound for s > t"
GROWS = 10.0
"""How many times a score at its own place one far ahead must be: less is the content's own spread."""


def _applies(probe: Probe) -> str | None:
    return needs_scores(probe) or ("it is used causally" if probe.causal else None)


def _check(probe: Probe) -> list[Finding]:
    """Keys after the query: scores that grow with their distance, for a subject that may be used in both directions."""
    if not exact_law(probe):
        return []
    fn, lags = best(probe), lags_either_way(probe)
    q, k = probe.content(6, seed=9)
    past = many(fn, probe, q, k, lags, 0.0)
    future = ahead(probe, q, k, lags)
    constant = past.abs().amax((0, 2)), future.abs().nan_to_num(nan=torch.inf, neginf=0.0).amax((0, 2))
    near = float(constant[0][0]) or 1.0
    grown = constant[1] / near
    steady = bool((grown[-3:].diff() > 0).all()) or bool(torch.isinf(grown[-1]))
    if not steady or not float(grown[-1]) > GROWS * max(1.0, float(constant[0].max()) / near):
        return []
    i = int((grown > GROWS).int().argmax())
    message = f"a key {lags[i]:g} after the query scores up to {float(grown[i]):.4g} times one at its place: without a mask it looks ahead"
    advice = "use it with a causal mask; for both directions use the mirrored kernel, two_sided() here"
    severity = "fault" if bool(torch.isinf(grown).any()) and _bidirectional(probe) else "risk"
    where = {"t": 0.0, "s": lags[i]}
    return [Finding("direction", severity, message, float(grown.max()), GROWS, where, advice, SOURCE)]


def _bidirectional(probe: Probe) -> bool:
    return probe.config is not None and probe.config.get("is_decoder") is False


RULE = Rule("direction", "what do keys after the query score", _applies, _check)
