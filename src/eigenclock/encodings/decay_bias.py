"""Exponential decay as a bias: it multiplies the softmax weight, by adding -rate (t - s) to the logit."""

from typing import Any

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.parameter import Parameter
from eigenclock.encodings.rates import Numbers, fit_rows, given_as, read_learn, read_rates
from eigenclock.errors import ConfigError
from eigenclock.theory import Generator, Lift, Zero, linear_bias


def decay_bias(
    head_dim: int,
    *,
    heads: int,
    kv_heads: int | None = None,
    rate: Numbers = None,
    half_life: Numbers = None,
    learn: str | tuple[str, ...] = (),
    clock: Clock | None = None,
) -> Encoding:
    """Decay of the softmax weight (a bias): logit = q . k / sqrt(d) - rate_h (t - s), one rate per head.

    The softmax twin of :func:`decay`: exp(logit) carries exp(-rate (t - s)). It is ALiBi with slope = rate.

    Args:
        rate, half_life: one number or (heads,), or a schedule such as ``retnet_rates()``; half_life=(lo, hi) spreads geometrically over
            the heads.
        learn: "rate" to train the rates (on a log scale; out of weight decay: :class:`Parameter`).
    Units: rate per unit of the clock.
    Raises: GrowthError where a rate is negative; ConfigError where neither or both of rate and half_life are given.
    Source: Press et al. (ALiBi), 2108.12409; Sun et al. (RetNet), 2307.08621 (slope = -ln gamma).

    >>> print(decay_bias(64, heads=8, half_life=(4, 512)))
    decay_bias(head_dim=64, heads=8, half_life=(4, 512))
    """
    chosen = read_learn(learn, ("rate",))
    rates = read_rates(rate, half_life, heads, clock)
    if rates is None:
        raise ConfigError("got neither rate nor half_life; expected one of them, for example half_life=(4, 512)")
    values = fit_rows(rates, heads, (1,), given_as(half_life), "rate" in chosen).reshape(-1).expand(heads).clone()
    options: dict[str, Any] = {"rate": rate, "half_life": half_life, "learn": list(chosen) or None}
    return Recipe(
        "decay_bias",
        head_dim,
        heads,
        kv_heads,
        clock,
        options,
        {"rate": Parameter(values, "rate" in chosen)},
        no_content,
        _lift,
    )


def no_content(values: Values, recipe: Recipe) -> Generator:
    """L = 0 on the content: the encoding is all in its lift."""
    return Zero(recipe.head_dim)


def _lift(values: Values, recipe: Recipe) -> tuple[Lift, ...]:
    return (linear_bias(values["rate"]),)
