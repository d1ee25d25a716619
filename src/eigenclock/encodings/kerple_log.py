"""KERPLE's logarithmic bias, outside the group because no L of finite size grows like a logarithm."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.decay_bias import no_content
from eigenclock.encodings.outside import Outside, Pairs
from eigenclock.encodings.parameter import Parameter, as_numbers, within
from eigenclock.encodings.rates import Numbers, fit_rows, read_learn
from eigenclock.errors import ConfigError
from eigenclock.theory.numbers import exact

FLOOR = 0.01
WHY = "the bias falls like a logarithm of the lag, which no matrix exponential of finite size does"


def kerple_log(
    head_dim: int,
    *,
    heads: int,
    kv_heads: int | None = None,
    p: Numbers = None,
    a: Numbers = None,
    seed: int = 0,
    learn: str | tuple[str, ...] = ("p", "a"),
    clock: Clock | None = None,
) -> Encoding:
    """KERPLE, logarithmic: logit = q . k / sqrt(d) - p_h ln(1 + a_h |t - s|), outside the group: finite dimension breaks.

    It sees both directions alike and any real times; the power form with exponents 1 and 2 is in the group (``alibi``,
    ``gaussian_bias``). Every pair has a number of its own, so attention keeps a T x S tensor for each head.

    Args:
        p, a: one number or (heads,), at least 0.01 and kept there; left out, uniform in [0, 2] and [0, 1] as in the authors' code.
        seed: of those draws.
        learn: any of "p", "a" (both by default).
    Units: a per unit of the clock, p in logits.
    Raises: ConfigError where a number is below 0.01.
    Source: Chi et al. (KERPLE), 2205.09921, eq. 6 and section 4.

    >>> enc = kerple_log(64, heads=8)
    >>> enc.breaks, enc.acts_on
    ('finite dimension', 'weight')
    """
    chosen = read_learn(learn, ("p", "a"))
    draws = np.maximum(np.random.default_rng(seed).uniform(0.0, [[2.0], [1.0]], (2, heads)), FLOOR)
    start = {"p": exact(draws[0]) if p is None else _read(p, "p", heads), "a": exact(draws[1]) if a is None else _read(a, "a", heads)}
    options: dict[str, Any] = {"p": p, "a": a, "seed": seed or None}
    options |= {"learn": list(chosen)} if chosen != ("p", "a") else {}
    parameters = {name: Parameter(value, name in chosen, "real") for name, value in start.items()}
    return Recipe("kerple_log", head_dim, heads, kv_heads, clock, options, parameters, no_content, outside=_outside)


def _read(value: Numbers, what: str, heads: int) -> Tensor:
    numbers = as_numbers(value, what)
    if bool((numbers < FLOOR).any()):
        raise ConfigError(f"got {what}={float(numbers.min()):g}; expected at least {FLOOR}")
    return fit_rows(numbers.reshape(-1), heads, (1,), what, True).reshape(-1).expand(heads).clone()


def _outside(values: Values, recipe: Recipe) -> tuple[Outside, ...]:
    def bias(pairs: Pairs) -> Tensor:
        p, a = (within(values[name], FLOOR).to(pairs.dtype)[:, None, None] for name in ("p", "a"))
        return -p * torch.log1p(a * pairs.lag.abs().to(pairs.dtype))

    return (Outside(("finite dimension",), WHY, bias),)
