"""Any encoding in place of the position mechanism of a transformers decoder, and back."""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from eigenclock.encodings import Encoding
from eigenclock.encodings.config import Encodings, encodings
from eigenclock.errors import ConfigError
from eigenclock.integrations.huggingface.attend import NAME, Layer
from eigenclock.integrations.huggingface.installed import Before, Installed, Reads, Still, remember
from eigenclock.integrations.huggingface.saving import mark
from eigenclock.integrations.huggingface.seams import Seams, find_seams
from eigenclock.integrations.layers import for_layers, key_repeats, laid_out

Given = Encoding | str | Mapping[str, "Encoding | str"] | Sequence["Encoding | str"] | None


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
    seams = find_seams(model)
    if isinstance(seams.attentions[0]._modules.get(NAME), Layer):
        raise ConfigError("got a model with an encoding installed already; expected it without: call uninstall() first")
    chosen = _for_layers(seams, encodings(seams.config) if given is None else given)
    repeats = {one: key_repeats(one, seams.heads, seams.kv_heads, seams.config.hidden_size) for one in dict.fromkeys(chosen)}
    still = Still(_rotary_width(seams))
    before = Before(seams.decoder.rotary_emb, model.config._attn_implementation, seams.config.rope_parameters)
    found = Installed(model, chosen, before)
    for attention, one in zip(seams.attentions, chosen, strict=True):
        attention.add_module(NAME, Layer(one, repeats[one]).to(next(attention.parameters()).device))
        if one.clock.sums:
            found.handles.append(attention.register_forward_pre_hook(remember, with_kwargs=True))
    seams.decoder.rotary_emb = still
    found.handles.append(seams.decoder.register_forward_pre_hook(Reads(found, seams.decoder), with_kwargs=True))
    model.set_attn_implementation(NAME)
    mark(seams, chosen)
    return found


def _rotary_width(seams: Seams) -> int:
    """How many cosines the model's own rotary module makes for each token."""
    rotary = seams.decoder.rotary_emb
    example = next(seams.decoder.parameters()).new_zeros(1, 1, 1)
    kinds = sorted(set(seams.layer_types)) if hasattr(rotary, "layer_types") else [None]
    widths = set()
    for kind in kinds:
        position = torch.zeros(1, 1, dtype=torch.long, device=example.device)
        widths.add(rotary(example, position, *([] if kind is None else [kind]))[0].shape[-1])
    if len(widths) != 1:
        raise ConfigError(f"got rotary widths {sorted(widths)} by layer type; expected one for all layers")
    return widths.pop()


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
