"""A live model of transformers: vectors are put into one of its attention layers and read where its attention is called.

Nothing of the model is changed for longer than one call: hooks, training flags, the attention implementation of its configs and its rotary
modules (whose tables some schedules overwrite as they run; a copy of each is used here) are as they were after it.
"""

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eigenclock.audit.subjects.modules import ROTARY
from eigenclock.errors import UnsupportedError

NAME = "eigenclock_audit"


@dataclass(frozen=True)
class Seen:
    """One call of the attention function: by which module, with what, and what a mask let it see."""

    module: Any
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    out: Tensor | None


class _Stop(Exception):
    """The attention that was asked for has been called: the rest of the model is not run."""


_READERS: list[Callable[..., Tensor]] = []
"""Who reads the calls of the attention function, the innermost last."""


def _is_rotary(name: str, module: nn.Module) -> bool:
    """By its class, by one that it is made from, or by the name under which another one was put in its place."""
    return name in ("rotary_emb", "rotary_pos_emb") or any(kind.__name__.endswith(ROTARY) for kind in type(module).__mro__)


def rotary_modules(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """The modules of a model that make rotary tables for its text, each with its parent and its name there."""
    found = []
    for path, parent in model.named_modules():
        for name, child in parent.named_children():
            if _is_rotary(name, child) and not any(word in f"{path}.{name}" for word in ("vision", "visual", "audio")):
                found.append((parent, name, child))
    return found


class Live:
    """A model of transformers, called so that its attention can be read.

    Args:
        model: the model; its text decoder is what runs.
    """

    def __init__(self, model: Any):
        self.model = model
        decoder = model.get_decoder() if callable(getattr(model, "get_decoder", None)) else None
        self.decoder: Any = decoder if isinstance(decoder, nn.Module) else getattr(model, "base_model", model)
        self.takes = set(inspect.signature(self.decoder.forward).parameters)
        self.device = next((p.device for p in self.decoder.parameters()), torch.device("cpu"))
        self._modules = list(model.modules())
        self._configs = _configs(self._modules)
        self.rotaries: list[tuple[nn.Module, str, nn.Module]] = []
        self.refresh()

    def refresh(self) -> None:
        """Rotary modules as those of the model are: some keep a table of the longest call so far."""
        self.rotaries = [(parent, name, copy.deepcopy(child)) for parent, name, child in rotary_modules(self.model)]

    def cache(self) -> Any:
        """An empty cache of the model's own kind."""
        from transformers import DynamicCache

        return DynamicCache(config=self.decoder.config)

    def run(
        self,
        tokens: tuple[int, int],
        *,
        position_ids: Tensor | None = None,
        mask: Tensor | None = None,
        cache: Any = None,
        at: Any = None,
        put: Callable[[], list[tuple[nn.Module, Callable[[Tensor], Tensor]]]] | None = None,
        attend: bool = True,
        skip: tuple[nn.Module, ...] = (),
        implementation: str | None = NAME,
    ) -> list[Seen]:
        """The calls of attention in one pass over ``tokens`` = (rows, length) equal tokens, up to that of the module ``at``.

        ``put`` gives what replaces the output of some modules; without ``attend`` the call at ``at`` is not answered; modules in ``skip``
        hand their input on.
        """
        seen: list[Seen] = []

        def reader(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, rest: dict[str, Any]) -> Tensor:
            wanted = module is at or at is None
            out = attended(module, query, key, value, mask, rest) if attend or not wanted else None
            if wanted:
                seen.append(Seen(module, query.cpu(), key.cpu(), value.cpu(), mask, None if out is None else out.cpu()))
            if at is not None and wanted:
                raise _Stop
            assert out is not None
            return out.to(value.dtype)

        given: dict[str, Any] = {"position_ids": position_ids, "attention_mask": mask, "use_cache": cache is not None}
        given["past_key_values" if "past_key_values" in self.takes else "cache"] = cache
        kwargs = "kwargs" in self.takes
        given = {name: x for name, x in given.items() if x is not None and (name in self.takes or kwargs)}
        given = {name: x.to(self.device) if isinstance(x, Tensor) else x for name, x in given.items()}
        if position_ids is not None and "position_ids" not in given:
            raise UnsupportedError(f"got positions for {type(self.decoder).__name__}; expected a model that takes position_ids")
        ids = torch.ones(*tokens, dtype=torch.long, device=self.device)
        borrowed = self.borrowed(reader, put() if put is not None else [], skip, implementation)
        with borrowed, torch.no_grad(), contextlib.suppress(_Stop):
            self.decoder(ids, **given)
        if at is not None and not seen:
            raise UnsupportedError(f"got {type(self.model).__name__}; expected layers that call the attention function they are given")
        return seen

    @contextlib.contextmanager
    def borrowed(
        self,
        reader: Callable[..., Tensor] | None = None,
        put: list[Any] | None = None,
        skip: tuple[nn.Module, ...] = (),
        implementation: str | None = NAME,
    ) -> Iterator[None]:
        """The model in evaluation, with everything in place that a call needs; afterwards as it was."""
        _register()
        training = [m for m in self._modules if m.training]
        chosen = [vars(config).get("_attn_implementation_internal") for config in self._configs]
        originals = [parent._modules[name] for parent, name, _ in self.rotaries]
        forwards = [vars(m).get("forward") for m in skip]
        hooks = []
        if reader is not None:
            _READERS.append(reader)
        try:
            for m in training:
                m.training = False
            for config in self._configs if implementation is not None else ():
                vars(config)["_attn_implementation_internal"] = implementation
            for parent, name, own in self.rotaries:
                own.training = False
                parent._modules[name] = own
            for m in skip:
                m.forward = lambda hidden_states, *args, **rest: hidden_states
            hooks += [place.register_forward_hook(lambda m, args, out, f=f: f(out)) for place, f in put or []]
            yield
        finally:
            if reader is not None:
                _READERS.pop()
            for hook in hooks:
                hook.remove()
            for m, forward in zip(skip, forwards, strict=True):
                del m.forward
                if forward is not None:
                    m.forward = forward
            for (parent, name, _), original in zip(self.rotaries, originals, strict=True):
                parent._modules[name] = original
            for config, value in zip(self._configs, chosen, strict=True):
                vars(config)["_attn_implementation_internal"] = value
            for m in training:
                m.training = True


@contextlib.contextmanager
def kept(model: nn.Module) -> Iterator[None]:
    """Afterwards the modules have the hooks and attributes they had: transformers leaves some where it is asked for attention weights."""
    kinds = (
        "_forward_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called",
        "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs",
    )
    before = [(m, set(vars(m)), {kind: set(getattr(m, kind)) for kind in kinds}) for m in model.modules()]
    try:
        yield
    finally:
        for m, names, hooks in before:
            for kind, known in hooks.items():
                for key in set(getattr(m, kind)) - known:
                    del getattr(m, kind)[key]
            for name in set(vars(m)) - names:
                delattr(m, name)


def _configs(modules: list[nn.Module]) -> list[Any]:
    """Every config object that some module reads its attention implementation from."""
    found: dict[int, Any] = {}
    for module in modules:
        config = getattr(module, "config", None)
        if config is None or id(config) in found or not hasattr(config, "_attn_implementation_internal"):
            continue
        for one in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", {}) or {})):
            if one is not None and hasattr(one, "_attn_implementation_internal"):
                found[id(one)] = one
    return list(found.values())


def _register() -> None:
    """The name that models look our attention function up by; it hands each call to the innermost reader."""
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    if NAME in ALL_MASK_ATTENTION_FUNCTIONS:
        return

    def called(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **rest: Any) -> Any:
        return _READERS[-1](module, query, key, value, attention_mask, rest), None

    AttentionInterface.register(NAME, called)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def attended(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, rest: dict[str, Any]) -> Tensor:
    """Plain softmax attention (B, T, H, V) in float32 or wider; a row that sees nothing gives zeros.

    Caps and sinks of a model's own attention know no positions, and are left out.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    q, k, v = (x.to(wide) for x in (query, key, value))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scale = rest.get("scaling")
    z = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    t, s = z.shape[-2:]
    is_causal = rest.get("is_causal")
    if mask is None:
        if t > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal):
            z = z.masked_fill(torch.ones(t, s, dtype=torch.bool, device=z.device).triu(s - t + 1), -torch.inf)
    elif mask.dtype == torch.bool:
        z = z.masked_fill(~mask[..., :s], -torch.inf)
    else:
        z = torch.where(allowed(mask)[..., :s], z + mask[..., :s].to(wide), -torch.inf)
    return (z.softmax(-1).nan_to_num(nan=0.0) @ v).transpose(1, 2)


def allowed(mask: Tensor) -> Tensor:
    """Where a mask lets a query see, whether it is one of truth values or of numbers that are added."""
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
