"""Functions by their signature: f(q, k, positions) -> (q', k'), f(q, k, positions_q, positions_k) -> scores, f(x, positions), f(x)."""

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from eigenclock.audit.probe import Probe
from eigenclock.audit.subjects import several_axes
from eigenclock.audit.subjects.acting import FORMS, HEADS, LAYOUTS, WIDTHS, probe_of_action, search, times_as, with_forms
from eigenclock.audit.subjects.attending import VALUES, of_attention, of_score_mod
from eigenclock.audit.subjects.biases import gives_slopes, kind_of, of_bias, of_slopes
from eigenclock.audit.subjects.counted import probe_of_rows
from eigenclock.audit.subjects.hidden import mixes, of_hidden
from eigenclock.audit.subjects.options import Options
from eigenclock.audit.subjects.stepping import of_own_cache, of_turns, starts
from eigenclock.audit.subjects.tables import TABLES, on_table
from eigenclock.errors import ConfigError

POSITIONS = ("positions", "position_ids", "input_pos", "position", "pos", "times", "t")
"""Names of an optional argument that takes positions."""


def parameters(function: Any) -> list[str] | None:
    """The names of the arguments that must be given by position; None where they cannot be read."""
    try:
        given = inspect.signature(function.forward if isinstance(function, nn.Module) else function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [p.name for p in given if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def name_of(function: Any) -> str:
    """What a report calls a function or module.

    >>> name_of(torch.outer)
    'outer'
    """
    return str(getattr(function, "__name__", type(function).__name__))


def read(subject: Any, options: Options) -> Probe | None:
    """A function, or a module whose forward is one."""
    if not callable(subject) or isinstance(subject, type):
        return None
    names, function = parameters(subject), cast(Callable[..., Any], subject)
    if names is None:
        return None
    kind = "module" if isinstance(subject, nn.Module) else "callable"
    if (names and names[-1].lower() in TABLES) or {"cos", "sin"} <= {n.lower() for n in names}:
        return on_table(subject, None, options, kind)
    module: dict[str, Any] = {"module": subject} if isinstance(subject, nn.Module) else {}
    at = _optional_positions(function, names)
    if at is not None:
        names, function = [*names, at], lambda *given: cast(Callable[..., Any], subject)(*given[:-1], **{at: given[-1]})
    name, found = f"{name_of(subject)}({', '.join(names)})", None
    if options.axes > 1:
        if len(names) == 4 and names[2].lower() in VALUES:
            return several_axes.of_axes(lambda f: of_attention(f, options, name_of(subject), kind, {}), function, names, options)
        if len(names) == 4:
            return several_axes.of_axes(lambda f: _scoring(f, options, kind, {}), function, names, options)
        return several_axes.read(function, names, options, name_of(subject), kind, **module)
    if starts(names) and len(names) == 4 and names[2].lower() in VALUES:
        return of_own_cache(function, options, name_of(subject), kind, **module)
    if starts(names) and len(names) in (2, 3):
        return of_turns(function, names, options, name_of(subject), kind, **module)
    biased = kind_of(names)
    if biased == "slopes":
        return of_slopes(function, options, name_of(subject), kind)
    if biased == "bias":
        return of_bias(function, names, options, name_of(subject), kind)
    if len(names) == 5 and names[0].lower().startswith("score"):
        return of_score_mod(function, options, name_of(subject), kind)
    if len(names) == 4:
        if names[2].lower() in VALUES:
            return of_attention(function, options, name_of(subject), kind, module)
        return _scoring(function, options, kind, module)
    if len(names) == 3:
        found = search(with_forms(lambda q, k, t, back: _pair(back, function(q, k, t))), options)
        how = f"{name} -> (q', k') by its signature"
    elif len(names) == 2:
        found = search(with_forms(lambda q, k, t, back: (back(function(q, t)), back(function(k, t)))), options)
        how = f"{name} -> x' by its signature, on queries and keys alike"
    elif len(names) != 1:
        raise ConfigError(
            f"got {name}; expected f(q, k, positions), f(q, k, positions_q, positions_k), f(x, positions), f(x), f(x, freqs_cis), "
            "f(q, k, cos, sin), f(q, k, v, positions), f(q, k, start_pos), f(q, k, v, start_pos), f(heads), f(heads, q_pos, k_pos) or "
            "score_mod(score, b, h, q_idx, kv_idx)"
        )
    several = several_axes.where_needed(found, function, names, options, name_of(subject), kind, **module)
    if several is not None:
        return several
    if found is not None and len(names) == 2 and mixes(found):
        return of_hidden(found, options, name_of(subject), kind, f"{name} by its signature", **module)
    if found is not None:
        return probe_of_action(found, options, name_of(subject), kind, (how,), **module)
    counts = None
    if len(names) < 3 and at is None:
        how = f"{name} by its signature, without positions: it counts rows from 0"
        counts = probe_of_rows(function, len(names), options, name_of(subject), how, kind, module.get("module"))
    if counts is None and len(names) == 1 and gives_slopes(function, options):  # whatever the number of heads is called
        return of_slopes(function, options, name_of(subject), kind)
    if counts is None:
        raise ConfigError(
            f"got {name}; expected one that takes vectors (B, H, T, D) or (B, T, H, D) of width {options.head_dim or WIDTHS} "
            + ("with positions (T,)" if len(names) > 1 else "and moves each row by its place")
            + ": give head_dim= and heads=, or wrap it in a function that does"
        )
    return counts


def _optional_positions(function: Any, names: list[str]) -> str | None:
    """The positions of f(x, positions=None) or f(q, k, positions=None); None where they are no option, or must be given."""
    if len(names) not in (1, 2) or "pos" in names[-1].lower():
        return None
    given = inspect.signature(function.forward if isinstance(function, nn.Module) else function).parameters.values()
    options = [p.name for p in given if p.name not in names and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return next((name for name in options if name.lower() in POSITIONS), None)


def _pair(back: Callable[[Tensor], Tensor], both: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return back(both[0]), back(both[1])


def _scoring(subject: Callable[..., Tensor], options: Options, kind: str, module: dict[str, Any]) -> Probe:
    """f(q, k, positions_q, positions_k) -> scores."""
    heads = options.heads or HEADS
    dtype = options.dtype or torch.float32
    for width in (options.head_dim,) if options.head_dim is not None else WIDTHS:
        for layout, (there, _) in LAYOUTS.items():
            for form, shaped in FORMS.items():
                for position in (None, torch.float64, torch.float32):

                    def scores(
                        q: Tensor, k: Tensor, at: Tensor, of: Tensor, there: Any = there, shaped: Any = shaped, position: Any = position
                    ) -> Tensor:
                        z = subject(there(q), there(k), shaped(times_as(at, position)), shaped(times_as(of, position)))
                        return z[0] if z.ndim == 4 else z

                    if not _scores_fit(scores, width, heads, dtype):
                        continue
                    wide = _scores_fit(scores, width, heads, torch.float64)
                    note = f"{name_of(subject)} -> scores by its signature; vectors {layout}, positions {form}"
                    return Probe(
                        name_of(subject), kind, width, heads, heads, options.length, dtype, scores=scores, exact=scores if wide else None,
                        fractional=_fractions(scores, width, heads, dtype), notes=(note,), **module,
                    )  # fmt: skip
    raise ConfigError(
        f"got {name_of(subject)} with four arguments that gives no scores (H, T, S) for vectors (B, H, T, D) or (B, T, H, D) and positions "
        "(T,) and (S,): give head_dim= and heads=, or wrap it in a function that does"
    )


def _scores_fit(scores: Callable[..., Tensor], width: int, heads: int, dtype: torch.dtype) -> bool:
    q, k = torch.ones(heads, 3, width, dtype=dtype), torch.ones(heads, 5, width, dtype=dtype)
    try:
        z = scores(q, k, torch.arange(5, 8), torch.arange(5))
    except Exception:
        return False
    return z.shape == (heads, 3, 5) and z.dtype.is_floating_point and (dtype != torch.float64 or z.dtype == dtype)


def _fractions(scores: Callable[..., Tensor], width: int, heads: int, dtype: torch.dtype) -> bool:
    q, k = torch.ones(heads, 1, width, dtype=dtype), torch.ones(heads, 1, width, dtype=dtype)
    try:
        half, whole = (scores(q, k, torch.tensor([t]).double(), torch.zeros(1).double()) for t in (1.5, 1.0))
    except Exception:
        return False
    return not torch.equal(half, whole)
