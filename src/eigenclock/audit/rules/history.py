"""History: what a call gives depends on that call alone, not on how long the sequences of earlier calls were."""

import torch

from eigenclock.audit.measure.samples import many, needs_scores, rounding
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule

SOURCE = "equal lengths give bit-equal scores, whatever lengths came before"
RUN = 6
"""Tokens of a call whose table may be kept for the next one."""


def remembered(probe: Probe) -> tuple[float, float, float, float, float] | None:
    """A position whose scores change after a longer call: (position, relative change, before, after, how long); else None."""
    assert probe.scores is not None
    q, k = probe.content(3, seed=13)
    last = probe.length - 1
    for position in sorted({last // 8, last // 2, last - 1} - {last, 0}):
        lags = sorted({0.0, 1.0, float(position)})

        def at(p: int, lags: list[float] = lags) -> torch.Tensor:
            assert probe.scores is not None
            return many(probe.scores, probe, q, k, [u for u in lags if u <= p], 0.0)

        at(0)  # a short call, after which a table that grows may be small again
        before = at(position)
        reached = _longest(probe, q, k)
        after = at(position)
        gap = (after - before).abs().nan_to_num(nan=0.0)
        size = float(before.abs().nan_to_num(nan=0.0, posinf=0.0).max()) or 1.0
        if float(gap.max()) > 64 * probe.unit_roundoff * size:
            place = int(gap.argmax())
            return float(position), float(gap.max()) / size, float(before.flatten()[place]), float(after.flatten()[place]), reached
    return None


def _longest(probe: Probe, q: torch.Tensor, k: torch.Tensor) -> float:
    """A call that reaches beyond the length, or to its end where that is refused: how far it went."""
    assert probe.scores is not None
    try:
        many(probe.scores, probe, q, k, [0.0, 2.0 * probe.length], 0.0)
    except Exception:  # code of others refuses with whatever it happens to run into
        many(probe.scores, probe, q, k, [0.0, float(probe.length - 1)], 0.0)
        return float(probe.length - 1)
    return 2.0 * probe.length


def _regrouped(probe: Probe) -> tuple[float, float, float, float] | None:
    """A run of positions that scores otherwise in one call than in two, after a call as long elsewhere: (first, gap, one, two)."""
    assert probe.scores is not None
    fn, n = probe.scores, RUN
    if probe.length < 3 * n:
        return None
    q, k = probe.content(n, seed=16)
    last = torch.full((n,), 3 * n - 1)
    first, second = torch.arange(n) + 1, torch.arange(n) + n + 2
    fn(q, k, last, first)  # what is kept of it may be taken for the next call, which is as long
    whole = fn(q, k, last, second).double()
    parts = torch.cat([fn(q, k[:, a], last, second[a]).double() for a in (slice(0, n // 2), slice(n // 2, n))], -1)
    gap = (whole - parts).abs().nan_to_num(nan=0.0, posinf=0.0)
    size = float(parts.abs().nan_to_num(posinf=0.0, neginf=0.0).max()) or 1.0
    if float(gap.max()) <= rounding(probe, 3 * n) * size:
        return None
    place = int(gap.argmax())
    return float(second[0]), float(gap.max()) / size, float(whole.flatten()[place]), float(parts.flatten()[place])


def _check(probe: Probe) -> list[Finding]:
    found = remembered(probe)
    if found is None:
        split = _regrouped(probe)
        if split is None:
            return []
        start, value, one, two = split
        message = f"keys at {start:g} .. {start + RUN - 1:g} score {one:.6g} in one call and {two:.6g} in two: "
        message += "a call takes what another one left"
        advice = "key what is kept by the positions themselves (offset and length), not by the length of a call"
        where = {"s": start, "tokens": RUN}
        return [Finding("history", "fault", message, value, rounding(probe, 3 * RUN), where, advice, SOURCE)]
    position, value, before, after, reached = found
    message = f"the same call up to position {position:g} gives {before:.6g}, and {after:.6g} once a call reached {reached:g}"
    advice = "compute what follows the length from the call at hand, and keep nothing of it"
    where = {"position": position, "after": reached}
    return [Finding("history", "fault", message, value, 64 * probe.unit_roundoff, where, advice, SOURCE)]


RULE = Rule("history", "does a call depend on the calls before it", needs_scores, _check)
