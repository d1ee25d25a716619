"""Checkpoints in safetensors, converted from one layout to another tensor by tensor, whole or not at all."""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from eigenclock.errors import ConfigError, ShapeError, UnsupportedError
from eigenclock.integrations.layout import other_pairing, rows_in_order
from eigenclock.present import file_error, write_whole

_CHUNK = 1 << 24
_LONGEST_HEADER = 100_000_000  # as the format has it
_MARK = "eigenclock.layout"  # metadata of a file that was converted here

# The tensors whose rows are turned: the projection, its bias, a norm with gains after it, and what LoRA adds to its rows.
_TURNED = re.compile(
    r"(?:^|\.)(?P<name>(?P<q>q_proj|wq|c_q|attn_q|q_norm|attn_q_norm|q_layernorm)|k_proj|wk|c_k|attn_k|k_norm|attn_k_norm|k_layernorm)"
    r"\.(?P<part>.+)$"
)
_PARTS = re.compile(r"^(?:base_layer\.)?(?:weight|bias)$|^lora_(?:B|magnitude_vector)(?:\.\w+)*$")
_FUSED = re.compile(r"(?:^|\.)(?:qkv_proj|query_key_value|Wqkv|c_attn|attn_qkv|qkv|kv_a_proj_with_mqa|q_b_proj)\.")
_ELSEWHERE = re.compile(r"vision|visual|audio|encoder|cross")


@dataclass(frozen=True)
class Heads:
    """The heads of a model as far as its rows are concerned."""

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int | None = None


@dataclass(frozen=True)
class Converted:
    """What a conversion did: the names of the tensors it changed, and of those that look alike but belong to another part of the model."""

    tensors: tuple[str, ...]
    left: tuple[str, ...]
    total: int


def convert_file(path: str | Path, out: str | Path, sizes: Heads, *, to: str, source: str | None = None) -> Converted:
    """A copy of a safetensors file with its query and key projections in another layout; one tensor is in memory at a time.

    Args:
        path, out: the file to read and the file to write, which may be the same.
        sizes: the heads of the model.
        to, source: layouts, as in :func:`convert`.
    Raises: ConfigError where the file is no checkpoint, has no tensors that are known to turn, or was converted already; ShapeError where a
        tensor does not fit the heads; UnsupportedError where projections are fused or quantised.
    """
    source = other_pairing(to) if source is None else source
    try:
        with open(path, "rb") as file:
            header, start = _header(file, Path(path))
            metadata: dict[str, str] = header.pop("__metadata__", None) or {}
            if metadata.get(_MARK, source) != source:
                raise ConfigError(
                    f"got {path}, which was converted to {metadata[_MARK]!r} before; expected a file in the layout {source!r}"
                )
            orders, left = _orders(header, sizes, to, source, path)
            new = json.dumps({"__metadata__": metadata | {_MARK: to}, **header}, separators=(",", ":")).encode()
            new += b" " * (-len(new) % 8)
            write_whole(out, _pieces(file, start, header, orders, new))
    except OSError as error:
        raise file_error("read", path, error) from error
    return Converted(tuple(sorted(orders, key=_natural)), left, len(header))


def _natural(name: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _header(file: BinaryIO, path: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file and where its data start, checked against the size of the file."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little") if size >= 8 else 0
    if not 2 <= length <= min(size - 8, _LONGEST_HEADER):
        raise ConfigError(f"got {path}, which is no safetensors file: its header does not fit into it")
    try:
        header = json.loads(file.read(length))
        spans = sorted(tuple(entry["data_offsets"]) for name, entry in header.items() if name != "__metadata__")
        shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
        good = all(isinstance(n, int) and n >= 0 for shape in shapes for n in shape)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"got {path}, which is no safetensors file: its header cannot be read") from None
    ends = [0, *(end for _, end in spans)]
    if not good or any(begin != end for (begin, _), end in zip(spans, ends, strict=False)) or ends[-1] != size - 8 - length:
        raise ConfigError(f"got {path}, whose tensors do not fill it; expected a whole safetensors file: was it cut short?")
    return header, 8 + length


def _orders(
    header: Mapping[str, Any], sizes: Heads, to: str, source: str, path: str | Path
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """For each tensor that turns, the order of its rows."""
    orders: dict[str, np.ndarray] = {}
    left = []
    for name, entry in header.items():
        if _FUSED.search(name) and not _ELSEWHERE.search(name):
            raise UnsupportedError(
                f"got {name}, where queries and keys are fused or latent; expected separate projections, such as q_proj and k_proj"
            )
        found = _TURNED.search(name)
        if found is None or (found["part"].startswith("lora_A")):
            continue
        if _ELSEWHERE.search(name):
            left.append(name)
        elif not _PARTS.match(found["part"]):
            raise UnsupportedError(f"got {name}; expected plain weights and biases: rows of quantised tensors cannot be moved one by one")
        else:
            heads = sizes.kv_heads if found["q"] is None else sizes.heads
            orders[name] = _order(name, entry["shape"], "norm" in found["name"], heads, sizes, to, source)
    if not orders:
        raise ConfigError(f"got {path} without a query or key projection known here (q_proj, k_proj, wq, wk, c_q, c_k, attn_q, attn_k)")
    return orders, tuple(left)


def _order(name: str, shape: list[int], norm: bool, heads: int, sizes: Heads, to: str, source: str) -> np.ndarray:
    if norm and shape == [sizes.head_dim]:
        heads = 1  # one gain for all heads
    rows = math.prod(shape) if norm else shape[0] if shape else 0
    try:
        order = rows_in_order(rows, heads=heads, to=to, source=source, head_dim=sizes.head_dim, rotary_dim=sizes.rotary_dim)
    except ShapeError as error:
        raise ShapeError(f"{name} of shape {tuple(shape)}: {error}") from None
    return order.numpy()


def _pieces(file: BinaryIO, start: int, header: Mapping[str, Any], orders: Mapping[str, np.ndarray], new: bytes) -> Iterator[bytes]:
    """The new file from front to back. Data keep their places, since a permutation of rows changes no size."""
    yield len(new).to_bytes(8, "little") + new
    for name, entry in sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"])):
        begin, end = entry["data_offsets"]
        file.seek(start + begin)
        if name in orders:
            rows = np.frombuffer(_exactly(file, end - begin), dtype=np.uint8).reshape(len(orders[name]), -1)
            yield rows[orders[name]].tobytes()
            continue
        for at in range(begin, end, _CHUNK):
            yield _exactly(file, min(_CHUNK, end - at))


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise ConfigError("got a file that became shorter while it was read; expected it to stay as it is")
    return data
