"""Packed documents: ids for each token, or boundaries by name."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from eigenclock.errors import ShapeError


@dataclass(frozen=True)
class Boundaries:
    """Packed documents by their cumulative lengths, the ``cu_seqlens`` of variable-length kernels.

    Document i is the tokens bounds[i] .. bounds[i + 1] - 1, in every row of the batch. Pass it as ``documents=``; a plain tensor
    there is ids, one for each token. A document of length 0 is allowed.

    Args:
        bounds: whole numbers (N + 1,), from 0 to the length of the sequence, none less than the one before.
    Shape: (N + 1,) for N documents.
    Raises: ShapeError where they are none of that; in the call where they do not end at its length.

    >>> Boundaries([0, 2, 5]).ids(5)
    tensor([0, 0, 1, 1, 1])
    """

    bounds: Any

    def __post_init__(self) -> None:
        bounds = torch.as_tensor(self.bounds)
        whole = bounds.ndim == 1 and not bounds.is_floating_point() and bounds.dtype != torch.bool
        if not whole or bounds.numel() < 2:
            raise ShapeError(
                f"got boundaries of shape {tuple(bounds.shape)}, {bounds.dtype}; expected whole numbers (N + 1,) for N documents: "
                "0, the length of the first, of the first two, .., the length of the sequence"
            )
        if not torch.compiler.is_compiling() and (int(bounds[0]) != 0 or bool((bounds.diff() < 0).any())):
            raise ShapeError(f"got boundaries {_shown(bounds)}; expected them to begin with 0 and never to go back")
        object.__setattr__(self, "bounds", bounds)

    def ids(self, length: int, device: torch.device | None = None) -> Int[Tensor, "T"]:
        """The number of the document of each of ``length`` tokens.

        Raises: ShapeError where the boundaries do not end at the length.
        """
        bounds = self.bounds.to(device=device, dtype=torch.int64)
        if not torch.compiler.is_compiling() and int(bounds[-1]) != length:
            raise ShapeError(f"got boundaries {_shown(bounds)} for {length} tokens; expected them to end at {length}")
        return torch.searchsorted(bounds[1:], torch.arange(length, device=bounds.device), right=True)


def _shown(bounds: Tensor) -> str:
    """The first and last few of them."""
    numbers = [str(n) for n in bounds.tolist()]
    return ", ".join(numbers if len(numbers) <= 8 else [*numbers[:4], "..", *numbers[-2:]])


def read_ids(documents: "Tensor | Boundaries | None", length: int, device: torch.device) -> Tensor | None:
    """Documents of a call as ids, where they were given as boundaries; whatever else was given as it is."""
    if isinstance(documents, Boundaries):
        return documents.ids(length, device)
    if documents is not None and not isinstance(documents, Tensor):
        raise ShapeError(
            f"got documents of type {type(documents).__name__}; expected a tensor of integer ids, one for each token, or "
            "Boundaries(cu_seqlens)"
        )
    return documents
