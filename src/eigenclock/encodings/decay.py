"""Exponential decay as a gain: it multiplies the inner product."""

from typing import Any

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.parameter import Parameter
from eigenclock.encodings.rates import Numbers, fit_rows, given_as, read_learn, read_rates
from eigenclock.errors import ConfigError
from eigenclock.theory import Decay, Generator


def decay(
    head_dim: int,
    *,
    heads: int = 1,
    kv_heads: int | None = None,
    rate: Numbers = None,
    half_life: Numbers = None,
    learn: str | tuple[str, ...] = (),
    clock: Clock | None = None,
) -> Encoding:
    """Decay of the inner product (a gain): score = sum_n q_n k_n exp(-rate_n (t - s)).

    In softmax far logits go to 0, which is neutral, not suppressed; for recency use :func:`decay_bias`, which adds to the logit.

    Args:
        rate, half_life: one number, (head_dim,) or (heads, head_dim); half_life=(lo, hi) spreads over the channels.
        learn: "rate" to train the rates (on a log scale; out of weight decay: :class:`Parameter`).
    Units: rate per unit of the clock.
    Raises: GrowthError where a rate is negative; ConfigError where neither or both of rate and half_life are given.
    Stability: exp() is only ever taken of minus a lag's part, so it underflows and never overflows.
    Source: Sun et al. (RetNet), 2307.08621; Yang et al. (GLA), 2312.06635.

    >>> print(decay(64, half_life=16))
    decay(head_dim=64, heads=1, half_life=16)
    """
    chosen = read_learn(learn, ("rate",))
    rates = read_rates(rate, half_life, head_dim, clock)
    if rates is None:
        raise ConfigError("got neither rate nor half_life; expected one of them, for example half_life=64")
    learned = "rate" in chosen
    scalar = rates.shape[-1] == 1 and not learned  # a multiple of the identity commutes with everything
    rows = (kv_heads or heads, heads)
    values = fit_rows(rates, 1 if scalar else head_dim, rows, given_as(half_life), learned)
    options: dict[str, Any] = {"rate": rate, "half_life": half_life, "learn": list(chosen) or None}
    return Recipe(
        "decay",
        head_dim,
        heads,
        kv_heads,
        clock,
        options,
        {"rate": Parameter(values, learned)},
        _content,
    )


def _content(values: Values, recipe: Recipe) -> Generator:
    return Decay(values["rate"], recipe.head_dim)
