"""RWKV-6: a decay for every channel, and a bonus for the current token."""

import numpy as np
from torch import Tensor

from eigenclock.clocks import Clock, Cumulative
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.learned import features_of, learned
from eigenclock.encodings.parameter import Parameter, as_numbers
from eigenclock.encodings.rates import Numbers, fit_rows, read_learn
from eigenclock.encodings.weights import Weights
from eigenclock.theory import Decay, Generator
from eigenclock.theory.numbers import exact


def rwkv6(
    head_dim: int,
    *,
    heads: int,
    kv_heads: int | None = None,
    features: int | None = None,
    rank: int | None = None,
    bonus: Numbers = 1.0,
    learn: str | tuple[str, ...] = ("bonus",),
    clock: Clock | None = None,
) -> Encoding:
    """RWKV-6: out_t = q_t^T (S_(t-1) + diag(u) k_t v_t^T), S_t = diag(w_t) S_(t-1) + k_t v_t^T, w = exp(-exp(x W + b)).

    A decay on a clock per channel. The query reads the state before its own token's decay, and the token itself with the bonus u in its
    place: A(0) is no limit of A at small lags, so continuity at 0 does not hold.

    The paper has no scale: give ``scale=1.0``. Its token shift and the tanh of its projection belong to the model: give ``x=`` what they
    return. For linear attention only: softmax has no bonus on the score's weight. Calls need ``x=``.

    Args:
        features: the width of x, head_dim * heads by default.
        rank: of the projection, None for a full one; the paper's models take 64.
        bonus: u, one number, (head_dim,) or (heads, head_dim).
        learn: "bonus" (default) to train it, or ().
        clock: a Cumulative clock with per="block" in place of one with the gate "exponential".
    Units: rates are 1 per unit of gated time.
    Raises: ShapeError where the bonus has another shape; ConfigError where the clock is not a learned one.
    Source: Peng et al. (RWKV-6), 2404.05892, the time mixing of Finch.

    >>> rwkv6(64, heads=8)
    rwkv6(head_dim=64, heads=8)  # 64D, acts on score, weighs a bonus for the current token (no continuity at lag 0)
    """
    chosen = read_learn(learn, ("bonus",))
    given = as_numbers(bonus, "bonus")
    start = fit_rows(given.reshape(1) if given.ndim == 0 else given, head_dim, (heads,), "bonus", True)
    usual = Cumulative(features_of(features, head_dim, heads), per="block", gate="exponential", rank=rank)
    options = {
        "features": features,
        "rank": rank,
        "bonus": None if given.ndim == 0 and float(given) == 1.0 else bonus,
    } | ({} if chosen == ("bonus",) else {"learn": list(chosen)})
    values = {
        "rate": Parameter(exact(np.ones(head_dim))),
        "bonus": Parameter(start, "bonus" in chosen, "real"),
    }
    return Recipe(
        "rwkv6", head_dim, heads, kv_heads, learned(clock, usual), options, values, _content, usual_clock=usual, weigh=_bonus,
        weighs="a bonus for the current token (no continuity at lag 0)",
    )  # fmt: skip


def _content(values: Values, recipe: Recipe) -> Generator:
    return Decay(values["rate"], recipe.head_dim)


def _bonus(values: Values, recipe: Recipe, x: Tensor, steps: Tensor) -> Weights:
    return Weights(values["bonus"].reshape(1, -1, 1, recipe.head_dim), before=True)
