"""The schedule of Llama 3.1: interpolation by parts, between 1 and 4 turns within the original length."""

from dataclasses import dataclass

from eigenclock.schedules.inner import Base, Inner, check_factor, check_length
from eigenclock.schedules.ntk_by_parts import by_turns, check_bounds
from eigenclock.schedules.spectrum import Spectrum


@dataclass(frozen=True)
class llama3(Inner):
    """w_i' = (1 - g_i) w_i / s + g_i w_i, g_i = (r_i - low) / (high - low) cut to 0 .. 1, r_i = L w_i / (2 pi) turns within L.

    Linear in the frequency, not in the wavelength. It is :class:`ntk_by_parts` with other bounds: the released models use factor 8 (3.1)
    or 32 (3.2), low 1, high 4 and L = 8192 on theta 500000. A bound that is not given is refused, not guessed.

    Args:
        factor: s, how many times longer the context becomes.
        original_length: L, the length the model was trained on.
        low_freq_factor, high_freq_factor: the turns up to which a pair is interpolated, and from which it keeps its frequency.
        theta: the base: a number, one per head, or an inner schedule whose frequencies are blended.
    Units: radians per unit of the clock; lengths in that unit.
    Raises: ConfigError where the factor is below 1, a length or a bound is missing, the low bound is not below the high one, or theta not
        above 0.
    Source: Grattafiori et al. (Llama 3), 2407.21783; the formula is that of the authors' code.

    >>> llama3(8.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0, theta=500000.0)(16).values[7:10]
    tensor([3.2114e-03, 5.2485e-04, 7.7847e-05], dtype=torch.float64)
    """

    factor: float
    original_length: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    theta: Base = 10000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factor(self.factor)
        check_length(self.original_length)
        self._bounds()

    def _bounds(self) -> tuple[float, float]:
        return check_bounds(self.low_freq_factor, self.high_freq_factor, "low_freq_factor", "high_freq_factor")

    def __call__(self, n: int) -> Spectrum:
        return by_turns(self.before(n), self.factor, check_length(self.original_length), self._bounds())
