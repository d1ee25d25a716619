"""Functions of a bias alone: slopes for a number of heads, f(heads) -> (heads,), and f(heads, q_pos, k_pos) or f(q_pos, k_pos) -> bias."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from eigenclock.audit.probe import Probe
from eigenclock.audit.subjects.acting import HEAD_DIM
from eigenclock.audit.subjects.options import Options
from eigenclock.errors import ConfigError
from eigenclock.theory.numbers import exact

HEADS = 8
"""Heads of a bias where the caller names none: enough for slopes to show their rule."""
COUNTS = ("heads", "n_heads", "num_heads", "n_head", "nheads", "num_attention_heads", "attention_heads", "total_num_heads")
"""Names of an argument that is a number of heads."""
PLACES = ("pos", "idx", "index", "time")
"""What the names of positions of queries and keys have in them."""


def kind_of(names: list[str]) -> str | None:
    """ "slopes" or "bias" by the names of the arguments; None where they are of neither.

    >>> kind_of(["n_heads"]), kind_of(["heads", "q_pos", "k_pos"]), kind_of(["q_idx", "kv_idx"]), kind_of(["x", "positions"])
    ('slopes', 'bias', 'bias', None)
    """
    counted = bool(names) and names[0].lower() in COUNTS
    rest = names[1:] if counted else names
    if counted and not rest:
        return "slopes"
    placed = len(rest) == 2 and all(any(part in name.lower() for part in PLACES) for name in rest)
    return "bias" if placed else None


def gives_slopes(function: Callable[..., Any], options: Options) -> bool:
    """Whether a function of one argument, given a number of heads, gives a number for each."""
    heads = options.heads or HEADS
    try:
        return torch.as_tensor(exact(function(heads))).numel() == heads > 1
    except Exception:  # code of others refuses with whatever it happens to run into
        return False


def of_slopes(function: Callable[..., Any], options: Options, name: str, kind: str) -> Probe:
    """The probe of slopes: the bias -slope (t - s) on the inner product.

    Raises: ConfigError where it gives no number for each head.
    """
    heads = options.heads or HEADS
    try:
        slopes = torch.as_tensor(exact(function(heads))).double().flatten()
    except Exception as error:
        raise ConfigError(f"got {name}, which fails for {heads} heads: {' '.join(str(error).split())[:120]}; give heads=") from error
    if slopes.numel() != heads or not bool(torch.isfinite(slopes).all()):
        raise ConfigError(f"got {slopes.numel()} numbers from {name}({heads}); expected a finite slope for each head")

    def bias(t: Tensor, s: Tensor) -> Tensor:
        return -slopes[:, None, None] * (t.double()[:, None] - s.double())

    how = f"{name}(heads) -> slopes by its signature: what is measured is q . k - slope (t - s) on {heads} heads"
    return _probe(bias, options, heads, name, kind, how, causal=True, fractional=True)


def of_bias(function: Callable[..., Any], names: list[str], options: Options, name: str, kind: str) -> Probe:
    """The probe of a bias: q . k plus what the function gives for the positions of queries (T,) and keys (S,).

    Raises: ConfigError where it gives nothing that fits (H, T, S).
    """
    heads = options.heads or HEADS
    given = (heads,) if len(names) == 3 else ()
    t, s = torch.arange(4, 7), torch.arange(5)
    refused = (
        f"no bias (H, T, S) or (T, S) for {heads} heads and positions (T,), (S,) or (T, 1), (1, S): give heads=, or wrap it in a function "
        "that does"
    )
    for form, shaped in (("(T,) and (S,)", lambda t, s: (t, s)), ("(T, 1) and (1, S)", lambda t, s: (t[:, None], s[None]))):

        def bias(t: Tensor, s: Tensor, shaped: Any = shaped) -> Tensor:
            found = torch.as_tensor(function(*given, *shaped(t, s)))
            return found[0] if found.ndim == 4 else found

        try:
            if bias(t, s).dtype == torch.bool:
                refused = "true or false, a mask and no bias: give the function that makes the scores"
                break
            fits = bias(t, s).shape in ((heads, 3, 5), (1, 3, 5), (3, 5)) and bool(torch.isfinite(bias(t, s)).all())
        except Exception:  # code of others refuses with whatever it happens to run into
            continue
        if not fits:
            continue
        how = f"{name}({', '.join(names)}) -> bias by its signature, positions {form}: what is measured is q . k + bias on {heads} heads"
        return _probe(bias, options, heads, name, kind, how, causal=not _both_ways(bias), fractional=_fractions(bias))
    raise ConfigError(f"got {name}({', '.join(names)}), which gives {refused}")


def _both_ways(bias: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """Whether keys after the query have a bias of their own: finite, and not what a causal rule leaves there by its formula."""
    ahead, back = bias(torch.tensor([0]), torch.tensor([3])), bias(torch.tensor([3]), torch.tensor([0]))
    return (
        bool(torch.isfinite(ahead).all()) and bool((ahead <= bias(torch.tensor([0]), torch.tensor([0]))).all()) and bool((back < 0).any())
    )


def _fractions(bias: Callable[[Tensor, Tensor], Tensor]) -> bool:
    zero = torch.zeros(1, dtype=torch.float64)
    try:
        half, whole = bias(zero + 1.5, zero), bias(zero + 1, zero)
    except Exception:
        return False
    return not torch.equal(half, whole)


def _probe(
    bias: Callable[[Tensor, Tensor], Tensor],
    options: Options,
    heads: int,
    name: str,
    kind: str,
    how: str,
    *,
    causal: bool,
    fractional: bool,
) -> Probe:
    width, dtype = options.head_dim or HEAD_DIM, options.dtype or torch.float32

    def scores(q: Tensor, k: Tensor, t: Tensor, s: Tensor) -> Tensor:
        z = q.to(torch.promote_types(q.dtype, torch.float32)) @ k.to(torch.promote_types(k.dtype, torch.float32)).mT
        return z + bias(t, s).to(z.dtype)

    return Probe(
        name, kind, width, heads, heads, options.length, dtype, causal=causal, fractional=fractional, scores=scores, exact=scores,
        notes=(how,),
    )  # fmt: skip
