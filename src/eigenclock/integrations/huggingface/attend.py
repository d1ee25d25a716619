"""The attention function that transformers calls in place of its own: keys as the model made them, every key at its own time."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from eigenclock.attention.problem import build
from eigenclock.attention.softmax import run
from eigenclock.attention.times import Times
from eigenclock.clocks import Index
from eigenclock.clocks.clock import Reading, with_heads
from eigenclock.encodings import Encoding
from eigenclock.errors import UnsupportedError
from eigenclock.integrations.huggingface.cache import Kept, Timed
from eigenclock.integrations.huggingface.call import Call

NAME = "eigenclock"
"""The name under which transformers knows the attention function, and the attribute that holds the encoding of a layer."""


class Layer(nn.Module):
    """The encoding of one attention layer, registered there so that what it learns is saved with the model."""

    def __init__(self, encoding: Encoding):
        super().__init__()
        self.encoding = encoding
        self.x: Tensor | None = None  # the layer's input, for learned clocks; set just before the layer runs


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float | None = None,
    dropout: float = 0.0, sliding_window: int | None = None, softcap: float | None = None, position_bias: Tensor | None = None,
    output_attentions: bool = False, eigenclock: Call | None = None, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention of one layer: query (B, H, T, D), key and value (B, G, S, D) -> (B, T, H, D). transformers passes more than is read."""
    refusals = {
        "dropout on attention weights": dropout > 0, "softcap": softcap is not None, "position_bias": position_bias is not None,
        "output_attentions (weights are never formed)": output_attentions, "a call around the model's own forward": eigenclock is None,
    }  # fmt: skip
    for name, asked in refusals.items():
        if asked:
            raise UnsupportedError(f"got {name}, which an installed eigenclock encoding does not carry; expected a call without it")
    assert eigenclock is not None  # refused above
    layer: Layer = module.eigenclock
    encoding, t, s = layer.encoding, query.shape[2], key.shape[2]
    new, keys = _read(layer, module, eigenclock, t, s)
    problem = build(
        query, key, value, encoding, times=None, key_times=None, x=None, key_x=None, causal=True, window=sliding_window,
        documents=eigenclock.documents, mask=_mask(eigenclock, attention_mask, s), scale=scaling,
        read=Times(new, keys) if t != s else Times(keys, keys),
    )  # fmt: skip
    if problem.cross and t > 1:  # tokens after a cache see what came before them by index: times may tie
        allowed = torch.ones(t, s, dtype=torch.bool, device=query.device).tril(s - t)[None, None]
        problem = replace(problem, allowed=allowed if problem.allowed is None else problem.allowed & allowed)
    out, _ = run(problem)
    return out.transpose(1, 2), None


def _mask(call: Call, attention_mask: Tensor | None, s: int) -> Tensor | None:
    """What may be attended to: the 4-axes mask the caller prepared, or the padding of the keys that are still there."""
    if attention_mask is not None:
        return attention_mask if attention_mask.dtype == torch.bool else attention_mask >= 0
    return None if call.mask is None else call.mask[:, call.mask.shape[1] - s :]


def _read(layer: Layer, module: Any, call: Call, t: int, s: int) -> tuple[Tensor, Tensor]:
    """The times of the new tokens and of all keys of this layer, which its cache keeps from now on."""
    clock = layer.encoding.clock
    cached = None if call.cache is None else call.cache.layers[module.layer_idx]
    kept: Kept | None = cached.kept if isinstance(cached, Timed) else None
    times = call.positions if call.times is None and isinstance(clock, Index) else call.times
    given = call.times is not None or isinstance(clock, Index)
    origin = since = None
    if kept is not None:
        origin = clock.continued(Reading(kept.ticks, kept.origin), given)
        since = None if kept.stamps is None else kept.stamps[:, -1:]
    real = None if call.mask is None else call.mask[:, call.mask.shape[1] - t :]
    reading = clock(
        times, length=t, origin=origin, documents=call.documents, mask=real, x=layer.x, since=since, device=call.positions.device
    )
    ticks = with_heads(reading.ticks, clock.width)
    if not isinstance(cached, Timed):
        return ticks, ticks
    origin = reading.origin if reading.origin is None else with_heads(reading.origin, clock.width)
    return ticks, cached.keep(ticks, origin, call.times, s)
