"""Functions whose positions are several numbers, (T, axes): one axis moves while the others stand still, and all move together."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eigenclock.audit.probe import Probe
from eigenclock.audit.subjects.acting import HEADS, WIDTHS, Act, Found, probe_of_action, search, with_forms
from eigenclock.audit.subjects.attending import VALUES
from eigenclock.audit.subjects.options import Options
from eigenclock.errors import ConfigError

STILL = 3
"""Where the axes stand that do not move."""
ALL_AXES = "all axes"
"""What the part is called in which every axis moves."""
FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "(T, axes)": lambda p: p,
    "(1, T, axes)": lambda p: p[None],
    "(axes, T)": lambda p: p.mT,
    "(axes, 1, T)": lambda p: p.mT[:, None],
}


def read(function: Callable[..., Any], names: list[str], options: Options, name: str, kind: str, **more: Any) -> Probe:
    """The probes of f(q, k, positions) -> (q', k') or f(x, positions) -> x': one for each axis, and one for all of them.

    Raises: ConfigError where it takes no such positions.
    """
    axes, parts, first = options.axes, {}, None
    if len(names) not in (2, 3):
        raise ConfigError(
            f"got {name}({', '.join(names)}) with axes={axes}; expected f(q, k, positions), f(x, positions), "
            "f(q, k, positions_q, positions_k) or f(q, k, v, positions)"
        )
    for moving in (*range(axes), None):
        found = search(_ways(function, len(names), axes, moving), options)
        if found is None:
            raise ConfigError(
                f"got {name}({', '.join(names)}), which takes no vectors of width {options.head_dim or WIDTHS} with positions "
                f"{' or '.join(FORMS)} for axes={axes}: give head_dim= and heads=, or wrap it in a function that does"
            )
        layer = ALL_AXES if moving is None else f"axis {moving}"
        probe = probe_of_action(found, options, f"{name}, {layer}", kind, **more)
        parts[layer] = replace(probe, notes=(), axes=axes)
        first = first or probe
    assert first is not None
    return _together(parts, first, name, names, axes, **more)


def of_axes(single: Callable[[Callable[..., Tensor]], Probe], function: Callable[..., Tensor], names: list[str], options: Options) -> Probe:
    """The probes of f(q, k, positions_q, positions_k) -> scores or f(q, k, v, positions) -> out, as ``read`` makes them of an action.

    ``single`` makes the probe of a function whose positions are one number each.

    Raises: ConfigError where it takes no such positions.
    """
    for form, shaped in FORMS.items():
        parts = {}
        for moving in (*range(options.axes), None):
            layer = ALL_AXES if moving is None else f"axis {moving}"
            try:
                parts[layer] = single(_with_axes(function, shaped, options.axes, moving, names[2].lower() in VALUES))
            except ConfigError as error:
                refused = error
                break
        else:
            first = parts["axis 0"]
            name = getattr(function, "__name__", type(function).__name__)
            named = {layer: replace(part, name=f"{name}, {layer}", notes=(), axes=options.axes) for layer, part in parts.items()}
            notes = (f"positions {form}", *first.notes)
            return _together(named, replace(first, notes=notes), name, names, options.axes)
    raise ConfigError(f"positions {' or '.join(FORMS)} for axes={options.axes}: {refused}")


def _with_axes(
    function: Callable[..., Tensor], shaped: Callable[[Tensor], Tensor], axes: int, moving: int | None, attends: bool
) -> Callable[..., Tensor]:
    """The same function of positions of one number: that of the axis that moves, or of all."""

    def at(times: Tensor) -> Tensor:
        return shaped(_places(times.flatten(), axes, moving))

    def scores(q: Tensor, k: Tensor, query_times: Tensor, key_times: Tensor) -> Tensor:
        return function(q, k, at(query_times), at(key_times))

    def attention(q: Tensor, k: Tensor, v: Tensor, times: Tensor) -> Tensor:
        return function(q, k, v, at(times))

    return attention if attends else scores


def _together(parts: dict[str, Probe], first: Probe, name: str, names: list[str], axes: int, **more: Any) -> Probe:
    how = f"{name}({', '.join(names)}) by its signature, positions of {axes} numbers: each moves alone (the others at {STILL}), then all do"
    sizes = (first.head_dim, first.heads or HEADS, first.kv_heads, first.length, first.dtype)
    return Probe(name, first.kind, *sizes, layers=parts, notes=(how, *first.notes), **more)


def where_needed(
    found: Found | None, function: Callable[..., Any], names: list[str], options: Options, *said: str, **more: Any
) -> Probe | None:
    """The probes of a function that refuses a token with one number for its position, and takes two or three; None for others."""
    if found is not None:
        x = torch.ones(found.heads, 1, found.head_dim)
        try:
            found.act(x, x[: found.kv_heads or found.heads], torch.tensor([3]))
        except Exception:  # (1, T) is taken for T tokens of one number by chance
            found = None
    for axes in (2, 3) if found is None and len(names) in (2, 3) else ():
        try:
            probe = read(function, names, replace(options, axes=axes), *said, **more)
        except ConfigError:
            continue
        return replace(probe, notes=(f"its positions are taken as {axes} numbers for each token: axes={axes} says so", *probe.notes))
    return None


def _ways(function: Callable[..., Any], arguments: int, axes: int, moving: int | None) -> Iterator[tuple[str, Act]]:
    def call(q: Tensor, k: Tensor, positions: Tensor, back: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        a, b = function(q, k, positions) if arguments == 3 else (function(q, positions), function(k, positions))
        return back(a), back(b)

    def placed(shaped: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda times: shaped(_places(times, axes, moving))

    return with_forms(call, {form: placed(shaped) for form, shaped in FORMS.items()})


def _places(times: Tensor, axes: int, moving: int | None) -> Tensor:
    """Positions (T, axes) with the times on the axis that moves, or on all."""
    if moving is None:
        return times[:, None].expand(-1, axes).clone()
    places = torch.full((times.numel(), axes), STILL, dtype=times.dtype)
    places[:, moving] = times
    return places
