"""One benchmark: ours, the other, and the ratio that has to hold."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

DTYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Work:
    """The two calls of a case, with their inputs made.

    Where a case measures itself, in a process of its own, a call returns its number (seconds or bytes).
    """

    ours: Callable[[], Any]
    other: Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """A benchmark before its inputs exist; ``build`` makes them.

    name: family/size/dtype/..., unique. target: the largest ratio ours/other that meets it, None where none is set.
    measure: "time" (the protocol times each call), "seconds" (a call returns seconds), "bytes" (a call returns bytes, once per run).
    """

    name: str
    what: str
    ours: str
    other: str
    shape: tuple[int, ...]
    dtype: str
    target: float | None
    build: Callable[[], Work]
    measure: Literal["time", "seconds", "bytes"] = "time"
    long: bool = False

    def describe(self) -> dict[str, Any]:
        """Everything but the functions, as plain data."""
        values = {name: getattr(self, name) for name in ("name", "what", "ours", "other", "dtype", "target", "measure", "long")}
        return values | {"shape": list(self.shape)}


def scaled(length: int, size: float) -> int:
    """A sequence length times the size factor, at least 8.

    >>> scaled(4096, 1.0), scaled(4096, 1 / 64), scaled(4096, 1e-9)
    (4096, 64, 8)
    """
    return max(8, round(length * size))


def normal(shape: tuple[int, ...], dtype: str, count: int, *, grad: bool = False, seed: int = 0) -> list[torch.Tensor]:
    """Normal tensors of one shape, the same for each call with the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(DTYPES[dtype]).requires_grad_(grad) for _ in range(count)]


def trained(attend: Callable[..., Any], inputs: Sequence[Tensor], g: Tensor, learned: Sequence[Tensor] = ()) -> Any:
    """Forward and backward: gradients to the inputs and to what is learned, none of them accumulated."""
    return torch.autograd.grad(attend(*inputs), [*inputs, *learned], g)


def without_graph(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call with no graph recorded."""

    def run() -> Any:
        with torch.no_grad():
            return call()

    return run
