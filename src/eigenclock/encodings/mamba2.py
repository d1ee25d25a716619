"""Mamba-2: one decay per head on a learned clock, the scalar gate of state-space duality."""

import numpy as np

from eigenclock.clocks import Clock, Cumulative
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.learned import features_of, learned
from eigenclock.encodings.parameter import Parameter
from eigenclock.encodings.rates import Numbers, fit_rows, read_learn, read_rates
from eigenclock.theory import Decay, Generator
from eigenclock.theory.numbers import exact


def mamba2(
    head_dim: int,
    *,
    heads: int,
    kv_heads: int | None = None,
    features: int | None = None,
    rate: Numbers = None,
    seed: int = 0,
    learn: str | tuple[str, ...] = ("rate",),
    clock: Clock | None = None,
) -> Encoding:
    """Mamba-2's decay: score = q . k exp(-rate_h (tau_t - tau_s)), tau = sum softplus(x w + b), one clock per head.

    Mamba-2 also multiplies what enters the state by the increment of the clock, the measure of its integral: give the values times
    ``enc.clock.increments(x)``. Made for linear attention. Calls need ``x=``.

    Args:
        features: the width of x, head_dim * heads by default.
        rate: one number or (heads, 1); left out, uniform between 1 and 16 per head.
        seed: of the random rates.
        learn: "rate" (default) to train the rates on a log scale (out of weight decay: :class:`Parameter`), or ().
    Units: rate per unit of gated time.
    Raises: GrowthError where a rate is negative; ConfigError where the clock is not a learned one.
    Source: Dao and Gu (Mamba-2), 2405.21060, section 7.

    >>> mamba2(64, heads=8).form
    JordanForm('64D')
    """
    chosen, rows = read_learn(learn, ("rate",)), kv_heads or heads
    given = read_rates(rate, None, 1, None)
    start = exact(np.random.default_rng(seed).uniform(1, 16, (rows, 1))) if given is None else given
    values = fit_rows(start, 1, (rows, heads), "rate", "rate" in chosen)
    usual = Cumulative(features_of(features, head_dim, heads))
    options = {"features": features, "rate": rate, "seed": seed or None} | ({} if chosen == ("rate",) else {"learn": list(chosen)})
    parameters = {"rate": Parameter(values, "rate" in chosen)}
    return Recipe("mamba2", head_dim, heads, kv_heads, learned(clock, usual), options, parameters, _content, usual_clock=usual)


def _content(values: Values, recipe: Recipe) -> Generator:
    return Decay(values["rate"], recipe.head_dim)
