"""FIRE: a learned function of the lag relative to the time of the query, outside the group because it sees that time."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.decay_bias import no_content
from eigenclock.encodings.outside import Outside, Pairs, counting
from eigenclock.encodings.parameter import Parameter
from eigenclock.encodings.rates import read_learn
from eigenclock.errors import ConfigError
from eigenclock.theory.numbers import exact

LEARNED = ("c", "length", "mlp")
WHY = "the bias is a function of the lag relative to the time of the query, so from the threshold on a common shift of the times changes it"


def fire(
    head_dim: int,
    *,
    heads: int,
    kv_heads: int | None = None,
    c: float = 0.1,
    length: float = 512.0,
    width: int = 32,
    seed: int = 0,
    learn: str | tuple[str, ...] = LEARNED,
    clock: Clock | None = None,
) -> Encoding:
    """FIRE: logit = q . k / sqrt(d) + f_h(psi(|t - s|) / psi(max(L, t))), psi(x) = ln(c x + 1); translation invariance breaks.

    f is one hidden layer of ReLU with one output per head. From L on the lag is seen relative to the time of the query (progressive
    interpolation), so the times count from where the clock begins: keys in a cache stay valid as long as their times are exact. Every
    pair has a number of its own, so attention keeps T x S tensors for each head and each hidden unit.

    Args:
        c, length: the start values of c and of L, kept positive.
        width: the hidden units of f; its weights start as those of a linear layer do.
        seed: of that start.
        learn: any of "c", "length", "mlp" (all by default).
    Units: length in steps.
    Raises: ConfigError where a number is not positive, or the clock does not count steps.
    Source: Li et al. (FIRE), 2310.04418, section 3.

    >>> enc = fire(64, heads=8)
    >>> enc.breaks, enc.acts_on
    ('translation invariance', 'weight')
    """
    chosen = read_learn(learn, LEARNED)
    if not (c > 0 and length > 0 and width >= 1):
        raise ConfigError(f"got c={c!r}, length={length!r} and width={width!r}; expected numbers above 0")
    options: dict[str, Any] = {"c": None if c == 0.1 else c, "length": None if length == 512.0 else length}
    options |= {"width": None if width == 32 else width, "seed": seed or None} | ({"learn": list(chosen)} if chosen != LEARNED else {})
    random, reach = np.random.default_rng(seed), width**-0.5
    start = {
        "in_weight": random.uniform(-1, 1, width), "in_bias": random.uniform(-1, 1, width),
        "out_weight": random.uniform(-reach, reach, (heads, width)), "out_bias": random.uniform(-reach, reach, heads),
    }  # fmt: skip
    parameters = {name: Parameter(exact(value), "mlp" in chosen, "real") for name, value in start.items()}
    parameters |= {name: Parameter(exact(np.array(value)), name in chosen) for name, value in (("c", c), ("length", length))}
    return Recipe("fire", head_dim, heads, kv_heads, counting(clock, "fire"), options, parameters, no_content, outside=_outside)


def _outside(values: Values, recipe: Recipe) -> tuple[Outside, ...]:
    def bias(pairs: Pairs) -> Tensor:
        c, length = values["c"], values["length"]
        ratio = (torch.log1p(c * pairs.lag.abs()) / torch.log1p(c * torch.maximum(length, pairs.time))).to(pairs.dtype)
        inner, offset, outer, last = (values[name].to(pairs.dtype) for name in ("in_weight", "in_bias", "out_weight", "out_bias"))
        hidden = torch.relu(ratio[..., None] * inner + offset)  # (B|1, H|1, T, S, width)
        if hidden.shape[1] == 1:
            return (hidden @ outer.mT)[:, 0].movedim(-1, 1) + last[:, None, None]
        return torch.einsum("bhtsw,hw->bhts", hidden, outer) + last[:, None, None]

    return (Outside(("translation invariance",), WHY, bias),)
