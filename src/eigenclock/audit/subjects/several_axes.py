"""Functions whose positions are several numbers, (T, axes): one axis moves while the others stand still, and all move together."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eigenclock.audit.probe import Probe
from eigenclock.audit.subjects.acting import HEADS, LAYOUTS, WIDTHS, Act, probe_of_action, search, times_as
from eigenclock.audit.subjects.options import Options
from eigenclock.errors import ConfigError

STILL = 3
"""Where the axes stand that do not move."""
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
        raise ConfigError(f"got {name}({', '.join(names)}) with axes={axes}; expected f(q, k, positions) or f(x, positions)")
    for moving in (*range(axes), None):
        found = search(_ways(function, len(names), axes, moving), options)
        if found is None:
            raise ConfigError(
                f"got {name}({', '.join(names)}), which takes no vectors of width {options.head_dim or WIDTHS} with positions "
                f"{' or '.join(FORMS)} for axes={axes}: give head_dim= and heads=, or wrap it in a function that does"
            )
        layer = "all axes" if moving is None else f"axis {moving}"
        probe = probe_of_action(found, options, f"{name}, {layer}", kind, **more)
        parts[layer] = replace(probe, notes=())
        first = first or probe
    assert first is not None
    how = f"{name}({', '.join(names)}) by its signature, positions of {axes} numbers: each moves alone (the others at {STILL}), then all do"
    sizes = (first.head_dim, first.heads or HEADS, first.kv_heads, options.length, first.dtype)
    return Probe(name, kind, *sizes, layers=parts, notes=(how, *first.notes), **more)


def _ways(function: Callable[..., Any], arguments: int, axes: int, moving: int | None) -> Iterator[tuple[str, Act]]:
    for layout, (there, back) in LAYOUTS.items():
        for form, shaped in FORMS.items():
            for dtype in (None, torch.float64, torch.float32):

                def act(
                    q: Tensor, k: Tensor, times: Tensor, there: Any = there, back: Any = back, shaped: Any = shaped, dtype: Any = dtype
                ) -> tuple[Tensor, Tensor]:
                    positions = shaped(_places(times_as(times, dtype), axes, moving))
                    if arguments == 3:
                        a, b = function(there(q), there(k), positions)
                    else:
                        a, b = function(there(q), positions), function(there(k), positions)
                    return back(a), back(b)

                yield f"vectors {layout}, positions {form}", act


def _places(times: Tensor, axes: int, moving: int | None) -> Tensor:
    """Positions (T, axes) with the times on the axis that moves, or on all."""
    if moving is None:
        return times[:, None].expand(-1, axes).clone()
    places = torch.full((times.numel(), axes), STILL, dtype=times.dtype)
    places[:, moving] = times
    return places
