"""What a schedule returns: one value per block, and the factor some schedules put on attention."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Spectrum:
    """Frequencies, rates or slopes in float64, and the amplitude on queries and on keys that belongs to them (1 for most).

    ``attention_scale`` stands on the channels that turn, on both sides, so their logits carry its square.

    Shape: values (n,) or (heads, n).
    """

    values: Float[Tensor, "*heads n"]
    attention_scale: float = 1.0


Schedule = Callable[[int], Spectrum]
