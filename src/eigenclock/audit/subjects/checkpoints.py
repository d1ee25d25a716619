"""Checkpoints: a GGUF file with its own metadata, a safetensors file or folder with the config beside it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from eigenclock.audit.probe import Probe, Projections
from eigenclock.audit.subjects.configs import probe_of_config
from eigenclock.audit.subjects.options import Options
from eigenclock.audit.subjects.places import Sizes
from eigenclock.audit.subjects.projections import of_gguf, of_safetensors
from eigenclock.encodings.config.source import load
from eigenclock.errors import ConfigError

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def read(subject: Any, options: Options) -> Probe | None:
    """A .gguf or .safetensors file, or a folder with safetensors in it; pickles are never loaded."""
    if not isinstance(subject, str | Path):
        return None
    path = Path(subject)
    if path.suffix.lower() in PICKLES and "(" not in str(subject):
        raise ConfigError(f"got {path}, a pickle, which can run code when it is loaded; expected safetensors, GGUF or the config")
    if path.suffix in (".gguf", ".safetensors") and not path.is_file():
        raise ConfigError(f"got {path}, which is no file here; expected one: names are not downloaded")
    if path.suffix == ".gguf":
        config, where = load(path), path
    elif path.suffix == ".safetensors" or (path.is_dir() and any(path.glob("*.safetensors"))):
        where = path if path.is_dir() else path.parent
        config = load(where)
    else:
        return None
    probe = probe_of_config(config, options, str(subject), "checkpoint", path=str(path))
    return replace(probe, path=str(path), projections=_projections(path, probe))


def _projections(path: Path, probe: Probe) -> Projections | None:
    """The rows of its query and key projections, where its encodings know the sizes; read when they are asked for."""
    first = next(iter(probe.encodings.values()), None) if probe.encodings is not None else None
    if first is None:
        return None
    sizes = Sizes(first.heads, first.kv_heads or first.heads, first.head_dim, first.head_dim)
    of_file = of_gguf if path.suffix == ".gguf" else of_safetensors
    return lambda units: of_file(path, sizes, units)
