"""Rotating q and k, the whole cost of RoPE beside attention, against a copy and against the rotation most models run."""

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from eigenclock.attention.rotate import make_table, rotate
from eigenclock.bench.case import Case, Work, normal, scaled, without_graph
from eigenclock.theory.split import Turn

HEADS, LENGTH, WIDTH = 16, 4096, 64
# (pairing, dtype): the largest ratio against a copy, and against the usual eager function
TARGETS = {
    ("interleaved", "fp32"): (2.1, 0.15),
    ("interleaved", "bf16"): (3.5, 0.25),
    ("half", "fp32"): (2.8, 0.2),
    ("half", "bf16"): (5.0, 0.35),
}


def cases(size: float = 1.0) -> tuple[Case, ...]:
    """Both pairings and dtypes, against both others."""
    shape = (1, HEADS, scaled(LENGTH, size), WIDTH)
    peer = "transformers" if has_transformers() else "rotate-half"
    out = []
    for (pairing, dtype), targets in TARGETS.items():
        for other, target in zip(("copy", peer), targets, strict=True):
            what = {"copy": "copying q and k into memory that is there", "transformers": "apply_rotary_pos_emb of transformers, eager"}
            out.append(
                Case(
                    f"rotation/{pairing}/{dtype}/{other}",
                    f"rotate q and k, {pairing} pairs",
                    "the rotation behind rope()",
                    what.get(other, "the usual rotate-half formula, eager"),
                    shape,
                    dtype,
                    target,
                    _builder(shape, pairing, dtype, other),
                )
            )
    return tuple(out)


def has_transformers() -> bool:
    """Whether the package is installed, without importing it."""
    return importlib.util.find_spec("transformers") is not None


def _builder(shape: tuple[int, ...], pairing: str, dtype: str, other: str) -> Callable[[], Work]:
    def build() -> Work:
        q, k = normal(shape, dtype, 2)
        times, freq = torch.arange(shape[2], dtype=torch.float64)[None, None], frequencies()
        table = make_table(times, Turn(0, freq, pairing), q.dtype)  # made once for all layers, like the cosines on the other side
        return Work(without_graph(lambda: (rotate(q, table), rotate(k, table))), without_graph(_other(other, q, k, times, freq)))

    return build


def frequencies() -> Tensor:
    """Those of RoPE with theta 10000."""
    return 1e4 ** (-torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH)


def _other(name: str, q: Tensor, k: Tensor, times: Tensor, freq: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
    if name == "copy":
        into_q, into_k = torch.empty_like(q), torch.empty_like(k)
        return lambda: (into_q.copy_(q), into_k.copy_(k))
    angle = times[0, 0, :, None] * freq
    cos, sin = (torch.cat([x, x], -1).to(q.dtype)[None] for x in (angle.cos(), angle.sin()))  # (1, T, D), made once for all layers
    apply = rotate_half
    if name == "transformers":
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as apply
    return lambda: apply(q, k, cos, sin)


def rotate_half(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The usual formula on halves, x cos + (-x2, x1) sin, each operation on whole tensors."""
    cos, sin = cos[:, None], sin[:, None]
    out = []
    for x in (q, k):
        first, second = x.chunk(2, -1)
        out.append(x * cos + torch.cat((-second, first), -1) * sin)
    return out[0], out[1]
