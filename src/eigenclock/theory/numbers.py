"""Numbers made in Python or numpy, kept from every initialiser that wraps constructors of torch."""

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
