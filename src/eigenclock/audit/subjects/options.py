"""What the caller of an audit says beside the subject."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Options:
    """Sizes where the subject names none, the length it is judged for, and the dtype it is used in; None leaves them to the subject.

    >>> Options(head_dim=64).length
    4096
    """

    head_dim: int | None = None
    heads: int | None = None
    length: int = 4096
    dtype: torch.dtype | None = None
