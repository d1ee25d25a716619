"""The attention function that transformers calls in place of its own: keys as the model made them, every key at its own time."""

from typing import Any

from torch import Tensor, nn

from eigenclock.attention.problem import build
from eigenclock.attention.softmax import run
from eigenclock.attention.times import Times, given_origin
from eigenclock.clocks import Index
from eigenclock.clocks.clock import Reading, with_heads
from eigenclock.encodings import Encoding
from eigenclock.errors import UnsupportedError
from eigenclock.integrations.huggingface.cache import Kept, Timed
from eigenclock.integrations.huggingface.call import Call
from eigenclock.integrations.huggingface.visible import as_transformers

NAME = "eigenclock"
"""The name under which transformers knows the attention function, and the attribute that holds the encoding of a layer."""


class Layer(nn.Module):
    """The encoding of one attention layer, registered there so that what it learns is saved with the model."""

    def __init__(self, encoding: Encoding, repeats: int):
        super().__init__()
        self.encoding = encoding
        self.repeats = repeats  # of keys and values, where each query head of a group has a law of its own
        self.x: Tensor | None = None  # the layer's input, for learned clocks; set just before the layer runs


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float | None = None,
    dropout: float = 0.0, sliding_window: int | None = None, softcap: float | None = None, position_bias: Tensor | None = None,
    output_attentions: bool = False, is_causal: bool | None = None,
    eigenclock: Call | None = None, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention of one layer: query (B, H, T, D), key and value (B, G, S, D) -> (B, T, H, D). transformers passes more than is read."""
    refusals = {
        "dropout on attention weights": dropout > 0, "softcap": softcap is not None, "position_bias": position_bias is not None,
        "output_attentions (weights are never formed)": output_attentions, "is_causal=False": is_causal is False,
        "a call around the model's own forward": eigenclock is None,
    }  # fmt: skip
    for name, asked in refusals.items():
        if asked:
            raise UnsupportedError(f"got {name}, which an installed eigenclock encoding does not carry; expected a call without it")
    assert eigenclock is not None  # refused above
    layer: Layer = module.eigenclock
    encoding, t, s = layer.encoding, query.shape[2], key.shape[2]
    times = _read(layer, module, eigenclock, t, s)
    if layer.repeats > 1:
        key, value = (z.repeat_interleave(layer.repeats, 1) for z in (key, value))
    block = None if attention_mask is None or attention_mask.ndim != 4 else attention_mask
    plain = t == s and block is None and not (eigenclock.holes and sliding_window is not None)
    problem = build(
        query, key, value, encoding, times=None, key_times=None, x=None, key_x=None, causal=True,
        window=sliding_window if plain else None, documents=eigenclock.documents, mask=_padding(eigenclock, s),
        scale=scaling, read=times,
    )  # fmt: skip
    problem = problem if plain else as_transformers(problem, block, sliding_window)
    out, _ = run(problem)
    return out.transpose(1, 2), None


def _padding(call: Call, s: int) -> Tensor | None:
    """The padding of the keys that are still there."""
    return None if call.mask is None else call.mask[:, call.mask.shape[1] - s :]


def _read(layer: Layer, module: Any, call: Call, t: int, s: int) -> Times:
    """The times of the new tokens and of all keys of this layer, which its cache keeps from now on."""
    clock, x = layer.encoding.clock, layer.x
    layer.x = None  # activations are not kept beyond the call
    cached = None if call.cache is None else call.cache.layers[module.layer_idx]
    kept: Kept | None = cached.kept if isinstance(cached, Timed) else None
    times = call.positions if call.times is None and isinstance(clock, Index) else call.times
    given = call.times is not None or isinstance(clock, Index)
    origin = since = None
    if kept is not None:
        origin = clock.continued(Reading(kept.ticks, kept.origin), given)
        since = None if kept.stamps is None else kept.stamps[:, -1:]
    real = None if call.mask is None else call.mask[:, call.mask.shape[1] - t :]
    reading = clock(times, length=t, origin=origin, documents=call.documents, mask=real, x=x, since=since, device=call.positions.device)
    ticks, began = with_heads(reading.ticks, clock.width), given_origin(clock, reading, times)
    if not isinstance(cached, Timed):
        return Times(ticks, ticks, began)
    origin = reading.origin if reading.origin is None else with_heads(reading.origin, clock.width)
    keys = cached.keep(ticks, origin, call.times, s)
    return Times(keys if t == s else ticks, keys, began)
