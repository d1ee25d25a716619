"""FoX: a forget gate on the softmax weight, the nilpotent block of ALiBi on a learned clock."""

import numpy as np

from eigenclock.clocks import Clock, Cumulative
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.decay_bias import no_content
from eigenclock.encodings.learned import features_of, learned
from eigenclock.encodings.parameter import Parameter
from eigenclock.theory import Lift, linear_bias
from eigenclock.theory.numbers import exact


def fox(head_dim: int, *, heads: int, kv_heads: int | None = None, features: int | None = None, clock: Clock | None = None) -> Encoding:
    """Forgetting attention: logit = q . k / sqrt(d) + sum over j = s + 1 .. t of log f_j, f = sigmoid(x w + b) per head.

    It is ALiBi with slope 1 on the clock tau = -sum log f; a constant f = e^-m is ALiBi with slope m. Calls need ``x=``.

    Args:
        features: the width of x, head_dim * heads by default.
        clock: a Cumulative clock in place of one with the gate "forget", for example with a base that reads timestamps.
    Units: logits.
    Raises: ConfigError where the clock is not a learned one.
    Source: Lin et al. (Forgetting Transformer), 2503.02130, eq. 5.

    >>> print(fox(64, heads=8))
    fox(head_dim=64, heads=8)
    """
    usual = Cumulative(features_of(features, head_dim, heads), gate="forget")
    options = {"features": features}
    slope = {"slope": Parameter(exact(np.ones(heads)))}
    return Recipe("fox", head_dim, heads, kv_heads, learned(clock, usual), options, slope, no_content, _lift, usual)


def _lift(values: Values, recipe: Recipe) -> tuple[Lift, ...]:
    return (linear_bias(values["slope"]),)
