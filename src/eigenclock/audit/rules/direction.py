"""Direction and place of a decay: what it does to keys after the query, and whether it acts on the logit or on the weight."""

import torch
from torch import Tensor

from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule
from eigenclock.audit.rules.samples import best, many, needs_scores, rounding
from eigenclock.audit.rules.shift_invariance import exact_law

SOURCE = "exp(-a(t - s)) grows without bound for s > t; under softmax a gain makes far keys neutral, a bias makes them vanish"
GROWS = 10.0
"""How many times a score at its own place one far ahead must be: less is the content's own spread."""


def _applies(probe: Probe) -> str | None:
    return needs_scores(probe) or ("it is used causally" if probe.causal else None)


def _check(probe: Probe) -> list[Finding]:
    """Keys after the query: scores that grow with their distance, for a subject that may be used in both directions."""
    if not exact_law(probe):
        return []
    fn, lags = best(probe), _lags(probe)
    q, k = probe.content(6, seed=9)
    past = many(fn, probe, q, k, lags, 0.0)
    future = _future(probe, q, k, lags)
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
    return bool(probe.config) and probe.config is not None and probe.config.get("is_decoder") is False


def _lags(probe: Probe) -> list[float]:
    return [u for u in (0.0, 1.0, 8.0, 64.0, 256.0, 1024.0, float(probe.length // 2)) if u < probe.length]


def _future(probe: Probe, q: Tensor, k: Tensor, lags: list[float]) -> Tensor:
    """Scores (H, lags, P) of queries at 0 with keys after them."""
    fn, n, p = best(probe), len(lags), q.shape[1]
    keys = torch.tensor(lags, dtype=torch.float64).long().repeat_interleave(p)
    z = fn(q, k.repeat(1, n, 1), torch.zeros(p, dtype=torch.int64), keys).double()
    return z.unflatten(-1, (n, p)).diagonal(dim1=1, dim2=-1)


def _even(probe: Probe) -> list[Finding]:
    """Whether a lag and its opposite always score alike, though the lag matters."""
    if probe.encoding is not None and probe.encoding.sides == 2:
        return []  # as its name says
    lags = _lags(probe)
    q, k = probe.content(6, seed=14)
    past, future = many(best(probe), probe, q, k, lags, 0.0), _future(probe, q, k, lags)
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


def _place(probe: Probe) -> list[Finding]:
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


RULE = Rule("direction", "what do keys after the query score", _applies, _check)
EVEN = Rule("even", "are past and future told apart", _applies, _even)
PLACE = Rule("decay_place", "does a decay act on the logit or on the weight", needs_scores, _place)
