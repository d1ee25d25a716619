"""Learned absolute positions: a vector for each position, outside the group because the times themselves are seen."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.decay_bias import no_content
from eigenclock.encodings.outside import Outside, counting
from eigenclock.encodings.parameter import Parameter
from eigenclock.encodings.rates import read_learn
from eigenclock.errors import ClockError, ConfigError
from eigenclock.theory.numbers import exact

WHY = "each position has a vector of its own: a common shift of the times changes scores, and between whole positions there is nothing"


def learned_absolute(
    head_dim: int,
    *,
    heads: int = 1,
    kv_heads: int | None = None,
    length: int = 1024,
    seed: int = 0,
    learn: str | tuple[str, ...] = ("vectors",),
    clock: Clock | None = None,
) -> Encoding:
    """Learned absolute positions: score = (q + a_t) . (k + b_s) / sqrt(d); translation invariance and continuity break.

    BERT and GPT-2 add p_t to the input of the first layer; a_t and b_t stand for what the projections of q and k make of it, per head,
    here in every layer that uses the encoding, and the values get none.

    Args:
        length: how many positions there are.
        seed: of the start, normal with deviation 0.02.
        learn: "vectors" (by default), or () for fixed ones.
    Units: steps.
    Raises: ClockError (in calls) at a time that is no whole number from 0 to length - 1; ConfigError where the clock does not count
        steps, or length is below 1.
    Source: Devlin et al. (BERT), 1810.04805, section 3; Radford et al. (GPT-2), 2019.

    >>> enc = learned_absolute(64, heads=8, length=512)
    >>> enc.breaks, enc.acts_on
    ('translation invariance and continuity', 'score')
    """
    chosen = read_learn(learn, ("vectors",))
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise ConfigError(f"got length={length!r}; expected a whole number of at least 1")
    random = np.random.default_rng(seed)
    rows = {"query": heads, "key": kv_heads or heads}
    parameters = {name: Parameter(exact(random.normal(0.0, 0.02, (n, length, head_dim))), bool(chosen), "real") for name, n in rows.items()}
    options: dict[str, Any] = {"length": None if length == 1024 else length, "seed": seed or None}
    options |= {"learn": list(chosen)} if not chosen else {}
    clock = counting(clock, "learned_absolute")
    return Recipe("learned_absolute", head_dim, heads, kv_heads, clock, options, parameters, no_content, outside=_outside)


def _outside(values: Values, recipe: Recipe) -> tuple[Outside, ...]:
    def look_up(table: Tensor, times: Tensor, real: Tensor | None) -> Tensor:
        index = _whole(times.detach(), real, table.shape[1])
        if table.shape[0] == 1 or index.shape[1] == 1:
            return table[:, index[:, 0]].movedim(0, 1) if index.shape[1] == 1 else table[0, index]
        return table[torch.arange(table.shape[0], device=table.device)[:, None], index]

    return (
        Outside(
            ("translation invariance", "continuity"),
            WHY,
            query_vectors=lambda times, real: look_up(values["query"], times, real),
            key_vectors=lambda times, real: look_up(values["key"], times, real),
            length=values["query"].shape[1],
        ),
    )


def _whole(times: Tensor, real: Tensor | None, length: int) -> Tensor:
    """Times as positions; those of padding may be anything and become the first one."""
    if real is not None:
        times = times.masked_fill(~real[:, None], 0.0)
    if not torch.compiler.is_compiling():
        bad = (times != times.round()) | (times < 0) | (times >= length)
        if bool(bad.any()):
            raise ClockError(
                f"got a time of {float(times[bad][0]):g} for {length} learned positions; expected whole times from 0 to {length - 1}: "
                "a larger length=, or an encoding of the lag, which takes any time"
            )
    return times.long()
