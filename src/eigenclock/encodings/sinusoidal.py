"""Sinusoidal positions: vectors of sines and cosines added to queries and keys, outside the group because they are added."""

from typing import Any

import torch
from torch import Tensor

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.decay_bias import no_content
from eigenclock.encodings.outside import Outside, counting
from eigenclock.encodings.parameter import Parameter
from eigenclock.encodings.rates import even
from eigenclock.schedules import geometric
from eigenclock.theory.trig import cos_sin

WHY = "a vector of its time is added to each query and key, so a common shift of the times changes the scores of content"


def sinusoidal(
    head_dim: int,
    *,
    heads: int = 1,
    kv_heads: int | None = None,
    theta: float = 10000.0,
    clock: Clock | None = None,
) -> Encoding:
    """Sinusoidal positions: score = (q + p_t) . (k + p_s) / sqrt(d), p_t = (sin w_i t, cos w_i t); translation invariance breaks.

    w_i = theta^(-2i/d), sines on even channels and cosines on odd ones. Of the four terms p_t . p_s is a function of the lag (see
    ``sandwich``, in the group); q . p_s and p_t . k are not. The paper adds the vectors to the input of the first layer; here they are
    added to q and k themselves, in every layer that uses the encoding, and the values get none.

    Units: radians per step.
    Raises: ShapeError where head_dim is odd; ConfigError where the clock does not count steps.
    Stability: angles are float64 products, reduced by whole turns and rounded once.
    Source: Vaswani et al. (Transformer), 1706.03762, section 3.5.

    >>> enc = sinusoidal(64, heads=8)
    >>> enc.breaks, enc.acts_on
    ('translation invariance', 'score')
    """
    frequencies = geometric(theta)(even(head_dim, "head_dim")).values
    options: dict[str, Any] = {"theta": None if theta == 10000.0 else theta}
    parameters = {"freq": Parameter(frequencies)}
    clock = counting(clock, "sinusoidal")
    return Recipe("sinusoidal", head_dim, heads, kv_heads, clock, options, parameters, no_content, outside=_outside)


def _outside(values: Values, recipe: Recipe) -> tuple[Outside, ...]:
    def vectors(times: Tensor, real: Tensor | None) -> Tensor:
        cos, sin = cos_sin(times[..., None] * values["freq"], torch.float64)
        return torch.stack([sin, cos], -1).flatten(-2)

    return (Outside(("translation invariance",), WHY, query_vectors=vectors, key_vectors=vectors),)
