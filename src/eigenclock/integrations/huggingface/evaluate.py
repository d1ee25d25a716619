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
    model: Any,
    tokens: Int[Tensor, "T"],
    *,
    block: int = 2048,
    piece: int = PIECE,
    progress: Callable[[list[float], int], None] | None = None,
) -> list[float]:
    """The mean loss (nats per token) of each block of a text, every token predicted from all before it.

    Read in pieces against a cache, so that memory grows with the length and not with its square.

    Args:
        tokens: one row of token ids. The last block is the mean of what is left, where that is less than a block.
        block: tokens of one block.
        piece: tokens of one forward; it changes no loss beyond rounding.
        progress: called after every block with the losses so far, and the number of tokens read.
    Raises: ConfigError where the text is shorter than two tokens, or block or piece is less than one.
    """
    if block < 1 or piece < 1:
        raise ConfigError(f"got block={block} and piece={piece}; expected 1 or more")
    length = len(tokens) - 1  # tokens that another one follows
    if length < 1:
        raise ConfigError(f"got a text of {len(tokens)} tokens; expected at least two")
    blocks: list[float] = []
    rest, cache = tokens.new_zeros(0, dtype=torch.float32), None
    for start in range(0, length, piece):
        part, targets = tokens[start : min(start + piece, length)], tokens[start + 1 : min(start + piece, length) + 1]
        out = model(part[None], cache=cache, use_cache=length > piece)
        cache = out.cache
        for logits, wanted in zip(out.logits[0].split(PIECE), targets.split(PIECE), strict=True):
            rest = torch.cat([rest, torch.nn.functional.cross_entropy(logits.float(), wanted, reduction="none")])
        done, last = start + len(part), start + len(part) == length
        while len(rest) >= block or (last and len(rest)):
            blocks.append(float(rest[:block].mean()))
            rest = rest[block:]
            if progress is not None:
                progress(list(blocks), done)
    return blocks
