"""The theory: generators, their Jordan form, their commuting parts, lifts by constants, and the tiles that make exp((t-s)L) safe.

Nothing here owns parameters or imports ``torch.nn``; the derivation is in ``README.md`` beside this file.
"""

from eigenclock.theory.axioms import (
    Axioms,
    Realisation,
    Residual,
    Sampling,
    Witness,
    by_matrix,
    maps_of,
    measure_axioms,
    measure_kernel,
    realise,
)
from eigenclock.theory.classify import Classification, Eigenblock, Reading, classify
from eigenclock.theory.form import JordanBlock, JordanForm
from eigenclock.theory.generator import Block, Generator
from eigenclock.theory.generators import (
    GENERATORS,
    AxesRotation,
    Conjugate,
    DampedRotation,
    Decay,
    Dense,
    DirectSum,
    Jordan,
    OnClock,
    Plane,
    Product,
    Rotation,
    Zero,
    cayley,
    dissipative,
    skew_symmetric,
)
from eigenclock.theory.lift import Lift, linear_bias
from eigenclock.theory.split import Split, Turn

__all__ = [
    "GENERATORS",
    "AxesRotation",
    "Axioms",
    "Block",
    "Classification",
    "Conjugate",
    "DampedRotation",
    "Decay",
    "Dense",
    "DirectSum",
    "Eigenblock",
    "Generator",
    "Jordan",
    "OnClock",
    "JordanBlock",
    "JordanForm",
    "Lift",
    "Plane",
    "Product",
    "Reading",
    "Realisation",
    "Residual",
    "Rotation",
    "Sampling",
    "Split",
    "Turn",
    "Witness",
    "Zero",
    "by_matrix",
    "cayley",
    "dissipative",
    "classify",
    "linear_bias",
    "maps_of",
    "measure_axioms",
    "measure_kernel",
    "realise",
    "skew_symmetric",
]
