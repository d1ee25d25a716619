"""Timestamps: a large origin and the steps of the subject's own unit there, for what takes real times."""

from dataclasses import replace

import torch
from torch import Tensor

from eigenclock.audit.measure.length import held
from eigenclock.audit.measure.samples import needs_scores, rounding
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.linearity import keeps_lags
from eigenclock.audit.rules.rule import Rule
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
        if (gap <= limit and not lost) or (not used and _by_length(probe, steps, now, limit)):
            continue
        merged = bool((far.std(-1)[..., 1:] == 0).all()) if far.shape[-1] > 1 else False
        what = "some scores are no longer finite" if lost else f"scores are off by {gap:.3g} of their size"
        message = f"with times near {now}{since} {what}" + ("; all lags look alike" if merged else "")
        where = {"t": now} | ({"step": step} if step > 1 else {})
        advice = "keep timestamps in int64, subtract an origin there, and give what is left"
        found = [Finding("timestamps", "fault" if used else "advice", message, gap, limit, where, advice, SOURCE)]
    return found


def _by_length(probe: Probe, steps: Tensor, now: int, limit: float) -> bool:
    """Whether what changes is what the longest position of a call changes: then times near now are no worse than others."""
    assert probe.scores is not None
    fn = held(probe.scores, now + float(steps[-1]))
    gap, lost = _moved(*(_scores(replace(probe, scores=fn), times) for times in (steps, steps + now)))
    return gap <= limit and not lost


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


RULE = Rule("timestamps", "does it take seconds since 1970", _applies, _check)
