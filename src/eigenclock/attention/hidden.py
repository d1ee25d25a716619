"""Rows that nothing sees may hold anything: NaN, infinity or numbers beyond all products reach no other row, forwards or backwards.

A kernel multiplies what is masked by a weight of 0, and 0 times NaN is NaN. So a masked row that would do harm is zeros to the kernels;
one that holds ordinary numbers is left as it is.
"""

import torch
from torch import Tensor

from eigenclock.attention.times import per_query_head

LARGEST = 1e15
"""Products of two vectors below it stay finite in float32."""


def without_hidden(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, allowed: Tensor | None, query_times: Tensor, key_times: Tensor, *,
    cross: bool, causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """q (B, H, T, D), k and v (B, G, S, ..) of a call with the harmful ones of the rows that it hides as zeros.

    Hidden are keys that are padding, masked from every query or later than all of them, and queries that are padding or have no key yet.
    """
    queries = keys = None
    groups = k.shape[1]
    if key_mask is not None:
        keys = ~key_mask[:, None]
        queries = None if cross else keys
    elif allowed is not None:
        keys, queries = ~_any_of_group(allowed.any(2), groups), ~allowed.any(-1)
    if cross and causal and q.shape[2] and k.shape[2]:
        early, late = _out_of_reach(query_times.detach(), key_times.detach(), key_mask, q.shape[1], groups)
        keys, queries = _either(keys, late), _either(queries, early)
    if queries is not None:
        q = _quiet(q, queries, LARGEST)
    return (q, k, v) if keys is None else (q, _quiet(k, keys, LARGEST), _quiet(v, keys, torch.inf))


def _either(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a | b


def _any_of_group(seen: Tensor, groups: int) -> Tensor:
    """What the query heads of each group see, (B|1, H|1, S) as (B|1, G|1, S)."""
    return seen if seen.shape[1] in (1, groups) else seen.unflatten(1, (groups, -1)).any(2)


def _out_of_reach(query_times: Tensor, key_times: Tensor, key_mask: Tensor | None, heads: int, groups: int) -> tuple[Tensor, Tensor]:
    """Queries before every real key (B|1, H|1, T), and keys after every query (B|1, G|1, S)."""
    real = key_times if key_mask is None else torch.where(key_mask[:, None], key_times, torch.inf)
    first, last = real.amin(-1, keepdim=True), query_times.amax(-1, keepdim=True)
    late = per_query_head(key_times, last.shape[1]) > last
    return query_times < per_query_head(first, heads), ~_any_of_group(~late, groups)


def _quiet(x: Tensor, hidden: Tensor, largest: float) -> Tensor:
    """x (B, X, n, D) with zeros for the hidden rows (B|1, X|1, n|1) that hold NaN or numbers not below ``largest``."""
    hidden = hidden.expand(x.shape[:3])
    if torch.compiler.is_compiling():
        return x.masked_fill((hidden & ~(x.detach().abs().amax(-1) < largest))[..., None], 0.0)
    if not x.shape[-1] or not bool(hidden.any()):
        return x
    loud = ~(x.detach()[hidden].abs().amax(-1) < largest)
    if not bool(loud.any()):
        return x
    return x.masked_fill(torch.zeros_like(hidden).masked_scatter_(hidden, loud)[..., None], 0.0)
