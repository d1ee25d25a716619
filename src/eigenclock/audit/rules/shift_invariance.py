"""Shift invariance: scores depend on the lag alone, over the whole length, in the dtype used."""

from dataclasses import replace

import torch

from eigenclock.audit.measure.causes import Cause, causes_of, grid_of
from eigenclock.audit.measure.every_position import breaks_at, constant_in_rows, moved_bias, smallest, wrong_row
from eigenclock.audit.measure.samples import best, name_of, needs_scores, said
from eigenclock.audit.measure.shifts import keeps_rows, worst_shift
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.history import remembered
from eigenclock.audit.rules.precision import first_merged
from eigenclock.audit.rules.rule import Rule
from eigenclock.theory.axioms.sampling import told_apart

LEAST = 4
"""Fewer positions say nothing of a law."""
SOURCE = "axiom 2 of the derivation: score(t + c, s + c) = score(t, s)"


def _check(probe: Probe) -> list[Finding]:
    assert probe.scores is not None
    sizes: dict[float, float] = {}
    found = worst_shift(probe.scores, probe, sizes=sizes) or moved_bias(probe.scores, probe) or wrong_row(probe.scores, probe)
    if found is None:
        return [] if probe.factor is None else [_tempered(probe)]
    value, limit, where, numbers = found = smallest(probe.scores, probe, found, sizes)
    was, now = told_apart(*numbers)
    text = f"t = {where['t']:g}, s = {where['s']:g}: score {was}; both moved by {where['shift']:g}: {now}"
    if said(probe, "translation invariance"):
        return [Finding("shift_invariance", "advice", f"absolute positions, as it says: {text}", value, limit, where, "", SOURCE)]
    rows = all(keeps_rows(fn, probe) for fn in (probe.scores, best(probe)))  # in 16 bits much is kept that changes in float64
    if remembered(probe) is None and rows and constant_in_rows(probe.scores, probe, where, max(sizes.values())):
        message = f"scores move by a constant for each query, which softmax does not see: {text}"
        advice = "nothing under softmax; do not use it where scores multiply values (linear attention)"
        return [Finding("shift_invariance", "advice", message, value, limit, where, advice, SOURCE)]
    law = probe.exact is None or probe.dtype == torch.float64 or breaks_at(best(probe), probe, where)
    cause = causes_of(probe, head=int(where.get("head", 0)), lag=where["t"] - where["s"])
    said_why, advice = _explained(probe, law, cause)
    where = where | (cause.to_where() if cause is not None else {})
    if law and (cause is None or not cause.words or "clock" in cause.words):
        where["law_error"] = value  # nothing was rounded: all of it is the law's
    return [
        Finding(
            "shift_invariance", "fault", f"scores change when both positions move: {text}{said_why}", value, limit, where, advice, SOURCE
        )
    ]


def _tempered(probe: Probe) -> Finding:
    """The factor of a query's own position, which is no part of the law and breaks none."""
    assert probe.factor is not None
    grid = torch.tensor(grid_of(probe.length), dtype=torch.float64)
    factor = probe.factor(grid)
    off = (factor - 1).abs()
    h = int(off.amax(-1).argmax())
    clear = off[h] > 0.01 * float(off.max())
    first, last = int(clear.int().argmax()), grid.numel() - 1
    numbers = f"{float(factor[h, first]):.6g} at {grid[first]:g}, {float(factor[h, last]):.6g} at {grid[last]:g}"
    message = f"a factor of the query's own position stands on every score of its row, the law of lags behind it: {numbers}"
    where: dict[str, float] = {"t": float(grid[first]), "factor": float(factor[h, first]), "head": h}
    advice = "nothing, if it is meant (a temperature by position): keys in a cache stay valid, and queries keep their own positions"
    return Finding("shift_invariance", "advice", message, float(factor[h, last]), 1.0, where, advice, SOURCE)


def _explained(probe: Probe, law: bool, cause: Cause | None) -> tuple[str, str]:
    if cause is not None and "clock" in cause.words:
        return (
            f" (the law itself, not by rounding: {cause.words})",
            "use the position itself as the clock, or a clock of which only differences enter",
        )
    if cause is not None and cause.words:
        return f" ({cause.words})", "keep frequencies, positions and angles in float32 or better, and round cos and sin once, at the end"
    merged = first_merged(probe) if law else None
    if merged is not None and merged >= 0 and _keeps_before(probe, merged):
        words = f" (positions are rounded before use: {merged:.0f} and {merged + 1:.0f} are one)"
        return words, "keep positions as integers or in float32 or better, and take their difference before anything is rounded"
    if law:
        return " (the law itself: not by rounding)", "the score must be q^T exp((t - s) L) k: look for what depends on one position alone"
    return (
        f" (by rounding: in float64 the law holds, in {name_of(probe.dtype)} it does not)",
        "compute the differences of positions before they are rounded, and both factors with a reference between key and query",
    )


def _keeps_before(probe: Probe, merged: float) -> bool:
    """Whether the law holds among the positions up to the first that is one with its successor: else rounding is not what breaks it."""
    length = int(merged) + 1
    return length < LEAST or worst_shift(best(probe), replace(probe, length=length)) is None


RULE = Rule("shift_invariance", "do scores depend on the lag alone", needs_scores, _check)
