"""Loss along a long text, block by block: what an extension does below and above the original length."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from eigenclock.errors import ConfigError

PIECE = 1024
"""Tokens of one forward; the cache carries the rest. Longer pieces are faster and take more memory, most of it for logits."""


@torch.no_grad()
def block_losses(
    model: Any, tokens: Int[Tensor, "T"], *, block: int = 2048, piece: int = PIECE, progress: Callable[[int, int], None] | None = None
) -> list[float]:
    """The mean loss (nats per token) of each block of a text, every token predicted from all before it.

    Read in pieces against a cache, so that memory grows with the length and not with its square.

    Args:
        tokens: one row of token ids; a last block that is not whole is left out.
        block: tokens of one block.
        piece: tokens of one forward; it changes no loss beyond rounding.
        progress: called with the tokens read so far, and all.
    Raises: ConfigError where the text is shorter than one block.
    """
    length = len(tokens) // block * block
    if not length:
        raise ConfigError(f"got a text of {len(tokens)} tokens; expected at least one block of {block}")
    tokens = tokens[: length + 1]
    losses, cache = [], None
    for start in range(0, length, piece):
        part = tokens[start : min(start + piece, length)]
        out = model(part[None], cache=cache, use_cache=length > piece)
        cache = out.cache
        targets = tokens[start + 1 : start + 1 + len(part)]
        for logits, wanted in zip(out.logits[0, : len(targets)].split(PIECE), targets.split(PIECE), strict=True):
            losses.append(torch.nn.functional.cross_entropy(logits.float(), wanted, reduction="none"))
        if progress is not None:
            progress(min(start + piece, length), length)
    return [float(part.mean()) for part in torch.cat(losses).split(block)]
