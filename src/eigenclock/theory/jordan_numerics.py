"""Eigenvalues that belong together, and the ranks of their nilpotent parts, each beside the error that the input allows.

A cluster of g eigenvalues with mean mu is one eigenvalue exactly when its power sums p_k = sum (lambda - mu)^k vanish for k = 2 .. g.
Unlike the eigenvalues themselves, the p_k are smooth in the matrix: dp_k = k tr(Pi (A - mu)^(k-1) dA) with the spectral projector Pi.
So |p_k| can be held against what rounding does to it, and |p_k| / |dp_k| is the first-order distance to the matrices where it vanishes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

import numpy as np

Array = np.ndarray
Children = dict[frozenset[int], tuple[frozenset[int], frozenset[int]]]

SIGMAS = 4.5  # an error is taken to be at most this many standard deviations
_POWERS = 8  # power sums beyond this one add nothing that double precision could tell
_CLEAR = 30.0  # eigenvalues this many times their errors apart need no closer look
_INVARIANT = 2.0**-40  # what may be left over in an invariant subspace, relative to the matrix
_NODES = 24  # points on the circle of a projector: the error is (inside / outside)^12
_SYLVESTER = 1100  # unknowns of the largest linear system that is solved to polish a subspace
_BAD = 50.0  # projectors of at most this norm are well conditioned
_TANGLE = 6  # groups of at most this many eigenvalues are cut in every possible way


@dataclass(frozen=True)
class Noisy:
    """A real matrix with the variance of the error of each entry, and the eigenvectors found for it."""

    A: Array
    variance: Array
    values: Array = field(repr=False)
    vectors: Array = field(repr=False)

    @property
    def n(self) -> int:
        return self.A.shape[0]

    @cached_property
    def norm(self) -> float:
        return float(np.linalg.norm(self.A))

    @cached_property
    def mirror(self) -> list[int]:
        """The index of the conjugate of each eigenvalue; its own index for a real one."""
        out = list(range(self.n))
        for i, value in enumerate(self.values):
            if value.imag > 0:  # LAPACK lists a pair together, the upper one first
                out[i], out[i + 1] = i + 1, i
        return out

    @cached_property
    def dual(self) -> Array:
        """The left eigenvectors, as columns."""
        values, vectors = np.linalg.eig(self.A.T)
        order, left = [], list(range(self.n))
        for value in self.values:  # each to the nearest that is left
            order.append(min(left, key=lambda k: abs(values[k] - value)))
            left.remove(order[-1])
        return vectors[:, order].astype(complex).conj()

    @cached_property
    def reach(self) -> Array:
        """How far each eigenvalue moves under the errors, to first order (inf for a defective one)."""
        overlap = np.abs((self.dual.conj() * self.vectors).sum(0))
        size = SIGMAS * math.sqrt(max(self.variance.sum(0).max(), self.variance.sum(1).max()))
        return np.divide(size, overlap, out=np.full(self.n, np.inf), where=overlap > 0)

    def conjugate(self, members: frozenset[int]) -> frozenset[int]:
        return frozenset(self.mirror[i] for i in members)


def noisy(A: Array, unit: float, tolerance: float | None, level: float = 1.0) -> Noisy:
    """The matrix with its errors: each entry rounded to ``unit``, or, given a tolerance, errors of that size relative to the norm.

    ``level`` multiplies all of them, for matrices that were computed and not only rounded.
    """
    norm, n = float(np.linalg.norm(A)) or 1.0, A.shape[0]  # the zero matrix has no errors; any will do
    stated = (unit * A) ** 2 / 3 if tolerance is None else np.full_like(A, (tolerance * norm / n) ** 2)
    computed = (2.0 * 2.0**-53 * norm) ** 2 / n  # what the decompositions themselves add
    values, vectors = np.linalg.eig(A)
    return Noisy(A, level**2 * (stated + computed), values.astype(complex), vectors.astype(complex))


def _polished(A: Array, q: Array) -> Array:
    """An invariant subspace, from a rough one with orthonormal columns: Newton's method, A22 Y - Y A11 = -A21, Q <- Q + Q' Y."""
    n, size = q.shape
    rest = n - size
    if not rest or rest * size > _SYLVESTER:
        return q
    best, least = q, np.inf
    for _ in range(6):
        whole = np.linalg.qr(q, mode="complete")[0]
        inner = whole.conj().T @ A @ whole
        left = float(np.linalg.norm(inner[size:, :size]))
        if not left < 0.7 * least:
            break
        best, least = whole[:, :size], left
        system = np.kron(inner[size:, size:], np.eye(size)) - np.kron(np.eye(rest), inner[:size, :size].T)
        try:
            step = np.linalg.solve(system, -inner[size:, :size].reshape(-1)).reshape(rest, size)
        except np.linalg.LinAlgError:
            break
        q = np.linalg.qr(whole[:, :size] + whole[:, size:] @ step)[0]
    return best


def _projector(A: Array, mu: complex, inside: float, outside: float) -> Array:
    """The spectral projector as the mean of the resolvent on a circle between the cluster and all other eigenvalues."""
    radius = math.sqrt(max(inside, 1e-3 * outside) * outside)
    points = radius * np.exp(2j * np.pi * (np.arange(_NODES) + 0.5) / _NODES)
    resolvent = np.linalg.inv((mu + points)[:, None, None] * np.eye(A.shape[0]) - A)
    return (points[:, None, None] * resolvent).mean(0)


class Cluster:
    """Eigenvalues taken as one: invariant subspace, mean, nilpotent part, and the errors of all of them."""

    def __init__(self, matrix: Noisy, members: frozenset[int], parts: "Sequence[Cluster]" = ()):
        self.matrix, self.members = matrix, members
        A, size = matrix.A, len(members)
        self.real = matrix.conjugate(members) == members
        if size == A.shape[0]:
            self._take(np.eye(size), np.eye(size))
        else:
            for right, left in self._rough(parts):
                self._take(_polished(A, right), _polished(A.T, left))
                if self._is_invariant():
                    break
            else:
                raise np.linalg.LinAlgError("no invariant subspace was found for these eigenvalues")
        self.mu = complex(np.trace(self.M)) / size
        self.N = self.M - (self.mu.real if self.real else self.mu) * np.eye(size)

    def _take(self, right: Array, left: Array) -> None:
        self.Q = right
        self.W = np.linalg.solve(left.conj().T @ right, left.conj().T)  # W Q = 1, and Q W is the spectral projector
        self.M = self.W @ self.matrix.A @ self.Q

    def _is_invariant(self) -> bool:
        """Whether A Q = Q M and W A = M W up to rounding."""
        A = self.matrix.A
        right, left = np.linalg.norm(A @ self.Q - self.Q @ self.M), np.linalg.norm(self.W @ A - self.M @ self.W)
        # Written so that what is not a number is not invariant.
        return bool(max(right, left) <= _INVARIANT * self.matrix.norm * np.linalg.norm(self.W))

    def _rough(self, parts: "Sequence[Cluster]") -> Iterator[tuple[Array, Array]]:
        """Orthonormal bases near the right and left invariant subspaces: those of the parts, from a projector, from eigenvectors."""
        if parts:
            # Where the union is real, real and imaginary parts are taken, which brings in the conjugate of a complex part.
            right, left = (np.concatenate(columns, 1) for columns in ([p.Q for p in parts], [p.W.conj().T for p in parts]))
            yield self._orthonormal(right), self._orthonormal(left)
        matrix, chosen = self.matrix, sorted(self.members)
        values = matrix.values[chosen]
        mu = complex(values.mean())
        others = np.delete(matrix.values, chosen)
        inside, outside = float(np.abs(values - mu).max()), float(np.abs(others - mu).min())
        if len(chosen) > 1 and outside > 3 * inside:
            projector = _projector(matrix.A, mu, inside, outside)
            u, _, vh = np.linalg.svd(np.real(projector) if self.real else projector)
            yield u[:, : len(chosen)], vh[: len(chosen)].conj().T
        yield self._orthonormal(matrix.vectors[:, chosen]), self._orthonormal(matrix.dual[:, chosen])

    def _orthonormal(self, vectors: Array) -> Array:
        spanning = np.concatenate([np.real(vectors), np.imag(vectors)], 1) if self.real else vectors
        return np.linalg.svd(spanning, full_matrices=False)[0][:, : len(self.members)]

    @property
    def size(self) -> int:
        return len(self.members)

    @cached_property
    def projector_norm(self) -> float:
        return float(np.linalg.norm(self.W, 2))

    def spread(self, inner: Array) -> float:
        """The standard deviation of tr(Q inner W E) under the errors E of the entries."""
        gradient = (self.Q @ inner @ self.W).T
        return float(np.sqrt((np.abs(gradient) ** 2 * self.matrix.variance).sum()))

    @cached_property
    def mean_error(self) -> float:
        return SIGMAS * self.spread(np.eye(self.size)) / self.size

    @cached_property
    def error(self) -> float:
        """A bound on the norm of the error of N."""
        variance = np.abs(self.W) ** 2 @ self.matrix.variance @ np.abs(self.Q) ** 2
        # The norm of a random matrix is that of its largest row and column, not that of all its entries.
        return SIGMAS * float(np.sqrt(max(variance.sum(0).max(), variance.sum(1).max())))

    @cached_property
    def sums(self) -> list[tuple[int, float, float, float]]:
        """For k = 2, 3, ..: (k, |p_k|, its error, first-order distance to p_k = 0)."""
        out, power, size = [], np.eye(self.size), float(np.linalg.norm(self.N, 2))
        for k in range(2, min(self.size, _POWERS) + 1):
            power = power @ self.N
            p = abs(complex(np.trace(power @ self.N)))
            first = k * SIGMAS * self.spread(power)
            higher = sum(math.comb(k, j) * self.error**j * size ** (k - j) for j in range(2, k + 1))
            arithmetic = 2.0**-52 * self.size * k * size**k
            slope = float(np.linalg.norm(self.Q @ power @ self.W))
            out.append((k, p, first + higher + arithmetic, p / (k * slope) if slope else 0.0))
        return out

    def power_norm(self, k: int) -> float:
        """The norm of Pi (A - mu)^k."""
        return float(np.linalg.norm(self.Q @ np.linalg.matrix_power(self.N, k) @ self.W))

    @property
    def ratio(self) -> float:
        """How many times the allowed error the eigenvalues are apart; at most 1 where they may be one."""
        return max((p / error for _, p, error, _ in self.sums), default=0.0)

    @property
    def separation(self) -> float:
        """First-order distance from the matrix to those where the members are one eigenvalue."""
        return max((distance for _, _, _, distance in self.sums), default=0.0)


@dataclass(frozen=True)
class Staircase:
    """The orders of the Jordan blocks of a nilpotent part: how far the kept ranks are from dropping, and what was dropped."""

    orders: tuple[int, ...]
    clean: Array
    kept: float  # smallest singular value that counts as nonzero, over the allowed error (inf: none)
    gap: float  # the same singular value itself
    dropped: float  # norm of what was set to zero


def staircase(N: Array, error: float, factor: float = 1.0) -> Staircase | None:
    """Null spaces of N, then of N on the rest, and so on (Kublanovskaya); None where N is not nilpotent within ``error``."""
    size = N.shape[0]
    U, T, start, steps = np.eye(size, dtype=N.dtype), N.copy(), 0, []
    kept, gap, dropped, allowed, scale = np.inf, np.inf, 0.0, factor * error, float(np.linalg.norm(N, 2))
    while start < size:
        _, s, vh = np.linalg.svd(T[start:, start:])
        null = int((s <= allowed).sum())
        if null == 0 or (steps and null > steps[-1]):
            return None
        v = vh[::-1].conj().T  # null space first
        turn = np.eye(size, dtype=N.dtype)
        turn[start:, start:] = v
        U, T = U @ turn, turn.conj().T @ T @ turn
        if null < s.size:
            smallest = float(s[-null - 1])
            if smallest / allowed < kept:
                kept, gap = smallest / allowed, smallest
            allowed *= 1 + min(1e3, 0.5 * scale / smallest * (allowed / smallest))  # what the dropped part does to the next step
        dropped += float((s[s.size - null :] ** 2).sum())
        T[start:, start : start + null] = 0
        steps.append(null)
        start += null
    orders = tuple(sorted((sum(step > i for step in steps) for i in range(steps[0])), reverse=True))
    return Staircase(orders, U @ T @ U.conj().T, kept, gap, float(np.sqrt(dropped)))


def _linkage(values: Array) -> list[tuple[frozenset[int], frozenset[int]]]:
    """Single linkage: the pairs of clusters that join, nearest first."""
    clusters = [frozenset([i]) for i in range(values.size)]
    gaps = np.abs(values[:, None] - values)
    np.fill_diagonal(gaps, np.inf)
    joined = []
    while len(clusters) > 1:
        i, j = sorted(divmod(int(gaps.argmin()), len(clusters)))
        joined.append((clusters[i], clusters[j]))
        gaps[i] = gaps[:, i] = np.minimum(gaps[i], gaps[j])
        gaps[i, i] = np.inf
        gaps = np.delete(np.delete(gaps, j, 0), j, 1)
        clusters[i] = clusters[i] | clusters[j]
        del clusters[j]
    return joined


def _partitions(items: tuple[int, ...]) -> Iterator[list[frozenset[int]]]:
    if not items:
        yield []
        return
    head, rest = items[0], items[1:]
    for r in range(len(rest) + 1):
        for others in combinations(rest, r):
            left = tuple(i for i in rest if i not in others)
            for more in _partitions(left):
                yield [frozenset((head, *others)), *more]


class Search:
    """Which eigenvalues are one: the coarsest clusters that the errors allow, and the best conditioned among them."""

    def __init__(self, matrix: Noisy):
        self.matrix = matrix
        self._known: dict[frozenset[int], Cluster | None] = {}

    def cluster(self, members: frozenset[int], parts: Sequence[Cluster] = ()) -> Cluster | None:
        """The cluster of these members (None where left and right subspaces do not pair)."""
        if members not in self._known or (parts and self._known[members] is None):
            try:
                self._known[members] = Cluster(self.matrix, members, parts)
            except np.linalg.LinAlgError:
                self._known[members] = None
        return self._known[members]

    def allowed(self, members: frozenset[int], factor: float) -> bool:
        mirror = self.matrix.conjugate(members)
        if members != mirror and members & mirror:
            return False
        chosen = sorted(members)
        values, reach = self.matrix.values[chosen], factor * self.matrix.reach[chosen]
        if (np.abs(values[:, None] - values) > _CLEAR * (reach[:, None] + reach)).any():
            return False  # two that stay apart whatever the errors are
        found = self.cluster(members)
        return found is not None and found.ratio <= factor

    def clusters(self, factor: float = 1.0) -> list[Cluster] | None:
        """Clusters with mu in the closed upper half plane; None where they do not come in conjugate pairs."""
        children = {a | b: (a, b) for a, b in _linkage(self.matrix.values)}
        found = [c for c in self._cut(frozenset(range(self.matrix.n)), children, factor) if self._upper(c)]
        whole = [i for c in found for i in c | self.matrix.conjugate(c)]
        if sorted(whole) != list(range(self.matrix.n)):
            return None
        out = [self.cluster(c) for c in found]
        return None if any(c is None for c in out) else [c for c in out if c is not None]

    def _upper(self, members: frozenset[int]) -> bool:
        return self.matrix.conjugate(members) == members or sum(self.matrix.values[i].imag for i in members) > 0

    def _cut(self, node: frozenset[int], children: Children, factor: float) -> list[frozenset[int]]:
        """The largest clusters below a node that pass; small groups that stay badly conditioned are cut in every possible way."""
        if not self._upper(node) and not node & self.matrix.conjugate(node):
            return [node]  # its conjugate is looked at instead
        if len(node) == 1 or self.allowed(node, factor):
            return [node]
        parts = [part for child in children[node] for part in self._cut(child, children, factor)]
        if len(node) <= _TANGLE and self._worst(parts) > _BAD:
            return self._untangle(node, factor) or parts
        return parts

    def _worst(self, parts: list[frozenset[int]]) -> float:
        """The largest norm of a projector."""
        found = [self.cluster(part) for part in parts if self._upper(part)]
        return max((np.inf if c is None else c.projector_norm for c in found), default=0.0)

    def _untangle(self, node: frozenset[int], factor: float) -> list[frozenset[int]] | None:
        """The cut of a small group whose worst projector is the smallest; fewer clusters win a draw."""
        best, least = None, np.inf
        own = self.matrix.conjugate(node) == node
        for cut in _partitions(tuple(sorted(node))):
            if own and any(self.matrix.conjugate(c) not in cut for c in cut):
                continue
            if not all(self.allowed(c, factor) for c in cut if self._upper(c)):
                continue
            worst = self._worst(cut) * (1 + 0.1 * len(cut))
            if worst < least:
                best, least = cut, worst
        return best
