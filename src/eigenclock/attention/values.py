"""Values seen through the lag: out_t = sum_s w_ts exp((t - s) L) v_s, for an L that only turns.

Values are turned at the time of their key before the kernel and the output is turned back at the time of its query, so every backend
takes part without knowing of it.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eigenclock.attention.lower import per_query_head, through
from eigenclock.attention.problem import Problem, reads_times
from eigenclock.attention.rotate import make_table, rotate
from eigenclock.encodings import Encoding
from eigenclock.errors import ClockError, ShapeError, UnsupportedError
from eigenclock.theory import Split


@dataclass(frozen=True)
class ValueSide:
    """The action on the values of one call."""

    split: Split
    query_times: Tensor
    dtype: torch.dtype

    def turned_back(self, out: Tensor) -> Tensor:
        """The output (B, H, T, V) at the time of its query, in the dtype of the call."""
        for turn in reversed(self.split.turns):
            out = rotate(out, make_table(-self.query_times, per_query_head(turn, out.shape[1]), out.dtype))
        return (out if self.split.basis is None else through(out, self.split.basis.mT)).to(self.dtype)


def on_values(problem: Problem, encoding: Encoding | None) -> tuple[Problem, ValueSide | None]:
    """The problem with its values turned at their keys' times, and what turns the output back; both as they are without an encoding.

    Raises: ShapeError, ClockError or UnsupportedError where the encoding is not a rotation of these values on the times of the call.
    """
    if encoding is None:
        return problem, None
    dtype = problem.q.dtype
    split = _checked(problem, encoding)
    if problem.learns_in_16_bits(problem.key_vectors, *(turn.freq for turn in split.turns)):
        # The gradient of a frequency sums time * (gradient of the angle): 16-bit gradients would drown it.
        problem = replace(problem, q=problem.q.float(), k=problem.k.float(), v=problem.v.float())
    v = problem.v if split.inverse is None else through(problem.v, split.inverse.mT)
    for turn in split.turns:
        v = rotate(v, make_table(problem.key_vectors, turn, v.dtype))
    return replace(problem, v=v), ValueSide(split, problem.query_vectors, dtype)


def _checked(problem: Problem, encoding: Encoding) -> Split:
    """The rotations of an encoding that fits the values and reads the times of the call."""
    if not isinstance(encoding, Encoding):
        raise ShapeError(f"got {type(encoding).__name__} as value_encoding; expected an Encoding, such as ec.rope(head_dim), or None")
    h, g, width = problem.q.shape[1], problem.v.shape[1], problem.v.shape[-1]
    if encoding.head_dim != width:
        raise ShapeError(
            f"got values of width {width} for value_encoding={encoding}; expected head_dim={width}: '+ nope(n)' leaves n alone"
        )
    if encoding.heads not in (1, h) or encoding.kv_heads not in (None, g):
        raise ShapeError(f"got {h} query heads and {g} value heads for value_encoding={encoding}; expected heads={h} and kv_heads={g}")
    split = encoding.generator(problem.q.device).split()
    for part, found in (
        ("decays", split.rate is not None),
        ("shears", split.nilpotent is not None),
        ("adds a bias to the logit", bool(encoding.lifts(problem.q.device))),
        ("acts on more channels than a head has", encoding.width != encoding.head_dim),
        ("turns the other way after the query", encoding.sides == 2),
    ):
        if found:
            raise UnsupportedError(
                f"got value_encoding={encoding}, which {part}; expected an encoding that only turns, such as ec.rope({width})"
            )
    _check_times(problem, encoding, split)
    rows = {turn.rows for turn in split.turns} | ({split.basis.shape[0]} if split.basis is not None and split.basis.ndim > 2 else set())
    if rows - {1, g} or problem.key_vectors.shape[1] not in (1, g):
        raise ShapeError(
            f"got times or frequencies for {max(rows | {problem.key_vectors.shape[1]})} heads and values with {g} heads; expected one per "
            f"value head, or repeated keys and values: v.repeat_interleave({h // max(g, 1)}, 1)"
        )
    return split


def _check_times(problem: Problem, encoding: Encoding, split: Split) -> None:
    """Refuse a clock that would read other times than the call has: those of the encoding on queries and keys."""
    clock, own = problem.encoding.clock, encoding.clock
    alike = own is clock or own.spec() == {"name": "index"} or (own.spec() == clock.spec() and not own.sums)
    if not alike or not reads_times(split, clock.width):
        raise ClockError(
            f"got value_encoding={encoding} beside {problem.encoding}; expected the same clock on both (a learned one: the same object), "
            "or none for the values, which then read the times of the call"
        )
