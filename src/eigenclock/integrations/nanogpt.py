"""nanoGPT: any encoding in place of its table of absolute positions.

In train.py, a line after each place that makes the model, so that it stands before ``model.load_state_dict`` when a run is resumed, and
one after the optimiser is made, before ``optimizer.load_state_dict``:

    from eigenclock.integrations import nanogpt

    model = GPT(gptconf)                                    # from scratch, and again where init_from == 'resume'
    nanogpt.install(model, "damped_rope(half_life=(8, 512), learn='rate')")
    ...
    optimizer = model.configure_optimizers(...)
    nanogpt.exempt(optimizer, model, lr=1e-3)               # only where the encoding learns

The weights keep their names, but for ``transformer.wpe``, which is gone, and what the encoding learns, which is in the checkpoint as
``transformer.h.N.attn.encoding...``. Install the same encoding with the same options whenever that checkpoint is loaded, in sample.py too.
The optimiser's state has the groups that ``exempt`` makes: a run resumed without that line, or with it after the state is loaded, is
refused by torch for its number of groups.

A longer context than the one that was trained needs no new weights. Where train.py has ``if block_size < model.config.block_size``:

    nanogpt.lengthen(model, block_size)                     # in place of crop_block_size, which can only shorten
    model_args['block_size'] = block_size

nanoGPT's ``generate`` runs the whole context again for every token; ``nanogpt.generate(model, x, max_new_tokens)`` keeps the keys, and
draws the same tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from eigenclock.attention import KVCache, attention, cached_attention
from eigenclock.encodings import Encoding
from eigenclock.errors import ConfigError, ShapeError, UnsupportedError
from eigenclock.integrations import optimizers
from eigenclock.integrations.layers import for_layers, key_repeats


class Attention(nn.Module):
    """Causal self-attention on nanoGPT's projections: x (B, T, C) -> (B, T, C)."""

    c_attn: nn.Module
    c_proj: nn.Module
    resid_dropout: nn.Module

    def __init__(self, own: Any, encoding: Encoding):
        super().__init__()
        self.c_attn, self.c_proj, self.resid_dropout = own.c_attn, own.c_proj, own.resid_dropout
        self.heads, self.encoding = own.n_head, encoding
        self.keeps, self.cache = False, None  # whether the keys of a call are kept for the next one, and those kept so far

    cache: KVCache | None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        learned = x if self.encoding.clock.sums else None
        if self.keeps:
            out, self.cache = cached_attention(q, k, v, self.encoding, cache=self.cache, x=learned)
        else:
            out = attention(q, k, v, self.encoding, x=learned)
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


def exempt(optimizer: Any, model: nn.Module, *, lr: float | None = None) -> None:
    """Take what the encodings learn out of weight decay, and keep its own learning rate under nanoGPT's schedule.

    train.py writes one learning rate into every group at each iteration. Just before a step the rate of this group is multiplied by
    lr / learning_rate, and given back after it.

    Args:
        optimizer: what ``configure_optimizers`` returned, before any state is loaded into it.
        lr: learning rate at the peak of the schedule, where the others have ``learning_rate`` (default: the same).
    Raises: ConfigError where the optimiser does not hold what the encodings learn, or lr is no positive number.
    """
    if lr is not None and not 0 < lr < float("inf"):
        raise ConfigError(f"got lr={lr!r}; expected a positive learning rate, or None for that of the other groups")
    peak = optimizer.param_groups[0]["lr"]
    optimizers.exempt(optimizer, model)
    if lr is not None:
        optimizers.scale_rate(optimizer, optimizers.positional_parameters(model), lr / peak)


def lengthen(model: Any, block_size: int) -> None:
    """Let a model with an encoding installed take longer sequences than it was made for; no weight changes.

    Raises: ShapeError where that is shorter (nanoGPT's own ``crop_block_size`` shortens); UnsupportedError where no encoding is installed,
        or one has a vector for each position and cannot go beyond its own length.
    """
    model = getattr(model, "_orig_mod", model)
    if block_size < model.config.block_size:
        raise ShapeError(f"got block_size={block_size} for a model of {model.config.block_size}; expected crop_block_size to shorten it")
    for attn in _installed(model):
        lengths = [part.length for part in attn.encoding.outside() if part.length is not None]
        if lengths and min(lengths) < block_size:
            raise UnsupportedError(
                f"got block_size={block_size} with {attn.encoding}, which ends at position {min(lengths)}; expected at most that, or an "
                "encoding of differences"
            )
    model.config.block_size = block_size


@torch.no_grad()
def generate(
    model: Any, idx: Int[Tensor, "B T"], max_new_tokens: int, *, temperature: float = 1.0, top_k: int | None = None
) -> Int[Tensor, "B T+new"]:
    """What ``model.generate`` draws, with the keys of earlier tokens kept: one token a step in place of the whole context.

    Args:
        model: nanoGPT's ``GPT`` with an encoding installed, in eval mode; where it was compiled, what was compiled is called as it is.
    Raises: ShapeError where the sequence would become longer than ``model.config.block_size``: nanoGPT would drop the oldest tokens and
        run the rest again, which no cache can stand for; UnsupportedError where no encoding is installed.
    """
    model = getattr(model, "_orig_mod", model)
    if idx.shape[1] + max_new_tokens > model.config.block_size:
        raise ShapeError(
            f"got {idx.shape[1]} tokens and {max_new_tokens} new ones for block_size={model.config.block_size}; expected as many as fit: "
            "lengthen(model, block_size) first, or nanoGPT's own generate, which forgets the oldest"
        )
    with _kept(_installed(model)):
        fresh = idx
        for _ in range(max_new_tokens):
            logits = model(fresh)[0][:, -1] / temperature
            if top_k is not None:
                least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
                logits = logits.masked_fill(logits < least, -torch.inf)
            fresh = torch.multinomial(logits.softmax(-1), num_samples=1)
            idx = torch.cat([idx, fresh], 1)
    return idx


def _installed(model: Any) -> list[Attention]:
    blocks = getattr(getattr(model, "transformer", None), "h", ())
    found = [block.attn for block in blocks if isinstance(block.attn, Attention)]
    if not found:
        raise UnsupportedError(f"got {type(model).__name__} without an encoding; expected nanoGPT's GPT after nanogpt.install(model, ..)")
    return found


@contextmanager
def _kept(layers: list[Attention]) -> Iterator[None]:
    """Inside, every layer keeps its keys from call to call; afterwards none holds any."""
    for layer in layers:
        layer.keeps, layer.cache = True, None
    try:
        yield
    finally:
        for layer in layers:
            layer.keeps, layer.cache = False, None
