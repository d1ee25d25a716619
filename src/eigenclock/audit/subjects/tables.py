"""Functions on a table: f(q, k, cos, sin), f(x, cos, sin) or f(x, freqs_cis), with the module or function that makes the table."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from eigenclock.audit.probe import Probe, RotaryTable
from eigenclock.audit.subjects.acting import LAYOUTS, WIDTHS, Act, probe_of_action, search, times_as
from eigenclock.audit.subjects.options import Options
from eigenclock.errors import ConfigError

TABLES = ("freqs_cis", "freqs", "rope_cache", "rotary_table", "cos_sin")
"""Names of arguments that hold a table."""
BASE = 10000.0

Table = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
"""From vectors (for their dtype) and times to the tables of those times, each with time on one axis."""


def read(subject: Any, options: Options) -> Probe | None:
    """A pair (f, what makes its table): a module, a function, or the table itself."""
    if not isinstance(subject, tuple) or len(subject) != 2 or not callable(subject[0]):
        return None
    maker = subject[1]
    if not (callable(maker) or isinstance(maker, Tensor) or _are_tensors(maker)):
        return None
    return on_table(subject[0], maker, options, "table")


def on_table(function: Any, maker: Any, options: Options, kind: str, **more: Any) -> Probe:
    """The probe of a function on the tables of a maker, or of plain tables of base 10000 made here where there is none.

    Raises: ConfigError where no way of calling works.
    """
    from eigenclock.audit.subjects.callables import name_of, parameters

    names = parameters(function) or []
    widths = WIDTHS if not isinstance(maker, nn.Module) else (*_widths(maker), *WIDTHS)
    ways = list(_ways(function, len(names), maker))
    found = search(ways, options, widths)
    name = name_of(function) if maker is None else f"{name_of(function)} with {'a table' if not callable(maker) else name_of(maker)}"
    if found is None:
        raise ConfigError(
            f"got {name}({', '.join(names)}), whose table cannot be made here; expected (f, maker), where maker(x, positions), "
            "maker(positions), maker(length) or maker(head_dim, length) gives cos and sin or freqs_cis: give head_dim= and heads= too"
            + (f" (an even one: {options.head_dim} channels are no pairs)" if (options.head_dim or 0) % 2 else "")
        )
    note = f"{name_of(function)}({', '.join(names)}) by its signature"
    note += f", on a table of base {BASE:g} made here: give (f, maker) to audit its own" if maker is None else ""
    if isinstance(maker, nn.Module):
        more = {"module": maker, "tables": _kept(maker), **more}
    return probe_of_action(found, options, name, kind, (note,), **more)


def _are_tensors(value: Any) -> bool:
    return isinstance(value, tuple | list) and bool(value) and all(isinstance(part, Tensor) for part in value)


def _kept(module: nn.Module) -> dict[str, RotaryTable]:
    """The frequencies that a module keeps; which factor stands on its cos and sin, and which channels turn, it need not say."""
    inv_freq, amplitude = getattr(module, "inv_freq", None), getattr(module, "attention_scaling", None)
    if not isinstance(inv_freq, Tensor) or inv_freq.ndim != 1:
        return {}
    factor = float(amplitude) if isinstance(amplitude, int | float) else math.nan
    return {"": RotaryTable(inv_freq.detach(), factor, 2 * inv_freq.numel(), None, type(module).__name__)}


def _widths(module: nn.Module) -> tuple[int, ...]:
    """Twice the frequencies that a module holds."""
    held = [*module.named_buffers(), *((n, v) for n, v in vars(module).items() if isinstance(v, Tensor))]
    return tuple(2 * v.shape[-1] for n, v in held if "inv_freq" in n)


def _ways(function: Any, arguments: int, maker: Any) -> Iterator[tuple[str, Act]]:
    for how, table in _makers(maker):
        for layout, (there, back) in LAYOUTS.items():
            for shape, shaped in _SHAPES.items():

                def act(
                    q: Tensor, k: Tensor, times: Tensor, table: Any = table, there: Any = there, back: Any = back, shaped: Any = shaped
                ) -> tuple[Tensor, Tensor]:
                    return _called(function, arguments, there(q), there(k), tuple(map(shaped, table(there(q), times))), back)

                yield f"vectors {layout}, table {how}{shape}", act


_SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda t: t,
    " as (T, n)": lambda t: t[0] if t.ndim == 3 else t,
    " as (1, T, 1, n)": lambda t: t[None, :, None] if t.ndim == 2 else t[:, :, None] if t.ndim == 3 else t,
}


def _called(function: Any, arguments: int, q: Tensor, k: Tensor, table: tuple[Tensor, ...], back: Any) -> tuple[Tensor, Tensor]:
    """Both sides through f(q, k, ..), or through f(x, ..) one after the other; a last argument may hold both tables."""
    given: tuple[Any, ...] = (table,) if len(table) > 1 and _takes_pair(function) else table
    if arguments == 2 + len(given):
        a, b = function(q, k, *given)
    else:
        a, b = function(q, *given), function(k, *given)
    return back(a), back(b)


def _takes_pair(function: Any) -> bool:
    """Whether the last argument of f(q, k, cos_sin) is both tables at once."""
    from eigenclock.audit.subjects.callables import parameters

    names = parameters(function) or [""]
    return names[-1].lower() in TABLES


def _makers(maker: Any) -> Iterator[tuple[str, Table]]:
    """Ways of getting tables, in words."""
    if maker is None:
        yield from _PLAIN.items()
        return
    if not callable(maker):
        parts = (maker,) if isinstance(maker, Tensor) else tuple(maker)
        yield "as given, by position", lambda x, times: tuple(_rows(part, times, max(part.shape)) for part in parts)
        return
    yield "maker(x, positions (1, T))", lambda x, times: _tuple(maker(x, times_as(times, None)[None]))
    yield "maker(positions (T,))", lambda x, times: _tuple(maker(times_as(times, None)))
    yield "maker(positions (T,)) in float32", lambda x, times: _tuple(maker(times.float()))
    yield "maker(x, positions (T,))", lambda x, times: _tuple(maker(x, times_as(times, None)))

    def by_length(x: Tensor, times: Tensor) -> tuple[Tensor, ...]:
        n = _whole(times)
        return tuple(_rows(part, times, n) for part in _tuple(maker(n)))

    def by_width(x: Tensor, times: Tensor) -> tuple[Tensor, ...]:
        n = _whole(times)
        return tuple(_rows(part, times, n) for part in _tuple(maker(x.shape[-1], n)))

    yield "maker(length), by position", by_length
    yield "maker(head_dim, length), by position", by_width


def _whole(times: Tensor) -> int:
    """How long a table must be for these positions: a power of two, never the number of heads or channels by chance."""
    if times.is_floating_point() and bool((times != times.round()).any()):
        raise ConfigError("got positions between whole numbers; a table by length has none")
    return max(1024, 1 << int(times.max()).bit_length())


def _tuple(made: Any) -> tuple[Tensor, ...]:
    return (made,) if isinstance(made, Tensor) else tuple(part for part in made if isinstance(part, Tensor))


def _rows(table: Tensor, times: Tensor, length: int) -> Tensor:
    """The rows of a table for some positions, on the axis that has its length."""
    if times.is_floating_point() and bool((times != times.round()).any()):
        raise ConfigError("got positions between whole numbers; a table has none")
    axis = next(i for i, n in enumerate(table.shape) if n == length)
    return table.index_select(axis, times.long())


def _angles(x: Tensor, times: Tensor) -> Tensor:
    n = x.shape[-1] // 2
    return times.double()[:, None] * BASE ** (-torch.arange(n, dtype=torch.float64) / n)


def _cast(x: Tensor, table: Tensor) -> Tensor:
    return table.to(x.dtype)


_PLAIN: dict[str, Table] = {
    "(1, T, D), halves repeated": lambda x, t: tuple(_cast(x, f(_angles(x, t)).repeat(1, 2)[None]) for f in (torch.cos, torch.sin)),
    "(T, D/2)": lambda x, t: tuple(_cast(x, f(_angles(x, t))) for f in (torch.cos, torch.sin)),
    "(T, D/2) complex": lambda x, t: (
        torch.polar(torch.ones_like(_angles(x, t)), _angles(x, t)).to(torch.complex128 if x.dtype == torch.float64 else torch.complex64),
    ),
}
