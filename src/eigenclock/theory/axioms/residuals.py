"""How the axioms are measured: samples of two maps at many times, and the smallest witness where a residual exceeds its limit."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from eigenclock.errors import ShapeError
from eigenclock.theory.axioms.group_law import Blocks
from eigenclock.theory.axioms.sampling import Kernel, Map, Residual, Sampling, Witness, scale_of, told_apart, unknown


class Subject:
    """Two maps with the content and times they are tried on; what a map gave at a time is kept."""

    def __init__(self, F: Map, G: Map, q: Tensor, k: Tensor, at: Sampling):
        self.maps, self.contents, self.at, self.grid = (_plain(F, at.dtype), _plain(G, at.dtype)), (q, k), at, at.grid()
        self._kept: dict[tuple[int, float], Tensor] = {}
        a, b = self.moved(0, self.grid[0]), self.moved(1, self.grid[0])
        if a.shape[-1] != b.shape[-1]:
            raise ShapeError(f"got queries of width {a.shape[-1]} and keys of width {b.shape[-1]} after the maps; expected one width")

    def moved(self, side: int, t: float) -> Tensor:
        if (side, t) not in self._kept:
            self._kept[side, t] = self.maps[side](self.contents[side], t)
        return self._kept[side, t]

    def scores(self, queries: Sequence[float], keys: Sequence[float]) -> Tensor:
        """(N, T, S)"""
        moved = [torch.stack([self.moved(side, t) for t in times]) for side, times in ((0, queries), (1, keys))]
        return torch.einsum("tne,sne->nts", *moved)

    def matrix(self, side: int, t: float, affine: bool) -> Tensor:
        """Rows F(e_i, t); where affine, first the constant part, in the coordinate that is always 1."""
        dim = self.contents[side].shape[-1]
        eye = torch.eye(dim, dtype=torch.float64)
        if not affine:
            return self.maps[side](eye, t)
        rows = self.maps[side](torch.cat([eye.new_zeros(1, dim), eye]), t)
        return torch.cat([rows[:1], rows[1:] - rows[:1]])

    def lag(self, affine: bool) -> Kernel:
        """A(u) = F(u)^T G(0), and F(0)^T G(-u) for negative u."""
        zero = [self.matrix(side, 0.0, affine) for side in (0, 1)]
        return lambda u: self.matrix(0, u, affine) @ zero[1].mT if u >= 0 else zero[0] @ self.matrix(1, -u, affine).mT

    def blocks(self, affine: bool) -> Blocks:
        """H(u) = F(c + a + u)^T G(c - b), with c large enough for all times to be positive."""
        kept: dict[tuple[int, float], Tensor] = {}

        def row(side: int, t: float) -> Tensor:
            if (side, t) not in kept:
                kept[side, t] = self.matrix(side, t, affine)
            return kept[side, t]

        def block(lags: list[float], u: float) -> Tensor:
            middle = max(lags) if self.at.causal else 2 * self.at.span
            return torch.cat([row(0, middle + a + u) for a in lags]) @ torch.cat([row(1, middle - b) for b in lags]).mT

        return block


def _plain(move: Map, dtype: torch.dtype) -> Map:
    """The map of vectors in a dtype, its answer in float64 and without a graph."""
    return lambda x, t: move(x.to(dtype), t).detach().double()


def linearity_of(subject: Subject) -> tuple[Residual, bool]:
    """How far the maps are from affine, F(ax + by) = aF(x) + bF(y) for a + b = 1, and whether they have a constant part F(0)."""
    at, gaps, found, constant, lost = subject.at, [], None, 0.0, 0
    for side, name in ((0, "queries"), (1, "keys")):
        x, move = subject.contents[side], subject.maps[side]
        y = x.roll(1, 0) if x.shape[0] > 1 else x + 1
        for t in subject.grid:
            fx, fy, both = subject.moved(side, t), move(y, t), move(1.75 * x - 0.75 * y, t)
            expected = 1.75 * fx - 0.75 * fy
            if not bool(torch.isfinite(expected + both).all()):
                lost += 1
                continue
            scale = scale_of([fx, fy])
            gap = (both - expected).abs() / scale
            value, place = float(gap.max()), int(gap.argmax())
            constant = max(constant, float(move(torch.zeros_like(x[:1]), t).abs().nan_to_num(nan=0.0).max()) / scale)
            if value > at.limit and found is None:
                values = (float(both.flatten()[place]), float(expected.flatten()[place]))
                text = f"{name} at t = {t:g}: F(1.75 x - 0.75 y) has an entry {values[0]:.6g}, the combination {values[1]:.6g}"
                found = Witness((t,), values, text, defect=value)
            gaps.append(value)
    affine = constant > at.limit
    notes = (["affine: linear once a constant coordinate is appended"] if affine and found is None else []) + _left_out(lost, "times")
    return Residual("linearity", max(gaps) if gaps else None, at.limit, found, "; ".join(notes)), affine


def _left_out(n: int, what: str) -> list[str]:
    return [f"{n} {what} left out, not finite"] if n else []


def shift_invariance_of(subject: Subject) -> Residual:
    at, grid, moves = subject.at, torch.tensor(subject.grid, dtype=torch.float64), subject.at.moves()
    base = subject.scores(subject.grid, subject.grid)
    moved = torch.stack([subject.scores(*[[t + c for t in subject.grid]] * 2) for c in moves])  # (C, N, T, S)
    tried = (grid[:, None] >= grid) | (not at.causal)
    finite = torch.isfinite(moved) & torch.isfinite(base) & tried
    scale = scale_of([base[:, tried], moved[:, :, tried]])
    gap = torch.where(finite, (moved - base).abs(), 0.0).nan_to_num() / scale
    size = torch.maximum(torch.maximum(grid[:, None], grid), torch.tensor(moves, dtype=torch.float64)[:, None, None])
    size = size + 1e-6 * (grid[:, None] + grid + torch.tensor(moves, dtype=torch.float64)[:, None, None])  # the smallest first
    worst, probe = gap.max(1)
    found = None
    if bool((worst > at.limit).any()):
        c, i, j = torch.unravel_index(torch.where(worst > at.limit, size, torch.inf).argmin(), worst.shape)
        n = probe[c, i, j]
        t, s, shift, values = float(grid[i]), float(grid[j]), moves[int(c)], (float(base[n, i, j]), float(moved[c, n, i, j]))
        was, now = told_apart(*values)
        text = f"t = {t:g}, s = {s:g}: score {was}; both moved by {shift:g}: {now}"
        found = Witness((t, s), values, text, shift, float(worst[c, i, j]))
    lost = int((~finite & tried).sum())
    return Residual("shift_invariance", float(worst.max()), at.limit, found, "; ".join(_left_out(lost, "scores")))


def contragredience_of(subject: Subject) -> Residual:
    at, zero = subject.at, subject.grid[0]
    first = (subject.moved(0, zero) * subject.moved(1, zero)).sum(-1)
    equal = {t: (subject.moved(0, t) * subject.moved(1, t)).sum(-1) for t in subject.grid}
    grid = torch.tensor(subject.grid)
    scale = scale_of([subject.scores(subject.grid, subject.grid)[:, grid[:, None] >= grid]])  # scores at equal times may all be 0
    worst, found, lost = 0.0, None, 0
    for t, now in equal.items():
        gap = (now - first).abs() / scale
        if not bool(torch.isfinite(gap).all()):
            lost += 1
            continue
        n = int(gap.argmax())
        if float(gap[n]) > at.limit and found is None:
            values = (float(first[n]), float(now[n]))
            text = f"score {values[0]:.6g} of a query and a key both at {zero:g}, {values[1]:.6g} of both at {t:g}"
            found = Witness((zero, t), values, text, t - zero, float(gap[n]))
        worst = max(worst, float(gap[n]))
    return Residual("contragredience", worst, at.limit, found, "; ".join(_left_out(lost, "times")))


def continuity_of(subject: Subject) -> Residual:
    at, grid = subject.at, subject.grid
    zero, last = grid[0], grid[-1]
    by_query = jump_of(lambda u: (subject.maps[0](subject.contents[0], u) * subject.moved(1, zero)).sum(-1), grid, "t", at)
    by_key = jump_of(lambda u: (subject.moved(0, last) * subject.maps[1](subject.contents[1], u)).sum(-1), grid, "s", at)
    return max((by_query, by_key), key=lambda r: -1.0 if r.value is None else r.value)


def jump_of(f: Callable[[float], Tensor], grid: Sequence[float], name: str, at: Sampling) -> Residual:
    """The largest change that is left when an interval between two times is halved towards it, until the times are neighbours."""
    if at.integer:
        return unknown("continuity", at, "times are integers")
    ends = [f(u) for u in grid]
    scale = scale_of(ends)
    worst, found = 0.0, None
    for (low, a), (high, b) in pairwise(zip(grid, ends, strict=True)):
        while high - low > max(1e-30, 1e-15 * max(abs(low), abs(high))):
            change = (b - a).abs().nan_to_num()
            if float(change.max()) <= at.limit * scale / 4:
                break
            middle = low + (high - low) / 2
            m = f(middle)
            if float((m - a).abs().nan_to_num().max()) >= float((b - m).abs().nan_to_num().max()):
                high, b = middle, m
            else:
                low, a = middle, m
        gap = (b - a).abs().nan_to_num() / scale
        n = int(gap.argmax())
        if float(gap[n]) > at.limit and found is None:
            values = (float(a[n]), float(b[n]))
            text = f"at {name} = {high:.9g} the score jumps from {values[0]:.6g} to {values[1]:.6g}"
            found = Witness((low, high), values, text, high - low, float(gap[n]))
        worst = max(worst, float(gap[n]))
    return Residual("continuity", worst, at.limit, found)


def even_of(subject: Subject) -> bool | None:
    """Whether scores stay the same when query and key exchange their times; None where only one order is tried."""
    if subject.at.causal:
        return None
    z = subject.scores(subject.grid, subject.grid)
    return bool((z - z.mT).abs().nan_to_num().max() <= subject.at.limit * scale_of([z]))
