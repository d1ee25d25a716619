"""M-RoPE: the spectrum of RoPE shared out among time, height and width."""

from typing import Any

import numpy as np
from jaxtyping import Int

from eigenclock.clocks import Axes, Clock
from eigenclock.encodings.base import Encoding, Recipe
from eigenclock.encodings.mixed_rope import axes_clock, rotation
from eigenclock.encodings.parameter import Parameter
from eigenclock.encodings.rates import even
from eigenclock.errors import ConfigError, ShapeError
from eigenclock.schedules import geometric
from eigenclock.theory import Rotation
from eigenclock.theory.numbers import exact

ASSIGNMENTS = ("contiguous", "interleaved", "alternating")


def m_rope(
    head_dim: int,
    *,
    heads: int = 1,
    kv_heads: int | None = None,
    sections: tuple[int, ...] | None = None,
    assignment: str = "contiguous",
    theta: float = 10000.0,
    pairing: str = "interleaved",
    clock: Clock | None = None,
) -> Encoding:
    """Multimodal rotary embedding: pair i turns by theta^(-i/n) times the coordinate of the one axis it belongs to.

    Text repeats its position on all axes, which is RoPE again. Times have a last axis of size 3: (time, height, width).

    Args:
        sections: how many of the n pairs each axis gets; left out, a quarter to time and three eighths each to height and width.
        assignment: "contiguous" (Qwen2-VL: the first section gets the highest frequencies), "interleaved" (Qwen3-VL: pair i goes to
            axis i mod A while i < A * sections[axis], the rest to the first axis) or "alternating" (ERNIE 4.5 VL: the axes after the
            first take turns on the first pairs, the first axis gets the last ones).
        clock: the axes, by default time, height and width, with time as the order of causal caches.
    Units: radians per unit of each axis.
    Raises: ShapeError where the sections do not add up to head_dim / 2; ConfigError where the assignment is unknown or the clock has one
        axis.
    Source: Wang et al. (Qwen2-VL), 2409.12191, section 2.1.

    >>> enc = m_rope(128, theta=1e6)
    >>> (enc.generator().freq != 0).sum(-1)
    tensor([16, 24, 24])
    """
    clock = axes_clock(clock, Axes(("time", "height", "width"), order="time"))
    pairs, axes = even(head_dim, "head_dim"), clock.width
    if sections is None:
        rest = 3 * pairs // (4 * (axes - 1))
        sizes = (pairs - rest * (axes - 1), *(rest,) * (axes - 1))
    else:
        sizes = tuple(sections)
    axis = axis_of_pair(sizes, pairs, axes, assignment)
    freq = exact(np.where(axis == np.arange(axes)[:, None], geometric(theta)(pairs).values.numpy(), 0.0))
    options: dict[str, Any] = {"sections": sections, "theta": None if theta == 10000.0 else theta}
    options |= {
        name: value
        for name, value, usual in (("assignment", assignment, "contiguous"), ("pairing", pairing, "interleaved"))
        if value != usual
    }
    Rotation(freq, pairing)  # refuses an unknown pairing here
    return Recipe("m_rope", head_dim, heads, kv_heads, clock, options, {"freq": Parameter(freq)}, rotation)


def axis_of_pair(sections: tuple[int, ...], pairs: int, axes: int, assignment: str) -> Int[np.ndarray, "pairs"]:
    """The axis that turns each pair, (pairs,).

    Raises: ShapeError where the sections do not fit; ConfigError where the assignment is unknown.

    >>> axis_of_pair((2, 1, 1), 4, 3, "contiguous"), axis_of_pair((2, 1, 1), 4, 3, "interleaved")
    (array([0, 0, 1, 2]), array([0, 1, 2, 0]))
    >>> axis_of_pair((2, 1, 1), 4, 3, "alternating")
    array([1, 2, 0, 0])
    """
    if assignment not in ASSIGNMENTS:
        raise ConfigError(f"got assignment={assignment!r}; expected one of {', '.join(map(repr, ASSIGNMENTS))}")
    if len(sections) != axes or sum(sections) != pairs or min(sections) < 0:
        raise ShapeError(
            f"got sections {tuple(sections)} for {axes} axes and {pairs} pairs; "
            f"expected {axes} numbers that add up to head_dim / 2 = {pairs}"
        )
    if assignment == "contiguous":
        return np.repeat(np.arange(axes), sections)
    if assignment == "alternating":
        if len(set(sections[1:])) != 1:
            raise ShapeError(f"got sections {tuple(sections)} that alternate; expected as many pairs for each axis after the first")
        return np.concatenate([np.tile(np.arange(1, axes), sections[1]), np.zeros(sections[0], dtype=int)])
    i = np.arange(pairs)
    limit = axes * np.asarray(sections)
    return np.where(i < limit[i % axes], i % axes, 0)
