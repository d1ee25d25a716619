"""Stacks of attention layers with a cache of their own, called as x-transformers is: layers(x, cache=.., return_hiddens=True)."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from eigenclock.audit.probe import Probe
from eigenclock.audit.subjects import modules
from eigenclock.audit.subjects.options import Options

WANTED = {"cache", "return_hiddens"}


def read(subject: Any, options: Options) -> Probe | None:
    """A stack (``Decoder``), or a model that keeps one as ``attn_layers``; its rotary module beside it, where it has one."""
    if not isinstance(subject, nn.Module):
        return None
    inner = getattr(subject, "attn_layers", None)
    layers: Any = inner if isinstance(inner, nn.Module) else subject
    width = getattr(layers, "dim", None)
    if not set(inspect.signature(layers.forward).parameters) >= WANTED or not isinstance(width, int):
        return None
    parameter = next(layers.parameters(), torch.zeros(()))
    dtype = options.dtype or parameter.dtype
    name = type(subject).__name__
    parts: dict[str, Probe] = {}
    rotary = getattr(layers, "rotary_pos_emb", None)
    if isinstance(rotary, nn.Module):
        found = modules.read(rotary, Options(options.head_dim, options.heads, options.length, dtype))
        parts = {} if found is None else {"rotary_pos_emb": found}
    causal = bool(getattr(layers, "causal", True))
    calls = {"full": _Layers(layers).full, "decode": _Layers(layers).decode} if causal else {}
    notes = (f"all layers of {name} as one attention of width {width}: its cache is run, its own positions are counted",)
    return Probe(name, "decoder", width, 1, 1, options.length, dtype, causal=causal, module=subject, layers=parts, notes=notes, **calls)


class _Layers:
    """The stack with the queries of the probe for its hidden states; keys and values it makes itself."""

    def __init__(self, layers: Any):
        self.layers = layers
        self.offset = {"seq_pos_offset": 0} if "seq_pos_offset" in inspect.signature(layers.forward).parameters else {}

    def full(self, q: Tensor, k: Tensor, v: Tensor, times: Tensor) -> Tensor:
        """The output over the whole sequence, (1, T, width)."""
        self._counted(times)
        return self._run(q)[0]

    def decode(self, q: Tensor, k: Tensor, v: Tensor, times: Tensor, cuts: tuple[int, ...]) -> Tensor:
        """The same as it generates: a prompt up to the first cut, then token by token."""
        self._counted(times)
        start = cuts[0] if cuts else q.shape[1]
        out, cache = self._run(q[:, :start])
        parts = [out]
        for stop in range(start + 1, q.shape[1] + 1):
            out, cache = self._run(q[:, :stop], cache=cache, **self.offset)
            parts.append(out[:, -1:])
        return torch.cat(parts, 1)

    def _run(self, x: Tensor, **given: Any) -> tuple[Tensor, Any]:
        training = self.layers.training
        try:
            return self.layers.eval()(x, return_hiddens=True, **given)
        finally:
            self.layers.train(training)

    def _counted(self, times: Tensor) -> None:
        if not torch.equal(times, torch.arange(times.numel())):
            raise ValueError("it counts positions itself")
