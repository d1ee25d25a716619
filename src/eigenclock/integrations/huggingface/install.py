"""Any encoding in place of the position mechanism of a transformers decoder, and back."""

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from eigenclock.encodings import Encoding
from eigenclock.encodings.config import Encodings, encodings
from eigenclock.errors import ConfigError
from eigenclock.integrations.huggingface.attend import NAME, Layer, attend
from eigenclock.integrations.huggingface.call import Advance, Timing, read_call
from eigenclock.integrations.huggingface.saving import mark
from eigenclock.integrations.huggingface.seams import Seams, find_seams
from eigenclock.integrations.layers import for_layers, key_repeats, laid_out

Given = Encoding | str | Mapping[str, "Encoding | str"] | Sequence["Encoding | str"] | None


class Still(nn.Module):
    """The rotary module of a model whose own rotation is switched off: cos 1 and sin 0, which leave queries and keys exactly alone."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        shape = (*position_ids.shape[-2:], self.width)
        return x.new_ones(shape), x.new_zeros(shape)


@dataclass
class Installed:
    """An encoding at work in a model, and the way back.

    encodings: that of each layer, as installed. Its learned numbers are parameters of the model, so give them to the optimiser without
    weight decay.
    """

    model: Any
    encodings: tuple[Encoding, ...]
    timing: Timing | None = None
    _undo: list[Any] = field(default_factory=list, repr=False)

    def uninstall(self) -> None:
        """The model as it was before: its own rotary module, attention function and configuration."""
        while self._undo:
            self._undo.pop()()

    @contextlib.contextmanager
    def times(self, prompt: Tensor, advance: Advance) -> Iterator[None]:
        """Real time in ``generate``: the times of the prompt, and the rule that gives each generated token its own.

        ``model.generate`` refuses keywords it does not know, so that times are given around it. One forward takes ``times=`` itself.

        Args:
            prompt: times of the prompt's tokens, (T,) or (B, T); beams repeat its rows.
            advance: from the last time of each row, (B,), to the next; ``lambda last: last + 60`` is one token a minute.
        Units: those of the encoding's clock.
        """
        before, self.timing = self.timing, Timing(torch.as_tensor(prompt), advance)
        try:
            yield
        finally:
            self.timing = before


def install(model: Any, given: Given = None) -> Installed:
    """Put an encoding in the place of a transformers decoder's position mechanism, exactly and for every way it is called.

    Forward, training with gradient checkpointing, left padding, packed rows, sliding layers, cached decoding, sampling and beam search
    run through :func:`eigenclock.attention`. Keys are cached as the projections made them, each with its exact time beside it.

    Args:
        model: a decoder of transformers 5, of one of the types in ``MODEL_TYPES``, with or without a language-model head.
        given: an encoding or its text; one for each layer type of the configuration, or one for each layer. None is the model's own,
            read from its configuration. Rotations in a text have the layout of the model (its pairing, and how many channels of a head
            turn) unless they name theirs; an Encoding is taken as it is. One that learns is copied for each layer, others are shared.
    Units: without times a token's time is its position. ``model(..., times=...)`` gives others, (T,) or (B, T).
    Raises: UnsupportedError for another model or a call it cannot carry (dropout on weights, static caches, output_attentions);
        ConfigError or ShapeError where the encoding does not fit the model.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=50)
    >>> model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    >>> installed = install(model, "rope * alibi")
    >>> model(torch.arange(6)[None]).logits.shape
    torch.Size([1, 6, 50])
    >>> installed.uninstall()
    """
    from transformers import AttentionInterface

    seams = find_seams(model)
    if isinstance(seams.attentions[0]._modules.get(NAME), Layer):
        raise ConfigError("got a model with an encoding installed already; expected it without: call uninstall() first")
    chosen = _for_layers(seams, encodings(seams.config) if given is None else given)
    AttentionInterface.register(NAME, attend)
    installed = Installed(model, chosen)
    undo = installed._undo
    repeats = {one: key_repeats(one, seams.heads, seams.kv_heads, seams.config.hidden_size) for one in dict.fromkeys(chosen)}
    for attention, one in zip(seams.attentions, chosen, strict=True):
        layer = Layer(one, repeats[one]).to(next(attention.parameters()).device)
        attention.add_module(NAME, layer)
        undo.append(lambda attention=attention: attention.__delattr__(NAME))
        if one.clock.sums:
            undo.append(attention.register_forward_pre_hook(_remember, with_kwargs=True).remove)
    _still(seams, undo)
    names = list(inspect.signature(type(seams.decoder).forward).parameters)[1:]
    hook = seams.decoder.register_forward_pre_hook(
        lambda decoder, args, kwargs: ((), read_call(decoder, dict(zip(names, args, strict=False)) | kwargs, installed.timing)),
        with_kwargs=True,
    )
    undo.append(hook.remove)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    undo.append(lambda: model.set_attn_implementation(before))
    mark(seams, chosen, undo)
    return installed


def _remember(attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Keep the input of the layer for its learned clock; the hook runs again where a checkpointed layer is computed again."""
    getattr(attention, NAME).x = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]


def _still(seams: Seams, undo: list[Any]) -> None:
    """Switch the model's own rotation off."""
    decoder = seams.decoder
    rotary = decoder.rotary_emb
    example = next(decoder.parameters()).new_zeros(1, 1, 1)
    kinds = sorted(set(seams.layer_types)) if hasattr(rotary, "layer_types") else [None]
    widths = set()
    for kind in kinds:
        position = torch.zeros(1, 1, dtype=torch.long, device=example.device)
        widths.add(rotary(example, position, *([] if kind is None else [kind]))[0].shape[-1])
    if len(widths) != 1:
        raise ConfigError(f"got rotary widths {sorted(widths)} by layer type; expected one for all layers")
    decoder.rotary_emb = Still(widths.pop())
    undo.append(lambda: setattr(decoder, "rotary_emb", rotary))


def _for_layers(seams: Seams, given: Any) -> tuple[Encoding, ...]:
    """One encoding for each layer, its own where it learns."""
    count = len(seams.attentions)
    if isinstance(given, Encodings):
        given = [given.layer(i) for i in range(count)]
    elif isinstance(given, Mapping):
        missing = sorted(set(seams.layer_types) - set(given))
        if missing:
            raise ConfigError(
                f"got encodings for the layer types {sorted(given)}; expected one for each of {sorted(set(seams.layer_types))}"
            )
        given = [given[kind] for kind in seams.layer_types]
    elif isinstance(given, str) or not isinstance(given, Sequence):
        given = [given] * count
    read = functools.cache(lambda: _quietly(seams.config))
    rows = [laid_out(one, functools.partial(_own, read, i)) if isinstance(one, str) else one for i, one in enumerate(given)]
    return for_layers(rows, count, head_dim=seams.head_dim, heads=seams.heads, kv_heads=seams.kv_heads)


def _own(read: Callable[[], Encodings], index: int) -> Encoding | None:
    """The rotation that a layer's projections were made for: its own, or that of the first layer that turns; None where none does."""
    found = read()
    order = [index, *range(len(found.layers))] if index < len(found.layers) else range(len(found.layers))
    return next((found.layer(i) for i in order if found.rotates[i]), None)


def _quietly(config: Any) -> Encodings:
    """What the configuration says, for its layout alone: warnings are about frequencies."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return encodings(config)
