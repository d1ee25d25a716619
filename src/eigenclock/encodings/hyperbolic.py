"""HoPE, the hyperbolic one: damped boosts, which are two real decays per pair of channels."""

import math
from typing import Any

import torch

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.parameter import Parameter, as_numbers
from eigenclock.encodings.rates import Numbers, even, fit_rows, given_as, read_learn, read_rates
from eigenclock.encodings.rope import read_frequencies
from eigenclock.errors import ConfigError, GrowthError
from eigenclock.theory import Conjugate, Decay, Generator
from eigenclock.theory.generators.rotation import check_pairing


def hyperbolic(
    head_dim: int,
    *,
    heads: int = 1,
    kv_heads: int | None = None,
    theta: Numbers = None,
    boost: Numbers = None,
    rate: Numbers = None,
    half_life: Numbers = None,
    pairing: str = "interleaved",
    learn: str | tuple[str, ...] = (),
    clock: Clock | None = None,
) -> Encoding:
    """Hyperbolic rotary encoding, a gain: score = q^T e^(-a u) [[cosh bu, sinh bu], [sinh bu, cosh bu]] k on each pair, u = t - s.

    L = [[-a, b], [b, -a]] has the eigenvalues -a + b and -a - b: two real decays, on (x + y)/sqrt 2 and on (x - y)/sqrt 2, and stable if
    and only if a >= |b|. A bare boost (a = 0) always grows. Nothing turns: it is :func:`decay` in another basis.

    Args:
        theta: the base of the boosts, b_i = theta^(-i/pairs) (10000), or one per head.
        boost: explicit b of any sign, (pairs,) or (heads, pairs), or a schedule, in place of theta.
        rate, half_life: a, one number, (pairs,) or (heads, pairs); |b| if left out, the least that is stable.
        pairing: "interleaved" (2i, 2i + 1) or "half" (i, i + n).
        learn: any of "rate" and "boost". What is trained is b (sign fixed) and a - |b|, both on a log scale, so that every step is stable;
            with "boost" alone a moves along with |b|.
    Units: rate and boost per unit of the clock.
    Raises: GrowthError where a < |b|; ShapeError where head_dim is odd.
    Stability: no cosh is ever formed; each of the two modes decays on its own.
    Source: Dai et al. (HoPE), 2509.05218; unrelated to HoPE 2410.21216 and 2505.20444.

    >>> hyperbolic(8, boost=0.1, rate=0.3).form
    JordanForm('8D')
    """
    pairs = even(head_dim, "head_dim")
    check_pairing(pairing)
    chosen = read_learn(learn, ("rate", "boost"))
    rows = (kv_heads or heads, heads)
    if theta is not None and boost is not None:
        raise ConfigError("got both theta and boost; expected one of them (b_i = theta^(-i/pairs))")
    if boost is not None and not callable(boost):
        numbers = as_numbers(boost, "boost")
        boosts = fit_rows(numbers.reshape(1) if numbers.ndim == 0 else numbers, pairs, rows, "boost", "boost" in chosen)
    else:
        boosts = read_frequencies(theta, boost, pairs, rows, "boost" in chosen)
    rates = read_rates(rate, half_life, pairs, clock)
    excess = (
        torch.zeros_like(boosts) if rates is None else fit_rows(rates, pairs, rows, given_as(half_life), "rate" in chosen) - boosts.abs()
    )
    if bool((excess < -1e-12 * boosts.abs()).any()):
        raise GrowthError(
            f"got a boost that exceeds its rate by {float(-excess.min()):.3g}; expected rate >= |boost|: the eigenvalue -rate + |boost| "
            "would grow, raise the rate (or leave it out: it is then |boost|)"
        )
    excess = excess.clamp_min(0.0)
    if "rate" in chosen and bool((excess == 0).any()):
        raise ConfigError(
            "got a learnable rate that starts at |boost|; expected a start above it (rate - |boost| is learned on a log scale)"
        )
    options: dict[str, Any] = {"theta": theta, "boost": boost, "rate": rate, "half_life": half_life, "learn": list(chosen) or None}
    if pairing != "interleaved":
        options["pairing"] = pairing
    parameters = {"boost": Parameter(boosts, "boost" in chosen), "excess": Parameter(excess, "rate" in chosen)}
    return Recipe("hyperbolic", head_dim, heads, kv_heads, clock, options, parameters, _content)


def _content(values: Values, recipe: Recipe) -> Generator:
    boost, excess = values["boost"], values["excess"]
    slow, fast = excess + (boost.abs() - boost), excess + (boost.abs() + boost)  # the rates of x + y and of x - y
    pair = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64, device=boost.device) / math.sqrt(2)
    each = torch.eye(recipe.head_dim // 2, dtype=torch.float64, device=boost.device)
    if recipe.options.get("pairing") == "half":
        return Conjugate(Decay(torch.cat([slow, fast], -1), recipe.head_dim), torch.kron(pair, each))
    return Conjugate(Decay(torch.stack([slow, fast], -1).flatten(-2), recipe.head_dim), torch.kron(each, pair))
