"""The decay rates of RetNet, one per head, and its angles, which are not those of RoPE."""

import math
from dataclasses import dataclass

import numpy as np

from eigenclock.errors import ConfigError
from eigenclock.schedules.spectrum import Spectrum
from eigenclock.theory.numbers import exact


@dataclass(frozen=True)
class retnet_rates:
    """rate_h = -ln(1 - 2^(-5-h)) for heads h = 0 .. n-1, so that a head keeps gamma_h = 1 - 2^(-5-h) per step: the fastest first.

    Units: rate per unit of the clock.
    Source: Sun et al. (RetNet), 2307.08621, section 3.1.

    >>> (-retnet_rates()(3).values).exp()
    tensor([0.9688, 0.9844, 0.9922], dtype=torch.float64)
    """

    def __call__(self, n: int) -> Spectrum:
        return Spectrum(exact([-math.log1p(-(2.0 ** (-5 - h))) for h in range(n)]))


@dataclass(frozen=True)
class retnet_angles:
    """freq_i = theta^(-i/(n-1)) for i = 0 .. n-1: the last one is exactly 1/theta, where RoPE stops one step before it.

    Units: radians per unit of the clock.
    Raises: ConfigError where theta is not above 0.
    Source: Sun et al. (RetNet), 2307.08621; the spacing is that of the authors' code.

    >>> retnet_angles()(5).values
    tensor([1.0000e+00, 1.0000e-01, 1.0000e-02, 1.0000e-03, 1.0000e-04],
           dtype=torch.float64)
    """

    theta: float = 10000.0

    def __post_init__(self) -> None:
        if not self.theta > 0:
            raise ConfigError(f"got theta {self.theta}; expected a base above 0, such as 10000")

    def __call__(self, n: int) -> Spectrum:
        return Spectrum(exact(self.theta ** -np.linspace(0.0, 1.0, n)))
