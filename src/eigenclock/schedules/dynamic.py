"""Dynamic NTK: NTK-aware scaling whose factor follows the length of the sequence."""

from dataclasses import dataclass, replace
from typing import Self

from eigenclock.errors import ConfigError
from eigenclock.schedules.inner import Base, Inner, check_factor, check_length
from eigenclock.schedules.ntk import ntk
from eigenclock.schedules.spectrum import Spectrum


@dataclass(frozen=True)
class dynamic(Inner):
    """:class:`ntk` with the factor s T/L - (s - 1) at length T > L, and the plain spectrum up to L.

    Its law: the frequencies change with every new length beyond L, so keys that were turned at another length no longer match the
    query. It may be used in one of two ways, never mixed: *freeze* it per sequence (``at`` the final length, before the first token is
    turned), or cache keys that are *not turned* and turn all of them at each new length. A value holds one length; the result for a
    length never depends on the lengths that came before.

    Args:
        factor: s, the factor reached at T = L is 1, at T = 2L it is s + 1.
        original_length: L, the length the model was trained on.
        length: T, the length this value is frozen at (anything up to L counts as L); ``at(length)`` sets it.
        theta: the base: a number, one per head, or an inner schedule whose frequencies are divided.
    Units: radians per unit of the clock; lengths in that unit.
    Raises: ConfigError where the factor is below 1, a length is missing or not above 0, or theta is not above 0.
    Source: emozilla (dynamic NTK, 2023), written out by Peng et al. (YaRN), 2309.00071, section 3.3.

    >>> schedule = dynamic(2.0, original_length=2048)
    >>> schedule.at(5000)(4).values
    tensor([1.0000e+00, 6.3624e-02, 4.0480e-03, 2.5755e-04], dtype=torch.float64)
    >>> schedule.at(100) == schedule.at(2048), schedule.at(2048) == schedule.at(5000)  # do keys turned at the one serve the other?
    (True, False)
    """

    factor: float
    original_length: float | None = None
    length: float | None = None
    theta: Base = 10000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factor(self.factor)
        shortest = check_length(self.original_length)
        if self.length is not None:
            object.__setattr__(self, "length", max(check_length(self.length, "length"), shortest))

    @property
    def length_dependent(self) -> bool:
        """Always: each length beyond the original one has its own frequencies."""
        return True

    def at(self, length: float) -> Self:
        """The schedule frozen at this length."""
        return replace(super().at(length), length=length)

    def __call__(self, n: int) -> Spectrum:
        if self.length is None:
            raise ConfigError(f"got {self} without a length; expected .at(length): its frequencies follow the length of the sequence")
        grown = self.factor * self.length / check_length(self.original_length) - (self.factor - 1)
        return ntk(max(grown, 1.0), self.theta)(n)
