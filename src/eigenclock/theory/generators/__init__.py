"""One file per row of the table of blocks, and the three ways to combine them."""

from eigenclock.theory.generator import Generator
from eigenclock.theory.generators.axes_rotation import AxesRotation
from eigenclock.theory.generators.conjugate import Conjugate
from eigenclock.theory.generators.damped_rotation import DampedRotation
from eigenclock.theory.generators.decay import Decay
from eigenclock.theory.generators.dense import Dense, cayley, dissipative, skew_symmetric
from eigenclock.theory.generators.direct_sum import DirectSum
from eigenclock.theory.generators.jordan import Jordan
from eigenclock.theory.generators.on_clock import OnClock
from eigenclock.theory.generators.plane import Plane
from eigenclock.theory.generators.product import Product
from eigenclock.theory.generators.rotation import Rotation
from eigenclock.theory.generators.zero import Zero

GENERATORS: dict[str, type[Generator]] = {
    "zero": Zero,
    "decay": Decay,
    "rotation": Rotation,
    "axes_rotation": AxesRotation,
    "damped_rotation": DampedRotation,
    "jordan": Jordan,
    "direct_sum": DirectSum,
    "product": Product,
    "conjugate": Conjugate,
    "on_clock": OnClock,
    "dense": Dense,
    "plane": Plane,
}

__all__ = [
    "GENERATORS",
    "AxesRotation",
    "Conjugate",
    "DampedRotation",
    "Decay",
    "Dense",
    "DirectSum",
    "Jordan",
    "OnClock",
    "Plane",
    "Product",
    "Rotation",
    "Zero",
    "cayley",
    "dissipative",
    "skew_symmetric",
]
