"""Gaussian bias: the softmax weight falls like a bell curve, the nilpotent block of order 3 lifted on constants."""

import math
from typing import Any

import torch

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.decay_bias import no_content
from eigenclock.encodings.parameter import Parameter, as_numbers
from eigenclock.encodings.rates import Numbers, durations, fit_rows, read_learn
from eigenclock.errors import ConfigError
from eigenclock.schedules import half_lives
from eigenclock.theory import Jordan, Lift


def gaussian_bias(
    head_dim: int,
    *,
    heads: int,
    kv_heads: int | None = None,
    sigma: Numbers = None,
    learn: str | tuple[str, ...] = (),
    clock: Clock | None = None,
) -> Encoding:
    """Gaussian bias: logit = q . k / sqrt(d) - (t - s)^2 / (2 sigma_h^2), one width per head.

    The power-law kernel of KERPLE with p = 2 and a = 1 / (2 sigma^2). It falls on both sides, so it needs no causality, and takes times
    in any order.

    Args:
        sigma: one number or (heads,) in the unit of the clock, or durations such as "5min" where it has one; (lo, hi) spreads
            geometrically over the heads.
        learn: "sigma" to train the widths (on a log scale).
    Units: sigma in the unit of the clock.
    Raises: ConfigError where sigma is missing or not above 0.
    Stability: the square is taken of lags inside a tile, never of absolute times; 16-bit queries and keys are computed in float32.
    Source: Chi et al. (KERPLE), 2205.09921, eq. 6.

    >>> enc = gaussian_bias(64, heads=2, sigma=(2, 8))
    >>> enc.lifts()[0].bias(torch.tensor([[[0.0, 2.0]], [[0.0, 2.0]]]))
    tensor([[[ 0.0000, -0.5000]],
    <BLANKLINE>
            [[ 0.0000, -0.0312]]], dtype=torch.float64)
    """
    if sigma is None:
        raise ConfigError("got no sigma; expected a width per head in the unit of the clock, for example sigma=(4, 512)")
    chosen = read_learn(learn, ("sigma",))
    plain = durations(sigma, clock)
    if isinstance(sigma, tuple) and len(sigma) == 2:
        widths = math.log(2) / half_lives(*(float(w) for w in plain))(heads).values
    else:
        widths = as_numbers(plain, "sigma")
    if bool((widths <= 0).any()):
        raise ConfigError(f"got sigma={float(widths.min()):g}; expected widths above 0")
    values = fit_rows(widths.reshape(-1), heads, (1,), "sigma", True).reshape(-1).expand(heads).clone()
    options: dict[str, Any] = {"sigma": sigma, "learn": list(chosen) or None}
    parameters = {"sigma": Parameter(values, "sigma" in chosen)}
    return Recipe("gaussian_bias", head_dim, heads, kv_heads, clock, options, parameters, no_content, _lift)


def _lift(values: Values, recipe: Recipe) -> tuple[Lift, ...]:
    curvature = values["sigma"] ** -2
    zero = torch.zeros_like(curvature)
    cubic = Jordan(torch.zeros(1, dtype=torch.float64, device=curvature.device), order=3)  # exp(uL) holds 1, u, u^2 / 2
    key = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64, device=curvature.device)
    return (Lift(cubic, torch.stack([-curvature, zero, zero], -1), key, directed=False),)
