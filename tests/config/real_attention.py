"""Real attention layers of transformers beside ``ec.scores`` of what ``ec.encodings(config)`` says.

A model with a shrunk default config runs twice on the same tokens at the same positions: once as it is, and once with its rotary function
replaced by one that returns its queries and keys unchanged. From the second run come the queries and keys before any rotation, from the
first the logits that its softmax receives: scale, bias, temperature and mask included. ``ec.scores`` of the former must be the latter,
up to one constant per query, which no softmax sees. Weights that leave the softmax are set to zero, so that both runs, whatever they turn,
have the same hidden states in every layer.
"""

import contextlib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

TOKENS = 11
TURNS = re.compile(r"^_?apply.*(rot|rope)|^rotate_queries_or_keys$|^vision_apply_rotary_emb$")
PRODUCTS = ("matmul", "__matmul__", "bmm", "einsum", "baddbmm", "baddbmm_")


@dataclass(frozen=True)
class Seen:
    """One call of softmax: the layer, the two operands of the last product of its shape, and the logits."""

    layer: int | None
    q: Tensor  # (H, T, D)
    k: Tensor  # (H, T, D)
    logits: Tensor  # (H, T, T)


@dataclass
class Watch(TorchFunctionMode):
    """Records what softmax receives on T x T logits, and gives zeros in place of its weights."""

    length: int
    seen: list[Seen] = field(default_factory=list)
    factors: set[float] = field(default_factory=set)
    layers: list[int] = field(default_factory=list)
    last: tuple[Tensor, Tensor] | None = None

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in PRODUCTS and isinstance(out, Tensor) and out.shape[-2:] == (self.length, self.length):
            self._product(args, kwargs)
        elif name in ("mul", "__mul__", "__rmul__", "mul_", "div", "__truediv__", "truediv") and isinstance(args[-1], float | int):
            self.factors.add(float(args[-1]) if "mul" in name else 1 / args[-1] if args[-1] else 0.0)
        elif name == "softmax" and isinstance(out, Tensor) and out.ndim >= 3 and out.shape[-2] == self.length <= out.shape[-1]:
            self._softmax(args[0] if args else kwargs["input"])
            return torch.zeros_like(out)
        return out

    def _product(self, args: Any, kwargs: Any) -> None:
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.ndim >= 3][-2:]
        if len(tensors) == 2:
            self.last = tensors[0], tensors[1]

    def _softmax(self, logits: Tensor) -> None:
        if self.last is None or logits.shape[-1] > self.length + 1:
            return
        q, k = self.last
        if k.shape[-1] == self.length:
            k = k.mT
        k = k.expand(*q.shape[:-2], *k.shape[-2:])  # one key for all heads
        flat = [x.detach().double().flatten(0, -3) for x in (q, k, logits[..., : self.length])]
        self.seen.append(Seen(self.layers[-1] if self.layers else None, *flat))
        self.last = None


def unturned(function: Callable[..., Any]) -> Callable[..., Any]:
    """A rotary function that returns its queries and keys as they came, in the shapes it gives back."""

    @functools.wraps(function)
    def still(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        left = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        given = []
        for one in out if isinstance(out, tuple) else (out,):
            match = next(i for i, x in enumerate(left) if x.shape == one.shape)
            given.append(left.pop(match).to(one.dtype))
        return tuple(given) if isinstance(out, tuple) else given[0]

    return still


@contextlib.contextmanager
def without_rotation(model: nn.Module) -> Iterator[list[str]]:
    """The model with every rotary function of its code replaced by one that turns nothing; gives the names of these functions."""
    with contextlib.ExitStack() as stack:
        names = []
        places = {type(part).__module__ for part in model.modules() if "transformers.models" in type(part).__module__}
        for code in (sys.modules[place] for place in places):
            classes = [one for one in vars(code).values() if inspect.isclass(one) and one.__module__ == code.__name__]
            for owner, name in [(one, name) for one in (code, *classes) for name in list(vars(one)) if TURNS.match(name)]:
                given = inspect.getattr_static(owner, name)
                if not callable(given) and not isinstance(given, staticmethod):
                    continue
                still = unturned(getattr(owner, name))
                stack.enter_context(mock.patch.object(owner, name, staticmethod(still) if isinstance(given, staticmethod) else still))
                names.append(name)
        yield names


def run(model: nn.Module, inputs: dict[str, Any], length: int = TOKENS) -> Watch:
    """One pass of a model: what its softmax calls over so many tokens received, with the layer each was in."""
    hooks = []
    watch = Watch(length)

    def enter(module: nn.Module, *_: Any) -> None:
        watch.layers.append(int(module.layer_idx))  # type: ignore[arg-type]

    def leave(*_: Any) -> None:
        watch.layers.pop()

    for part in model.modules():
        if isinstance(getattr(part, "layer_idx", None), int):
            hooks.append(part.register_forward_pre_hook(enter))
            hooks.append(part.register_forward_hook(leave))
    try:
        with torch.no_grad(), watch:
            model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return watch
