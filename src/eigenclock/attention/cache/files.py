"""Caches as safetensors files."""

import json
import os
from fractions import Fraction

from eigenclock.attention.cache.store import Store, axis_of, part_names
from eigenclock.attention.cache.tape import Run
from eigenclock.attention.cache.value import TENSORS, KVCache
from eigenclock.attention.kept import read_tensors, write_tensors

_FORMAT = "eigenclock.cache.1"


def save(cache: KVCache, path: str | os.PathLike[str]) -> None:
    """Write a cache, without the room it keeps to spare."""
    parts = {name: run.tensor for name, run in cache.store.runs().items()} | {name: getattr(cache, name) for name in TENSORS}
    about = {
        "format": _FORMAT,
        "spec": cache.spec,
        "value_spec": cache.value_spec,
        "given": str(int(cache.given)),
        "unit": cache.unit or "",
        "resolution": str(cache.resolution or ""),
    }
    about |= {"first": str(cache.store.first), "value_width": str(cache.value_width), "frame": json.dumps(cache.frame)}
    write_tensors(path, parts, about)


def load(path: str | os.PathLike[str]) -> KVCache:
    """Read a cache onto the CPU."""
    needed = {"keys", "values", "open_keys", "open_values", "ticks", "last", "count"}
    tensors, about = read_tensors(path, _FORMAT, needed, {*part_names(), *TENSORS}, "a cache that KVCache.save wrote")
    runs = {name: Run.of(tensors[name], axis_of(name)) if name in tensors else None for name in part_names()}
    store = Store(**runs, first=int(about["first"]))  # type: ignore[arg-type]
    own = {name: tensors.get(name) for name in TENSORS}
    return KVCache(
        store=store, given=about["given"] == "1", value_width=int(about["value_width"]), spec=about["spec"],
        value_spec=about["value_spec"], unit=about["unit"] or None,
        resolution=Fraction(about["resolution"]) if about.get("resolution") else None,
        frame=json.loads(about["frame"]), **own,  # type: ignore[arg-type]
    )  # fmt: skip
