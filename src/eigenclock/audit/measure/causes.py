"""Why scores in a dtype differ from those of the law: frequencies, positions, angles or tables that were rounded, or the law itself."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenclock.audit.measure.frequencies import base_of
from eigenclock.audit.measure.pairs import Pairs, blocks_at, read_pairs
from eigenclock.audit.measure.samples import best, name_of, rounding
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


def causes_of(probe: Probe, claimed: Tensor | None = None, head: int = 0) -> Cause | None:
    """The errors of a head; None where its channels don't turn in pairs.

    The frequencies are those claimed, else those the subject has in float64, else those recovered from its scores at small times. Queries
    stand at each time, keys at 0. Each explanation is a float64 recomputation with one thing rounded; the one that leaves least wins.
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

    def left(angle: Tensor, size: Tensor | float = 1.0) -> Tensor:
        return (w - fall * size * torch.polar(torch.ones_like(angle), angle + phase)).abs().amax(-1)

    phase = w[0].angle()
    plain = left(freq * t)
    noise = 4 * probe.unit_roundoff
    limit = max(noise, 1e-6)
    found = Cause(total=float(plain.max()), law=float(plain.max()), table=_sizes(w, fall), frequency=_frequency(pairs, freq, probe.length))
    if found.total <= limit:
        return found
    first = float(t[(plain > limit).int().argmax(), 0])
    options: list[tuple[float, str, float]] = []
    for dtype in NARROW:
        rounded = t.to(dtype).double()
        name = name_of(dtype)
        options.append((float(left(freq * rounded).max()), f"positions rounded to {name} before use", float((rounded - t).abs().max())))
        options.append((float(left(freq.to(dtype).double() * t).max()), f"frequencies rounded to {name}", 0.0))
        options.append((float(left((freq * t).to(dtype).double()).max()), f"angles rounded to {name} before cos and sin", 0.0))
        both, off = freq.to(dtype).double() * rounded, float((rounded - t).abs().max())
        options.append((float(left(both).max()), f"frequencies and positions rounded to {name}", off))
        whole = both.to(dtype).double()
        options.append((float(left(whole).max()), f"frequencies, positions and angles rounded to {name}", off))
        table = torch.complex((freq * t).cos().to(dtype).double(), (freq * t).sin().to(dtype).double())
        options.append(
            (
                float((w - fall * table * torch.polar(torch.ones_like(phase), phase)).abs().max()),
                f"tables of cos and sin rounded to {name}",
                0.0,
            )
        )
    warp = _warp(probe, pairs, freq, head)
    if warp:
        return Cause(found.frequency, 0.0, found.table, found.total, found.total, warp, first)
    rest, words, position = min(options)
    if rest > max(0.3 * found.total, limit) and rest > 4 * limit:
        return Cause(found.frequency, 0.0, found.table, found.total, found.total, "", first)
    return Cause(found.frequency, position, found.table, rest, found.total, words, first)


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
