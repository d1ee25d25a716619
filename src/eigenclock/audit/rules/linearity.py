"""Linearity: queries and keys enter the score linearly, constants allowed."""

from collections.abc import Callable

import torch
from torch import Tensor

from eigenclock.audit.measure.samples import best, coarse, lags_of, many, needs_scores, rounding, said, shifted, size_at
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.history import remembered
from eigenclock.audit.rules.rule import Rule

SOURCE = "axiom 1 of the derivation: F(ax + by) = aF(x) + bF(y)"
Bent = tuple[float, str, float, float, float]
"""How far from linear, on which side, the score of 2x - y, what it should be, and at which lag."""
EPSILON = 1e-3
"""What the small number that norms divide by may change."""
NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "norm": lambda x: x.norm(dim=-1),
    "layer norm": lambda x: (x - x.mean(-1, keepdim=True)).norm(dim=-1),
}


def bent(probe: Probe, limit: float, size: Callable[[Tensor], Tensor] | None = None) -> Bent | None:
    """The worst score of 2x - y on either side that is not twice that of x less that of y; None where none is off by the limit.

    With ``size`` scores are multiplied by that of the vector: those behind a norm are linear then.
    """
    fn, lags = best(probe), lags_of(probe, 64)
    q, k = coarse(probe)
    worst: Bent | None = None
    for side, x in (("queries", q), ("keys", k)):
        y = x.roll(1, 1)
        z = []
        for v in (2 * x - y, x, y):  # 2 - 1 = 1, so that constants pass
            a, b = (v, k) if side == "queries" else (q, v)
            scores = many(fn, probe, a.to(probe.dtype), b.to(probe.dtype), lags, 0.0)
            z.append(scores if size is None else scores * _by_heads(size(v), probe)[:, None])
        got, expected = z[0], 2 * z[1] - z[2]
        scale = float(torch.stack(z).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs().max()) or 1.0
        gap = (got - expected).abs().nan_to_num(nan=0.0, posinf=0.0) / scale
        value = float(gap.max())
        if value > limit and (worst is None or value > worst[0]):
            h, n, p = torch.unravel_index(gap.argmax(), gap.shape)
            worst = value, side, float(got[h, n, p]), float(expected[h, n, p]), lags[int(n)]
    return worst


def _by_heads(sizes: Tensor, probe: Probe) -> Tensor:
    return sizes.repeat_interleave(probe.heads // sizes.shape[0], 0)


def normed(probe: Probe) -> str:
    """The norm before the action up to which it is linear on both sides; empty where there is none."""
    limit = max(EPSILON, 2 * rounding(probe, 64, exact=True))
    return next((name for name, size in NORMS.items() if bent(probe, limit, size) is None), "")


def _check(probe: Probe) -> list[Finding]:
    limit = 2 * rounding(probe, lags_of(probe, 64)[-1], exact=True)
    worst = bent(probe, limit)
    if worst is None or remembered(probe) is not None:
        return []  # calls that differ by what came before them can't be compared
    value, side, got, expected, lag = worst
    relative = keeps_lags(probe)
    severity = "advice" if said(probe, "linearity") or relative else "fault"
    message = f"not linear in the {side}: the score of 2x - y is {got:.6g}, twice that of x less that of y is {expected:.6g}"
    advice = "it is no member of the group: no generator reproduces it, and what holds for one (conversion, re-rotation) must be shown anew"
    norm = normed(probe) if relative else ""
    if norm:
        message += f"; it is linear behind a {norm} of the whole vector, which stands before the action"
        advice = "nothing: a norm before the action is no part of it, and what it turns keeps to the law"
    return [Finding("linearity", severity, message, value, limit, {"side": side, "lag": lag}, advice, SOURCE)]


def keeps_lags(probe: Probe) -> bool:
    """Whether scores depend on the lag alone all the same, as they do where q and k pass through maps that know no time."""
    _, _, base, moved = shifted(best(probe), probe)
    gap = (moved - base).abs().nan_to_num(nan=0.0) / size_at(base, moved)[:, None]
    return float(gap.max()) <= 2 * rounding(probe, probe.length, exact=True)


RULE = Rule("linearity", "are queries and keys transformed linearly", needs_scores, _check)
