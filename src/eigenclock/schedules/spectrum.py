"""What a schedule returns: one value per block, and the factor some schedules put on attention."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Spectrum:
    """Frequencies, rates or slopes in float64, and the factor on the logits that belongs to them (1 for most).

    Shape: values (n,) or (heads, n).
    """

    values: Float[Tensor, "*heads n"]
    attention_scale: float = 1.0
