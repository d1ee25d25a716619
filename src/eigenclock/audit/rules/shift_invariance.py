"""Shift invariance: scores depend on the lag alone, over the whole length, in the dtype used."""

from typing import Any

import torch
from torch import Tensor

from eigenclock.audit.probe import Probe, Scores
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.causes import Cause, causes_of
from eigenclock.audit.rules.every_position import Shift, breaks_at, constant_in_rows, moved_bias, smallest, wrong_row
from eigenclock.audit.rules.history import remembered
from eigenclock.audit.rules.precision import first_merged
from eigenclock.audit.rules.rule import Rule
from eigenclock.audit.rules.samples import best, floor_of, name_of, needs_scores, rounding, said, shifted, size_at, times_of

SOURCE = "axiom 2 of the derivation: score(t + c, s + c) = score(t, s)"


def _check(probe: Probe) -> list[Finding]:
    assert probe.scores is not None
    sizes: dict[float, float] = {}
    found = worst_shift(probe.scores, probe, sizes=sizes) or moved_bias(probe.scores, probe) or wrong_row(probe.scores, probe)
    if found is None:
        return []
    value, limit, where, numbers = found = smallest(probe.scores, probe, found, sizes)
    text = f"t = {where['t']:g}, s = {where['s']:g}: score {numbers[0]:.6g}; both moved by {where['shift']:g}: {numbers[1]:.6g}"
    if said(probe, "translation invariance"):
        return [Finding("shift_invariance", "advice", f"absolute positions, as it says: {text}", value, limit, where, "", SOURCE)]
    rows = all(keeps_rows(fn, probe) for fn in (probe.scores, best(probe)))  # in 16 bits much is kept that changes in float64
    if remembered(probe) is None and rows and constant_in_rows(probe.scores, probe, where, max(sizes.values())):
        message = f"scores move by a constant for each query, which softmax does not see: {text}"
        advice = "nothing under softmax; do not use it where scores multiply values (linear attention)"
        return [Finding("shift_invariance", "advice", message, value, limit, where, advice, SOURCE)]
    law = probe.exact is None or probe.dtype == torch.float64 or breaks_at(best(probe), probe, where)
    cause = causes_of(probe, head=int(where.get("head", 0)))
    said_why, advice = _explained(probe, law, cause)
    where = where | (cause.to_where() if cause is not None else {})
    if law and (cause is None or not cause.words or "clock" in cause.words):
        where["law_error"] = value  # nothing was rounded: all of it is the law's
    return [
        Finding(
            "shift_invariance", "fault", f"scores change when both positions move: {text}{said_why}", value, limit, where, advice, SOURCE
        )
    ]


def _explained(probe: Probe, law: bool, cause: Cause | None) -> tuple[str, str]:
    if cause is not None and "clock" in cause.words:
        return (
            f" (the law itself, not by rounding: {cause.words})",
            "use the position itself as the clock, or a clock of which only differences enter",
        )
    if cause is not None and cause.words:
        return f" ({cause.words})", "keep frequencies, positions and angles in float32 or better, and round cos and sin once, at the end"
    merged = first_merged(probe) if law else None
    if merged is not None and merged >= 0:
        words = f" (positions are rounded before use: {merged:.0f} and {merged + 1:.0f} are one)"
        return words, "keep positions as integers or in float32 or better, and take their difference before anything is rounded"
    if law:
        return " (the law itself: not by rounding)", "the score must be q^T exp((t - s) L) k: look for what depends on one position alone"
    return (
        f" (by rounding: in float64 the law holds, in {name_of(probe.dtype)} it does not)",
        "compute the differences of positions before they are rounded, and both factors with a reference between key and query",
    )


def worst_shift(fn: Scores, probe: Probe, exact: bool = False, sizes: dict[float, float] | None = None) -> Shift | None:
    """The worst relative change with its limit, and the smallest witness (t, s, shift, the two scores); None where all are rounding.

    The sizes of scores at its lags are written into ``sizes``.
    """
    lags, shifts, base, moved = shifted(fn, probe)
    size = size_at(base, moved, 1e-6 if exact else floor_of(probe.dtype))
    if sizes is not None:
        sizes.update(zip(lags, size.tolist(), strict=True))
    eps = torch.finfo(torch.float64).eps if exact else probe.unit_roundoff
    raw = base.nan_to_num(posinf=0.0, neginf=0.0).abs().max()
    slack = 4 * eps * torch.maximum(raw, moved.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs().max())
    given = torch.tensor([[u + c <= probe.length - 1 for u in lags] for c in shifts])[:, None, :, None].expand(moved.shape)
    gap = torch.where(given, (moved - base).abs(), 0.0).nan_to_num(nan=0.0, posinf=0.0)
    gap = torch.where(torch.isfinite(base) & ~torch.isfinite(moved) & given, torch.inf, gap)
    gap = ((gap - slack).clamp_min(0) / size[:, None]).nan_to_num(nan=0.0, posinf=1e30)
    late = _table([[rounding(probe, u + c, exact) for u in lags] for c in shifts])
    bad = (gap > late[:, None, :, None]).any(1).any(-1)
    if not bool(bad.any()):
        return None
    reach = _table([[max(u + c, c) + 1e-3 * u for u in lags] for c in shifts])
    i, j = torch.unravel_index(torch.where(bad, reach, torch.inf).argmin(), bad.shape)
    h, p = torch.unravel_index(gap[i, :, j].argmax(), gap[i, :, j].shape)
    where: dict[str, float] = {"t": lags[int(j)], "s": 0.0, "shift": shifts[int(i)], "head": int(h)}
    value = min(float(gap.max()), 1e30)
    return value, float(late[i, j]), where, (float(base[h, j, p]), float(moved[i, h, j, p]))


def _table(numbers: list[Any]) -> Tensor:
    """In float64: positions of seconds since 1970 are one in float32."""
    return torch.tensor(numbers, dtype=torch.float64)


def keeps_rows(fn: Scores, probe: Probe) -> bool:
    """Whether differences of scores within a row keep to the lags, so that softmax sees the lags alone."""
    q, k = probe.content(4)
    far = float(max(2, (probe.length - 1) // 4))
    lags = [0.0, 1.0, 2.0, far / 2 // 1, far]

    def rows(c: float) -> Tensor:
        queries = times_of(torch.full((4,), c + far, dtype=torch.float64))
        keys = times_of((c + far - torch.tensor(lags[::-1], dtype=torch.float64)).repeat_interleave(4))
        z = fn(q, k.repeat(1, len(lags), 1), queries, keys).double().unflatten(-1, (-1, 4))  # (H, P, lags, P)
        return z - z[:, :, -1:, :1]

    base = rows(0.0)
    top = max(float(base.abs().nan_to_num(posinf=0.0).max()), 1e-300)
    for c in (1.0, 3.0, 257.0, float(probe.length - 1) - far):
        if (
            0 < c <= probe.length - 1 - far
            and not float((rows(c) - base).abs().nan_to_num(nan=1e30).max()) <= rounding(probe, c + far) * top
        ):
            return False
    return True


def exact_law(probe: Probe) -> bool:
    """Whether the law of lags holds in float64, as far as the subject shows."""
    return worst_shift(best(probe), probe, exact=True) is None


RULE = Rule("shift_invariance", "do scores depend on the lag alone", needs_scores, _check)
