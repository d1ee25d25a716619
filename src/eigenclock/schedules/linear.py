"""Position interpolation: every frequency divided by the factor of extension, which is a slower clock."""

from dataclasses import dataclass

from eigenclock.schedules.inner import Base, Inner, changed, check_factor
from eigenclock.schedules.spectrum import Spectrum


@dataclass(frozen=True)
class linear(Inner):
    """w_i' = w_i / s: position interpolation, the same as a scaled clock tau = t / s, under its usual name.

    Every pair completes s times fewer turns, so the model sees no angle it was not trained on, and neighbours come s times closer.

    Args:
        factor: s, how many times longer the context becomes.
        theta: the base: a number, one per head, or an inner schedule whose frequencies are divided.
    Units: radians per unit of the clock.
    Raises: ConfigError where the factor is below 1 or theta is not above 0.
    Source: Chen et al. (position interpolation), 2306.15595.

    >>> linear(4.0)(4).values
    tensor([0.2500, 0.0250, 0.0025, 0.0003], dtype=torch.float64)
    """

    factor: float
    theta: Base = 10000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factor(self.factor)

    def __call__(self, n: int) -> Spectrum:
        return changed(self.before(n), 1 / self.factor)
