"""Mixed RoPE: every pair turns along a direction of its own in the plane, learned for each head."""

import math
from typing import Any

import numpy as np
from torch import Tensor

from eigenclock.clocks import Axes, Clock
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.parameter import Parameter, as_numbers
from eigenclock.encodings.rates import Numbers, clock_or_index, even, read_learn
from eigenclock.errors import ConfigError, ShapeError
from eigenclock.schedules import geometric
from eigenclock.theory import AxesRotation, Generator
from eigenclock.theory.numbers import exact


def mixed_rope(
    head_dim: int,
    *,
    heads: int = 1,
    kv_heads: int | None = None,
    theta: float = 10.0,
    freq: Numbers = None,
    seed: int = 0,
    pairing: str = "interleaved",
    learn: str | tuple[str, ...] = ("freq",),
    clock: Clock | None = None,
) -> Encoding:
    """Mixed rotary embedding of the plane: pair i turns by freq_x[i] x + freq_y[i] y, one direction per pair and head, learned.

    At the start the first half of the pairs has magnitudes theta^(-i / (n/2)) along one random direction per head, the second half the
    same magnitudes at a right angle to it.

    Args:
        theta: the base of the start values.
        freq: explicit frequencies (axes, pairs) or (heads, axes, pairs) in place of theta; required where the clock has more than two axes.
        seed: of the random directions.
        learn: "freq" (default) to train the frequencies, or () to keep them.
    Units: radians per unit of each axis.
    Raises: ShapeError where head_dim is no multiple of 4, or freq has another shape; ConfigError where the clock has one axis.
    Source: Heo et al. (RoPE-Mixed), 2403.13298, section 3.3.

    >>> enc = mixed_rope(16, heads=4)
    >>> enc.generator().freq.shape
    torch.Size([4, 2, 8])
    """
    clock = axes_clock(clock, Axes())
    pairs, rows = even(head_dim, "head_dim"), kv_heads or heads
    chosen = read_learn(learn, ("freq",))
    if freq is not None:
        numbers = as_numbers(freq, "freq", 3)
        if numbers.ndim < 2 or tuple(numbers.shape[-2:]) != (clock.width, pairs) or (numbers.ndim == 3 and numbers.shape[0] != rows):
            raise ShapeError(
                f"got freq of shape {tuple(numbers.shape)}; expected ({clock.width}, {pairs}) or ({rows}, {clock.width}, {pairs})"
            )
    elif clock.width != 2:
        raise ConfigError(f"got {clock.width} axes without frequencies; expected freq= of shape ({clock.width}, {pairs})")
    else:
        numbers = directions(pairs, rows, theta, seed)
    options: dict[str, Any] = {"theta": None if theta == 10.0 else theta, "freq": freq, "seed": seed or None}
    options |= {"learn": list(chosen)} if chosen != ("freq",) else {}
    if pairing != "interleaved":
        options["pairing"] = pairing
    AxesRotation(numbers, pairing)  # refuses an unknown pairing here
    parameters = {"freq": Parameter(numbers, "freq" in chosen, "real")}
    return Recipe("mixed_rope", head_dim, heads, kv_heads, clock, options, parameters, rotation)


def directions(pairs: int, heads: int, theta: float, seed: int) -> Tensor:
    """The start values, (heads, 2, pairs): a random direction per head, and a right angle to it for the second half of the pairs."""
    if pairs % 2:
        raise ShapeError(f"got {pairs} pairs; expected an even number, half of them at a right angle to the rest: head_dim a multiple of 4")
    size = np.tile(geometric(theta)(pairs // 2).values.numpy(), 2)
    first = np.random.default_rng(seed).uniform(0, 2 * math.pi, (heads, 1))
    angle = first + np.repeat([0.0, math.pi / 2], pairs // 2)
    return exact(np.stack([size * np.cos(angle), size * np.sin(angle)], 1))


def axes_clock(clock: Clock | None, default: Axes) -> Clock:
    """A clock of several axes.

    Raises: ConfigError where the clock given has one.
    """
    chosen = default if clock is None else clock_or_index(clock)
    if chosen.width < 2:
        raise ConfigError(f"got a clock with one number per token; expected several axes, such as {default}")
    return chosen


def rotation(values: Values, recipe: Recipe) -> Generator:
    """The generator of every recipe over several axes."""
    return AxesRotation(values["freq"], str(recipe.options.get("pairing", "interleaved")))
