"""The bias of T5: a learned number for each range of lags, outside the group because it jumps."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.decay_bias import no_content
from eigenclock.encodings.outside import Outside, Pairs
from eigenclock.encodings.parameter import Parameter, as_numbers
from eigenclock.encodings.rates import Numbers, read_learn
from eigenclock.errors import ConfigError, ShapeError
from eigenclock.theory.numbers import exact

WHY = "the bias is a step function of the lag: it is constant within a range of lags and jumps between two"


def t5_bias(
    head_dim: int,
    *,
    heads: int,
    kv_heads: int | None = None,
    buckets: int = 32,
    max_distance: float = 128,
    bidirectional: bool = False,
    table: Numbers = None,
    seed: int = 0,
    learn: str | tuple[str, ...] = ("table",),
    clock: Clock | None = None,
) -> Encoding:
    """T5's relative bias: logit = q . k / sqrt(d) + table_h[bucket(t - s)], outside the group: continuity breaks.

    bucket(u) = floor(u) below half of the buckets, then max_exact + floor(log(u / max_exact) / log(max_distance / max_exact) * max_exact),
    and the last one beyond ``max_distance``. Any real lag has a bucket: the bias is a step function of it, without gradient to times.
    T5 itself does not scale by 1/sqrt(d) (``scale=1.0`` in the call) and shares the table between its layers. Every pair has a number,
    so attention keeps a T x S tensor for each head.

    Args:
        buckets: how many numbers each head has.
        max_distance: the lag from which on all share the last bucket.
        bidirectional: half of the buckets for keys after the query; otherwise calls must be causal.
        table: (heads, buckets); left out, normal with deviation 1/sqrt(heads head_dim).
        seed: of that draw.
        learn: "table" (by default), or () for a fixed one.
    Units: lags in the unit of the clock.
    Raises: ConfigError where the buckets do not fit the distance; ShapeError where the table does not fit.
    Source: Raffel et al. (T5), 1910.10683, section 2.1.

    >>> enc = t5_bias(64, heads=8)
    >>> enc.breaks, enc.acts_on
    ('continuity', 'weight')
    """
    chosen = read_learn(learn, ("table",))
    each = buckets // 2 if bidirectional else buckets
    if buckets < 1 or (bidirectional and buckets % 2) or each < 2 or not each // 2 < max_distance < math.inf:
        raise ConfigError(
            f"got buckets={buckets} and max_distance={max_distance:g}; expected at least 2 buckets (an even number of 4 or more where "
            "bidirectional) and a distance above half of those of one direction"
        )
    if table is None:
        numbers = exact(np.random.default_rng(seed).normal(0.0, (heads * head_dim) ** -0.5, (heads, buckets)))
    else:
        numbers = as_numbers(table, "table")
    if tuple(numbers.shape) != (heads, buckets):
        raise ShapeError(f"got a table of shape {tuple(numbers.shape)}; expected (heads, buckets) = ({heads}, {buckets})")
    options: dict[str, Any] = {"buckets": None if buckets == 32 else buckets, "max_distance": None if max_distance == 128 else max_distance}
    options |= {"bidirectional": bidirectional or None, "table": table, "seed": seed or None}
    options |= {"learn": list(chosen)} if chosen != ("table",) else {}
    parameters = {"table": Parameter(numbers, "table" in chosen, "real"), "edges": Parameter(_edges(each, max_distance))}
    return Recipe("t5_bias", head_dim, heads, kv_heads, clock, options, parameters, no_content, outside=_outside)


def _outside(values: Values, recipe: Recipe) -> tuple[Outside, ...]:
    bidirectional = bool(recipe.options.get("bidirectional"))

    def bias(pairs: Pairs) -> Tensor:
        bucket = bucket_of(pairs.lag.detach(), values["edges"], bidirectional)
        return _picked(values["table"].to(pairs.dtype), bucket)

    return (Outside(("continuity",), WHY, bias, directed=not bidirectional),)


def _edges(buckets: int, max_distance: float) -> Tensor:
    """The lags at which buckets 1, 2, .. begin; whole ones are exact, where a logarithm would be off by one."""
    half = buckets // 2
    later = np.arange(buckets - half, dtype=np.float64) / (buckets - half)
    edges = np.concatenate([np.arange(1, half, dtype=np.float64), half * (max_distance / half) ** later])
    whole = np.round(edges)
    return exact(np.where(np.abs(edges - whole) < 1e-9 * whole, whole, edges))


def bucket_of(lag: Tensor, edges: Tensor, bidirectional: bool) -> Tensor:
    """The bucket of each lag; those of keys after the query come after the others, or share the first one."""
    found = torch.searchsorted(edges, (lag.abs() if bidirectional else lag).contiguous(), right=True)
    return found + (lag < 0) * (edges.numel() + 1) if bidirectional else found


def _picked(table: Tensor, bucket: Tensor) -> Tensor:
    """table[h, bucket[.., h, t, s]], (B|1, H, T, S)."""
    if bucket.shape[1] == 1:
        return table[:, bucket[:, 0]].movedim(0, 1)
    return table[torch.arange(table.shape[0], device=table.device)[:, None, None], bucket]
