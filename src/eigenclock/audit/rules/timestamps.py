"""Timestamps: a large origin, ties, and order, for what takes real times; the order of times for whole positions too."""

import torch
from torch import Tensor

from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.linearity import keeps_lags
from eigenclock.audit.rules.rule import Rule
from eigenclock.audit.rules.samples import needs_scores, rounding
from eigenclock.errors import EigenclockError

SOURCE = "neighbouring float32 numbers at 1.7e9 (seconds since 1970) are 128 apart; float64 ones 2.4e-7"
NOW = 1_700_000_000
UNITS = {1: "seconds", 1_000: "milliseconds", 1_000_000: "microseconds", 1_000_000_000: "nanoseconds"}
NAMES = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def _applies(probe: Probe) -> str | None:
    if probe.kind in ("config", "model", "checkpoint"):
        return "its positions count tokens"
    return needs_scores(probe) or (None if probe.fractional or _second(probe)[1] else "it takes whole positions only")


def _check(probe: Probe) -> list[Finding]:
    """Steps of the subject's own unit and of a second, at the origin and now: int64 throughout, since float64 rounds nanoseconds to 256."""
    assert probe.scores is not None
    if not keeps_lags(probe):
        return []
    second, used = _second(probe)
    now, unit = NOW * second, UNITS[second]
    own = None if probe.encoding is None else probe.encoding.clock.unit
    since = f" ({unit} since 1970)" if own is None or own in NAMES else ""
    found = []
    for step in dict.fromkeys((1, second)):
        steps = step * torch.tensor([0, 1, 2, 3, 5, 8, 13, 14], dtype=torch.int64)
        steps = steps if step > 1 else steps.clamp_max(probe.length - 1).unique()
        near = _scores(probe, steps)
        try:
            far = _scores(probe, steps + now)
        except (EigenclockError, ValueError, IndexError, RuntimeError) as error:
            message = f"times near {now} are refused: {' '.join(str(error).split())[:120]}"
            return [Finding("timestamps", "advice", message, None, None, {"t": now}, "subtract an origin first, in int64", SOURCE)]
        gap, lost = _moved(near, far)
        limit = max(0.01, rounding(probe, 0))
        if gap <= limit and not lost:
            continue
        merged = bool((far.std(-1)[..., 1:] == 0).all()) if far.shape[-1] > 1 else False
        what = "some scores are no longer finite" if lost else f"scores are off by {gap:.3g} of their size"
        message = f"with times near {now}{since} {what}" + ("; all lags look alike" if merged else "")
        where = {"t": now} | ({"step": step} if step > 1 else {})
        advice = "keep timestamps in int64, subtract an origin there, and give what is left"
        found = [Finding("timestamps", "fault" if used else "advice", message, gap, limit, where, advice, SOURCE)]
    return found


def _second(probe: Probe) -> tuple[int, bool]:
    """How many units of its clock a second has, and whether the subject is used with such times: its clock or the length says so."""
    unit = None if probe.encoding is None else probe.encoding.clock.unit
    if unit is not None:
        return NAMES.get(unit, 1), True
    within = [second for second in UNITS if NOW * second < probe.length]
    return max(within, default=1), bool(within)


def _moved(near: Tensor, far: Tensor) -> tuple[float, bool]:
    """How far scores move, as a part of the largest, and whether some are finite at one end alone."""
    both = torch.isfinite(near) & torch.isfinite(far)
    size = float(near[both].abs().max()) if bool(both.any()) else 1.0
    gap = float((far - near)[both].abs().max()) / (size or 1.0) if bool(both.any()) else 0.0
    return gap, not bool((torch.isfinite(near) == torch.isfinite(far)).all())


def _scores(probe: Probe, times: Tensor) -> Tensor:
    assert probe.scores is not None
    n = times.numel()
    q, k = probe.content(n, seed=7)
    return probe.scores(q, k, times, times).double()


def _order(probe: Probe) -> list[Finding]:
    """Scores go with the times that are given, in whatever order they come; equal times are ordinary data."""
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
    advice = "index by the times that are given; a count of one's own is right for sequences from 0 without padding alone"
    return [Finding("order", "fault", message, value, limit, {"s": float(steps[order[j]]), "place": int(j)}, advice, SOURCE)]


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
            advice = "use each time as it is given: no rank among the times of the call, nor their largest"
            return [Finding("order", "fault", message, float(gap.max()), limit, {"s": float(time), "place": j}, advice, SOURCE)]
    return []


RULE = Rule("timestamps", "does it take seconds since 1970", _applies, _check)
ORDER = Rule("order", "do scores follow the times given, ties and order included", needs_scores, _order)
