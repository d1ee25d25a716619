"""PoPE by measurement: each channel a magnitude and a phase, so that scores are no linear function of q and k."""

import math

import torch
from torch import Tensor

from eigenclock.audit.recovery.lags import Lags
from eigenclock.encodings import Encoding, pope

CLEAR = 0.2  # cosines below it say too little of their angle
WIDE = 1.2  # radians: a turn this wide is read well from cosines


def polar(lags: Lags) -> Encoding | None:
    """Frequencies and phases of PoPE, where every channel sees itself alone; None where channels mix or nothing is finite.

    The mixed second difference in q_c and k_c at the lag u is (m(1) - m(0))^2 cos(w_c u - delta_c). Three lags 0, u and 2u give the turn
    w_c u by cos(a + b) + cos(a - b) = 2 cos a cos b, for the longest u at which it is still below a turn that cosines tell well, and the
    turn gives the phase.
    """
    size = (math.log1p(math.e) - math.log(2.0)) ** 2

    def wave(lag: float) -> Tensor:
        return torch.diagonal(lags.at(lag).content, dim1=-2, dim2=-1) / size

    start = lags.at(0.0).content
    mixed = max(float((a - torch.diag_embed(a.diagonal(dim1=-2, dim2=-1))).abs().max()) for a in (start, lags.at(lags.step).content))
    if not mixed <= 1e-9 + 64 * lags.eps or not bool(torch.isfinite(start).all()):
        return None
    last = float(lags.probe.length - 1)
    at = torch.full_like(wave(0.0), lags.step)
    turn = torch.zeros_like(at)
    lag = lags.step
    while 2 * lag <= last:
        found = ((wave(2 * lag) + wave(0.0)) / (2 * wave(lag))).clamp(-1, 1).arccos()
        better = (wave(lag).abs() > CLEAR) & (turn / at * lag < WIDE) | (lag == lags.step)
        turn, at = torch.where(better, found, turn), torch.where(better, lag, at)
        lag *= 2
    freq = turn / at
    steps = sorted(set(at.flatten().tolist()))
    after = sum((torch.where(at == u, wave(u), 0.0) for u in steps), torch.zeros_like(at))
    phase = torch.atan2((after - wave(0.0) * turn.cos()) / turn.sin(), wave(0.0))
    freq, phase = _refined([0.0, *lags.ladder], torch.stack([wave(u) for u in (0.0, *lags.ladder)]), freq, phase)
    delta = torch.where(phase > 0, phase - 2 * math.pi, phase)
    if not bool((torch.isfinite(freq) & torch.isfinite(delta)).all()):
        return None
    probe = lags.probe
    keys = [x.unflatten(0, (probe.kv_heads, -1))[:, 0].tolist() for x in (freq, delta.clamp(-2 * math.pi, 0.0))]
    shared = probe.kv_heads if probe.kv_heads != probe.heads else None
    return pope(probe.head_dim, heads=probe.heads, kv_heads=shared, freq=keys[0], delta=keys[1], learn=())


def _refined(marks: list[float], waves: Tensor, freq: Tensor, phase: Tensor) -> tuple[Tensor, Tensor]:
    """The turn and the phase by least squares over more and more of the lags, so that each longer one is in no doubt about its turn."""
    for most in range(4, len(marks) + 1):
        u = torch.tensor(marks[:most], dtype=freq.dtype)[:, None, None]
        for _ in range(2):
            angle = freq * u - phase
            off, sine = waves[:most] - angle.cos(), angle.sin()
            a, b, c = (u * u * sine * sine).sum(0), -(u * sine * sine).sum(0), (sine * sine).sum(0)
            x, y = (-u * sine * off).sum(0), (sine * off).sum(0)
            determinant = a * c - b * b
            clear = determinant > 1e-12 * a * c  # else a turn and a phase look alike still
            freq = torch.where(clear, freq + (c * x - b * y) / determinant, freq)
            phase = torch.where(clear, phase + (a * y - b * x) / determinant, phase)
    return freq, torch.atan2(phase.sin(), phase.cos())
