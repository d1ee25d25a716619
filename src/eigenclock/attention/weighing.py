"""Tokens that do not all weigh 1 (see Weights): what later queries see goes into the values, the current token is added apart."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eigenclock.attention.problem import Problem
from eigenclock.attention.times import per_query_head


def later_weights(problem: Problem) -> Tensor | None:
    """What each token of a call weighs on the queries after it in the call, (B|1, G|1, T); None where all weigh 1."""
    weights = problem.weights
    if weights is None or (weights.later is None and weights.ahead is None):
        return None
    if weights.ahead is None or not weights.ahead.shape[-1]:
        return weights.later
    after = _next(problem)
    rows = max(after.shape[0], weights.ahead.shape[0])
    ahead = torch.cat([weights.ahead, torch.zeros_like(weights.ahead[..., :1])], -1).expand(rows, -1, -1)
    ahead = ahead.gather(-1, after[:, None].expand(rows, ahead.shape[1], -1))
    return ahead + (1.0 if weights.later is None else weights.later)


def _next(problem: Problem) -> Tensor:
    """For each token the index of the next real one of its document, T where there is none, (B|1, T)."""
    t = problem.k.shape[2]
    index = torch.arange(t, device=problem.k.device)
    real = index[None] if problem.key_mask is None else torch.where(problem.key_mask, index, t)
    after = torch.cat([real.flip(-1).cummin(-1).values.flip(-1)[:, 1:], real.new_full((real.shape[0], 1), t)], -1)
    if problem.documents is None:
        return after
    shape = torch.broadcast_shapes(after.shape, problem.documents.shape)
    after, runs = after.expand(shape), problem.documents.expand(shape)
    return torch.where((after < t) & (runs.gather(-1, after.clamp_max(t - 1)) == runs), after, t)


def own_scores(problem: Problem, own: Tensor) -> Tensor:
    """q_t^T diag(own_t) k_t, what the current token weighs on its own query before any scale, (B, H, T)."""
    q, k = problem.q, problem.k
    weighted = q * per_query_head(own.to(q.dtype), q.shape[1])
    return (weighted.unflatten(1, (k.shape[1], -1)) * k.unsqueeze(2)).sum(-1).flatten(1, 2)


# --- linear attention --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weighed:
    """A call whose keys weigh alike and whose queries see them from their own token on, and what its output lacks.

    problem holds the queries of each slot: with ``before``, a slot answers the query after it, which stands at this slot's token.
    extra (B, H, T, V) is what the slots do not answer.
    """

    problem: Problem
    v: Tensor
    start: Tensor | None
    before: bool
    extra: Tensor | None

    def output(self, out: Tensor) -> Tensor:
        """The output of the call from that of its slots."""
        if self.before and out.shape[2]:
            out = torch.cat([torch.zeros_like(out[:, :, :1]), out[:, :, :-1]], 2)
        return out if self.extra is None else out + self.extra


def weigh(problem: Problem, v: Tensor, start: Tensor | None, pending: tuple[Tensor, Tensor] | None, continues: Tensor | None) -> Weighed:
    """The weights of a call worked into it.

    Args:
        problem: with q and k in the dtype of the sums, keys of padding 0; v likewise, with a last column of ones for normalised rows.
        start: the state at its last token's time, (B, G, D, V); pending: key and value of that token, (B, G, D) and (B, G, V).
        continues: (B|1,), whether the first token belongs to the document of the state; None is yes.
    """
    weights = problem.weights
    if weights is None or not v.shape[2]:
        return Weighed(problem, v, start, False, None)
    if pending is not None and start is not None and weights.ahead is not None:
        key = pending[0] * _first(problem, weights.ahead).to(pending[0].dtype)
        start = start + key.unsqueeze(-1) * pending[1].unsqueeze(-2)
    later = later_weights(problem)
    # What the slots count for the current token besides its own weight is taken away again; with `before` they do not see it.
    own = weights.own if weights.before else weights.own - (1.0 if later is None else later[..., None])
    extra = (problem.scale * own_scores(problem, own)).unflatten(1, (v.shape[1], -1))[..., None] * v.unsqueeze(2)
    extra = extra.flatten(1, 2)
    values = v if later is None else v * later[..., None].to(v.dtype)
    if not weights.before:
        return Weighed(problem, values, start, False, extra)
    if start is not None:
        first = problem.q[:, :, :1].unflatten(1, (v.shape[1], -1)) @ start.unsqueeze(2)
        first = first.flatten(1, 2) * problem.scale
        if continues is not None:
            first = first * continues[:, None, None, None].to(first.dtype)
        extra = torch.cat([extra[:, :, :1] + first, extra[:, :, 1:]], 2)
    following = torch.cat([problem.q[:, :, 1:], torch.zeros_like(problem.q[:, :, :1])], 2)
    if problem.documents is not None:
        same = problem.documents[:, 1:] == problem.documents[:, :-1]
        following = following * torch.nn.functional.pad(same, (0, 1))[:, None, :, None].to(following.dtype)
    return Weighed(replace(problem, q=following), values, start, True, extra)


def _first(problem: Problem, ahead: Tensor) -> Tensor:
    """What the first real token adds to the weight of the one before it, (B|1, G|1, 1): 0 where there is no real one."""
    if problem.key_mask is None:
        return ahead[..., :1]
    index = problem.key_mask.long().argmax(-1, keepdim=True)[:, None]
    rows = max(index.shape[0], ahead.shape[0])
    first = ahead.expand(rows, -1, -1).gather(-1, index.expand(rows, ahead.shape[1], -1))
    return first * problem.key_mask.any(-1)[:, None, None].to(first.dtype)


# --- the dense scores --------------------------------------------------------------------------------------------------------------


def at_the_token_before(problem: Problem) -> Problem:
    """The problem with queries that stand at the real token before their own, where the weights say so."""
    weights, t = problem.weights, problem.q.shape[2]
    if weights is None or not weights.before or not t:
        return problem
    index = torch.arange(t, device=problem.q.device)[None]
    real = index if problem.key_mask is None else torch.where(problem.key_mask, index, 0)
    before = torch.nn.functional.pad(real.cummax(-1).values[:, :-1], (1, 0))
    vectors = problem.query_vectors
    rows = max(before.shape[0], vectors.shape[0])
    where = before[:, None].reshape(before.shape[0], 1, t, *(1,) * (vectors.ndim - 3)).expand(rows, *vectors.shape[1:])
    return replace(problem, query_vectors=vectors.expand(rows, *vectors.shape[1:]).gather(2, where))


def weighed_logits(problem: Problem, z: Tensor, rows: slice) -> Tensor:
    """Scaled scores of some query rows (B, H, T, S), each key with its weight and the current token with its own."""
    weights, later = problem.weights, later_weights(problem)
    if weights is None:
        return z
    if later is not None:
        z = z * per_query_head(later.double(), z.shape[1])[:, :, None]
    own = problem.scale * own_scores(replace(problem, q=problem.q.double(), k=problem.k.double()), weights.own)[:, :, rows]
    return torch.where(current(problem, rows), own[..., None], z)


def current(problem: Problem, rows: slice) -> Tensor:
    """The pairs of a query and its own token, (T, S) for some query rows."""
    return torch.eye(problem.k.shape[2], dtype=torch.bool, device=problem.k.device)[rows]
