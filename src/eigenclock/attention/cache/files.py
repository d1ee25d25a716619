"""Caches as safetensors files."""

import json
import os
from typing import Any

from torch import Tensor

from eigenclock.attention.cache.store import Store, axis_of, part_names
from eigenclock.attention.cache.tape import Run
from eigenclock.attention.cache.value import TENSORS, KVCache
from eigenclock.errors import ConfigError, UnsupportedError
from eigenclock.present.files import file_error, write_whole

_FORMAT = "eigenclock.cache.1"


def save(cache: KVCache, path: str | os.PathLike[str]) -> None:
    """Write a cache, without the room it keeps to spare."""
    package = _safetensors()
    parts = {name: run.tensor for name, run in cache.store.runs().items()} | {name: getattr(cache, name) for name in TENSORS}
    tensors = {name: x.detach().contiguous().cpu() for name, x in parts.items() if x is not None}
    about = {
        "format": _FORMAT,
        "spec": cache.spec,
        "value_spec": cache.value_spec,
        "given": str(int(cache.given)),
        "unit": cache.unit or "",
    }
    about |= {"first": str(cache.store.first), "value_width": str(cache.value_width), "frame": json.dumps(cache.frame)}
    write_whole(path, package.save(tensors, metadata=about))


def load(path: str | os.PathLike[str]) -> KVCache:
    """Read a cache onto the CPU."""
    _safetensors()
    from safetensors import SafetensorError, safe_open

    try:
        os.stat(path)  # safetensors reports a missing file without saying why
        with safe_open(os.fspath(path), framework="pt") as file:
            about: dict[str, str] = file.metadata() or {}
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except OSError as error:
        raise file_error("read", path, error) from error
    except SafetensorError as error:
        raise ConfigError(
            f"got {os.fspath(path)}, which is no safetensors file ({error}); expected a cache that KVCache.save wrote"
        ) from None
    needed = {"keys", "values", "open_keys", "open_values", "ticks", "last", "count"}
    if about.get("format") != _FORMAT or not needed <= tensors.keys() <= {*part_names(), *TENSORS}:
        raise ConfigError(f"got {os.fspath(path)}, which holds {sorted(tensors)}; expected a cache that KVCache.save wrote")
    runs = {name: Run.of(tensors[name], axis_of(name)) if name in tensors else None for name in part_names()}
    store = Store(**runs, first=int(about["first"]))  # type: ignore[arg-type]
    own = {name: tensors.get(name) for name in TENSORS}
    return KVCache(
        store=store, given=about["given"] == "1", value_width=int(about["value_width"]), spec=about["spec"],
        value_spec=about["value_spec"], unit=about["unit"] or None,
        frame=json.loads(about["frame"]), **own,  # type: ignore[arg-type]
    )  # fmt: skip


def _safetensors() -> Any:
    try:
        import safetensors.torch as package
    except ImportError:
        raise UnsupportedError(
            "caches are saved with safetensors, which is not installed; install it with: pip install safetensors"
        ) from None
    return package
