"""History: what a call gives depends on that call alone, not on how long the sequences of earlier calls were."""

import torch

from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule
from eigenclock.audit.rules.samples import many, needs_scores

SOURCE = "equal lengths give bit-equal scores, whatever lengths came before"


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


def _check(probe: Probe) -> list[Finding]:
    found = remembered(probe)
    if found is None:
        return []
    position, value, before, after, reached = found
    message = f"the same call up to position {position:g} gives {before:.6g}, and {after:.6g} once a call reached {reached:g}"
    advice = "compute what follows the length from the call at hand, and keep nothing of it"
    where = {"position": position, "after": reached}
    return [Finding("history", "fault", message, value, 64 * probe.unit_roundoff, where, advice, SOURCE)]


RULE = Rule("history", "does a call depend on the calls before it", needs_scores, _check)
