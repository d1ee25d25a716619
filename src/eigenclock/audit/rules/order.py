"""Order: scores go with the times that are given, whatever their order, their ties, and the times beside them."""

import torch
from torch import Tensor

from eigenclock.audit.measure.samples import needs_scores, rounding
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule
from eigenclock.errors import EigenclockError

SOURCE = "a score belongs to its two times: their order in the call, their ties and their number are ordinary data"


ADVICE = "index by the times that are given; a count of one's own is right for sequences from 0 without padding alone"

TIMES = "use each time as it is given: no rank among the times of the call, no origin of another token, nor their largest"


def _applies(probe: Probe) -> str | None:
    return None if probe.counts else needs_scores(probe)


def _check(probe: Probe) -> list[Finding]:
    """Scores go with the times that are given, in whatever order they come; equal times are ordinary data."""
    if probe.counts:
        message = "the positions given are not used: what it gives is the same for all of them, and follows the order of its keys"
        return [Finding("order", "fault", message, None, None, {}, ADVICE, SOURCE)]
    assert probe.scores is not None
    steps = torch.tensor([0, 1, 1, 2, 4, 7, 11], dtype=torch.int64).clamp_max(probe.length - 1)
    n = steps.numel()
    q, k = probe.content(n, seed=8)
    last = steps[-1:].expand(n)
    straight = probe.scores(q, k, last, steps).double()
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    try:
        mixed = probe.scores(q, k[:, order], last, steps[order]).double()
    except EigenclockError:
        return []  # it refuses what it can't order, and says so
    gap = (mixed - straight[..., order]).abs().nan_to_num(nan=0.0, posinf=0.0)
    size = float(straight.nan_to_num(posinf=0.0, neginf=0.0).abs().max()) or 1.0
    value, limit = float(gap.max()) / size, rounding(probe, float(steps[-1]))
    if value <= limit:
        return _together(probe, steps, q, k, straight, limit * size)
    h, i, j = torch.unravel_index(gap.argmax(), gap.shape)
    was, now = float(straight[h, i, order[j]]), float(mixed[h, i, j])
    message = (
        f"a key at {int(steps[order[j]])} scores {was:.6g} in order and {now:.6g} out of order: the place in the call counts, not the time"
    )
    return [Finding("order", "fault", message, value, limit, {"s": float(steps[order[j]]), "place": int(j)}, ADVICE, SOURCE)]


def _together(probe: Probe, steps: Tensor, q: Tensor, k: Tensor, straight: Tensor, limit: float) -> list[Finding]:
    """A key in one call with others scores what it scores alone: its time counts, not how many other times there are."""
    assert probe.scores is not None
    for j, time in enumerate(steps.tolist()):
        alone = probe.scores(q, k[:, j : j + 1], steps[-1:].expand(q.shape[1]), steps[j : j + 1]).double()[..., 0]
        gap = (alone - straight[..., j]).abs().nan_to_num(nan=0.0, posinf=0.0)
        if float(gap.max()) > limit:
            h, i = torch.unravel_index(gap.argmax(), gap.shape)
            message = (
                f"a key at {time} scores {float(alone[h, i]):.6g} alone and {float(straight[h, i, j]):.6g} in a call with keys at other "
            )
            message += "times: the times beside it count"
            return [Finding("order", "fault", message, float(gap.max()), limit, {"s": float(time), "place": j}, TIMES, SOURCE)]
    return _of_queries(probe, steps, q, k, limit) or _in_pieces(probe, min(24, probe.length))


def _of_queries(probe: Probe, steps: Tensor, q: Tensor, k: Tensor, limit: float) -> list[Finding]:
    """A query in one call with others scores what it scores alone: its own time is the origin of its row, not that of another query."""
    assert probe.scores is not None
    times = steps.unique()[1:]
    n = times.numel()
    together = probe.scores(q[:, :n], k, times, steps).double()
    for i, time in enumerate(times.tolist()):
        alone = probe.scores(q[:, i : i + 1], k, times[i : i + 1], steps).double()[:, 0]
        gap = torch.where(steps <= time, (alone - together[:, i]).abs(), 0.0).nan_to_num(nan=0.0, posinf=0.0)
        if float(gap.max()) > limit:
            h, j = torch.unravel_index(gap.argmax(), gap.shape)
            message = f"a query at {time} scores a key at {int(steps[j])} by {float(alone[h, j]):.6g} alone and by "
            message += (
                f"{float(together[h, i, j]):.6g} in a call with other queries: their times count, so that decode and prefill disagree"
            )
            where = {"t": float(time), "s": float(steps[j]), "head": int(h)}
            return [Finding("order", "fault", message, float(gap.max()), limit, where, TIMES, SOURCE)]
    return []


def _in_pieces(probe: Probe, n: int) -> list[Finding]:
    """Causal attention without a cache of its own: the outputs of the first tokens are those of a call with these alone."""
    if probe.full is None or probe.kind not in ("callable", "module") or probe.decode is not None:
        return []
    q, k = probe.content(n, seed=9)
    v, times = probe.content(n, seed=10)[1], torch.arange(n)
    whole, other = (probe.full(q, x, y, times).double() for x, y in ((k, v), (_but_last(k), _but_last(v))))
    if not torch.equal(whole[:, :-1], other[:, :-1]):
        return []  # it is not causal
    limit = 2 * rounding(probe, n) * (float(whole.abs().max()) or 1.0)
    for cut in range(1, n):
        part = probe.full(q[:, :cut], k[:, :cut], v[:, :cut], times[:cut]).double()
        gap = (part[:, -1] - whole[:, cut - 1]).abs().nan_to_num(nan=torch.inf)
        if float(gap.max()) > limit:
            message = f"token {cut - 1} gives other numbers in a call with later tokens than in one that ends with it, off by "
            message += f"{float(gap.max()):.3g}: what comes after it counts, so that decode and prefill disagree"
            return [Finding("order", "fault", message, float(gap.max()), limit, {"token": cut - 1}, TIMES, SOURCE)]
    return []


def _but_last(x: Tensor) -> Tensor:
    """The same with another last token."""
    return torch.cat([x[:, :-1], -2 * x[:, -1:]], 1)


RULE = Rule("order", "do scores follow the times given, ties and order included", _applies, _check)
