"""Scores as both positions move: the worst change, whether softmax sees it, whether the law of lags holds in float64."""

from typing import Any

import torch
from torch import Tensor

from eigenclock.audit.measure.every_position import Shift
from eigenclock.audit.measure.samples import best, floor_of, least_of, rounding, shifted, size_at, times_of
from eigenclock.audit.probe import Probe, Scores


def worst_shift(fn: Scores, probe: Probe, exact: bool = False, sizes: dict[float, float] | None = None) -> Shift | None:
    """The worst relative change with its limit, and the smallest witness (t, s, shift, the two scores); None where all are rounding.

    The sizes of scores at its lags are written into ``sizes``.
    """
    lags, shifts, base, moved = shifted(fn, probe)
    size = size_at(base, moved, 1e-6 if exact else floor_of(probe.dtype), least_of(probe))
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


def lags_either_way(probe: Probe) -> list[float]:
    """Lags at which keys before the query are set beside keys after it."""
    return [u for u in (0.0, 1.0, 8.0, 64.0, 256.0, 1024.0, float(probe.length // 2)) if u < probe.length]


def ahead(probe: Probe, q: Tensor, k: Tensor, lags: list[float]) -> Tensor:
    """Scores (H, lags, P) of queries at 0 with keys after them."""
    fn, n, p = best(probe), len(lags), q.shape[1]
    keys = torch.tensor(lags, dtype=torch.float64).long().repeat_interleave(p)
    z = fn(q, k.repeat(1, n, 1), torch.zeros(p, dtype=torch.int64), keys).double()
    return z.unflatten(-1, (n, p)).diagonal(dim1=1, dim2=-1)
