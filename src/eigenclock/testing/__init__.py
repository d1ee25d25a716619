"""Law checkers and hypothesis strategies, for the project's own registries and for code registered from outside.

Each checker takes a finished thing, tries the laws it must keep, and raises :class:`LawError` with what was measured, the limit and
where. None of them needs a test framework; only ``eigenclock.testing.strategies`` needs hypothesis.
"""

from eigenclock.testing.laws import LawError, check_clock, check_generator, check_learned_clock, check_schedule
from eigenclock.testing.laws_of_attention import Carried, check_backend, check_encoding
from eigenclock.testing.outside import check_axioms

__all__ = [
    "Carried",
    "LawError",
    "check_axioms",
    "check_backend",
    "check_clock",
    "check_encoding",
    "check_generator",
    "check_learned_clock",
    "check_schedule",
]
