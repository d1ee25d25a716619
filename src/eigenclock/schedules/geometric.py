"""Geometric frequencies, the schedule of RoPE: freq_i = theta^(-i/n)."""

from dataclasses import dataclass

import numpy as np

from eigenclock.errors import ConfigError
from eigenclock.schedules.spectrum import Spectrum
from eigenclock.theory.numbers import exact


@dataclass(frozen=True)
class geometric:
    """freq_i = theta^(-i/n) for i = 0 .. n-1; with n = d/2 this is theta^(-2i/d).

    Args: theta, the base: a number, or one per head.
    Units: radians per unit of the clock.
    Raises: ConfigError where theta is not above 0.
    Source: Su et al. (RoFormer), 2104.09864, section 3.2.2.

    >>> geometric(10000.0)(4).values
    tensor([1.0000, 0.1000, 0.0100, 0.0010], dtype=torch.float64)
    """

    theta: float | tuple[float, ...] = 10000.0

    def __post_init__(self) -> None:
        if not all(theta > 0 for theta in (self.theta if isinstance(self.theta, tuple) else (self.theta,))):
            raise ConfigError(f"got theta {self.theta}; expected a base above 0, such as 10000")

    def __call__(self, n: int) -> Spectrum:
        theta = np.asarray(self.theta, dtype=np.float64)
        return Spectrum(exact(theta[..., None] ** (-np.arange(n, dtype=np.float64) / n)))
