"""``eigenclock convert``: query and key projections of a checkpoint from one rotary layout to another."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

from eigenclock.encodings.config import encodings
from eigenclock.encodings.config.result import Encodings
from eigenclock.errors import ConfigError
from eigenclock.integrations.checkpoint import Converted, Heads, convert_file


class Options:
    """Convert the query and key projections of a safetensors file between the layouts of rotary models.

    The file is read tensor by tensor, and the new one is whole or not there. Sizes come from a config.json beside the file, or from the
    options.

    Args:
        path: The safetensors file to read.
        out: The file to write.
        to: The layout to convert to: half, interleaved, half_minus or interleaved_minus.
        source: The layout of the file (default: the other pairing with the same sign).
        config: The config with the sizes (default: config.json or params.json beside the file).
        heads: Query heads.
        kv_heads: Key heads, where they are fewer.
        head_dim: Width of a head.
        rotary_dim: Channels of a head that turn (default: all).
        json: Print what was done as JSON, and nothing else, on stdout.
    """

    # A class of its own rather than a dataclass, because the files are positional.
    def __init__(
        self,
        path: Path,
        out: Path,
        /,
        *,
        to: str,
        source: str | None = None,
        config: Path | None = None,
        heads: int | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        rotary_dim: int | None = None,
        json: bool = False,
    ) -> None:
        self.path, self.out, self.to, self.source, self.config, self.json = path, out, to, source, config, json
        self.heads, self.kv_heads, self.head_dim, self.rotary_dim = heads, kv_heads, head_dim, rotary_dim


def run(options: Options) -> int:
    """Converts the file and says what was changed."""
    if options.path.is_dir() or options.path.name.endswith(".index.json"):
        raise ConfigError(f"got {options.path}; expected one safetensors file: convert the shards of a checkpoint one by one")
    done = convert_file(options.path, options.out, sizes(options), to=options.to, source=options.source)
    if options.json:
        found = {"path": str(options.path), "out": str(options.out), "to": options.to, "tensors": done.total}
        print(json.dumps(found | {"converted": list(done.tensors), "left": list(done.left)}, indent=1))
    else:
        print(f"{len(done.tensors)} of {done.total} tensors converted to the {options.to} layout, written to {options.out}")
        for line in summary(done):
            print(f"  {line}")
        if done.left:
            print(f"  left as they are, since they belong to another part of the model: {', '.join(done.left)}")
    return 0


def summary(done: Converted) -> list[str]:
    """The names of tensors with their layers drawn together.

    >>> summary(Converted(("model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.weight"), (), 9))
    ['model.layers.*.self_attn.q_proj.weight (2)']
    """
    names: dict[str, int] = {}
    for name in done.tensors:
        pattern = re.sub(r"\.\d+\.", ".*.", f".{name}")[1:]
        names[pattern] = names.get(pattern, 0) + 1
    return [f"{pattern} ({count})" for pattern, count in names.items()]


def sizes(options: Options) -> Heads:
    """The heads of the model, from the options and where they are silent from its config.

    Raises: ConfigError where neither says, or the layers of the model differ.
    """
    found = _from_config(options)
    given = {name: getattr(options, name) for name in ("heads", "kv_heads", "head_dim", "rotary_dim")}
    values: dict[str, Any] = found | {name: value for name, value in given.items() if value is not None}
    for name in ("heads", "head_dim"):
        if name not in values:
            raise ConfigError(f"got no --{name.replace('_', '-')} and no config beside {options.path}; expected one of them")
    values.setdefault("kv_heads", values["heads"])
    return Heads(**values)


def _from_config(options: Options) -> dict[str, Any]:
    path = options.config
    if path is None:
        beside = [options.path.parent / name for name in ("config.json", "params.json")]
        path = next((candidate for candidate in beside if candidate.is_file()), None)
    if path is None:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they say is about frequencies, which rows do not know
        return _one(encodings(path), path)


def _one(found: Encodings, path: Path) -> dict[str, Any]:
    rows = []
    for encoding in found.values():
        if encoding.generator().form.kinds == {"Z"}:
            continue
        spec = encoding.spec
        if "op" in spec:
            raise ConfigError(
                f"got {path}, whose heads have channels of two kinds; expected --heads, --head-dim and --rotary-dim, and no config"
            )
        heads = {"heads": spec["heads"], "kv_heads": spec.get("kv_heads") or spec["heads"], "head_dim": spec["head_dim"]}
        rows.append(heads | ({"rotary_dim": spec["rotary_dim"]} if "rotary_dim" in spec else {}))
    if not rows or any(row != rows[0] for row in rows):
        raise ConfigError(
            f"got {path}, whose layers {'do not turn' if not rows else 'have heads of different sizes'}; expected one size for all"
        )
    return rows[0]
