"""An encoding at work in a transformers decoder: what runs around each forward, and the way back."""

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from eigenclock.encodings import Encoding
from eigenclock.errors import ConfigError
from eigenclock.integrations.huggingface.attend import NAME, attend
from eigenclock.integrations.huggingface.cache import make_twins
from eigenclock.integrations.huggingface.call import Advance, Timing, read_call
from eigenclock.integrations.huggingface.saving import unmark
from eigenclock.integrations.huggingface.seams import find_seams


class Still(nn.Module):
    """The rotary module of a model whose own rotation is switched off: cos 1 and sin 0, which leave queries and keys exactly alone."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        shape = (*position_ids.shape[-2:], self.width)
        return x.new_ones(shape), x.new_zeros(shape)


@dataclass
class Before:
    """What a model had in place of an encoding."""

    rotary: Any
    attention: str
    rope_parameters: Any


@dataclass
class Installed:
    """An encoding at work in a model, and the way back. It is copied, pickled and saved by ``torch.save`` with the model.

    encodings: that of each layer, as installed. Its learned numbers are parameters of the model, so give them to the optimiser without
    weight decay.
    """

    model: Any
    encodings: tuple[Encoding, ...]
    before: Before = field(repr=False)
    handles: list[Any] = field(default_factory=list, repr=False)
    timing: Timing | None = None

    def uninstall(self) -> None:
        """The model as it was before: its own rotary module, attention function and configuration."""
        if not self.handles:
            return
        seams = find_seams(self.model)
        while self.handles:
            self.handles.pop().remove()
        for attention in seams.attentions:
            delattr(attention, NAME)
        seams.decoder.rotary_emb = self.before.rotary
        self.model.set_attn_implementation(self.before.attention)
        unmark(seams.config, self.before.rope_parameters)

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


class Reads:
    """The hook of a decoder: it reads each call before the model does."""

    def __init__(self, installed: Installed, decoder: Any):
        self.installed = installed
        self.names = tuple(inspect.signature(type(decoder).forward).parameters)[1:]
        register()

    def __call__(self, decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
        given = dict(zip(self.names, args, strict=False)) | kwargs
        return (), read_call(decoder, given, self.installed.timing)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A model that was pickled finds the attention function again, in whatever process."""
        self.__dict__.update(state)
        register()


def register() -> None:
    """Make the attention function known to transformers, and its cache layers to us."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)
    make_twins()


def installed(model: Any) -> Installed:
    """What is installed in a model, also in one that was copied, loaded or unpickled.

    Raises: ConfigError where nothing is; UnsupportedError for a model without a known seam.
    """
    hooks = find_seams(model).decoder._forward_pre_hooks.values()
    found = next((hook.installed for hook in hooks if isinstance(hook, Reads)), None)
    if found is None:
        raise ConfigError("got a model without an installed encoding; expected one after install(model, ..) or load(path)")
    return found


def remember(attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Keep the input of the layer for its learned clock; the hook runs again where a checkpointed layer is computed again."""
    getattr(attention, NAME).x = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
