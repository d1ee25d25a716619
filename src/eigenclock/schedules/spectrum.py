"""What a schedule returns: one value per block, and the factor some schedules put on attention."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


def exact(numbers: Any) -> Float[Tensor, "..."]:
    """Numbers, computed in Python or numpy, as a float64 tensor on the CPU.

    Not by a constructor of torch: some initialisers of large models wrap those and round what they return to 16 bits.

    >>> exact([0.1])
    tensor([0.1000], dtype=torch.float64)
    """
    return torch.from_numpy(np.array(numbers, dtype=np.float64))


@dataclass(frozen=True)
class Spectrum:
    """Frequencies, rates or slopes in float64, and the factor on the logits that belongs to them (1 for most).

    Shape: values (n,) or (heads, n).
    """

    values: Float[Tensor, "*heads n"]
    attention_scale: float = 1.0
