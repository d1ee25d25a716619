"""Numbers made in Python or numpy, kept from every initialiser that wraps constructors of torch."""

import math
from collections.abc import Callable
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


def keeping_dtype(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A move or cast of a module's tensors, less the cast: ``.half()`` and ``.to(bfloat16)`` leave learned numbers in float32.

    >>> keeping_dtype(lambda x: x.half())(torch.ones(1)).dtype
    torch.float32
    """

    def keep(t: Tensor) -> Tensor:
        moved = fn(t)
        return moved if moved.dtype == t.dtype else t.to(moved.device)

    return keep


def spacing(value: float, dtype: torch.dtype) -> float:
    """How far a dtype's numbers are apart at a value: its unit in the last place.

    >>> spacing(472_223.0, torch.float32), spacing(1_764_547_200.0, torch.float32)
    (0.03125, 128.0)
    """
    info = torch.finfo(dtype)
    return max(2.0 ** (math.frexp(value)[1] - 1), info.tiny) * info.eps
