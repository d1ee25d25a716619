"""NTK-aware scaling: a larger base, so that the highest frequency stays and the lowest is divided by the factor."""

from dataclasses import dataclass

import numpy as np

from eigenclock.schedules.inner import Base, Inner, changed, check_factor
from eigenclock.schedules.spectrum import Spectrum


@dataclass(frozen=True)
class ntk(Inner):
    """theta' = theta s^(d/(d-2)), which is w_i' = w_i s^(-i/(n-1)) with n = d/2: i = 0 is kept, i = n - 1 divided by exactly s.

    A width of 2 has one frequency only, which is kept.

    Args:
        factor: s, how many times longer the context becomes.
        theta: the base: a number, one per head, or an inner schedule whose frequencies are divided.
    Units: radians per unit of the clock.
    Raises: ConfigError where the factor is below 1 or theta is not above 0.
    Source: bloc97 (NTK-aware scaled RoPE, 2023), written out by Peng et al. (YaRN), 2309.00071, section 3.1.

    >>> ntk(8.0)(4).values
    tensor([1.0000e+00, 5.0000e-02, 2.5000e-03, 1.2500e-04], dtype=torch.float64)
    """

    factor: float
    theta: Base = 10000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factor(self.factor)

    def __call__(self, n: int) -> Spectrum:
        return changed(self.before(n), float(self.factor) ** (-np.arange(n) / max(n - 1, 1)))
