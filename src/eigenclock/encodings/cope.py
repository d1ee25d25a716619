"""CoPE: positions counted by gates that the query opens, outside the group because they depend on the keys in between."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.decay_bias import no_content
from eigenclock.encodings.outside import Outside, Pairs
from eigenclock.encodings.parameter import Parameter, as_numbers
from eigenclock.encodings.rates import Numbers, read_learn
from eigenclock.errors import ConfigError, ShapeError
from eigenclock.theory.numbers import exact

WHY = "the bias is read at a position that counts gates, which depend on the query and on all keys from s to t"


def cope(
    head_dim: int,
    *,
    heads: int = 1,
    kv_heads: int | None = None,
    positions: int = 64,
    table: Numbers = None,
    learn: str | tuple[str, ...] = ("table",),
    clock: Clock | None = None,
) -> Encoding:
    """CoPE: logit = q_t . k_s / sqrt(d) + q_t . e[p_ts], p_ts = sum over j from s to t of sigmoid(q_t . k_j / sqrt(d)); linearity breaks.

    p is kept below ``positions`` and e is interpolated between whole positions. The sum runs over the keys that the query sees, in
    order by index, so the clock is not read and calls must be causal. The gates see the logits of the call, scale included; the bias is
    added after the scale, as in the authors' code. A decode step needs all keys again. Attention keeps T x S tensors for each head.

    Args:
        positions: rows of the table; the largest position is one less.
        table: e, (positions, head_dim), the same for all heads; zeros by default.
        learn: "table" (by default), or () for a fixed one.
    Raises: ConfigError where there are no positions; ShapeError where the table does not fit.
    Stability: gates are summed in float32 or better.
    Source: Golovneva et al. (CoPE), 2405.18719, eq. 3 to 5.

    >>> enc = cope(64, heads=8)
    >>> enc.breaks, enc.acts_on
    ('linearity', 'weight')
    """
    chosen = read_learn(learn, ("table",))
    if isinstance(positions, bool) or not isinstance(positions, int) or positions < 1:
        raise ConfigError(f"got positions={positions!r}; expected a whole number of at least 1")
    numbers = exact(np.zeros((positions, head_dim))) if table is None else as_numbers(table, "table")
    if tuple(numbers.shape) != (positions, head_dim):
        raise ShapeError(f"got a table of shape {tuple(numbers.shape)}; expected (positions, head_dim) = ({positions}, {head_dim})")
    options: dict[str, Any] = {"positions": None if positions == 64 else positions, "table": table}
    options |= {"learn": list(chosen)} if chosen != ("table",) else {}
    parameters = {"table": Parameter(numbers, "table" in chosen, "real")}
    return Recipe("cope", head_dim, heads, kv_heads, clock, options, parameters, no_content, outside=_outside)


def _outside(values: Values, recipe: Recipe) -> tuple[Outside, ...]:
    def bias(pairs: Pairs) -> Tensor:
        q, k, table = pairs.q, pairs.k, values["table"].to(pairs.dtype)
        logits = torch.einsum("bghtd,bgsd->bghts", q.unflatten(1, (k.shape[1], -1)), k).flatten(1, 2) * pairs.scale
        gates = logits.to(pairs.dtype).sigmoid().masked_fill(~pairs.seen, 0.0)
        position = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=table.shape[0] - 1)
        at = q.to(pairs.dtype) @ table.mT  # q . e of every whole position
        below = position.detach().floor()
        share = position - below
        first, second = (at.gather(-1, index.long()) for index in (below, position.detach().ceil()))
        return first * (1 - share) + second * share

    return (Outside(("linearity",), WHY, bias, directed=True, alone=True),)
