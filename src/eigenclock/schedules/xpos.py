"""The decay rates of xPos: each pair of channels has its own, slower pairs of RoPE decay slower."""

from dataclasses import dataclass

import numpy as np

from eigenclock.errors import ConfigError
from eigenclock.schedules.spectrum import Spectrum
from eigenclock.theory.numbers import exact


@dataclass(frozen=True)
class xpos_rates:
    """rate_i = -ln(zeta_i) / scale_base with zeta_i = (i/n + 0.4) / 1.4, i = 0 .. n-1 over the n pairs of a head: the fastest first.

    Args: scale_base, how many units of the clock make one power of zeta: 512 in the authors' code, 1 in the equations of the paper.
    Units: rate per unit of the clock.
    Raises: ConfigError where scale_base is not above 0.
    Source: Sun et al. (xPos), 2212.10554, section 3.2 (gamma = 0.4).

    >>> (-512 * xpos_rates()(4).values).exp() * 1.4  # zeta times 1.4
    tensor([0.4000, 0.6500, 0.9000, 1.1500], dtype=torch.float64)
    """

    scale_base: float = 512.0

    def __post_init__(self) -> None:
        if not self.scale_base > 0:
            raise ConfigError(f"got scale_base {self.scale_base}; expected a number of steps above 0, such as 512")

    def __call__(self, n: int) -> Spectrum:
        return Spectrum(exact(-np.log((np.arange(n) / n + 0.4) / 1.4) / self.scale_base))
