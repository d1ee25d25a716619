"""Rotary modules of known shapes, each through a small adapter that calls it as its own users do."""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from eigenclock.audit.probe import Probe, RotaryTable
from eigenclock.audit.subjects import callables
from eigenclock.audit.subjects.acting import HEADS, Act, Found, probe_of_action
from eigenclock.audit.subjects.options import Options
from eigenclock.audit.subjects.tables import on_table

APPLY = ("apply_rotary_pos_emb", "apply_rotary_emb", "apply_rotary_pos_emb_interleave", "apply_rope")
ROTARY = ("RotaryEmbedding", "RotaryPositionalEmbeddings", "RotaryPositionalEmbedding")
"""How the names of classes of transformers that make rotary tables end."""


def read(subject: Any, options: Options) -> Probe | None:
    """A module of a known shape; others with forward(q, k, positions) or forward(x, positions) are read as functions."""
    if not isinstance(subject, nn.Module):
        return None
    for made in (_rotary_embedding_torch, _x_transformers, _torchtune, _flash_attn, _nanochat, _transformers):
        probe = made(subject, options)
        if probe is not None:
            return probe
    return callables.read(subject, options)


def beside(module: nn.Module, names: tuple[str, ...] = APPLY) -> Callable[..., Any] | None:
    """The function of one of these names in the file that defines a module: the one that attention there calls, where there are several.

    Attention that calls two chooses by ``rope_interleave`` of its config.
    """
    space = sys.modules.get(type(module).__module__)
    there = [name for name in names if callable(getattr(space, name, None))]
    called = [name for name in there if name in _called_by_attention(space)] if len(there) > 1 else []
    chosen = called or there
    flag = getattr(getattr(module, "config", None), "rope_interleave", None)
    if len(called) > 1 and isinstance(flag, bool):
        chosen = [name for name in called if name.endswith("interleave") == flag] or called
    return getattr(space, chosen[0]) if chosen else None


def _called_by_attention(space: Any) -> set[str]:
    """The names that the forward of attention classes of a file uses."""
    classes = [one for one in vars(space).values() if isinstance(one, type) and one.__module__ == space.__name__]
    codes = [getattr(inspect.unwrap(one.forward), "__code__", None) for one in classes if one.__name__.endswith("Attention")]
    return {name for code in codes if code is not None for name in code.co_names}


def table_of(inv_freq: Any, amplitude: Any = 1.0, pairing: str | None = None, source: str = "") -> dict[str, RotaryTable]:
    """The one table of a module, under the layer type of models that have one."""
    if not isinstance(inv_freq, Tensor):
        return {}
    freq = inv_freq.detach().flatten()
    return {"full_attention": RotaryTable(freq, float(amplitude), 2 * freq.shape[0], pairing, source)}


def _made(module: nn.Module, act: Act, options: Options, width: int, fractional: bool, how: str, **more: Any) -> Probe:
    found = Found(act, how, options.head_dim or width, options.heads or HEADS, fractional)
    return probe_of_action(found, options, type(module).__name__, "module", module=module, **more)


def _each_time(turn: Callable[[Tensor, int], Tensor], x: Tensor, times: Tensor) -> Tensor:
    """Vectors (H, T, D) turned by a function of a sequence and the position it begins at: runs at once, single tokens one by one."""
    whole = times.long()
    if x.shape[1] and bool((whole.diff() == 1).all()):
        return turn(x[None], int(whole[0]))[0]
    out = None
    for time in whole.unique():
        chosen = (whole == time).nonzero().flatten()
        got = turn(x[:, chosen].flatten(0, 1)[None, :, None], int(time))[0, :, 0].unflatten(0, (x.shape[0], -1))
        out = got.new_empty(*x.shape[:2], got.shape[-1]) if out is None else out
        out[:, chosen] = got
    return x if out is None else out


def _rotary_embedding_torch(module: nn.Module, options: Options) -> Probe | None:
    """rotary-embedding-torch: rotate_queries_or_keys with an offset; with xPos, the scales of a sequence of the length used."""
    if not callable(getattr(module, "rotate_queries_or_keys", None)) or not isinstance(getattr(module, "freqs", None), Tensor):
        return None
    m: Any = module
    freqs, xpos = m.freqs.detach(), bool(getattr(m, "use_xpos", False))
    apply = beside(module, ("apply_rotary_emb",))

    def act(q: Tensor, k: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        if times.is_floating_point() and bool((times != times.round()).any()):
            if xpos or apply is None:
                raise ValueError("whole positions only")
            angles = m.forward(times.to(q.dtype))
            return apply(angles, q), apply(angles, k)
        if xpos and apply is not None:
            seq = m.get_seq_pos(max(options.length, int(times.max()) + 1), device=q.device, dtype=q.dtype)
            angles, scale = m.forward(seq)[times.long()], m.get_scale(seq)[times.long()].to(q.dtype)
            return apply(angles, q, scale=scale), apply(angles, k, scale=scale**-1)
        q, k = (_each_time(lambda x, start: m.rotate_queries_or_keys(x, offset=start), x, times) for x in (q, k))
        return q, k

    how = (
        "rotate_queries_and_keys (xPos), scales of a sequence of the length used" if xpos else "rotate_queries_or_keys(x, offset=position)"
    )
    more: dict[str, Any] = {}
    if callable(getattr(m, "rotate_queries_with_cached_keys", None)):
        more = {"full": lambda q, k, v, times: _attend(*_rotated(m, q, k, xpos), v), "decode": lambda *given: _ret_decode(m, *given)}
    tables = table_of(freqs, 1.0, "interleaved", type(module).__name__)
    fractional = not xpos and apply is not None
    return _made(module, act, options, 2 * freqs.shape[-1], fractional, how, tables=tables, causal=xpos, **more)


def _rotated(m: Any, q: Tensor, k: Tensor, xpos: bool) -> tuple[Tensor, Tensor]:
    if xpos:
        q, k = m.rotate_queries_and_keys(q[None], k[None])
        return q[0], k[0]
    return m.rotate_queries_or_keys(q[None])[0], m.rotate_queries_or_keys(k[None])[0]


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal softmax attention of vectors already turned; the queries are the last of the keys' tokens."""
    z = q.float() @ k.float().mT / q.shape[-1] ** 0.5
    later = torch.ones(z.shape[-2:], dtype=torch.bool).triu(1 + z.shape[-1] - z.shape[-2])
    return (z.masked_fill(later, -torch.inf).softmax(-1) @ v.float()).to(v.dtype)


def _ret_decode(m: Any, q: Tensor, k: Tensor, v: Tensor, times: Tensor, cuts: tuple[int, ...]) -> Tensor:
    out, start = [], 0
    for stop in (*cuts, q.shape[1]):
        if stop > start:
            a, b = m.rotate_queries_with_cached_keys(q[None, :, start:stop], k[None, :, :stop])
            out.append(_attend(a[0], b[0], v[:, :stop]))
        start = max(start, stop)
    return torch.cat(out, 1)


def _x_transformers(module: nn.Module, options: Options) -> Probe | None:
    """x-transformers: positions -> (freqs, scale), the scale on queries and its inverse on keys."""
    apply = beside(module, ("apply_rotary_pos_emb",))
    if (
        apply is None
        or not callable(getattr(module, "forward_from_seq_len", None))
        or not isinstance(getattr(module, "inv_freq", None), Tensor)
    ):
        return None
    m: Any = module
    xpos = isinstance(getattr(m, "scale", None), Tensor)

    def act(q: Tensor, k: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        at = times.to(torch.float32) if times.is_floating_point() else times
        last = at.new_full((1,), max(options.length - 1, int(at.max()) if at.numel() else 0))
        freqs, scale = m(torch.cat([at, last]))  # one call knows the whole sequence: its scales stand around the middle of that
        freqs, scale = freqs[..., :-1, :], scale[..., :-1, :] if isinstance(scale, Tensor) else scale
        return apply(q[None], freqs, scale)[0], apply(k[None], freqs, scale**-1.0)[0]

    how = "forward(positions) and apply_rotary_pos_emb" + (", scales of a sequence of the length used" if xpos else "")
    tables = table_of(m.inv_freq, 1.0, "interleaved", type(module).__name__)
    return _made(module, act, options, 2 * m.inv_freq.numel(), True, how, tables=tables, causal=xpos)


def _torchtune(module: nn.Module, options: Options) -> Probe | None:
    """torchtune: forward(x (B, T, H, D), *, input_pos)."""
    if not callable(getattr(module, "build_rope_cache", None)) or not hasattr(module, "max_seq_len"):
        return None
    m: Any = module

    def act(q: Tensor, k: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        if times.is_floating_point() and bool((times != times.round()).any()):
            raise ValueError("whole positions only")
        a, b = (m(x.transpose(0, 1)[None], input_pos=times.long()[None])[0].transpose(0, 1) for x in (q, k))
        return a, b

    theta = getattr(m, "theta", None)
    width = int(getattr(m, "dim", 0)) or 2 * (theta.numel() if isinstance(theta, Tensor) else 32)
    options = Options(options.head_dim, options.heads, min(options.length, int(m.max_seq_len)), options.dtype)
    tables = table_of(theta, 1.0, "interleaved", type(module).__name__)
    return _made(module, act, options, width, False, "forward(x (B, T, H, D), input_pos=positions)", tables=tables)


def _flash_attn(module: nn.Module, options: Options) -> Probe | None:
    """flash-attn style: cached cos and sin (T, n) in the dtype of the input, halves or interleaved by a flag; its kernel is not called."""
    if not callable(getattr(module, "_update_cos_sin_cache", None)) or not hasattr(module, "interleaved"):
        return None
    m: Any = module
    interleaved = bool(m.interleaved)

    def act(q: Tensor, k: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        if times.is_floating_point() and bool((times != times.round()).any()):
            raise ValueError("whole positions only")
        m._update_cos_sin_cache(max(options.length, int(times.max()) + 1), device=q.device, dtype=q.dtype)
        cos, sin = m._cos_cached[times.long()], m._sin_cached[times.long()]
        cos_k, sin_k = (
            (c if kept is None else kept[times.long()])
            for c, kept in ((cos, getattr(m, "_cos_k_cached", None)), (sin, getattr(m, "_sin_k_cached", None)))
        )
        return _turned(q, cos, sin, interleaved), _turned(k, cos_k, sin_k, interleaved)

    width = 2 * m.inv_freq.numel() if isinstance(getattr(m, "inv_freq", None), Tensor) else 64
    tables = table_of(getattr(m, "inv_freq", None), 1.0, "interleaved" if interleaved else "half", type(module).__name__)
    return _made(module, act, options, width, False, "its cached cos and sin, applied by the formula", tables=tables)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """The first channels turned by tables (T, n) that may differ between sides, the rest as it is."""
    n = cos.shape[-1]
    part, rest = x[..., : 2 * n], x[..., 2 * n :]
    a, b = (part[..., 0::2], part[..., 1::2]) if interleaved else part.chunk(2, -1)
    turned = (a * cos - b * sin, a * sin + b * cos)
    return torch.cat([torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1), rest], -1)


def _nanochat(module: nn.Module, options: Options) -> Probe | None:
    """nanochat style: a model with tables cos and sin (1, T, 1, n), and apply_rotary_emb(x, cos, sin) beside it."""
    apply = beside(module, ("apply_rotary_emb",))
    cos, sin = (getattr(module, name, None) for name in ("cos", "sin"))
    if apply is None or not isinstance(cos, Tensor) or not isinstance(sin, Tensor) or cos.ndim != 4:
        return None
    length = min(options.length, cos.shape[1])
    width = options.head_dim or 2 * cos.shape[-1]
    return on_table(apply, (cos, sin), Options(width, options.heads, length, options.dtype or cos.dtype), "module")


def _transformers(module: nn.Module, options: Options) -> Probe | None:
    """transformers style: forward(x, position_ids) -> cos, sin or freqs_cis, and the function that applies it in the same file."""
    names = callables.parameters(module) or []
    if len(names) not in (2, 3) or "position_ids" not in names:
        return None
    name, config = type(module).__name__, getattr(module, "config", None)
    if isinstance(getattr(module, "rope_type", None), str) and callable(getattr(config, "to_dict", None)):
        from eigenclock.audit.subjects.configs import probe_of_config  # which reads such modules itself

        given: Any = config
        return probe_of_config(given.to_dict(), options, name, "module", given, module, module=module)
    return transformers_rotary(module, options, name, "module")


def transformers_rotary(module: nn.Module, options: Options, name: str, kind: str, **more: Any) -> Probe | None:
    """The probe of a rotary module of transformers; one for each layer type where it has several."""
    from dataclasses import replace

    apply = beside(module)
    if apply is None:
        return None
    m: Any = module
    layers = [layer for layer in getattr(m, "layer_types", ()) or () if isinstance(getattr(m, f"{layer}_inv_freq", None), Tensor)]
    source = type(module).__name__
    if not layers:
        more.setdefault("tables", table_of(getattr(m, "inv_freq", None), _amplitude(getattr(m, "attention_scaling", 1.0)), None, source))
        return replace(on_table(apply, module, options, kind, **more), name=name)
    tables, probes = {}, {}
    for layer in layers:
        scaling = _amplitude(getattr(m, f"{layer}_attention_scaling", 1.0))
        tables |= {layer: next(iter(table_of(getattr(m, f"{layer}_inv_freq"), scaling, None, source).values()))}
        of_layer = OfLayer(module, layer)
        probes[layer] = replace(on_table(apply, of_layer, options, kind, tables={}), name=f"{name}, {layer}")
    first = next(iter(probes.values()))
    more.setdefault("tables", tables)
    return Probe(name, kind, first.head_dim, first.heads, first.kv_heads, options.length, first.dtype, layers=probes, module=module, **more)


class OfLayer(nn.Module):
    """A rotary module for one of its layer types."""

    def __init__(self, rotary: Any, layer: str):
        super().__init__()
        self.rotary, self.layer = rotary, layer
        self.inv_freq = getattr(rotary, f"{layer}_inv_freq")

    def forward(self, x: Tensor, position_ids: Tensor) -> Any:
        """The tables of its layer type."""
        return self.rotary(x, position_ids, self.layer)


def _amplitude(value: Any) -> float:
    return float(value) if value is not None else 1.0
