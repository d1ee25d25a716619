"""What the tests of the cache share: a sequence, its keywords cut into pieces, and the full pass it must equal."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import eigenclock as ec

F64 = torch.float64
B, H, D, V = 2, 4, 8, 5
RATES = [[1.0, 0.3, 0.02, 0.004], [5.0, 0.1, 0.1, 0.5], [1e-3, 2.0, 0.7, 0.05], [0.2, 0.2, 0.01, 3.0]]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def inputs(length: int, kv_heads: int = H, *, rows: int = B, dtype: torch.dtype = F64, seed: int = 0) -> list[Tensor]:
    """q, k and v."""
    shapes = ((rows, H, length, D), (rows, kv_heads, length, D), (rows, kv_heads, length, V))
    return [normal(*shape, seed=seed + i, dtype=dtype) for i, shape in enumerate(shapes)]


def irregular(*shape: int, seed: int = 5) -> Tensor:
    """Nondecreasing float64 times with steps between 0 and 2, some of them ties."""
    steps = torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64) * 2
    steps[..., 1::4] = 0
    return steps.cumsum(-1)


def cut(keywords: dict[str, Any], low: int, high: int) -> dict[str, Any]:
    """The keywords of some tokens: every tensor is cut along its axis of time."""
    axis = {"x": 1, "mask": 1}
    out = {}
    for name, x in keywords.items():
        if isinstance(x, Tensor):
            where = axis.get(name, 0 if x.ndim == 1 else 2 if x.ndim == 3 and x.shape[1] == H else x.ndim - 1)
            where = 0 if name == "axes" else where
            x = x.narrow(where, low, high - low)
        out["times" if name == "axes" else name] = x
    return out


def in_pieces(
    tensors: Sequence[Tensor], enc: ec.Encoding, pieces: Sequence[int], cache: ec.KVCache | None = None, start: int = 0, **keywords: Any
) -> tuple[Tensor, Tensor, ec.KVCache]:
    """Output, log-sum-exp and the last cache of a sequence taken piece by piece; ``axes`` are times with a last axis of their own."""
    outs, lses = [], []
    for n in pieces:
        part = [x[:, :, start : start + n] for x in tensors]
        (out, lse), cache = ec.cached_attention(
            part[0], part[1], part[2], enc, cache=cache, return_lse=True, **cut(keywords, start, start + n)
        )
        outs.append(out)
        lses.append(lse)
        start += n
    assert cache is not None
    return torch.cat(outs, 2), torch.cat(lses, 2), cache


def full(tensors: Sequence[Tensor], enc: ec.Encoding, **keywords: Any) -> tuple[Tensor, Tensor]:
    """The whole sequence at once, by the specification."""
    if "axes" in keywords:
        keywords["times"] = keywords.pop("axes")
    q, k, v = (x.double() for x in tensors)
    return ec.attention(q, k, v, enc, return_lse=True, backend="reference", **keywords)


def one_pass(tensors: Sequence[Tensor], enc: ec.Encoding, **keywords: Any) -> tuple[Tensor, Tensor]:
    """The whole sequence at once, by the backend that is chosen: faster than the specification, to which the grids hold it."""
    return ec.attention(tensors[0], tensors[1], tensors[2], enc, return_lse=True, **keywords)


def close(got: Tensor, expected: Tensor, tolerance: float = 1e-10, rows: Tensor | None = None) -> None:
    """Equal to a tolerance relative to the largest entry, in the rows (B, T) that count."""
    assert got.shape == expected.shape
    got, expected = got.detach().double(), expected.detach().double()
    if rows is not None:
        got, expected = (x.transpose(1, 2)[rows] for x in (got, expected))
    assert torch.equal(got.isfinite(), expected.isfinite())
    kept = expected.isfinite()
    got, expected = got[kept], expected[kept]
    if got.numel():
        error = float((got - expected).abs().max()) / (1 + float(expected.abs().max()))
        assert error < tolerance, error
