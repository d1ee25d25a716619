"""The dense float64 oracle: the logits of any encoding, straight from exp((t-s)L). Every fast path is tested against it."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.attention.documents import Boundaries
from eigenclock.attention.masks import dense_visible
from eigenclock.attention.problem import Problem, build
from eigenclock.attention.times import per_query_head
from eigenclock.attention.weighing import at_the_token_before, current, weighed_logits
from eigenclock.clocks.units import Lapse
from eigenclock.encodings import Encoding
from eigenclock.errors import UnsupportedError
from eigenclock.theory import Lift, Zero

_ELEMENTS = 1 << 24
"""Largest number of float64 elements of one block of q x keys x width."""


def scores(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B G S D"],
    encoding: Encoding,
    *,
    times: Any = None,
    key_times: Any = None,
    x: Tensor | None = None,
    key_x: Tensor | None = None,
    causal: bool = True,
    window: int | Lapse | None = None,
    documents: Tensor | Boundaries | None = None,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Float[Tensor, "B H T S"]:
    """Dense logits in float64: scale * q^T exp((t - s) L) k + bias, and -inf where a key is not visible.

    The specification of :func:`eigenclock.attention`, whose keywords it takes, and, with 0 for -inf, of the weights of
    :func:`eigenclock.linear_attention`: where tokens have weights of their own (:class:`Weights`) they are factors of the scores.
    Differentiable in everything; memory T x S.

    Shape: as in :func:`eigenclock.attention`.
    Raises: ShapeError, ClockError, GrowthError, ConfigError.

    >>> import eigenclock as ec
    >>> q = torch.ones(1, 1, 3, 2)
    >>> ec.scores(q, q, ec.decay(2, half_life=1), scale=1.0)[0, 0]
    tensor([[2.0000,   -inf,   -inf],
            [1.0000, 2.0000,   -inf],
            [0.5000, 1.0000, 2.0000]], dtype=torch.float64)
    """
    problem = build(
        q,
        k,
        k,
        encoding,
        times=times,
        key_times=key_times,
        x=x,
        key_x=key_x,
        causal=causal,
        window=window,
        documents=documents,
        mask=mask,
        scale=scale,
    )
    return dense_logits(problem)


def dense_logits(problem: Problem, rows: slice = slice(None)) -> Float[Tensor, "B H T S"]:
    """The logits of some query rows of a checked problem."""
    b, g, s, d = problem.k.shape
    start, stop, _ = rows.indices(problem.q.shape[2])
    block = max(1, _ELEMENTS // max(1, b * g * s * d))
    parts = [_logits(problem, slice(i, min(i + block, stop))) for i in range(start, stop, block)]
    if not parts:
        return torch.zeros(b, problem.q.shape[1], 0, s, dtype=torch.float64, device=problem.q.device)
    return torch.cat(parts, 2)


def _logits(problem: Problem, rows: slice) -> Tensor:
    seen = dense_visible(problem, rows)
    # The lag of a pair that is not seen is set to 0: exp of a future lag would overflow, and 0 * inf is NaN in the backward.
    met = seen if problem.weights is None else seen & ~current(problem, rows)
    lag = _lag(at_the_token_before(problem), met, rows)
    z = _content(problem, problem.q[:, :, rows].double(), lag) * problem.scale
    z = weighed_logits(problem, z, rows)
    lag = per_query_head(lag, problem.q.shape[1])
    for lift in problem.lifts:
        bias = _bias(problem, lift, rows, lag.abs() if problem.two_sided else lag)
        z = z + (bias * problem.scale if lift.scaled else bias)
    if problem.biased:
        z = z + problem.bias(seen, torch.float64, rows)
    return z.masked_fill(~seen, -math.inf)


def _lag(problem: Problem, seen: Tensor, rows: slice) -> Tensor:
    """t - s of every pair, (B|1, X|1, T, S), or (B|1, X|1, T, S, W) on several clocks; X as many heads as the keys' clock."""
    queries, keys = problem.query_vectors[:, :, rows], problem.key_vectors
    group = queries.shape[1] // keys.shape[1] if queries.shape[1] > keys.shape[1] > 1 else 1
    lag = queries[:, ::group].unsqueeze(3) - keys.unsqueeze(2)
    if group > 1 and seen.shape[1] > 1:
        seen = seen.unflatten(1, (-1, group)).any(2)
    return lag.masked_fill(~(seen if lag.ndim == seen.ndim else seen.unsqueeze(-1)), 0.0)


def _bias(problem: Problem, lift: Lift, rows: slice, lag: Tensor) -> Tensor:
    """The bias of every pair, (B|1, H|1, T, S)."""
    if not lift.reads_content:
        return lift.bias(lag)
    h = problem.q.shape[1]
    query, key = lift.queries(problem.q[:, :, rows].double()), lift.keys(problem.k.double())
    key = key.repeat_interleave(h // key.shape[1], 1)
    x = key.unsqueeze(1).expand(-1, query.shape[2], -1, -1, -1)  # heads next to time, as generators expect
    return torch.einsum("bhtn,bthsn->bhts", query, lift.generator.act(x, lag.transpose(1, 2)))


def _content(problem: Problem, q: Tensor, lag: Tensor) -> Tensor:
    """q^T exp(lag L) k for every pair, (B, H, T, S)."""
    b, g, s, d = problem.k.shape
    k = problem.k.double()
    generator = problem.generator
    grouped = q.unflatten(1, (g, -1))
    if isinstance(generator, Zero):
        return torch.einsum("bghtd,bgsd->bghts", grouped, k).flatten(1, 2)
    moved_lag = lag.transpose(1, 2)  # (B|1, T, G|1, S): heads next to time, as generators expect
    x = k.unsqueeze(1).expand(b, lag.shape[2], g, s, d)
    if problem.two_sided:
        if problem.split.order > 1 or problem.split.basis is not None:
            raise UnsupportedError(
                f"got {problem.encoding} with causal=False; a two-sided encoding carries decays, rotations and linear biases only"
            )
        mirrored = generator.T.act(x, moved_lag.neg().clamp_min(0))  # the transpose of decays and rotations turns the other way
        moved = torch.where((moved_lag < 0)[..., None], mirrored, generator.act(x, moved_lag.clamp_min(0)))
    else:
        moved = generator.act(x, moved_lag)
    return torch.einsum("bghtd,btgsd->bghts", grouped, moved).flatten(1, 2)
