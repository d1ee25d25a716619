"""Proportional frequencies (p-RoPE): the highest share of RoPE's frequencies, the rest 0."""

from dataclasses import dataclass

import torch

from eigenclock.errors import ConfigError
from eigenclock.schedules.geometric import geometric
from eigenclock.schedules.spectrum import Spectrum


@dataclass(frozen=True)
class proportional:
    """freq_i = theta^(-i/n) for i < int(share n), and 0 for the others: n pairs of which the slowest do not turn.

    Not the same as partial rotary (``rope(rotary_dim=...)``), which spreads the *whole* spectrum over fewer pairs: there the exponent is
    counted over the pairs that turn, here over the whole head.

    Args:
        share: how much of the spectrum is kept, 0 to 1.
        theta: the base: a number, or one per head.
    Units: radians per unit of the clock.
    Raises: ConfigError where share is not between 0 and 1, or theta not above 0.
    Source: Barbero et al. (p-RoPE), 2410.06205, section 6.

    >>> proportional(0.5)(4).values
    tensor([1.0000, 0.1000, 0.0000, 0.0000], dtype=torch.float64)
    """

    share: float
    theta: float | tuple[float, ...] = 10000.0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(f"got share {self.share}; expected the share of frequencies that is kept, between 0 and 1")
        geometric(self.theta)  # refuses a base that is none

    def __call__(self, n: int) -> Spectrum:
        kept = torch.arange(n, device="cpu") < int(self.share * n)
        return Spectrum(geometric(self.theta)(n).values * kept)
