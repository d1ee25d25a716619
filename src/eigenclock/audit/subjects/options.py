"""What the caller of an audit says beside the subject."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from eigenclock.encodings.config import families

LENGTH = 4096
"""The positions a subject is judged for where neither the caller nor its config says."""


@dataclass(frozen=True)
class Options:
    """Sizes where the subject names none, the length it is judged for, and the dtype it is used in; None leaves them to the subject.

    Args:
        own_length: whether a config decides on the length, where it names one.
        axes: how many numbers a position is, for functions.
        step: what one position lasts, in words, for clocks that have a unit.

    >>> Options(head_dim=64).length
    4096
    """

    head_dim: int | None = None
    heads: int | None = None
    length: int = LENGTH
    dtype: torch.dtype | None = None
    own_length: bool = False
    axes: int = 1
    step: str | None = None

    def of_config(self, config: Mapping[str, Any]) -> "Options":
        """The same with the length that a config names, where it is for the config to say.

        >>> Options(own_length=True).of_config({"max_position_embeddings": 131072}).length
        131072
        """
        named = named_length(config) if self.own_length else None
        return self if named is None else replace(self, length=named, own_length=False)


def named_length(config: Mapping[str, Any]) -> int | None:
    """The positions that a config says it is for, at least 2; None where it says nothing of them.

    >>> named_length({"general.architecture": "llama", "llama.context_length": 8192})
    8192
    """
    text = config.get("text_config")
    parts = [text, config] if isinstance(text, Mapping) else [config]
    gguf = f"{config.get('general.architecture')}.context_length"
    found = (part.get(key) for part in parts for key in (*families.LENGTHS, gguf))
    return next((n for n in found if isinstance(n, int) and not isinstance(n, bool) and n > 1), None)
