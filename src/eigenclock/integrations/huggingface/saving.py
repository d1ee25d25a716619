"""The encoding travels in config.json, under a rope type that plain transformers refuses by name instead of ignoring it."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from eigenclock.encodings import Encoding, encoding
from eigenclock.encodings.config.installed import KEY, ROPE_TYPE, stored
from eigenclock.errors import ConfigError
from eigenclock.integrations.huggingface.seams import Seams


def mark(seams: Seams, chosen: tuple[Encoding, ...]) -> None:
    """Write the specs of the layers into the configuration of a model."""
    config = seams.config
    original = config.rope_parameters
    refused = {"rope_type": ROPE_TYPE, "rope_theta": 10000.0}
    nested = bool(original) and all(kind in original for kind in seams.layer_types)
    config.rope_parameters = {kind: refused for kind in original} if nested else refused
    setattr(config, KEY, {"specs": [one.spec for one in chosen], "rope_parameters": original})


def unmark(config: Any, original: Any) -> None:
    """The configuration as it was before."""
    config.rope_parameters = original
    delattr(config, KEY)


def load(path: str | os.PathLike[str], model_class: Any = None, *, dtype: torch.dtype | str | None = None, device: Any = None) -> Any:
    """A model saved with an installed encoding, with that encoding installed again and its learned numbers read.

    :func:`installed` gives what was installed, for real times in ``generate`` and for ``uninstall``.

    Args:
        path: the folder that ``save_pretrained`` wrote.
        model_class: the transformers class; the one that was saved where it is left out.
        dtype: of the model's weights, such as ``torch.bfloat16``; as they were saved where it is left out. What encodings know and learn
            stays in float32 or better.
        device: where the model goes, such as "cuda"; the CPU where it is left out.
    Raises: ConfigError where the folder's config.json carries no encoding, or its weights lack some.
    """
    import transformers

    from eigenclock.integrations.huggingface.install import install

    if not (Path(path) / "config.json").exists():
        raise ConfigError(f"got {os.fspath(path)}, where there is no config.json; expected the folder that save_pretrained wrote")
    with _without_reports():  # of a rope type it does not know
        config = transformers.AutoConfig.from_pretrained(os.fspath(path))
    given = stored(config.to_dict())
    if given is None:
        raise ConfigError(
            f"got {os.fspath(path)}, whose config.json carries no eigenclock encoding; expected a model saved with one installed"
        )
    unmark(config, given["rope_parameters"])
    if model_class is None:
        model_class = getattr(transformers, (config.architectures or ["AutoModelForCausalLM"])[0])
    asked = {} if dtype is None else {"dtype": dtype}
    with _without_reports():  # which call what the encodings learned unexpected
        model, about = model_class.from_pretrained(os.fspath(path), config=config, output_loading_info=True, **asked)
    others = [name for name in about["unexpected_keys"] if f".{KEY}." not in name]
    if about["missing_keys"] or others:
        raise ConfigError(
            f"got {os.fspath(path)} for a {model_class.__name__} without the weights {sorted(about['missing_keys'])} and with {others}; "
            "expected exactly its own: name the class that was saved as model_class"
        )
    install(model, [encoding(spec) for spec in given["specs"]])
    _read_learned(path, model)
    return model if device is None else model.to(device)


@contextlib.contextmanager
def _without_reports() -> Iterator[None]:
    """No warnings of transformers."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


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
