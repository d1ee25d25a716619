"""nanochat: any encoding in place of its rotary tables.

After ``model.init_weights()`` (the model is born on the meta device), before ``torch.compile``, and after the optimiser is made:

    from eigenclock.integrations import nanochat
    nanochat.install(model, "rope(theta=100000, pairing='half') * alibi")
    ...
    nanochat.exempt(optimizer, model)       # only where the encoding learns

A resumed run has both lines before the states they change are loaded: ``install`` between ``init_weights`` and ``load_state_dict``,
``exempt`` between ``setup_optimizer`` and ``optimizer.load_state_dict``. nanochat's schedule multiplies the rate that each group began
with, so that ``exempt(.., lr=)`` holds.

nanochat turns first and normalises afterwards, which commutes with a rotation and with nothing else: here the norm comes first. It turns by
minus the angle: a model that learns from the start does not care, one trained already wants the frequencies negated, which is what
:func:`own` gives. Everything in its blocks goes to Muon, vectors of rates too, until ``exempt`` moves them.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from eigenclock.attention import attention
from eigenclock.encodings import Encoding
from eigenclock.encodings.config import encodings
from eigenclock.errors import UnsupportedError
from eigenclock.integrations.layers import for_layers, key_repeats
from eigenclock.integrations.optimizers import exempt as exempt

SHARPNESS = 1.2
"""What nanochat multiplies normalised queries and keys by, each."""
GATE = 3.0
"""The upper end of nanochat's gate on value embeddings."""


class Attention(nn.Module):
    """Causal self-attention on nanochat's projections, called as its own: x (B, T, C) -> (B, T, C)."""

    c_q: nn.Module
    c_k: nn.Module
    c_v: nn.Module
    c_proj: nn.Module
    ve_gate: Any

    def __init__(self, own: Any, encoding: Encoding, repeats: int):
        super().__init__()
        self.c_q, self.c_k, self.c_v, self.c_proj, self.ve_gate = own.c_q, own.c_k, own.c_v, own.c_proj, own.ve_gate
        self.repeats = repeats  # of keys and values, where each query head of a group has a law of its own
        self.layer_idx, self.head_dim, self.encoding = own.layer_idx, own.head_dim, encoding
        self.ve_gate_channels = own.ve_gate_channels

    def forward(self, x: Tensor, ve: Tensor | None, cos_sin: Any, window_size: tuple[int, int], kv_cache: Any) -> Tensor:
        """``cos_sin`` is not read; ``window_size`` counts the tokens before the query, negative for all."""
        q, k, v = (project(x).unflatten(-1, (-1, self.head_dim)) for project in (self.c_q, self.c_k, self.c_v))
        if ve is not None:
            gate = GATE * self.ve_gate(x[..., : self.ve_gate_channels]).sigmoid()
            v = v + gate[..., None] * ve.view_as(v)
        q, k = (SHARPNESS * F.rms_norm(y, (self.head_dim,)) for y in (q, k))
        if kv_cache is not None:
            k, v = self._cached(k, v, kv_cache)
        before = window_size[0]
        window = before + 1 if 0 <= before < k.shape[1] - 1 else None
        learned = x if self.encoding.clock.sums else None
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        if self.repeats > 1:
            k, v = (y.repeat_interleave(self.repeats, 1) for y in (k, v))
        out = attention(q, k, v, self.encoding, window=window, x=learned)
        return self.c_proj(out.transpose(1, 2).flatten(-2))

    def _cached(self, k: Tensor, v: Tensor, kv_cache: Any) -> tuple[Tensor, Tensor]:
        """All keys and values so far, (B, S, G, D), the new ones written into nanochat's own cache as they are."""
        if self.encoding.clock.sums:
            raise UnsupportedError(
                "got a learned clock with nanochat's cache, which has no place for times; expected generate without a cache"
            )
        t, start = k.shape[1], kv_cache.get_pos()
        keys, values = kv_cache.get_layer_cache(self.layer_idx)
        keys[:, start : start + t], values[:, start : start + t] = k, v
        if self.layer_idx == kv_cache.n_layers - 1:
            kv_cache.advance(t)
        return keys[:, : start + t].to(k.dtype), values[:, : start + t].to(v.dtype)


def own(model: Any) -> Encoding:
    """The rotation that nanochat's own tables hold: base 100000, halves, by minus the angle.

    Args:
        model: nanochat's ``GPT``; only the sizes of its heads are read.
    """
    blocks = model.transformer.h
    first = blocks[0].attn
    sizes = {"n_embd": first.n_embd, "n_head": first.n_head, "n_kv_head": first.n_kv_head, "n_layer": len(blocks)}
    return encodings({"sequence_len": 1, **sizes}).only  # the length has no part in it


def install(model: Any, given: Encoding | str) -> None:
    """Put an encoding in the place of nanochat's rotation.

    Args:
        model: nanochat's ``GPT`` with its weights initialised, before ``torch.compile``.
        given: an encoding, or its text; where it learns, each layer gets a copy.
    Raises: UnsupportedError where the model has another structure, or is still on the meta device; ShapeError where the encoding
        does not fit.
    """
    blocks = getattr(getattr(model, "transformer", None), "h", None)
    if blocks is None or not all(hasattr(block.attn, "c_q") and hasattr(block.attn, "ve_gate_channels") for block in blocks):
        raise UnsupportedError(f"got {type(model).__name__}; expected nanochat's GPT: blocks with attn.c_q, c_k, c_v, c_proj and ve_gate")
    first = blocks[0].attn
    device = first.c_q.weight.device
    if device.type == "meta":
        raise UnsupportedError("got a model on the meta device; expected one after to_empty() and init_weights()")
    chosen = for_layers(given, len(blocks), head_dim=first.head_dim, heads=first.n_head, kv_heads=first.n_kv_head)
    repeats = {one: key_repeats(one, first.n_head, first.n_kv_head, first.n_embd) for one in dict.fromkeys(chosen)}
    for block, encoding in zip(blocks, chosen, strict=True):
        block.attn = Attention(block.attn, encoding.to(device), repeats[encoding])
