"""The rows of query and key projections, layer by layer: of a live model, of GGUF, of safetensors; one layer is in memory at a time."""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eigenclock.audit.subjects.live_layers import Layer
from eigenclock.audit.subjects.places import Sizes

Rows = Iterator[tuple[int, Tensor, Tensor]]
APART = (("q_proj", "k_proj"), ("wq", "wk"), ("attn_q", "attn_k"), ("query", "key"))
FUSED = {"qkv_proj": False, "attn_qkv": False, "Wqkv": False, "query_key_value": True}
"""Names of projections that hold queries, keys and values, and whether they hold them head by head."""
_NAME = re.compile(r"(?:layers|blk|h|blocks)\.(\d+)\.(?:\w+\.)*?(\w+)\.weight$")
_ELSEWHERE = re.compile(r"vision|visual|audio|encoder|cross|lora")


def spread(n: int, kv_heads: int, units: int) -> list[int]:
    """As many of n layers, evenly, as have that many key heads.

    >>> spread(8, 2, 6), spread(2, 1, 6)
    ([0, 4, 7], [0, 1])
    """
    count = min(n, math.ceil(units / kv_heads))
    return [round(i * (n - 1) / max(1, count - 1)) for i in range(count)]


def of_model(found: list[Layer], units: int) -> Rows:
    """Layers of a live model that turn: (number, W_q (H, D, I), W_k (G, D, I)), of enough of them for so many key heads."""
    for n in spread(len(found), found[0].sizes.kv_heads, units) if found else ():
        layer = found[n]
        weights = {
            name: child.weight for name, child in layer.module.named_children() if isinstance(getattr(child, "weight", None), Tensor)
        }
        rows = _split({name: lambda w=w: w.detach() for name, w in weights.items()}, layer.sizes)
        if rows is not None:
            yield n, *rows


def of_gguf(path: Path, sizes: Sizes, units: int) -> Rows:
    """Layers of a GGUF file, dequantised as they are read."""
    import gguf

    from eigenclock.encodings.config.gguf_file import open_gguf

    def read(tensor: Any) -> Tensor:
        return torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())

    yield from _of_names({tensor.name: lambda t=tensor: read(t) for tensor in open_gguf(path).tensors}, sizes, units)


def of_safetensors(path: Path, sizes: Sizes, units: int) -> Rows:
    """Layers of a safetensors file, or of all those in a folder; quantised ones are left out."""
    from safetensors import safe_open

    def read(file: Path, name: str) -> Tensor:
        with safe_open(str(file), "pt") as opened:
            return opened.get_tensor(name)

    tensors: dict[str, Callable[[], Tensor]] = {}
    for file in sorted(path.glob("*.safetensors")) if path.is_dir() else [path]:
        with safe_open(str(file), "pt") as opened:
            names = list(opened.keys())
        tensors |= {name: lambda f=file, n=name: read(f, n) for name in names}
    yield from _of_names(tensors, sizes, units)


def _of_names(tensors: dict[str, Callable[[], Tensor]], sizes: Sizes, units: int) -> Rows:
    by_layer: dict[int, dict[str, Callable[[], Tensor]]] = {}
    for name, read in tensors.items():
        found = _NAME.search(name)
        if found is not None and not _ELSEWHERE.search(name):
            by_layer.setdefault(int(found[1]), {})[found[2]] = read
    known = [n for n in sorted(by_layer) if any(name in by_layer[n] for name in (*FUSED, *(pair[0] for pair in APART)))]
    for layer in (known[i] for i in spread(len(known), sizes.kv_heads, units)):
        rows = _split(by_layer[layer], sizes)
        if rows is not None:
            yield layer, *rows


def _split(weights: dict[str, Callable[[], Tensor]], sizes: Sizes) -> tuple[Tensor, Tensor] | None:
    """W_q (H, D, I) and W_k (G, D, I) in float32, whatever they are kept in; None where no names known here fit the sizes."""
    h, g, d = sizes.heads, sizes.kv_heads, sizes.width
    for names in APART:
        if all(name in weights for name in names):
            q, k = (weights[name]() for name in names)
            fits = q.ndim == k.ndim == 2 and (q.shape[0], k.shape[0]) == (h * d, g * d) and q.is_floating_point() and k.is_floating_point()
            return (q.float().cpu().unflatten(0, (h, d)), k.float().cpu().unflatten(0, (g, d))) if fits else None
    for name, grouped in FUSED.items():
        if name not in weights:
            continue
        w = weights[name]()
        if w.ndim != 2 or w.shape[0] != (h + 2 * g) * d or not w.is_floating_point():
            return None
        w = w.float().cpu()
        if grouped:
            w = w.unflatten(0, (g, h // g + 2, d))
            return w[:, :-2].flatten(0, 1), w[:, -2]
        return w[: h * d].unflatten(0, (h, d)), w[h * d : (h + g) * d].unflatten(0, (g, d))
    return None
