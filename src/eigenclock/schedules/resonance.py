"""Resonance: every wavelength rounded to a whole number of steps."""

import math
from dataclasses import dataclass

import numpy as np

from eigenclock.schedules.inner import Base, Inner
from eigenclock.schedules.spectrum import Spectrum
from eigenclock.theory.numbers import exact


@dataclass(frozen=True)
class resonance(Inner):
    """w_i' = 2 pi / round(2 pi / w_i): a pair comes back to the same angles after a whole number of steps; 0 stays 0.

    On an index clock a pair then meets no new angle beyond its first wavelength. On real-valued times a whole wavelength means nothing,
    and the schedule is only a small change of frequencies there. A wavelength below one step is rounded to one step, a full turn.

    Args: theta, the base: a number, one per head, or an inner schedule such as :class:`yarn`, which is rounded last.
    Units: radians per step.
    Raises: ConfigError where theta is not above 0.
    Source: Wang et al. (Resonance RoPE), 2403.00071.

    >>> [round(2 * math.pi / w) for w in resonance()(4).values.tolist()]
    [6, 63, 628, 6283]
    """

    theta: Base = 10000.0

    def __call__(self, n: int) -> Spectrum:
        spectrum = self.before(n)
        values = spectrum.values.numpy()
        turning = values != 0
        steps = np.maximum(np.round(2 * math.pi / np.where(turning, values, 1.0)), 1.0)
        return Spectrum(exact(np.where(turning, 2 * math.pi / steps, 0.0)), spectrum.attention_scale)
