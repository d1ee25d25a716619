"""Why scores in a dtype differ from those of the law: frequencies, positions, angles or tables that were rounded, or the law itself."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eigenclock.audit.measure.frequencies import base_of
from eigenclock.audit.measure.pairs import Pairs, blocks_at, read_pairs
from eigenclock.audit.measure.samples import best, many, name_of, rounding, shifts_of
from eigenclock.audit.probe import Probe

NARROW = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Cause:
    """Errors of one head within the length, each against a float64 recomputation from the frequencies.

    Args:
        frequency: radians at the last position by which the frequencies in use are off those claimed, 0 where none are.
        position: steps by which positions are off, the largest one tried.
        table: how far the size of a turned pair changes, as a part of it.
        law: what is left, as a part of the score, once the best explanation is taken off.
        total: what there was before.
        words: the explanation, empty where there is none.
        first: the first time tried at which it shows.
    """

    frequency: float = 0.0
    position: float = 0.0
    table: float = 0.0
    law: float = 0.0
    total: float = 0.0
    words: str = ""
    first: float | None = None

    def to_where(self) -> dict[str, float]:
        """The four errors, for a finding."""
        return {
            "frequency_error": self.frequency,
            "position_error": self.position,
            "table_error": self.table,
            "law_error": self.law,
        }


def grid_of(length: int) -> list[float]:
    """Positions at all scales, with the neighbours of powers of two, where rounding begins."""
    powers = [2**j for j in range(2, 40) if 2**j < length]
    tried = {0, 1, 2, 3, *powers, *(p + 1 for p in powers), length - 1}
    return [float(t) for t in sorted(tried) if t < length]


def powers_of(length: int) -> list[float]:
    """0, the powers of two and the last position: where rounding and overflow begin."""
    return [float(t) for t in sorted({0, 1, *(2**j for j in range(1, 40) if 2**j < length), length - 1})]


def causes_of(probe: Probe, claimed: Tensor | None = None, head: int = 0, lag: float | None = None) -> Cause | None:
    """The errors of a head; None where its channels don't turn in pairs.

    The frequencies are those claimed, else those the subject has in float64, else those recovered from its scores at small times. Queries
    stand at each time, keys at 0. Each explanation is a float64 recomputation with one thing rounded; the one that leaves least wins. With
    a lag it has to give at least half of what scores at that lag change by as both positions move; else the law itself is the cause.
    """
    assert probe.scores is not None
    own, exact = read_pairs(probe.scores, probe, head, noise=4 * probe.unit_roundoff), read_pairs(best(probe), probe, head)
    pairs = exact or own
    if pairs is None:
        return None
    freq = pairs.freq
    if claimed is not None and claimed.numel() == freq.numel():
        freq = claimed.double().abs() * torch.where(pairs.freq < 0, -1.0, 1.0)
    else:
        freq = _geometric(freq, pairs.error)
    grid = grid_of(probe.length)
    w = blocks_at(probe.scores, probe, pairs, grid, [0.0], head)[:, 0] / pairs.size
    t = torch.tensor(grid, dtype=torch.float64)[:, None]
    fall = (-pairs.rate * t).exp()

    phase = w[0].angle()
    plain = _left(w, fall, _turns(freq * t), phase)
    noise = 4 * probe.unit_roundoff
    limit = max(noise, 1e-6)
    total = float(plain.max())
    found = Cause(total=total, law=total, table=_sizes(w, fall), frequency=_frequency(pairs, freq, probe.length))
    if total <= limit:
        return found
    first = float(t[(plain > limit).int().argmax(), 0])
    warp = _warp(probe, pairs, freq, head)
    if warp:
        return replace(found, words=warp, first=first)
    tried = [(float(_left(w, fall, way.turn(t), phase).max()), way) for way in _ways(freq)]
    rest, way = min(tried, key=lambda one: one[0])
    kept = rest > max(0.3 * total, limit) and rest > 4 * limit
    if kept or (lag is not None and not _accounts(probe, pairs, way.turn, phase, lag, head)):
        return replace(found, first=first)
    return replace(found, position=float((way.rounded(t) - t).abs().max()), law=rest, words=way.words, first=first)


@dataclass(frozen=True)
class Way:
    """An explanation: one thing rounded in a recomputation.

    Args:
        words: which.
        turn: times (T, 1) -> the complex numbers (T, n) of the pairs.
        rounded: times -> those that it uses in their place.
    """

    words: str
    turn: Callable[[Tensor], Tensor]
    rounded: Callable[[Tensor], Tensor] = lambda t: t


def _turns(angle: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(angle), angle)


def _left(w: Tensor, fall: Tensor, turned: Tensor, phase: Tensor) -> Tensor:
    """What a recomputation leaves of the measured numbers (T, n), (T,)."""
    return (w - fall * turned * _turns(phase)).abs().amax(-1)


def _ways(freq: Tensor) -> Iterator[Way]:
    for dtype in NARROW:
        name = name_of(dtype)

        def r(x: Tensor, dtype: torch.dtype = dtype) -> Tensor:
            return x.to(dtype).double()

        def table(t: Tensor, r: Callable[[Tensor], Tensor] = r) -> Tensor:
            return torch.complex(r((freq * t).cos()), r((freq * t).sin()))

        yield Way(f"positions rounded to {name} before use", lambda t, r=r: _turns(freq * r(t)), r)
        yield Way(f"frequencies rounded to {name}", lambda t, r=r: _turns(r(freq) * t))
        yield Way(f"angles rounded to {name} before cos and sin", lambda t, r=r: _turns(r(freq * t)))
        yield Way(f"frequencies and positions rounded to {name}", lambda t, r=r: _turns(r(freq) * r(t)), r)
        yield Way(f"frequencies, positions and angles rounded to {name}", lambda t, r=r: _turns(r(r(freq) * r(t))), r)
        yield Way(f"tables of cos and sin rounded to {name}", table)


def _accounts(probe: Probe, pairs: Pairs, turn: Callable[[Tensor], Tensor], phase: Tensor, lag: float, head: int) -> bool:
    """Whether an explanation gives at least half of the largest change of scores at a lag, as both positions move."""
    assert probe.scores is not None
    q, k = probe.content(4)
    group = head // (probe.heads // probe.kv_heads)
    qa, qb, ka, kb = (x.double()[..., part] for x in (q[head], k[group]) for part in (pairs.first, pairs.second))
    shifts = [c for c in shifts_of(probe) if lag + c <= probe.length - 1]
    base = many(probe.scores, probe, q, k, [lag], 0.0)[head, 0]
    moved = torch.stack([many(probe.scores, probe, q, k, [lag], c)[head, 0] for c in shifts]) - base  # (C, P)
    at = torch.tensor([0.0, *shifts], dtype=torch.float64)[:, None]
    both = turn(at + lag) * turn(at).conj() * _turns(phase) * pairs.size * (-pairs.rate * lag).exp()
    w = (both[1:] - both[0])[:, None]  # (C, 1, n)
    said = (w.real * (qa * ka + qb * kb) + w.imag * (qa * kb - qb * ka)).sum(-1)
    moved = moved.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    worst = int(moved.abs().amax(-1).argmax())
    return float((moved - said)[worst].abs().max()) <= 0.5 * float(moved[worst].abs().max())


def _geometric(freq: Tensor, error: Tensor) -> Tensor:
    """The geometric row of a round base where frequencies are one up to their errors, else as they are."""
    base = base_of(freq.abs())
    if base is None:
        return freq
    n = freq.numel()
    for digits in (1, 2, 3):
        row = float(f"{base:.{digits}g}") ** (-torch.arange(n, dtype=torch.float64) / n)
        if bool(((row - freq.abs()).abs() <= 4 * error + 1e-12).all()):
            return torch.copysign(row, freq)
    return freq


def _warp(probe: Probe, pairs: Pairs, freq: Tensor, head: int) -> str:
    """How a clock that is not the position runs, in words: each pair turns by the same part of its frequency between neighbours.

    Rounded positions step by nothing or by much; a warp shows in steps that change little from one position to the next.
    """
    fn, last = best(probe), probe.length - 1
    if last < 8 or not bool((pairs.rate == 0).all()):
        return ""
    starts = sorted({float(t) for p in (0, last // 8, last // 2, last - 3) for t in (p, p + 1)})
    steps = []
    for t in starts:
        w = blocks_at(fn, probe, pairs, [t + 1], [t], head)[0, 0] / pairs.size
        steps.append(w.angle() / freq)
        if bool(((w.abs() - 1).abs() > 1e-3).any()):
            return ""
    step = torch.stack(steps)
    telling = (freq.abs() > 16 * rounding(probe, last, exact=True)) & (freq.abs() < math.pi)
    if not bool(telling.any()):
        return ""
    step = step[:, telling]
    doubt = (4 * rounding(probe, last, exact=True) / freq[telling].abs()).clamp_min(1e-6)
    mean = step.mean(-1, keepdim=True)
    alike = bool(((step - mean).abs() <= doubt + 1e-3 * mean.abs()).all())
    smooth = bool(((step[1::2] - step[0::2]).abs() <= 0.05 * step[0::2].abs() + doubt).all())
    bent = float((mean - mean[0]).abs().max()) > 4 * float(doubt.min())
    if not (alike and smooth and bent and bool((mean > 0).all())):
        return ""
    return f"a group on a warped clock: a step counts {float(mean[0]):.4g} at 0 and {float(mean[-1]):.4g} at {last}"


def _sizes(w: Tensor, fall: Tensor) -> float:
    kept = w.abs() / fall.clamp_min(1e-300)
    return float(torch.where(fall > 1e-3, (kept - 1).abs(), 0.0).max())


def _frequency(pairs: Pairs, freq: Tensor, length: int) -> float:
    off = (pairs.freq - freq).abs() * (length - 1)
    return float(torch.where(off > 2 * pairs.error * (length - 1), off, 0.0).max()) if off.numel() else math.nan
