"""The theory: generators, their Jordan form, their commuting parts, lifts by constants, and the tiles that make exp((t-s)L) safe.

Nothing here owns parameters or imports ``torch.nn``; the derivation is in ``README.md`` beside this file.
"""

from eigenclock.theory.form import JordanBlock, JordanForm
from eigenclock.theory.generator import Block, Generator
from eigenclock.theory.generators import (
    GENERATORS,
    Conjugate,
    DampedRotation,
    Decay,
    DirectSum,
    Jordan,
    Product,
    Rotation,
    Zero,
)
from eigenclock.theory.lift import Lift, linear_bias
from eigenclock.theory.split import Split, Turn

__all__ = [
    "GENERATORS",
    "Block",
    "Conjugate",
    "DampedRotation",
    "Decay",
    "DirectSum",
    "Generator",
    "Jordan",
    "JordanBlock",
    "JordanForm",
    "Lift",
    "Product",
    "Rotation",
    "Split",
    "Turn",
    "Zero",
    "linear_bias",
]
