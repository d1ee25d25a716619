"""The axioms as measurements: how far any pair of maps (query at t, key at s) is from a one-parameter group, with a witness.

A *map* takes vectors (N, D) and one time to vectors (N, E): F for queries, G for keys, and the score is F(q, t) . G(k, s). Matrices
that depend on time become maps by :func:`by_matrix`, a generator becomes the pair by :func:`maps_of`. Everything is computed in
float64 from a seed; residuals are relative to the largest number of their kind among the samples, absolute where all are 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.theory.axioms import residuals
from eigenclock.theory.axioms.group_law import Law, law_of
from eigenclock.theory.axioms.residuals import Subject
from eigenclock.theory.axioms.sampling import Kernel, Map, Residual, Sampling, Witness, scale_of, unknown
from eigenclock.theory.generator import Generator
from eigenclock.theory.lift import Lift

DEFAULT = Sampling()


@dataclass(frozen=True)
class Axioms:
    """The five residuals of one pair of maps, and what the singular case needs to know.

    rank_at_zero is the rank of A(0) and hankel_rank the size of L as far as the samples tell (None where no finite one was found);
    both count the constant coordinate where the maps are affine.
    ``even`` says whether a lag and its opposite have one score, so that past and future cannot be told apart (None where causal).
    """

    linearity: Residual
    shift_invariance: Residual
    continuity: Residual
    group_law: Residual
    contragredience: Residual
    rank_at_zero: int | None = None
    hankel_rank: int | None = None
    width: int = 0
    even: bool | None = None

    @property
    def residuals(self) -> tuple[Residual, ...]:
        """The residuals, in the order of the derivation."""
        return self.linearity, self.shift_invariance, self.continuity, self.group_law, self.contragredience

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the axioms that are broken."""
        return tuple(r.name for r in self.residuals if r.holds is False)

    @property
    def ok(self) -> bool:
        """Whether every axiom that was measured holds."""
        return not self.broken

    def __str__(self) -> str:
        lines = [str(r) for r in self.residuals]
        if self.rank_at_zero is not None:
            needs = "no L of finite size was found" if self.hankel_rank is None else f"the lag needs {self.hankel_rank} dimensions"
            lines.append(f"A(0) has rank {self.rank_at_zero} of {self.width}; {needs}")
        if self.even:
            lines.append("even in the lag: past and future cannot be told apart")
        return "\n".join(lines)


def by_matrix(matrix: Callable[[float], Float[Tensor, "E D"]]) -> Map:
    """The map x -> M(t) x of a matrix that depends on time.

    >>> by_matrix(lambda t: t * torch.eye(2))(torch.ones(1, 2), 3.0)
    tensor([[3., 3.]])
    """
    return lambda x, t: x @ matrix(t).to(x.dtype).mT


def maps_of(generator: Generator, head: int = 0, *, lifts: Sequence[Lift] = (), scale: float = 1.0) -> tuple[Map, Map]:
    """F and G of a generator, and of an encoding with its lifts: exp(tL)^T on queries, exp(-sL) on keys, coordinates appended.

    Their product is the logit of the head, scale * q^T exp((t - s) L) k plus the biases of the lifts.

    Stability: the two factors stand apart here, as the axioms want them, so a decay loses the digits of e^(rate * span): keep the span
        of the sampling to a few half-lives. Attention never forms them.

    >>> from eigenclock.theory.generators import Rotation
    >>> F, G = maps_of(Rotation(torch.ones(1)))
    >>> measure_axioms(F, G, 2).broken
    ()
    """

    def act(which: Generator, x: Tensor, t: float) -> Tensor:
        moved = which.act(x.expand(which.heads, *x.shape) if which.heads > 1 else x, torch.full((1,), t, dtype=torch.float64))
        return moved[head] if which.heads > 1 else moved

    def queries(q: Tensor, t: float) -> Tensor:
        parts = [scale * act(generator.T, q, t)]
        for lift in lifts:
            coordinates = lift.queries(q.expand(1, _rows(lift), *q.shape))
            parts.append(act(lift.generator.T, _of_head(coordinates, head), t) * (scale if lift.scaled else 1.0))
        return torch.cat(parts, -1)

    def keys(k: Tensor, s: float) -> Tensor:
        lifted = [act(lift.generator, _of_head(lift.keys(k.expand(1, _rows(lift), *k.shape)), head), -s) for lift in lifts]
        return torch.cat([act(generator, k, -s), *lifted], -1)

    return queries, keys


def _rows(lift: Lift) -> int:
    """How many heads a lift tells apart."""
    parts = [(lift.query, 1), (lift.key, 1), (lift.query_map, 2), (lift.key_map, 2)]
    return max(x.shape[0] if x is not None and x.ndim > flat else 1 for x, flat in parts)


def _of_head(x: Tensor, head: int) -> Tensor:
    return x[0, head if x.shape[1] > 1 else 0]


def measure_axioms(F: Map, G: Map, dim: int, at: Sampling = DEFAULT, *, content: tuple[Tensor, Tensor] | None = None) -> Axioms:
    """All five residuals of queries F(q, t) and keys G(k, s), of width ``dim``.

    linearity         F(ax + by) = aF(x) + bF(y) for the part of F that depends on x, and so for G. A constant part (coordinates that are
                      appended, a vector that is added) is allowed for, as one more coordinate that is always 1, and noted as affine
    shift_invariance  F(q, t + c) . G(k, s + c) = F(q, t) . G(k, s)
    continuity        no jump survives bisection of the times; not measured where times are integers
    group_law         B(u) B(v) = B(u + v) for B(u) = A(u) A(0)^-1, A(u) = F(u)^T G(0): A(0) = I is a normalisation and no axiom. Where
                      A(0) is singular, or the maps lead into more dimensions, the same for blocks of lags:
                      H(u) H(0)^+ H(v) = H(u + v), which every C exp(uL) B keeps
    contragredience   F(t)^T G(t) = F(0)^T G(0): one side is the inverse transpose of the other, up to constants

    Samples prove a violation, not its absence: what happens between or beyond the times of ``at`` is not seen.

    Args:
        content: the queries and keys tried, (N, dim) each; random ones if left out.
    Stability: a condition of A(0) above 1e3 raises the limit of the group law in proportion; in the singular case it is 1e-6 or more.
    Raises: ShapeError where F and G give vectors of different widths.

    >>> late = by_matrix(lambda t: torch.eye(2, dtype=torch.float64) * t)
    >>> measure_axioms(late, late, 2).broken
    ('shift_invariance', 'group_law', 'contragredience')
    """
    q, k = (x.double() for x in (content or at.content(dim)))
    subject = Subject(F, G, q, k, at)
    linear, affine = residuals.linearity_of(subject)
    law = Law(unknown("group_law", at, "no matrix: the maps are not linear"), width=dim)
    if linear.holds:
        law = law_of(subject.lag(affine), at, subject.blocks(affine), subject.moved(0, subject.grid[0]).shape[-1])
    return Axioms(
        linear,
        residuals.shift_invariance_of(subject),
        residuals.continuity_of(subject),
        law.residual,
        residuals.contragredience_of(subject),
        law.rank,
        law.size,
        law.width,
        residuals.even_of(subject),
    )


def measure_kernel(A: Kernel, at: Sampling = DEFAULT) -> Axioms:
    """Continuity and the group law of scores known as a function of the lag, A(u) of shape (p, q); a bias is (1, 1).

    Negative lags are tried unless ``at.causal``.

    >>> bias = lambda u: -0.5 * torch.tensor([[u]], dtype=torch.float64).abs()
    >>> measure_kernel(bias).broken, measure_kernel(bias, Sampling(causal=True)).broken
    (('group_law',), ())
    """
    A = _detached(A)
    law = law_of(A, at)
    grid = at.grid()
    ends = grid if at.causal else tuple(sorted({*grid, *(-t for t in grid)}))
    jump = residuals.jump_of(lambda u: A(u).flatten(), ends, "u", at)
    scale = scale_of([A(u) for u in ends])
    even = None if at.causal else all(float((A(u) - A(-u)).abs().max()) <= at.limit * scale for u in grid)
    given = "known by its scores at lags only"
    linear, shift, other = (unknown(name, at, given) for name in ("linearity", "shift_invariance", "contragredience"))
    return Axioms(linear, shift, jump, law.residual, other, law.rank, law.size, law.width, even)


def _detached(A: Kernel) -> Kernel:
    return lambda u: A(u).detach().double()


def linearity(F: Map, G: Map, dim: int, at: Sampling = DEFAULT) -> Residual:
    """The residual of linearity alone, as in :func:`measure_axioms`."""
    return residuals.linearity_of(Subject(F, G, *at.content(dim), at))[0]


def shift_invariance(F: Map, G: Map, dim: int, at: Sampling = DEFAULT) -> Residual:
    """The residual of shift invariance alone, as in :func:`measure_axioms`."""
    return residuals.shift_invariance_of(Subject(F, G, *at.content(dim), at))


def continuity(F: Map, G: Map, dim: int, at: Sampling = DEFAULT) -> Residual:
    """The residual of continuity alone, as in :func:`measure_axioms`."""
    return residuals.continuity_of(Subject(F, G, *at.content(dim), at))


def group_law(F: Map, G: Map, dim: int, at: Sampling = DEFAULT) -> Residual:
    """The residual of the group law alone, as in :func:`measure_axioms`."""
    return measure_axioms(F, G, dim, at).group_law


def contragredience(F: Map, G: Map, dim: int, at: Sampling = DEFAULT) -> Residual:
    """The residual of contragredience alone, as in :func:`measure_axioms`."""
    return residuals.contragredience_of(Subject(F, G, *at.content(dim), at))


__all__ = [
    "Axioms",
    "Residual",
    "Sampling",
    "Witness",
    "by_matrix",
    "continuity",
    "contragredience",
    "group_law",
    "linearity",
    "maps_of",
    "measure_axioms",
    "measure_kernel",
    "shift_invariance",
]
