"""The group law of a score A(u): B(u) B(v) = B(u + v) after normalising by A(0), or over blocks of lags where A(0) is singular."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from eigenclock.theory.axioms.sampling import Kernel, Residual, Sampling, Witness, scale_of

ROWS = 1300
"""Rows of the largest block matrix in the singular case."""


class Law(NamedTuple):
    """The group law of A(u), the rank of A(0), the size of L, and the width of A."""

    residual: Residual
    rank: int | None = None
    size: int | None = None
    width: int = 0


Blocks = Callable[[list[float], float], Tensor]
"""H(u) over some lags: rows A(a + b + u), block by block."""


def blocks_of(A: Kernel) -> Blocks:
    """H(u) from a function of the lag; values are kept."""
    known: dict[float, Tensor] = {}

    def value(lag: float) -> Tensor:
        if lag not in known:
            known[lag] = A(lag).double()
        return known[lag]

    return lambda lags, u: torch.cat([torch.cat([value(a + b + u) for b in lags], -1) for a in lags], -2)


def law_of(A: Kernel, at: Sampling, blocks: Blocks | None = None, inner: int | None = None) -> Law:
    """B(u) B(v) = B(u + v) where A(0) is invertible and as wide as the space the maps meet in (``inner``); else the same over blocks."""
    zero = A(0.0).double()
    singular_values = torch.linalg.svdvals(zero)
    rank = int((singular_values > 1e-10 * singular_values[0].clamp_min(1e-300)).sum())
    width = max(zero.shape)
    if rank < width or inner != width:  # a sum of cosines has A(0) > 0, and is a group of many dimensions seen through one
        residual, size = _blockwise(blocks or blocks_of(A), at, rank, width, inner)
        return Law(residual, rank, size, width)
    inverse = torch.linalg.inv(zero)
    condition = float(singular_values[0] / singular_values[-1])
    limit = at.limit * max(1.0, condition / 1e3)
    times = at.grid()
    pairs = [(u, v) for u in times for v in (times if at.causal else (*times, *(-t for t in times if t)))]
    pairs.sort(key=lambda p: (max(abs(p[0]), abs(p[1])), abs(p[0]) + abs(p[1])))
    known: dict[float, Tensor] = {u: A(u).double() @ inverse for u in {x for u, v in pairs for x in (u, v, u + v)}}
    scale = scale_of([torch.linalg.matrix_norm(m, 2) for m in known.values() if bool(torch.isfinite(m).all())])
    worst, found = 0.0, None
    for u, v in pairs:
        left, right = known[u] @ known[v], known[u + v]
        if not bool((torch.isfinite(left) & torch.isfinite(right)).all()):
            continue
        gap = float(torch.linalg.matrix_norm(left - right, 2)) / scale
        if gap > limit and found is None:
            place = int((left - right).abs().argmax())
            values = (float(left.flatten()[place]), float(right.flatten()[place]))
            text = f"u = {u:g}, v = {v:g}: B(u) B(v) has an entry {values[0]:.6g}, B(u + v) {values[1]:.6g}"
            found = Witness((u, v), values, text, defect=gap)
        worst = max(worst, gap)
    note = "" if condition <= 1e3 else f"A(0) has condition {condition:.1e}"
    return Law(Residual("group_law", worst, limit, found, note), rank, width, width)


def _blockwise(blocks: Blocks, at: Sampling, rank: int, width: int, inner: int | None) -> tuple[Residual, int | None]:
    """The singular case: the same law for H(u) = (A(a + b + u)) over some lags a and b, H(u) H(0)^+ H(v) = H(u + v).

    A realisation C exp(uL) B makes H(u) = O exp(uL) R, and once the rank of H(0) is the size of L the law holds. Lags at all scales let
    fast decays and slow turns show alike. Maps bound the size of L by their ``inner`` width, and get as many lags as that takes; scores
    known by their lags alone are asked to continue far beyond the lags that L was read from.
    """
    limit = max(at.limit, 1e-6)
    ladder = [at.span / 2**j for j in range(1, 9)]
    more = [*ladder, *(0.75 * u for u in ladder)]
    sets = [ladder[4:5], ladder[1:6:2], ladder, more]
    if inner is not None:
        room = ROWS // width // (1 if at.causal else 2) - len(more) - 1
        sets.append([*more, *at.random(max(0, min(inner if at.causal else inner // 2, room)), 3).mul(at.span).tolist()])

    def whole(lags: list[float]) -> list[float]:
        lags = [max(1.0, float(round(u))) if at.integer and u else u for u in lags]
        return sorted({*lags, *(() if at.causal else (-u for u in lags))})

    moves = whole([0.0, ladder[6], ladder[3], *([] if inner is not None else [ladder[1], at.span])])
    nearest = min((u for u in moves if u), key=abs)
    value, witness, size = torch.inf, None, None
    for chosen in sets:
        lags = whole([0.0, *chosen])
        if value < torch.inf and len(lags) * width > ROWS:
            break
        u, s, v = torch.linalg.svd(blocks(lags, 0.0), full_matrices=False)
        n = int((s > 1e-11 * s[:1].clamp_min(1e-300)).sum())
        inverse = (v[:n].mT / s[:n]) @ u[:, :n].mT
        moved = {move: blocks(lags, move) for move in moves}
        wanted = {(x, y): blocks(lags, x + y) for x in moves for y in moves}
        scale = scale_of([*moved.values(), *wanted.values()])
        gaps = {pair: (moved[pair[0]] @ inverse @ moved[pair[1]] - h).abs().nan_to_num(nan=torch.inf) / scale for pair, h in wanted.items()}
        worst = max(float(gap.max()) for gap in gaps.values())
        if worst <= limit and n and _forgets(u[:, :n].mT @ moved[nearest] @ v[:n].mT, s[:n]):
            text = "the scores follow a chain of delays that ends, which loses dimensions as no exp(uL) does"
            return Residual("group_law", 1.0, limit, Witness((0.0, nearest), (1.0, 0.0), text, defect=1.0)), None
        if worst < value:
            bad = sorted(
                (pair for pair, gap in gaps.items() if float(gap.max()) > limit), key=lambda p: (max(map(abs, p)), sum(map(abs, p)))
            )
            value, witness, size = worst, _unlike(bad[0], gaps[bad[0]], lags, wanted[bad[0]]) if bad else None, n
        if worst <= limit:
            break
    if value > limit:
        return Residual("group_law", value, limit, witness, f"A(0) has rank {rank} of {width}; no L of finite size was found"), None
    return Residual("group_law", value, limit, note=f"A(0) has rank {rank} of {width}: A(u) = C exp(uL) B with L of size {size}"), size


def _forgets(moved: Tensor, s: Tensor) -> bool:
    """Whether exp(uL) of a realisation, in balanced coordinates, is singular."""
    values = torch.linalg.svdvals(moved / s.sqrt() / s.sqrt()[:, None])
    return bool(values[-1] < 1e-12 * values[0])


def _unlike(pair: tuple[float, float], gap: Tensor, lags: list[float], wanted: Tensor) -> Witness:
    row, column = divmod(int(gap.argmax()), gap.shape[1])
    lag = lags[row * len(lags) // gap.shape[0]] + lags[column * len(lags) // gap.shape[1]] + sum(pair)
    actual, off = float(wanted[row, column]), float(gap[row, column])
    text = f"u = {pair[0]:g}, v = {pair[1]:g}: A({lag:g}) has an entry {actual:.6g}, {off:.2g} of the largest away from what L continues"
    return Witness(pair, (actual, off), text, defect=off)
