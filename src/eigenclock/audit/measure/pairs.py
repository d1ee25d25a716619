"""Which channels turn together, how fast and how large, read from scores of basis vectors."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenclock.audit.measure.samples import basis_scores
from eigenclock.audit.probe import Probe, Scores

UNEVEN = 0.02
"""How much the size of a turned pair may change from lag to lag and still be rounding: bfloat16 gives 0.006."""


@dataclass(frozen=True)
class Pairs:
    """The pairs of channels of one head that turn together.

    Args:
        first, second: channels of each pair (n,), first below second.
        freq: radians per step with the sign of both sides' turn, (n,), recovered from the scores.
        error: of each, from the rounding of the scores.
        size: |A(0)| on each pair, the amplitudes of both sides multiplied.
        rate: decay per step, (n,).
        still: channels with no partner.
    """

    first: Tensor
    second: Tensor
    freq: Tensor
    error: Tensor
    size: Tensor
    rate: Tensor
    still: Tensor

    @property
    def layout(self) -> str | None:
        """ "interleaved" or "half" where all pairs are, else None; a single pair of neighbours is both, and None."""
        n = self.first.numel()
        if n < 2:
            return None
        if bool((self.second - self.first == 1).all()):
            return "interleaved"
        gaps = (self.second - self.first).unique()
        return "half" if gaps.numel() == 1 and int(gaps) >= n else None

    def value(self, A: Tensor) -> Tensor:
        """The complex number of each pair in matrices (.., D, D): r e^(i phi) of a turn by phi scaled by r."""
        a, b = self.first, self.second
        return torch.complex((A[..., a, a] + A[..., b, b]) / 2, (A[..., a, b] - A[..., b, a]) / 2)


def read_pairs(fn: Scores, probe: Probe, head: int = 0, noise: float | None = None) -> Pairs | None:
    """The pairs of a head; None where channels don't come in pairs that turn (dense matrices, shears, no turning at all).

    The partner of a channel is the other one in its row of A(u), seen at lags of all scales, since slow pairs turn by little at short ones.
    """
    noise = (4 * probe.unit_roundoff if probe.exact is None else 1e-7) if noise is None else noise
    last = probe.length - 1
    lags = sorted({float(u) for u in (0, 1, *(16**j for j in range(1, 10)), last) if u <= last})
    A = basis_scores(fn, probe, lags, [0.0], head)[:, 0, 1:, 1:]
    if not bool(torch.isfinite(A).all()):
        return None
    d = A.shape[-1]
    eye = torch.eye(d, dtype=torch.bool)
    scale = float(A[0].abs().max()) or 1.0
    off = A.abs().amax(0).masked_fill(eye, 0.0)
    partner, seen = off.argmax(-1), off.amax(-1) > 8 * noise * scale
    rows = torch.arange(d)
    second = off.scatter(-1, partner[:, None], 0.0).amax(-1)
    mutual = seen & seen[partner] & (partner[partner] == rows)
    if bool((seen & ~mutual).any()) or bool((second > 8 * noise * scale).any()) or not bool(seen.any()):
        return None
    first = rows[seen & (rows < partner)]
    other = partner[first]
    w = torch.complex((A[:, first, first] + A[:, other, other]) / 2, (A[:, first, other] - A[:, other, first]) / 2)
    odd = (A[:, first, other] + A[:, other, first]).abs() + (A[:, first, first] - A[:, other, other]).abs()
    if bool((odd > 0.25 * scale).any()):  # a shear, or two tables mixed, is no turn
        return None
    size = w[0].abs().clamp_min(1e-300)
    rate, uneven = _rates(lags, w.abs() / size, noise)
    doubt = (noise * scale / w.abs().clamp_min(1e-300)).clamp_max(math.pi) + 2 * uneven
    freq, error = unwrapped(torch.tensor(lags, dtype=torch.float64), w.angle(), doubt)
    return Pairs(first, other, freq, error, size, rate, rows[~seen])


def _rates(lags: list[float], kept: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Decays per step (n,) from what is left at each lag (T, n), and how unevenly it goes: a table rounded more than the dtype shows there.

    The longest lag at which enough is left tells most; a decay no larger than the unevenness is none.
    """
    rate = torch.zeros_like(kept[0])
    for t, left in zip(lags[1:], kept[1:], strict=True):
        log = left.clamp(1e-300, 1e300).log()
        rate = torch.where((left > 1e-3) & torch.isfinite(log), torch.where(log.abs() < 8 * noise, 0.0, -log / t), rate)
    first = -kept[1].clamp(1e-300, 1e300).log() / lags[1]
    rate = torch.where(kept[1] > 1e-3, rate, first)  # else gone within a step

    def uneven(rate: Tensor) -> Tensor:
        off = (kept * (rate * torch.tensor(lags, dtype=torch.float64)[:, None]).exp() - 1).abs()
        return torch.where(off < UNEVEN, off, 0.0).nan_to_num(nan=0.0).amax(0)

    plain = (kept - 1).abs().amax(0)
    rate = torch.where((plain < UNEVEN) & (plain <= 4 * uneven(rate)), 0.0, rate)
    return rate, uneven(rate)


def unwrapped(lags: Tensor, phase: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Frequencies (n,) from phases (T, n) at growing lags, each one's turns counted by those before, and their errors.

    A lag is used while the error of the estimate so far leaves no doubt which turn it is in, and what it says fits.
    """
    zero = phase[0]
    freq, error = torch.zeros_like(zero), torch.full_like(zero, math.pi)
    going = torch.ones_like(zero, dtype=torch.bool)
    for t, phi, sigma in zip(lags[1:].tolist(), phase[1:], noise[1:], strict=True):
        turn = phi - zero
        guess = freq * t
        near = turn + 2 * math.pi * ((guess - turn) / (2 * math.pi)).round()
        own = (sigma + noise[0]) / t
        sure = going & ((error * t < math.pi / 2) | (error >= math.pi)) & ((near - guess).abs() <= (error * t).clamp_max(math.pi) + sigma)
        better = sure & (own < error)
        freq = torch.where(better, near / t, freq)
        error = torch.where(better, own, error)
        going = going & (sure | ~better)
    return freq, error


def blocks_at(fn: Scores, probe: Probe, pairs: Pairs, queries: list[float], keys: list[float], head: int = 0) -> Tensor:
    """The complex numbers (T, S, n) of the pairs at query and key times."""
    return pairs.value(basis_scores(fn, probe, queries, keys, head)[..., 1:, 1:])
