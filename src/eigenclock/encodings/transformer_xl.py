"""Transformer-XL: sinusoids of the lag read by the query, an additive bias that is a rotation on constants beside the keys."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.decay_bias import no_content
from eigenclock.encodings.parameter import Parameter, as_numbers
from eigenclock.encodings.rates import Numbers, even, read_learn
from eigenclock.errors import ShapeError
from eigenclock.schedules import geometric
from eigenclock.theory import Lift, Rotation, Zero
from eigenclock.theory.numbers import exact

LEARNED = ("weight", "content", "position")


def transformer_xl(
    head_dim: int,
    *,
    heads: int,
    kv_heads: int | None = None,
    sinusoids: int | None = None,
    theta: float = 10000.0,
    weight: Numbers = None,
    content: Numbers = None,
    position: Numbers = None,
    seed: int = 0,
    learn: str | tuple[str, ...] = LEARNED,
    clock: Clock | None = None,
) -> Encoding:
    """Transformer-XL: logit = ((q + content) . k + (q + position) . W r(t - s)) / sqrt(d), r(u) = (sin w_i u, cos w_i u).

    In the group: r(u) = exp(uL) r(0) with L the rotations by w_i, so keys get the constants r(0) and queries W^T (q + position); no
    shifting of a table, any real times, any direction.

    Args:
        sinusoids: the width of r, 2 per frequency w_i = theta^(-2i/sinusoids); head_dim by default. Each adds a channel to q and k.
        weight: W, (heads, head_dim, sinusoids), columns in the order sin w_0, cos w_0, sin w_1, ..; left out, normal with deviation 0.02.
        content, position: (heads, head_dim), or (kv_heads, head_dim) for ``content``, which acts on keys; zeros by default.
        seed: of the random start.
        learn: any of "weight", "content", "position" (all by default).
    Units: radians per unit of the clock.
    Raises: ShapeError where a shape does not fit or ``sinusoids`` is odd.
    Stability: 16-bit queries and keys are computed in float32.
    Source: Dai et al. (Transformer-XL), 1901.02860, section 3.3.

    >>> enc = transformer_xl(8, heads=2)
    >>> enc.form, enc.acts_on
    (JordanForm('4R + 9Z'), 'weight')
    """
    width = head_dim if sinusoids is None else sinusoids
    even(width, "sinusoids")
    chosen = read_learn(learn, LEARNED)
    if weight is None:
        start = exact(np.random.default_rng(seed).normal(0.0, 0.02, (heads, head_dim, width)))
    else:
        start = _shaped(weight, "weight", (heads, head_dim, width))
    values = {
        "weight": start,
        "content": _shaped(content, "content", (kv_heads or heads, head_dim)),
        "position": _shaped(position, "position", (heads, head_dim)),
    }
    options: dict[str, Any] = {
        "sinusoids": sinusoids, "theta": None if theta == 10000.0 else theta, "weight": weight, "content": content, "position": position,
        "seed": seed or None,
    }  # fmt: skip
    options |= {"learn": list(chosen)} if chosen != LEARNED else {}
    parameters = {name: Parameter(value, name in chosen, "real") for name, value in values.items()}
    frequencies = geometric(theta)(width // 2).values
    parameters["freq"] = Parameter(frequencies)
    return Recipe("transformer_xl", head_dim, heads, kv_heads, clock, options, parameters, no_content, _lifts)


def _shaped(value: Numbers, what: str, shape: tuple[int, ...]) -> Tensor:
    if value is None:
        return exact(np.zeros(shape))
    numbers = as_numbers(value, what, 3)
    if tuple(numbers.shape) != shape:
        raise ShapeError(f"got {what} of shape {tuple(numbers.shape)}; expected {shape}")
    return numbers


def _lifts(values: Values, recipe: Recipe) -> tuple[Lift, ...]:
    weight, freq = values["weight"], values["freq"]
    # r(u) = exp(uL) r(0): from (0, 1) on each pair, a turn by -freq u (the sign of Rotation) gives (sin, cos)
    start = torch.stack([torch.zeros_like(freq), torch.ones_like(freq)], -1).flatten()
    shift = torch.einsum("hd,hdn->hn", values["position"], weight)
    positions = Lift(Rotation(freq), shift, start, query_map=weight, scaled=True, directed=False)
    one, nothing = torch.ones(1, dtype=torch.float64, device=freq.device), torch.zeros(1, dtype=torch.float64, device=freq.device)
    contents = Lift(Zero(1), one, nothing, key_map=values["content"][..., None], scaled=True, directed=False)
    return contents, positions
