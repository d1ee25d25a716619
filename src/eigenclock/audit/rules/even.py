"""Even: whether past and future score alike though the lag matters."""

import torch

from eigenclock.audit.measure.samples import best, many, needs_scores, rounding
from eigenclock.audit.measure.shifts import ahead, lags_either_way
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule

SOURCE = "a score that depends on |t - s| alone is no one-parameter group in t - s, and knows no order"


def _applies(probe: Probe) -> str | None:
    return needs_scores(probe) or ("it is used causally" if probe.causal else None)


def _check(probe: Probe) -> list[Finding]:
    """Whether a lag and its opposite always score alike, though the lag matters."""
    if probe.encoding is not None and probe.encoding.sides == 2:
        return []  # as its name says
    lags = lags_either_way(probe)
    q, k = probe.content(6, seed=14)
    past, future = many(best(probe), probe, q, k, lags, 0.0), ahead(probe, q, k, lags)
    if not bool((torch.isfinite(past) & torch.isfinite(future)).all()):
        return []
    size = float(past.abs().max()) or 1.0
    limit = rounding(probe, lags[-1], exact=True)
    moves, differs = float((past - past[:, :1]).abs().max()) / size, float((past - future).abs().max()) / size
    if moves <= 10 * limit or differs > limit:
        return []
    numbers = float(past[0, 1, 0]), float(future[0, 1, 0])
    message = f"even in the lag: a key {lags[1]:g} before the query scores {numbers[0]:.6g}, one as far after it {numbers[1]:.6g}: "
    message += "past and future cannot be told apart"
    advice = "use it with a causal mask, or an odd part (a rotation) beside it"
    return [Finding("even", "advice", message, differs, limit, {"lag": lags[1]}, advice, SOURCE)]


RULE = Rule("even", "are past and future told apart", _applies, _check)
