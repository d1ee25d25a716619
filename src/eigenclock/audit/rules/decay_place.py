"""Where a decay acts: on the inner product, whose far keys become neutral under softmax, or on the logit."""

import torch

from eigenclock.audit.measure.samples import best, many, needs_scores
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule

SOURCE = "under softmax a gain makes far keys neutral (e^0), a bias makes them vanish"


def _check(probe: Probe) -> list[Finding]:
    """Whether what fades is the inner product, so that far keys become neutral instead of vanishing."""
    if probe.encoding is not None and probe.encoding.acts_on != "score":
        return []
    fn, last = best(probe), float(probe.length - 1)
    lags = [0.0, last // 4, last // 2, last]
    q, k = probe.content(6, seed=10)
    z, by_query, by_key, bias = (many(fn, probe, a, b, lags, 0.0) for a, b in ((q, k), (q, 0 * k), (0 * q, k), (0 * q, 0 * k)))
    if not bool(torch.isfinite(z).all()):
        return []
    content = (z - by_query - by_key + bias).abs().amax((0, 2))
    if (
        bool((bias.abs() > 1e-3).any())
        or not bool((content[1:] < 0.5 * content[:-1]).all())
        or float(content[-1]) > 0.01 * float(content[0])
    ):
        return []
    message = f"the decay multiplies q.k: at lag {last:g} {float(content[-1] / content[0]):.2g} is left, and softmax weighs that key e^0"
    advice = "for recency under softmax use a bias on the logit (decay_bias, alibi); a gain is right for linear attention"
    return [Finding("decay_place", "advice", message, float(content[-1] / content[0]), 0.01, {"lag": last}, advice, SOURCE)]


RULE = Rule("decay_place", "does a decay act on the logit or on the weight", needs_scores, _check)
