"""Interpolation by parts: fast pairs keep their frequency, slow ones are interpolated, those between are blended by their turns."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenclock.errors import ConfigError
from eigenclock.schedules.inner import Base, Inner, changed, check_factor, check_length, check_positive
from eigenclock.schedules.spectrum import Spectrum


@dataclass(frozen=True)
class ntk_by_parts(Inner):
    """w_i' = (1 - g_i) w_i / s + g_i w_i, with g linear from 0 to 1 in the turns r_i = L w_i / (2 pi) a pair completes, between two bounds.

    The formula of the YaRN paper without its temperature; its published code, which every YaRN checkpoint uses, blends in the pair
    index instead: :class:`yarn`.

    Args:
        factor: s, how many times longer the context becomes.
        original_length: L, the length the model was trained on.
        beta_fast, beta_slow: the turns above which a pair keeps its frequency, and below which it is interpolated.
        theta: the base: a number, one per head, or an inner schedule whose frequencies are blended.
    Units: radians per unit of the clock; lengths in that unit.
    Raises: ConfigError where the factor is below 1, the original length is missing, beta_fast is not above beta_slow, or theta not above 0.
    Source: Peng et al. (YaRN), 2309.00071, section 3.2.

    >>> from eigenclock.schedules import geometric
    >>> 4 * ntk_by_parts(4.0, original_length=1024)(4).values / geometric()(4).values
    tensor([4.0000, 2.4804, 1.0609, 1.0000], dtype=torch.float64)
    """

    factor: float
    original_length: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    theta: Base = 10000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factor(self.factor)
        check_length(self.original_length)
        check_bounds(self.beta_slow, self.beta_fast, "beta_slow", "beta_fast")

    def __call__(self, n: int) -> Spectrum:
        return by_turns(self.before(n), self.factor, check_length(self.original_length), (self.beta_slow, self.beta_fast))


def check_bounds(low: Any, high: Any, low_name: str, high_name: str) -> tuple[float, float]:
    """Two bounds on the turns, refused by name where one is missing, not above 0, or they are not in order."""
    bounds = check_positive(low, low_name), check_positive(high, high_name)
    if not low < high:
        raise ConfigError(f"got {high_name}={high} and {low_name}={low}; expected {high_name} above {low_name}: both count turns in L")
    return bounds


def by_turns(spectrum: Spectrum, factor: float, original_length: float, bounds: tuple[float, float]) -> Spectrum:
    """The blend linear in the turns: divided by the factor up to the lower bound within the original length, kept from the upper on."""
    low, high = bounds
    turns = original_length * spectrum.values.numpy() / (2 * math.pi)
    return blend(spectrum, factor, 1 - np.clip((turns - low) / (high - low), 0, 1))


def blend(spectrum: Spectrum, factor: float, ramp: Float[np.ndarray, "*heads n"], scale: float = 1.0) -> Spectrum:
    """w (1 - ramp) + (w / s) ramp, written so that a factor of 1 changes no bit."""
    return changed(spectrum, 1 - ramp * (1 - 1 / factor), scale)
