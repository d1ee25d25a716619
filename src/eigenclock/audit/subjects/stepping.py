"""Functions that are told where a piece begins, as decoders call them: f(q, k, start_pos), f(x, start_pos) and, with a cache of its own,
f(q, k, v, start_pos) -> out."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from eigenclock.audit.probe import Probe
from eigenclock.audit.subjects.acting import HEADS, LAYOUTS, WIDTHS, Act, Found, probe_of_action, search
from eigenclock.audit.subjects.hidden import mixes, of_hidden
from eigenclock.audit.subjects.options import Options
from eigenclock.errors import ConfigError

STARTS = ("start_pos", "start", "offset", "start_position", "position_offset", "pos_offset", "seqlen_offset", "seq_offset", "past_length")
"""Names of an argument that is the position of the first token of the call."""


def starts(names: list[str]) -> bool:
    """Whether the last argument says where a piece begins.

    >>> starts(["q", "k", "start_pos"]), starts(["q", "k", "positions"])
    (True, False)
    """
    return len(names) > 1 and names[-1].lower() in STARTS


def pieces(times: Tensor) -> Iterator[tuple[int, slice]]:
    """The runs of tokens whose times follow each other by ones: where each begins, and which tokens they are.

    >>> [(start, where.start, where.stop) for start, where in pieces(torch.tensor([4, 5, 6, 0, 9]))]
    [(4, 0, 3), (0, 3, 4), (9, 4, 5)]
    """
    if times.is_floating_point() and bool((times != times.round()).any()):
        raise ValueError("whole positions only")
    whole = times.long()
    breaks = [0, *((whole.diff() != 1).nonzero().flatten() + 1).tolist(), whole.numel()]
    for first, stop in pairwise(breaks):
        if stop > first:
            yield int(whole[first]), slice(first, stop)


def of_turns(function: Callable[..., Any], names: list[str], options: Options, name: str, kind: str, **more: Any) -> Probe:
    """The probe of f(q, k, start_pos) -> (q', k') or f(x, start_pos) -> x': each run of positions is a call of its own.

    Raises: ConfigError where it takes no vectors as they are tried.
    """

    def ways() -> Iterator[tuple[str, Act]]:
        for layout, (there, back) in LAYOUTS.items():

            def act(q: Tensor, k: Tensor, times: Tensor, there: Any = there, back: Any = back) -> tuple[Tensor, Tensor]:
                parts = []
                for start, where in pieces(times):
                    x, y, more = q[:, where], k[:, where], start % 2
                    if more:  # a token before the first one: where the start is not used, places in the call would look like lags of 0
                        x, y = torch.cat([x[:, :1], x], 1), torch.cat([y[:, :1], y], 1)
                    if len(names) == 3:
                        a, b = function(there(x), there(y), start - more)
                    else:
                        a, b = function(there(x), start - more), function(there(y), start - more)
                    parts.append((back(a)[:, more:], back(b)[:, more:]))
                left, right = zip(*parts, strict=True)
                return torch.cat(left, 1), torch.cat(right, 1)

            yield f"vectors {layout}, each run of positions from its start", act

    every = list(ways())
    found: Found | None = search([way for way in every if _by_place(way[1], options)] or every, options)
    if found is None:
        raise ConfigError(
            f"got {name}({', '.join(names)}), which takes no vectors (B, H, T, D) or (B, T, H, D) of width {options.head_dim or WIDTHS} "
            "with the position of the first one: give head_dim= and heads="
        )
    how = f"{name}({', '.join(names)}) by its signature"
    if len(names) == 2 and (layer := _layer(every, options)) is not None:
        return of_hidden(layer, options, name, kind, how, **more)
    return probe_of_action(found, options, name, kind, (how,), **more)


def _layer(ways: list[tuple[str, Act]], options: Options) -> Found | None:
    """The first way of calling in which tokens see each other; None where there is none. Such a layer takes the width it is made for."""
    found = search(((how, act) for how, act in ways), options)
    return found if found is not None and mixes(found) else None


def _by_place(act: Act, options: Options) -> bool:
    """Whether equal vectors come out unequal at the places of one call; where the axis of heads is taken for that of time they do not."""
    for width in (options.head_dim,) if options.head_dim is not None else WIDTHS:
        x = torch.ones(options.heads or HEADS, 5, width)
        try:
            moved = act(x, x, torch.arange(5))[0]
        except Exception:  # code of others refuses with whatever it happens to run into
            continue
        return not torch.equal(moved[:, 1], moved[:, 3])
    return False


def of_own_cache(function: Callable[..., Tensor], options: Options, name: str, kind: str, *, told: str = "start_pos", **more: Any) -> Probe:
    """The probe of f(q, k, v, start_pos) -> out, which keeps keys and values itself and begins anew at 0.

    ``told`` is "start_pos" where it is told where a piece begins, "positions" where it is given the positions (T,) of the piece.

    Attention over the whole sequence and in pieces is compared. No law is read from it: keys at other places cannot be given to it.

    Raises: ConfigError where it takes no vectors as they are tried.
    """
    heads, dtype = options.heads or HEADS, options.dtype or torch.float32
    for width in (options.head_dim,) if options.head_dim is not None else WIDTHS:
        for layout, (there, back) in LAYOUTS.items():

            def decode(
                q: Tensor, k: Tensor, v: Tensor, times: Tensor, cuts: tuple[int, ...], there: Any = there, back: Any = back
            ) -> Tensor:
                if not torch.equal(times.double(), torch.arange(q.shape[1], dtype=torch.float64)):
                    raise ValueError("it counts from 0, one token after the other")
                out, first = [], 0
                for stop in (*cuts, q.shape[1]):
                    if stop > first:
                        rows = [there(x[:, first:stop]) for x in (q, k, v)]
                        place = first if told == "start_pos" else torch.arange(first, stop)
                        out.append(back(function(rows[0], rows[1], rows[2], place)))
                    first = max(first, stop)
                return torch.cat(out, 1)

            def full(q: Tensor, k: Tensor, v: Tensor, times: Tensor, decode: Any = decode) -> Tensor:
                return decode(q, k, v, times, ())

            x = torch.randn(3, heads, 7, width, generator=torch.Generator().manual_seed(0)).to(dtype)
            try:
                fits = full(x[0], x[1], x[2], torch.arange(7)).shape == x[0].shape
            except Exception:  # code of others refuses with whatever it happens to run into
                continue
            if not fits:
                continue
            probe = Probe(name, kind, width, heads, heads, options.length, dtype, full=full, decode=decode, **more)
            begins = "it is told where a piece begins, and" if told == "start_pos" else "it has a cache of its own, and"
            why = f"{begins} its keys stand one after the other: none can be put elsewhere"
            note = f"{name}(q, k, v, {told}) -> attention with a cache of its own, by its signature; vectors {layout}"
            return replace(probe, unread=why, notes=(note,))
    raise ConfigError(
        f"got {name}(q, k, v, {told}), which gives no attention for vectors (B, H, T, D) or (B, T, H, D): give head_dim= and heads=, or "
        "wrap it in a function that does"
    )
