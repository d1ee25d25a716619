"""nanoGPT: any encoding in place of its table of absolute positions.

In train.py, after the model is made and before it is compiled, and after the optimiser is made:

    from eigenclock.integrations import nanogpt
    nanogpt.install(model, "rope * alibi")
    ...
    nanogpt.exempt(optimizer, model)        # only where the encoding learns

The weights keep their names, but for ``transformer.wpe``, which is gone. Sampling (sample.py) installs the same encoding before it loads
the checkpoint. nanoGPT's optimiser decays every tensor of two axes; ``exempt`` takes what the encoding learns out of it.
"""

from typing import Any

import torch
from torch import Tensor, nn

from eigenclock.attention import attention
from eigenclock.encodings import Encoding
from eigenclock.errors import UnsupportedError
from eigenclock.integrations.layers import for_layers, key_repeats
from eigenclock.integrations.optimizers import exempt as exempt


class Attention(nn.Module):
    """Causal self-attention on nanoGPT's projections: x (B, T, C) -> (B, T, C)."""

    c_attn: nn.Module
    c_proj: nn.Module
    resid_dropout: nn.Module

    def __init__(self, own: Any, encoding: Encoding):
        super().__init__()
        self.c_attn, self.c_proj, self.resid_dropout = own.c_attn, own.c_proj, own.resid_dropout
        self.heads, self.encoding = own.n_head, encoding

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        out = attention(q, k, v, self.encoding, x=x if self.encoding.clock.sums else None)
        return self.resid_dropout(self.c_proj(out.transpose(1, 2).flatten(-2)))


class NoTable(nn.Module):
    """What stands for the table of positions: nothing is added. ``weight`` has no rows, for code that counts or crops them."""

    weight: Tensor

    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.register_buffer("weight", torch.zeros(0, width), persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        return self.weight.new_zeros(*positions.shape, self.width)


def install(model: Any, given: Encoding | str) -> None:
    """Put an encoding in the place of nanoGPT's absolute positions.

    Args:
        model: nanoGPT's ``GPT``, before ``torch.compile``: ``transformer.wpe`` and blocks with ``attn.c_attn`` and ``attn.c_proj``.
        given: an encoding, or its text; where it learns, each layer gets a copy.
    Raises: UnsupportedError where the model has another structure, or dropout on attention weights; ShapeError where the encoding
        does not fit.
    """
    blocks = getattr(getattr(model, "transformer", None), "h", None)
    if blocks is None or not all(hasattr(block.attn, "c_attn") for block in blocks) or "wpe" not in model.transformer:
        raise UnsupportedError(
            f"got {type(model).__name__}; expected nanoGPT's GPT: transformer.wpe, and blocks with attn.c_attn and attn.c_proj"
        )
    if any(block.attn.dropout for block in blocks):
        raise UnsupportedError(
            "got a model with dropout on attention weights, which are never formed here; expected block.attn.dropout = 0 in each block "
            "(dropout on the residual stream stays)"
        )
    first = blocks[0].attn
    chosen = for_layers(given, len(blocks), head_dim=first.n_embd // first.n_head, heads=first.n_head, kv_heads=None)
    for one in dict.fromkeys(chosen):
        key_repeats(one, first.n_head, first.n_head, first.n_embd)  # refuses here what no call could carry
    device = first.c_attn.weight.device
    for block, encoding in zip(blocks, chosen, strict=True):
        block.attn = Attention(block.attn, encoding.to(device))
    model.transformer.wpe = NoTable(first.n_embd).to(device)
