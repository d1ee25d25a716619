"""Shifts tried at every position: one row or block of a table that is wrong, a bias beside large scores, and the smallest witness."""

import torch
from torch import Tensor

from eigenclock.audit.measure.samples import floor_of, lags_of, least_of, many, most_of, rounding, shifts_of, times_of
from eigenclock.audit.probe import Probe, Scores

Shift = tuple[float, float, dict[str, float], tuple[float, float]]
"""The worst relative change with its limit, the witness (t, s, shift, head), and its two scores."""
MOST = 16384
"""How many positions are tried one by one; beyond them, those at all scales are."""
ROWS = 512
KEYS = 64
SMALLEST = 1024
"""Positions among which the smallest witness is looked for in all pairs; beyond them by halving."""
NEAR = 32
"""Lags on either side whose scores say how large one is: a single one may be small by chance."""


def wrong_row(fn: Scores, probe: Probe) -> Shift | None:
    """A lag at which the query at that position scores its key at 0 otherwise than the last query a key as far before it.

    Each position is a query once, and a key once: O(length) scores.
    """
    n = min(probe.length, most_of(probe, MOST))
    last = n - 1
    q, k = probe.content(2, seed=21)
    at = torch.arange(n)
    first, late = [], []
    for some in at.split(ROWS):
        m = some.numel()
        first.append(fn(q[:, :1].expand(-1, m, -1), k, some, times_of([0.0, 0.0])).double())  # (H, m, 2)
        keys = k[:, None].expand(-1, m, -1, -1).flatten(1, 2)
        late.append(fn(q[:, :1], keys, times_of([float(last)]), (last - some).repeat_interleave(2)).double()[:, 0].unflatten(-1, (m, 2)))
    base, moved = torch.cat(first, 1), torch.cat(late, 1)
    both = torch.maximum(base.abs(), moved.abs()).nan_to_num(nan=0.0, posinf=0.0).amax((0, 2))
    size = torch.nn.functional.max_pool1d(both[None, None], 2 * NEAR + 1, 1, NEAR)[0, 0]
    size = size.clamp_min(max(floor_of(probe.dtype) * float(both.max()), least_of(probe)))
    gap = ((moved - base).abs() / size[:, None]).nan_to_num(nan=0.0, posinf=1e30)
    gap = torch.where(torch.isfinite(base) & ~torch.isfinite(moved), 1e30, gap)
    limit = rounding(probe, last)
    bad = (gap > limit).any(0).any(-1)
    if not bool(bad.any()):
        return None
    t = int(bad.int().argmax())
    h, p = (int(x) for x in torch.unravel_index(gap[:, t].argmax(), gap[:, t].shape))
    where = {"t": float(t), "s": 0.0, "shift": float(last - t), "head": h}
    return min(float(gap.max()), 1e30), limit, where, (float(base[h, t, p]), float(moved[h, t, p]))


def moved_bias(fn: Scores, probe: Probe) -> Shift | None:
    """The score of vectors that are 0, held by its own size in each head: beside large inner products its errors do not show."""
    q, k = (torch.zeros_like(x) for x in probe.content(1))
    lags, shifts = lags_of(probe), shifts_of(probe)
    base = many(fn, probe, q, k, lags, 0.0)[..., 0]  # (H, lags)
    if not bool(torch.isfinite(base).all()) or not bool(base.any()):
        return None
    for c in shifts:
        inside = [u for u in lags if u + c <= probe.length - 1]
        if not inside:
            continue
        own, moved = base[:, : len(inside)], many(fn, probe, q, k, inside, c)[..., 0]
        size = torch.maximum(own.abs(), moved.abs()).clamp_min(max(1e-3 * float(base.abs().max()), least_of(probe)))
        gap = ((moved - own).abs() / size).nan_to_num(nan=1e30, posinf=1e30)
        limits = torch.tensor([rounding(probe, u + c) for u in inside], dtype=torch.float64)
        bad = gap > limits
        if bool(bad.any()):
            i = int(bad.any(0).int().argmax())
            h = int(gap[:, i].argmax())
            where = {"t": inside[i], "s": 0.0, "shift": c, "head": h}
            return float(gap.max()), float(limits[i]), where, (float(own[h, i]), float(moved[h, i]))
    return None


def smallest(fn: Scores, probe: Probe, found: Shift, sizes: dict[float, float]) -> Shift:
    """The same fault with the smallest last position, and among those the smallest shift, that changes a score by more than rounding.

    ``sizes`` are those of scores at the lags of the first search; between them the nearest one counts.
    """
    value, _, where, _ = found
    reach = int(where["t"] + where["shift"])
    if value >= 1e30 or probe.length > MOST:
        return found  # scores that are lost: their first position is that of the growth rule
    tried = [n for n in (8, 64, 256, SMALLEST) if n < reach] + ([reach + 1] if reach < SMALLEST else [])
    q, k = probe.content(4)
    for n in tried:
        best = _in_all_pairs(fn, probe, q, k, n, sizes)
        if best is not None:
            return value, *best
    rest = _in_rows(fn, probe, q, k, reach, sizes) if reach >= SMALLEST else None
    return found if rest is None else (value, *rest)


Witness = tuple[float, dict[str, float], tuple[float, float]]


def _in_all_pairs(fn: Scores, probe: Probe, q: Tensor, k: Tensor, n: int, sizes: dict[float, float]) -> Witness | None:
    """Of all pairs of the first n positions, each against the pair of its lag whose key stands at 0."""
    at = torch.arange(n)
    lag = at[:, None] - at
    size = torch.tensor([_size(sizes, u) for u in range(n)], dtype=torch.float64)[lag.clamp_min(0)]
    limits = torch.tensor([rounding(probe, t) for t in range(n)], dtype=torch.float64)[:, None]
    best: tuple[int, int, int, tuple[float, float]] | None = None
    for p in range(q.shape[1]):
        one, other = (x[:, p : p + 1] for x in (q, k))
        z = torch.cat([fn(one.expand(-1, n, -1), other.expand(-1, s.numel(), -1), at, s).double() for s in at.split(KEYS)], -1)
        origin = z[:, :, 0][:, lag.clamp_min(0)]  # (H, n, n)
        gap = ((z - origin).abs() / size).nan_to_num(nan=0.0, posinf=0.0).masked_fill(lag < 0, 0.0)
        bad = (gap > limits).any(0)
        if bool(bad.any()):
            t = int(bad.any(-1).int().argmax())
            s = int(bad[t].int().argmax())
            if best is None or (t, s) < best[:2]:
                h = int(gap[:, t, s].argmax())
                best = t, s, h, (float(origin[h, t, s]), float(z[h, t, s]))
    if best is None:
        return None
    t, s, h, numbers = best
    return rounding(probe, t), {"t": float(t - s), "s": 0.0, "shift": float(s), "head": h}, numbers


def _in_rows(fn: Scores, probe: Probe, q: Tensor, k: Tensor, reach: int, sizes: dict[float, float]) -> Witness | None:
    """The first query that scores a key at 1 otherwise than the query before it one at 0, and its smallest shift that shows."""
    at = torch.arange(reach + 1)
    size = torch.tensor([_size(sizes, u) for u in range(reach + 1)], dtype=torch.float64)
    limits = torch.tensor([rounding(probe, t) for t in range(reach + 1)], dtype=torch.float64)
    best: tuple[int, int, int, tuple[float, float]] | None = None
    for p in range(q.shape[1]):
        one, two = q[:, p : p + 1], k[:, p : p + 1].expand(-1, 2, -1)
        z = torch.cat([fn(one.expand(-1, t.numel(), -1), two, t, torch.arange(2)).double() for t in at.split(ROWS)], 1)  # (H, T, 2)
        gap = ((z[:, 1:, 1] - z[:, :-1, 0]).abs() / size[:-1]).nan_to_num(nan=0.0, posinf=0.0)
        bad = (gap > limits[1:]).any(0)
        if not bool(bad.any()):
            continue
        t = 1 + int(bad.int().argmax())
        if best is not None and t > best[0]:
            continue
        row = torch.cat(
            [fn(one, k[:, p : p + 1].expand(-1, s.numel(), -1), times_of([t]), s).double() for s in at[: t + 1].split(ROWS)], -1
        )
        gaps = (row[:, 0] - z[:, : t + 1, 0].flip(-1)).abs() / size[: t + 1].flip(-1)  # (H, t + 1) by the shift
        shown = (gaps.nan_to_num(nan=0.0, posinf=0.0) > limits[t]).any(0)
        s = int(shown.int().argmax()) if bool(shown.any()) else 1
        if best is None or (t, s) < best[:2]:
            h = int(gaps[:, s].argmax())
            best = t, s, h, (float(z[h, t - s, 0]), float(row[h, 0, s]))
    if best is None:
        return None
    t, s, h, numbers = best
    return rounding(probe, t), {"t": float(t - s), "s": 0.0, "shift": float(s), "head": h}, numbers


def _size(sizes: dict[float, float], lag: float) -> float:
    below = max((u for u in sizes if u <= lag), default=0.0)
    above = min((u for u in sizes if u >= lag), default=below)
    return max(sizes[below], sizes[above])


def constant_in_rows(fn: Scores, probe: Probe, where: dict[str, float], size: float) -> bool:
    """Whether what a shift adds to a score is one number for all keys of a query, at the shift of a witness and at the largest one."""
    q, k = probe.content(4)
    lag = where["t"] - where["s"]

    def at(start: float) -> Tensor:
        times = (torch.full((4,), t, dtype=torch.float64) for t in (lag + start, start))
        return fn(q, k, *(times_of(t) for t in times)).double()  # (H, 4, 4)

    origin = at(0.0)
    for shift in dict.fromkeys((where["shift"], float(probe.length - 1) - lag)):
        change = (at(shift) - origin).nan_to_num(nan=1e30, posinf=1e30, neginf=-1e30)
        spread = (change.amax(-1) - change.amin(-1)).max()
        if float(change.abs().max()) > 2 * rounding(probe, lag + shift) * size and float(spread) > 0.5 * float(change.abs().max()):
            return False
    return _bias_constant(fn, probe, where["shift"])


def _bias_constant(fn: Scores, probe: Probe, shift: float) -> bool:
    """The same of what is added to the scores of one query, over near keys."""
    most = float(min(2, probe.length - 1 - shift))  # rounding grows with the bias
    keys = torch.arange(most + 1, dtype=torch.float64)
    q, k = (torch.zeros_like(x) for x in probe.content(1, int(most) + 1))

    def at(start: float) -> Tensor:
        return fn(q, k, times_of([start + most]), times_of(keys + start)).double()[:, 0].nan_to_num(neginf=-1e30)

    origin = at(0.0)
    change = at(shift) - origin
    spread, most_of = change.amax(-1) - change.amin(-1), change.abs().amax(-1)
    noise = 2 * rounding(probe, shift + most) * origin.abs().amax(-1)
    return not bool(((spread > 0.5 * most_of) & (most_of > noise)).any())


def breaks_at(fn: Scores, probe: Probe, where: dict[str, float]) -> bool:
    """Whether the scores of a witness differ in float64 as well."""
    q, k = probe.content(4)
    lag = where["t"] - where["s"]
    base, moved = (many(fn, probe, q, k, [lag], c) for c in (0.0, where["shift"]))
    size = float(base.abs().nan_to_num(posinf=0.0).max()) or 1.0
    return not float((moved - base).abs().max()) <= rounding(probe, lag + where["shift"], exact=True) * size
