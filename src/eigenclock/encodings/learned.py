"""What the recipes on a learned clock share: the clock they make where none is given, decays on channels, turns of pairs."""

from typing import Any

import numpy as np
from torch import Tensor

from eigenclock.clocks import Clock, Cumulative
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.parameter import Parameter
from eigenclock.encodings.rates import even
from eigenclock.errors import ConfigError
from eigenclock.theory import Decay, Generator, Rotation
from eigenclock.theory.numbers import exact

Options = dict[str, Any]


def features_of(features: int | None, head_dim: int, heads: int) -> int:
    """The width of the activations: given, or that of a model whose heads fill it."""
    return head_dim * heads if features is None else features


def learned(clock: Clock | None, usual: Cumulative) -> Cumulative | None:
    """The clock given, checked to be a learned one.

    Raises: ConfigError where it is another.
    """
    if clock is not None and not isinstance(clock, Cumulative):
        raise ConfigError(f"got clock={clock!r} for an encoding whose clock is learned; expected a Cumulative clock, such as {usual!r}")
    return clock


def on_channels(
    name: str, head_dim: int, heads: int, kv_heads: int | None, options: Options, clock: Clock | None, usual: Cumulative
) -> Encoding:
    """A decay of rate 1 on every channel, each on a clock of its own."""
    rate = {"rate": Parameter(exact(np.ones(head_dim)))}
    return Recipe(name, head_dim, heads, kv_heads, learned(clock, usual), options, rate, _decay, usual_clock=usual)


def on_pairs(
    name: str, head_dim: int, heads: int, kv_heads: int | None, freq: Tensor, pairing: str, options: Options, clock: Clock | None,
    usual: Cumulative,
) -> Encoding:  # fmt: skip
    """Rotations of pairs by ``freq`` on a learned clock."""
    even(head_dim, "head_dim")
    Rotation(freq, pairing)  # refuses an unknown pairing here
    options |= {} if pairing == "interleaved" else {"pairing": pairing}
    return Recipe(name, head_dim, heads, kv_heads, learned(clock, usual), options, {"freq": Parameter(freq)}, _turn, usual_clock=usual)


def _decay(values: Values, recipe: Recipe) -> Generator:
    return Decay(values["rate"], recipe.head_dim)


def _turn(values: Values, recipe: Recipe) -> Generator:
    return Rotation(values["freq"], str(recipe.options.get("pairing", "interleaved")))
