"""Mamba: N rates on one learned clock in every channel, the selective scan of a diagonal state-space model."""

import math

import numpy as np

from eigenclock.clocks import Clock, Cumulative
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.learned import learned
from eigenclock.encodings.parameter import Parameter
from eigenclock.encodings.rates import Numbers, fit_rows, read_learn, read_rates
from eigenclock.theory import Decay, Generator
from eigenclock.theory.numbers import exact


def mamba1(
    head_dim: int,
    *,
    heads: int,
    kv_heads: int | None = None,
    features: int | None = None,
    rank: int | None = None,
    rate: Numbers = None,
    learn: str | tuple[str, ...] = ("rate",),
    clock: Clock | None = None,
) -> Encoding:
    """Mamba's decay: score = sum over n of C_n B_n exp(-rate_cn (tau_tc - tau_sc)), tau_c = sum Delta_c = sum softplus(x w_c + b_c).

    Here ``head_dim`` is the size N of the state and ``heads`` the inner channels: each is a head whose values have width 1, with N rates
    on one clock. B (keys) and C (queries) are shared by the channels, and repeated for them since rates and clocks differ. What enters the
    state is Delta B x, so the values carry Delta, as in :func:`mamba2`. The layer of x (B, T, heads), B and C (B, T, N), D (heads,) is

        q, k = (m[:, None].expand(-1, heads, -1, -1) for m in (C, B))
        v = x.mT[..., None] * enc.clock.increments(x)   # (B, heads, T, 1), times Delta
        y, state = ec.linear_attention(q, k, v, enc, x=x, scale=1.0)
        y = y[..., 0].mT + D * x

    Complex A = -a + iw is :func:`damped_rope` on N pairs of channels and the same clock, q the pairs of C, k those of B conjugated, and
    ``scale=2`` for the conjugate half: ``ec.damped_rope(2 * N, heads=heads, rate=a, freq=w, clock=ec.Cumulative(heads))``.

    Args:
        features: the width of x, ``heads`` by default: Mamba reads the gate from the inner channels themselves.
        rank: of the projection to Delta; by default a 32nd of the channels, rounded up (a 16th of the model's width).
        rate: one number, (head_dim,) or (heads, head_dim); left out, 1, 2, .. N in every channel.
        learn: "rate" (default) to train the rates on a log scale (out of weight decay: :class:`Parameter`), or ().
    Units: rate per unit of gated time.
    Raises: GrowthError where a rate is negative; ConfigError where the clock is not a learned one.
    Stability: exp() is only ever taken of minus a lag's part.
    Source: Gu and Dao (Mamba), 2312.00752, section 3.2 and 3.6; the input's weight Delta is that of the authors' code.

    >>> mamba1(16, heads=4).form
    JordanForm('16D')
    """
    chosen, rows = read_learn(learn, ("rate",)), (kv_heads or heads, heads)
    given = read_rates(rate, None, head_dim, None)
    rates = fit_rows(exact(np.arange(1.0, head_dim + 1)) if given is None else given, head_dim, rows, "rate", "rate" in chosen)
    usual = Cumulative(heads if features is None else features, rank=math.ceil(heads / 32) if rank is None else rank)
    options = {"features": features, "rank": rank, "rate": rate} | ({} if chosen == ("rate",) else {"learn": list(chosen)})
    parameters = {"rate": Parameter(rates, "rate" in chosen)}
    return Recipe("mamba1", head_dim, heads, kv_heads, learned(clock, usual), options, parameters, _content, usual_clock=usual)


def _content(values: Values, recipe: Recipe) -> Generator:
    return Decay(values["rate"], recipe.head_dim)
