"""YaRN as its code and its checkpoints have it: interpolation by parts, blended in the pair index, and an amplitude."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from eigenclock.errors import ConfigError
from eigenclock.schedules.inner import Inner, check_factor, check_length, check_positive
from eigenclock.schedules.ntk_by_parts import blend
from eigenclock.schedules.spectrum import Spectrum


@dataclass(frozen=True)
class yarn(Inner):
    """w_i' = w_i (1 - ramp_i) + (w_i / s) ramp_i, ramp_i = (i - low) / (high - low) cut to 0 .. 1, and an amplitude on q and on k.

    A pair completes r turns within L at index c(r) = d ln(L / (2 pi r)) / (2 ln theta): low = c(beta_fast), high = c(beta_slow), rounded
    down and up where ``truncate``, then low >= 0 and high <= d - 1 (pairs; d is the rotary width). The amplitude is

        a = g(s, mscale) / g(s, mscale_all_dim),   g(s, c) = 0.1 c ln s + 1

    on each side, so squared on the logits of the channels that turn, and on no other channel and no bias. ``mscale_all_dim`` is DeepSeek's:
    its latent attention multiplies the scale of the call by g(s, mscale_all_dim)^2 as well, for all channels: :attr:`logit_scale`.
    ``attention_factor`` replaces the amplitude.

    Args:
        factor: s, how many times longer the context becomes.
        original_length: L, the length the model was trained on (not the one it is extended to).
        beta_fast, beta_slow: the turns above which a pair keeps its frequency, and below which it is interpolated.
        truncate: whether the two bounds are rounded to whole pairs (gpt-oss does not).
        attention_factor: the amplitude itself.
        mscale, mscale_all_dim: the two coefficients c of the amplitude; 1 and 0 are the usual 0.1 ln s + 1.
        theta: the base, above 1: a number, or one per head.
    Units: radians per unit of the clock; lengths in that unit.
    Raises: ConfigError where the factor is below 1, the original length is missing, beta_fast is below beta_slow, an amplitude is not
        above 0 or one of its coefficients below 0, or theta is no number above 1.
    Source: Peng et al. (YaRN), 2309.00071, section 3.4; the blend in the pair index is that of the authors' code.

    >>> schedule = yarn(4.0, original_length=4096)
    >>> schedule.bounds(8), round(schedule(8).attention_scale, 4)
    ((2.0, 6.0), 1.1386)
    """

    factor: float
    original_length: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float = 1.0
    mscale_all_dim: float = 0.0
    theta: float | tuple[float, ...] = 10000.0

    def __post_init__(self) -> None:
        if callable(self.theta):
            raise ConfigError(f"got theta={self.theta}; expected a number: the pair of a number of turns is counted on powers of theta")
        super().__post_init__()
        if not min(self.bases) > 1:
            raise ConfigError(f"got theta={self.theta}; expected a base above 1: its logarithm tells which pair completes how many turns")
        check_factor(self.factor)
        check_length(self.original_length)
        if not check_positive(self.beta_fast, "beta_fast") >= check_positive(self.beta_slow, "beta_slow"):
            raise ConfigError(f"got beta_fast={self.beta_fast} and beta_slow={self.beta_slow}; expected beta_fast (turns) above beta_slow")
        for name, c in (("mscale", self.mscale), ("mscale_all_dim", self.mscale_all_dim)):
            if c != 0:
                check_positive(c, name)
        check_positive(self.amplitude, "attention_factor")

    @property
    def bases(self) -> tuple[float, ...]:
        """theta of each head, or the one of all."""
        return self.theta if isinstance(self.theta, tuple) else (self.theta,)

    @property
    def amplitude(self) -> float:
        """a, on the rotated channels of queries and of keys."""
        if self.attention_factor is not None:
            return self.attention_factor
        return self._grown(self.mscale) / self._grown(self.mscale_all_dim)

    @property
    def logit_scale(self) -> float:
        """g(s, mscale_all_dim)^2: what DeepSeek's latent attention multiplies the scale of the call by, for all channels; 1 otherwise."""
        return self._grown(self.mscale_all_dim) ** 2

    def _grown(self, c: float) -> float:
        return 0.1 * c * math.log(self.factor) + 1

    def bounds(self, n: int) -> Any:
        """(low, high) in pairs, of n pairs, before the ramp; one tuple per head where theta is."""
        found = tuple(self._bounds(n, theta) for theta in self.bases)
        return found if isinstance(self.theta, tuple) else found[0]

    def _bounds(self, n: int, theta: float) -> tuple[float, float]:
        length = check_length(self.original_length)
        low, high = (n * math.log(length / (2 * math.pi * r)) / math.log(theta) for r in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        kept, last = max(low, 0), min(high, 2 * n - 1)
        # Where every pair is fast, or every pair slow, the two limits cross: then none is blended, and the bounds stay as they are.
        return (float(kept), float(last)) if kept <= last else (float(low), float(high))

    def __call__(self, n: int) -> Spectrum:
        ramps = []
        for low, high in (self._bounds(n, theta) for theta in self.bases):
            ramps.append(np.clip((np.arange(n) - low) / (max(high - low, 1e-3)), 0, 1))
        ramp = np.stack(ramps) if isinstance(self.theta, tuple) else ramps[0]
        return blend(self.before(n), self.factor, ramp, self.amplitude)
