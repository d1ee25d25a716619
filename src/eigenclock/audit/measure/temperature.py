"""A factor of the query's own position on a whole row of scores: legal, since it moves no key, and taken off before the law is measured."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from eigenclock.audit.measure.causes import grid_of
from eigenclock.audit.measure.samples import best, rounding, times_of
from eigenclock.audit.measure.shifts import worst_shift
from eigenclock.audit.probe import Action, Probe, Scores

ROWS = 64
"""How many positions are measured at once."""
MOST = 16.0
"""A factor that leaves 1 / MOST .. MOST within the length is no temperature: it is a decay or a growth on one side."""
Factor = Callable[[Tensor], Tensor]


def factor_of(fn: Scores, probe: Probe) -> Factor:
    """Times (T,) -> the factor (H, T) of a query with a key beside it, against the same at 0; each time is measured once."""
    known = dict[float, Tensor]()
    k = probe.content(2, seed=31)[1]
    q = k.repeat_interleave(probe.heads // probe.kv_heads, 0)

    def measure(times: Tensor) -> Tensor:
        n, at = times.numel(), times_of(times.repeat_interleave(2))
        z = fn(q.repeat(1, n, 1), k.repeat(1, n, 1), at, at).double()
        return z.diagonal(dim1=1, dim2=2).unflatten(-1, (n, 2)).double()  # (H, n, 2)

    origin = measure(torch.zeros(1, dtype=torch.float64))

    def factor(times: Tensor) -> Tensor:
        values, place = times.double().unique(return_inverse=True)
        new = torch.tensor([t for t in values.tolist() if t not in known], dtype=torch.float64)
        for some in new.split(ROWS) if new.numel() else ():
            found = (measure(some) * origin).sum(-1) / origin.square().sum(-1)
            known.update(zip(some.tolist(), found.unbind(-1), strict=False))
        return torch.stack([known[t] for t in values.tolist()], -1)[:, place]

    return factor


def tempered(probe: Probe) -> Probe:
    """The probe with such a factor taken off, where it has one and keeps the law of lags without it."""
    if probe.scores is None or probe.encoding is not None or probe.as_read or probe.length < 3:
        return probe
    grid = torch.tensor(grid_of(probe.length), dtype=torch.float64)
    exact = None if probe.exact is None else factor_of(best(probe), probe)
    factor = exact
    if factor is None or not _shows(factor, grid, probe, exact=True):
        factor, exact = factor_of(probe.scores, probe), None  # what is made in float64 may leave out what attention puts on queries
        if not _shows(factor, grid, probe, exact=False):
            return probe
    cooled = replace(
        probe,
        scores=_cooled(probe.scores, factor),
        exact=probe.exact if exact is None or probe.exact is None else _cooled(probe.exact, factor),
        action=None if probe.action is None else _cooled_action(probe.action, factor),
        factor=factor,
    )
    assert cooled.scores is not None
    return probe if worst_shift(cooled.scores, cooled) is not None else cooled


def _shows(factor: Factor, grid: Tensor, probe: Probe, exact: bool) -> bool:
    """Whether a factor is more than rounding somewhere, and a temperature everywhere.

    One that is exponential in the position is none: it comes of a growth or decay that one side does not undo.
    """
    found = factor(grid)
    limits = torch.tensor([2 * rounding(probe, t, exact) for t in grid.tolist()])
    if not bool(((found - 1).abs() > limits).any()) or not bool(((found > 1 / MOST) & (found < MOST)).all()):
        return False
    log = found.log()
    straight = log[:, -1:] * grid / grid[-1]
    return bool(((log - straight).abs() > 0.05 * log.abs().amax() + limits).any())


def _cooled(fn: Scores, factor: Factor) -> Scores:
    def scores(q: Tensor, k: Tensor, query_times: Tensor, key_times: Tensor) -> Tensor:
        z = fn(q, k, query_times, key_times)
        return (z.double() / factor(query_times)[..., None]).to(z.dtype)

    return scores


def _cooled_action(action: Action, factor: Factor) -> Action:
    def moved(q: Tensor, k: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        a, b = action(q, k, times)
        return (a.double() / factor(times)[..., None]).to(a.dtype), b

    return moved
