"""Decay rates whose half-lives are spread geometrically between two times."""

import math
from dataclasses import dataclass

import numpy as np

from eigenclock.errors import ConfigError
from eigenclock.schedules.spectrum import Spectrum
from eigenclock.theory.numbers import exact


@dataclass(frozen=True)
class half_lives:
    """rate_i = ln 2 / h_i with h_i = lo (hi/lo)^(i/(n-1)), i = 0 .. n-1: the fastest first.

    Units: lo and hi in the unit of the clock.
    Raises: ConfigError unless 0 < lo and 0 < hi.

    >>> half_lives(1.0, 4.0)(3).values * 4
    tensor([2.7726, 1.3863, 0.6931], dtype=torch.float64)
    """

    lo: float
    hi: float

    def __post_init__(self) -> None:
        if not (self.lo > 0 and self.hi > 0):
            raise ConfigError(f"got half-lives {self.lo} .. {self.hi}; expected two times above 0, such as half_life=(16, 4096)")

    def __call__(self, n: int) -> Spectrum:
        return Spectrum(exact(math.log(2) / (self.lo * (self.hi / self.lo) ** np.linspace(0, 1, n))))
