"""Live models of transformers: each kind of attention layer read through hooks, alone, in a batch and through the cache."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from eigenclock.audit.probe import Probe, Scores
from eigenclock.audit.subjects.acting import Found, probe_of_action, takes_fractions
from eigenclock.audit.subjects.configs import probe_of_config
from eigenclock.audit.subjects.live import Live
from eigenclock.audit.subjects.live_layers import Layer, layers
from eigenclock.audit.subjects.options import Options
from eigenclock.audit.subjects.places import Sizes
from eigenclock.audit.subjects.projections import of_model
from eigenclock.audit.subjects.unlike import unlike
from eigenclock.audit.subjects.weighed import bias_of, positions_of, unread
from eigenclock.errors import ConfigError, EigenclockError


def read(subject: Any, options: Options) -> Probe | None:
    """A model of transformers."""
    if not isinstance(subject, nn.Module) or not any(kind.__name__ == "PreTrainedModel" for kind in type(subject).__mro__):
        return None
    model: Any = subject
    parameter = next((p for p in model.parameters() if p.is_floating_point()), None)
    dtype = options.dtype or (parameter.dtype if parameter is not None else torch.float32)
    options = replace(options.of_config(model.config.to_dict()), dtype=dtype)
    if any(p.is_meta for p in model.parameters()):
        raise ConfigError(f"got {type(model).__name__} with weights on the meta device; expected them loaded, or its config in its place")
    live = Live(model)
    rotary = next((own for _, _, own in live.rotaries), None)
    probe = probe_of_config(model.config.to_dict(), options, type(model).__name__, "model", model.config, rotary)
    probe = replace(probe, module=model)
    every = layers(live) if rotary is not None else []
    found = [layer for layer in every if layer.turns]
    if found:
        turns = {index: layer.turns for layer in every if isinstance(index := getattr(layer.module, "layer_idx", None), int)}
        return replace(_read_layers(live, probe, found, options), projections=lambda units: of_model(found, units), turns=turns)
    bias = bias_of(model, options)
    if bias is not None:
        return replace(bias, name=probe.name, encodings=probe.encodings, config=probe.config, refused=probe.refused, module=model)
    if rotary is not None or probe.encodings:
        return probe
    outside = positions_of(model)
    return replace(probe, outside=outside) if outside else replace(probe, notes=(*probe.notes, unread(model)))


def _read_layers(live: Live, probe: Probe, found: list[Layer], options: Options) -> Probe:
    """The probe, or each of its layer types, read through the first attention layer that is of its kind."""
    if not probe.layers:
        return replace(_through(probe, found[0], options), layers=_others(probe, found, options))
    kinds = getattr(live.decoder.config, "layer_types", None) or ()
    firsts: dict[str, Layer] = {}
    of_kind: dict[str, list[Layer]] = {}
    for layer in found:
        index = getattr(layer.module, "layer_idx", None)
        if isinstance(index, int) and index < len(kinds):
            firsts.setdefault(str(kinds[index]), layer)
            of_kind.setdefault(str(kinds[index]), []).append(layer)
    parts = {kind: _through(part, firsts[kind], options) if kind in firsts else part for kind, part in probe.layers.items()}
    others = [_others(probe.layers[kind], same, options, f"{kind}, ") for kind, same in of_kind.items() if kind in probe.layers]
    return replace(probe, layers=parts | {name: part for more in others for name, part in more.items()})


def _others(probe: Probe, found: list[Layer], options: Options, kind: str = "") -> dict[str, Probe]:
    """Probes of the layers of one type that do not act, or decode, as the first of them does; the config holds for them too."""
    parts = {}
    for layer in unlike(found, probe.dtype, options.length):
        name = f"{kind}layer {getattr(layer.module, 'layer_idx', found.index(layer))}"
        part = _through(replace(probe, layers={}, exact=None), layer, options)
        parts[name] = replace(part, name=f"{probe.name}, {name}", tables={}, config=None, module=None)
    return parts


def _through(probe: Probe, layer: Layer, options: Options) -> Probe:
    """The probe whose vectors go into an attention layer just before its action and are read where its attention is called.

    Where vectors are normalised behind the action too, what they turn by is measured on the rotary module alone.
    """
    index, sizes = getattr(layer.module, "layer_idx", 0), layer.sizes
    note = f"vectors put into layer {index} at {layer.place.where}, read where its attention is called"
    runs = _runs(layer, probe.dtype)
    if not layer.place.plain:
        said = f"{note}: they are normalised after the action, which is measured on the rotary module alone"
        probe = replace(probe, notes=(*probe.notes, said))
        if sizes.width != probe.head_dim or probe.scores is None:
            return probe
        of_all = _by_module(probe.scores, probe, sizes)
        return replace(probe, heads=sizes.heads, kv_heads=sizes.kv_heads, scores=of_all, exact=_exact(probe, sizes), **runs)
    fractional = takes_fractions(layer.act, sizes.width, sizes.heads, probe.dtype, sizes.kv_heads)
    found = Found(layer.act, note, sizes.width, sizes.heads, fractional, sizes.kv_heads)
    made = probe_of_action(
        found, options, probe.name, "model", probe.notes[:-2], module=probe.module, tables=probe.tables, encodings=probe.encodings,
        config=probe.config, refused=probe.refused, outside=probe.outside, **runs,
    )  # fmt: skip
    return replace(made, exact=_exact(probe, sizes)) if _alike(made, probe) else made


def _runs(layer: Layer, dtype: torch.dtype) -> dict[str, Any]:
    """What of attention can be run: whole sequences and batches, and the cache."""
    sizes = layer.sizes
    if sizes.value_width != sizes.width:
        return {}
    q, k = (torch.zeros(h, 3, sizes.width, dtype=dtype) for h in (sizes.heads, sizes.kv_heads))
    runs: dict[str, Any] = {}
    try:
        layer.full(q, k, k, torch.arange(3))
        layer.batch(q[None], k[None], k[None], None, None, None)
        runs |= {"full": layer.full, "batch": layer.batch, "unmasked": layer.unmasked}
        if layer.caches:
            layer.decode(q, k, k, torch.arange(3), (2,))
            runs["decode"] = layer.decode
    except (EigenclockError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, NotImplementedError):
        pass
    return runs


def _alike(one: Probe, other: Probe) -> bool:
    """Whether the model scores as its rotary module alone does, so that the module can be asked in wider arithmetic."""
    if one.head_dim != other.head_dim or one.heads % other.heads or one.scores is None or other.scores is None:
        return False
    q, k = one.content(3)
    times = torch.tensor([0.0, 3.0, 40.0], dtype=torch.float64)
    again = _by_module(other.scores, other, Sizes(one.heads, one.kv_heads, one.head_dim, one.head_dim))
    a, b = (fn(q, k, times, times).double() for fn in (one.scores, again))
    return torch.allclose(a, b, rtol=0, atol=16 * one.unit_roundoff * float(b.abs().max()))


def _exact(probe: Probe, sizes: Sizes) -> Scores | None:
    return None if probe.exact is None else _by_module(probe.exact, probe, sizes)


def _by_module(scores: Scores, probe: Probe, sizes: Sizes) -> Scores:
    """Scores of all heads of a model by those of fewer heads, which share one table."""
    n = probe.heads

    def all_heads(q: Tensor, k: Tensor, query_times: Tensor, key_times: Tensor) -> Tensor:
        k = k.repeat_interleave(sizes.heads // sizes.kv_heads, 0)
        return torch.cat([scores(q[i : i + n], k[i : i + n], query_times, key_times) for i in range(0, q.shape[0], n)])

    return all_heads
