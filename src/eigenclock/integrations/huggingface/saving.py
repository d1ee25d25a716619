"""The encoding travels in config.json, under a rope type that plain transformers refuses by name instead of ignoring it."""

import os
from typing import Any

import torch

from eigenclock.encodings import Encoding, encoding
from eigenclock.errors import ConfigError
from eigenclock.integrations.huggingface.seams import Seams

ROPE_TYPE = "eigenclock (pip install eigenclock, then eigenclock.integrations.huggingface.load)"
"""The rope type of a saved model: transformers looks it up when it builds the model, and its KeyError says what to do."""
KEY = "eigenclock"


def mark(seams: Seams, chosen: tuple[Encoding, ...], undo: list[Any]) -> None:
    """Write the specs of the layers into the configuration of a model."""
    config = seams.config
    original = config.rope_parameters
    refused = {"rope_type": ROPE_TYPE, "rope_theta": 10000.0}
    nested = bool(original) and all(kind in original for kind in seams.layer_types)
    config.rope_parameters = {kind: refused for kind in original} if nested else refused
    setattr(config, KEY, {"specs": [one.spec for one in chosen], "rope_parameters": original})

    def restore() -> None:
        config.rope_parameters = original
        delattr(config, KEY)

    undo.append(restore)


def load(path: str | os.PathLike[str], model_class: Any = None) -> Any:
    """A model saved with an installed encoding, with that encoding installed again and its learned numbers read.

    Args:
        path: the folder that ``save_pretrained`` wrote.
        model_class: the transformers class, AutoModelForCausalLM by default.
    Raises: ConfigError where the folder's config.json carries no encoding.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    from eigenclock.integrations.huggingface.install import install

    config = AutoConfig.from_pretrained(os.fspath(path))
    stored = getattr(config, KEY, None)
    if stored is None:
        raise ConfigError(
            f"got {os.fspath(path)}, whose config.json carries no eigenclock encoding; expected a model saved with one installed"
        )
    config.rope_parameters = stored["rope_parameters"]
    delattr(config, KEY)
    model = (AutoModelForCausalLM if model_class is None else model_class).from_pretrained(os.fspath(path), config=config)
    installed = install(model, [encoding(spec) for spec in stored["specs"]])
    _read_learned(path, model)
    return installed


def _read_learned(path: str | os.PathLike[str], model: Any) -> None:
    """The learned numbers of the encodings, from the same weights."""
    from safetensors import safe_open

    wanted = {name: p for name, p in model.named_parameters() if f".{KEY}." in name}
    for file in sorted(os.listdir(path)) if wanted else ():
        if file.endswith(".safetensors"):
            with safe_open(os.path.join(path, file), framework="pt") as weights:
                for name in wanted.keys() & set(weights.keys()):
                    with torch.no_grad():
                        wanted.pop(name).copy_(weights.get_tensor(name))
    if wanted:
        raise ConfigError(f"got no weights for {', '.join(sorted(wanted))} in {os.fspath(path)}; expected them beside the model's")
