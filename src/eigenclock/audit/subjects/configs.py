"""Hugging Face configs, and those of the dialects that ``encodings`` reads, with the table that the model's own code builds from them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from eigenclock.audit.probe import Probe
from eigenclock.audit.subjects import encodings as ours
from eigenclock.audit.subjects.modules import transformers_rotary
from eigenclock.audit.subjects.options import Options
from eigenclock.encodings import ENCODINGS
from eigenclock.encodings.config import Encodings
from eigenclock.encodings.config import encodings as read_encodings
from eigenclock.encodings.config.families import OUTSIDE
from eigenclock.encodings.config.source import load
from eigenclock.errors import ConfigError, EigenclockError, UnsupportedError

HEAD_DIM = 64
NUMBERS = 1 << 19
"""The most numbers in the scores of all pairs of channels of all heads at one lag."""


def read(subject: Any, options: Options) -> Probe | None:
    """A config as a dict, a path of a JSON file or of a folder, or an object with to_dict()."""
    if isinstance(subject, str | Path):
        path = Path(subject)
        if not path.exists():
            if isinstance(subject, Path) or path.suffix == ".json":
                raise ConfigError(f"got {path}, which is no file or folder here; expected one: names are not downloaded")
            return None
        if path.is_file() and path.suffix != ".json":
            return None
        config, name = load(path), str(subject)
    elif isinstance(subject, Mapping):
        config, name = subject, str(subject.get("model_type") or "a config")
    elif callable(getattr(subject, "to_dict", None)) and not isinstance(subject, nn.Module):
        config = load(subject)
        name = type(subject).__name__
    else:
        return None
    if config.get("op") in ("+", "*") or config.get("name") in ENCODINGS:
        return None  # the spec of an encoding
    return probe_of_config(config, options, name, "config", None if isinstance(subject, str | Path | Mapping) else subject)


def probe_of_config(
    config: Mapping[str, Any], options: Options, name: str, kind: str, given: Any = None, live: nn.Module | None = None, **more: Any
) -> Probe:
    """The probe of a config: what it says, and the table of a live rotary module, or of the one that its model class makes of it.

    ``given`` is the config as an object, where there is one; ``more`` are other fields of the probe.
    """
    dtype = options.dtype or _dtype(config)
    options = Options(options.head_dim, options.heads, options.length, dtype)
    notes: list[str] = []
    encs, refused, outside = _understood(config, options)
    if encs is not None:
        notes += [*encs.notes, *encs.warnings]
    if outside:
        notes.append(f"read as a model with {outside}")
    if refused and not outside:
        notes.append(f"refused: {refused}")
    common: dict[str, Any] = {"encodings": encs, "config": dict(config), "refused": refused, "outside": outside, **more}
    built = live if live is not None else None if outside else _built(config, given, notes)
    probe = None if built is None else _by_its_code(built, encs, options, name, kind, common)
    if probe is not None:
        return replace(probe, notes=(*notes, *probe.notes))
    if not encs:
        return Probe(name, kind, options.head_dim or HEAD_DIM, length=options.length, dtype=dtype, notes=tuple(notes), **common)
    notes.append("its model's own code is not here: what is measured is the encoding that the config was read as")
    parts = {layer: replace(ours.probe_of(enc, options, f"{name}, {layer}", kind), encoding=None) for layer, enc in encs.items()}
    first = next(iter(parts.values()))
    if len(parts) == 1:
        return replace(first, name=name, notes=tuple(notes), **common)
    sizes = (first.head_dim, first.heads, first.kv_heads, options.length, dtype)
    return Probe(name, kind, *sizes, layers=parts, notes=tuple(notes), **common)


def _by_its_code(built: nn.Module, encs: Encodings | None, options: Options, name: str, kind: str, common: dict[str, Any]) -> Probe | None:
    """The probe of the rotary module of a model class; None where the function beside it cannot be called alone."""
    first = next(iter(encs.values())) if encs else None
    width = options.head_dim or (first.head_dim if first else None)
    heads = options.heads or (first.heads if first else 2)
    most = max(1, NUMBERS // (width or HEAD_DIM) ** 2)  # all heads share one table
    notes = (f"all heads share one table: {most} of {heads} are measured",) if heads > most else ()
    for size in dict.fromkeys((width, None)):  # some models cut the channels that turn out of a head elsewhere
        try:
            probe = transformers_rotary(built, Options(size, min(heads, most), options.length, options.dtype), name, kind, **common)
        except EigenclockError:
            continue
        if probe is not None and width is not None and probe.head_dim < width:
            notes = (*notes, f"measured on the {probe.head_dim} of {width} channels of a head that its code turns")
        return None if probe is None else replace(probe, notes=(*notes, *probe.notes))
    return None


def _understood(config: Mapping[str, Any], options: Options) -> tuple[Encodings | None, str, str]:
    """The encodings, else why they are refused, else what is outside the group."""
    kind = str(config.get("model_type") or "")
    sizes = {"head_dim": options.head_dim, "heads": options.heads}
    guesses = {"head_dim": options.head_dim or HEAD_DIM, "heads": options.heads or 1}
    refused = ""
    for names in ((), ("head_dim",), ("heads",), ("head_dim", "heads")):
        try:
            return read_encodings(config, **{**sizes, **{name: guesses[name] for name in names}}), "", ""
        except UnsupportedError as error:
            return None, str(error), OUTSIDE.get(kind, "") or _absolute(config)
        except EigenclockError as error:
            refused = refused or str(error)
            if not any(word in refused for word in ("head_dim", "hidden_size", "num_attention_heads")):
                break
    return None, refused, _absolute(config)


def _absolute(config: Mapping[str, Any]) -> str:
    kind = str(config.get("position_embedding_type") or "")
    return OUTSIDE["bert"] if kind == "absolute" or config.get("model_type") in ("bert", "roberta", "nanogpt") else ""


def _dtype(config: Mapping[str, Any]) -> torch.dtype:
    """The dtype a config names, else float32."""
    named = config.get("dtype") or config.get("torch_dtype")
    found = getattr(torch, str(named).removeprefix("torch."), None) if named else None
    return found if isinstance(found, torch.dtype) and found.is_floating_point else torch.float32


def _built(config: Mapping[str, Any], given: Any, notes: list[str]) -> nn.Module | None:
    """The rotary module of the model class that transformers has for a config, built from it alone; None where it has none."""
    kind = str(config.get("model_type") or "")
    try:
        from transformers import CONFIG_MAPPING
    except ImportError:
        return None
    if kind not in CONFIG_MAPPING:
        return None
    try:
        made = (
            given if given is not None else CONFIG_MAPPING[kind](**{k: v for k, v in config.items() if k not in ("model_type", "auto_map")})
        )
    except Exception as error:
        notes.append(f"transformers refuses the config: {' '.join(str(error).split())[:160]}")
        return None
    return rotary_of(made, notes)


def rotary_of(config: Any, notes: list[str]) -> nn.Module | None:
    """The rotary module of a config object's own modeling file."""
    import importlib
    import inspect

    text = config.get_text_config() if callable(getattr(config, "get_text_config", None)) else config
    try:
        space = importlib.import_module(type(text).__module__.replace("configuration_", "modeling_"))
    except ImportError:
        return None
    classes = [
        c
        for n, c in vars(space).items()
        if inspect.isclass(c) and issubclass(c, nn.Module) and n.endswith(("RotaryEmbedding", "RotaryPositionalEmbeddings"))
    ]
    classes = [c for c in classes if c.__module__ == space.__name__ and "Vision" not in c.__name__]
    prefix = type(text).__name__.removesuffix("Config")
    classes.sort(key=lambda c: (not c.__name__.startswith(prefix), len(c.__name__)))
    for made in classes:
        try:
            return made(text)
        except Exception as error:
            notes.append(f"{made.__name__} cannot be built from the config: {' '.join(str(error).split())[:120]}")
    return None
