"""The axioms of section 1 of the derivation as measurements, with a witness for each that breaks; realisation of the singular case."""

from eigenclock.theory.axioms.measure import (
    Axioms,
    by_matrix,
    continuity,
    contragredience,
    group_law,
    linearity,
    maps_of,
    measure_axioms,
    measure_kernel,
    shift_invariance,
)
from eigenclock.theory.axioms.realise import Realisation, realise
from eigenclock.theory.axioms.sampling import Residual, Sampling, Witness

__all__ = [
    "Axioms",
    "Realisation",
    "Residual",
    "Sampling",
    "Witness",
    "by_matrix",
    "continuity",
    "contragredience",
    "group_law",
    "linearity",
    "maps_of",
    "measure_axioms",
    "measure_kernel",
    "realise",
    "shift_invariance",
]
