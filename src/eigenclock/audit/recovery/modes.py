"""Rates and frequencies of single modes e^{(-rate + i freq) u}, climbed up a ladder of lags so that each doubling halves the error."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Modes:
    """Numbers of many modes with their errors, all of one shape."""

    rate: Float[Tensor, "*n"]
    freq: Float[Tensor, "*n"]
    rate_error: Float[Tensor, "*n"]
    freq_error: Float[Tensor, "*n"]

    def settled(self) -> "Modes":
        """The same with numbers of the size of their error set to 0."""
        rate = torch.where(self.rate.abs() <= 4 * self.rate_error, 0.0, self.rate)
        freq = torch.where(self.freq.abs() <= 4 * self.freq_error, 0.0, self.freq)
        return Modes(rate, freq, self.rate_error, self.freq_error)


def climb(lags: list[float], values: list[Tensor], noise: list[float], step: float = 0.0) -> Modes:
    """One mode in each entry of complex values at growing lags, the first of them 0.

    The phase at a lag is unwrapped by the estimate from the shorter ones; what is left of the size of the noise is not used. The error of
    a mode is the noise over its size and over the lag it was read at; angles of a table that rounds by ``step`` add their own.

    >>> z = [torch.exp(torch.tensor([(-0.01 + 0.5j) * u], dtype=torch.complex128)) for u in (0.0, 1.0, 2.0, 8.0, 64.0)]
    >>> found = climb([0.0, 1.0, 2.0, 8.0, 64.0], z, [1e-15] * 5)
    >>> round(float(found.rate), 12), round(float(found.freq), 12)
    (0.01, 0.5)
    """
    shape = values[0].shape
    freq, rate = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    freq_error = torch.full(shape, math.inf, dtype=torch.float64)
    rate_error = freq_error.clone()
    for u, value, rounding in zip(lags[1:], values[1:], noise[1:], strict=True):
        z = value / values[0]
        unsure = rounding + 4 * step * freq.abs() * u
        error = unsure / z.abs().clamp_min(1e-300) / u
        heard = (z.abs() > 64 * unsure) & torch.isfinite(z.abs())
        first = torch.isinf(freq_error)
        turns = torch.where(first, 0.0, torch.round((freq * u - z.angle()) / (2 * math.pi)))
        better = heard & (first | (freq_error * u < 0.5)) & (error < freq_error)
        freq = torch.where(better, (z.angle() + 2 * math.pi * turns) / u, freq)
        freq_error = torch.where(better, error, freq_error)
        better = heard & (error < rate_error)
        rate = torch.where(better, -z.abs().clamp_min(1e-300).log() / u, rate)
        rate_error = torch.where(better, error, rate_error)
    return Modes(rate, freq, rate_error, freq_error)
