"""Which encoding a matrix is the generator of: its real Jordan form, with the distance and the precision that the answer rests on."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.errors import ConfigError, ShapeError
from eigenclock.theory.form import JordanBlock, JordanForm
from eigenclock.theory.jordan_basis import Part, real_basis
from eigenclock.theory.jordan_numerics import Array, Cluster, Noisy, Search, noisy, staircase

# What separates "certain" from "undecided". All are ratios, so that the answer does not depend on the unit of time.
CLOSE = 5e-4  # eigenvalues nearer than this, relative to the largest, are not looked for as distinct ones
CONDITION = 3e4  # bases worse conditioned than this are not looked for either
WELL = 30.0  # clusters with projectors up to this norm explain a matrix better than eigenvectors that are nearly parallel


@dataclass(frozen=True)
class Precision:
    """How far a type of number reaches: half a unit in the last place, and how many of its errors "clearly nonzero" takes.

    A matrix in double precision is usually a product of several and worse than rounded, so that errors are tried at several levels and
    margins are wide. Single precision has no room for either: there the errors are those of rounding.
    """

    unit: float
    levels: tuple[float, ...]
    margin: float
    margin_defective: float  # for eigenvalues that belong to blocks of order 2 and more


PRECISION = {
    "float32": Precision(2.0**-24, (1.0,), 20.0, 2.0),
    "float64": Precision(2.0**-53, (1.0, 32.0, 1024.0), 2e4, 1e3),
}
STATED = Precision(0.0, (1.0,), 20.0, 4.0)  # errors given by the caller

FAMILIES = {"Z": "NoPE", "D": "decay", "R": "RoPE", "S": "damped RoPE"}


@dataclass(frozen=True)
class Eigenblock:
    """The Jordan blocks of one order at one eigenvalue -rate +- i freq.

    kind is a letter of :class:`JordanForm`, or "G" where the block grows: its rate is negative then. error bounds the error of rate
    and freq that the precision of the input allows; condition is the norm of the spectral projector, how far the (mean) eigenvalue
    moves per change of the matrix.
    """

    kind: str
    rate: float
    freq: float
    order: int
    count: int
    error: float
    condition: float

    def __str__(self) -> str:
        many = f"{self.count} of order {self.order}" if self.order > 1 else f"{self.count}"
        rate = f"rate {self.rate:.6g}" if self.rate >= 0 else f"growth {-self.rate:.6g}"
        freq = f", freq {self.freq:.6g}" if self.freq else ""
        return f"{self.kind}: {many}, {rate}{freq} (+- {self.error:.1e}, condition {self.condition:.2g})"


@dataclass(frozen=True)
class Reading:
    """One form that a matrix may have: the distance to a matrix that has it exactly, and the condition of its Jordan basis.

    form is None where an eigenvalue of the reading has a positive real part.
    """

    form: JordanForm | None
    distance: float
    condition: float

    def __str__(self) -> str:
        return f"{self.form if self.form is not None else 'growing'} at distance {self.distance:.1e} (basis condition {self.condition:.1e})"


@dataclass(frozen=True)
class Classification:
    """What a real matrix generates, and how sure that is: form, eigenvalues, basis, distances; made by :func:`classify`.

    form: the Jordan form; None while undecided, and where the matrix grows (a form has no letter for Re lambda > 0).
    readings: the one form decided on, or the forms that the input's precision leaves open, each with its distance.
    certain: whether one reading is left.
    blocks: rates, frequencies and orders with their errors (of the first reading, while undecided).
    basis, jordan, condition: real P and J with matrix ~ P J P^-1, and the condition of P; None and nan while undecided. The size of
    the superdiagonals of J is free and chosen for a small condition.
    residual: |matrix - P J P^-1| over |matrix| (Frobenius norms, here and below).
    distance: estimated distance to the nearest matrix whose form is another one and no mere splitting of this one (a defective matrix
    has simple eigenvalues at every distance); inf where there is none; the distance of the farthest reading while undecided.
    precision: the size of the errors of the input that all of this allows for.
    growth: the largest real part; grows: whether it is positive beyond its error.
    doubts: why it is undecided, in words.

    >>> import torch
    >>> found = classify(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
    >>> found.form, found.family, found.certain
    (JordanForm('1Z2'), 'ALiBi-type lift', True)
    """

    form: JordanForm | None
    readings: tuple[Reading, ...]
    certain: bool
    blocks: tuple[Eigenblock, ...]
    basis: Float[Tensor, "D D"] | None
    jordan: Float[Tensor, "D D"] | None
    condition: float
    residual: float
    distance: float
    precision: float
    growth: float
    grows: bool
    doubts: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """NoPE, decay, RoPE, damped RoPE, Jordan, ALiBi-type lift or mixed; growing, or undecided.

        Channels that do nothing (order 1 over 0) beside others do not count: a partial RoPE is RoPE.
        """
        if self.grows:
            return "growing"
        if self.form is None:
            return "undecided"
        blocks = [block for block, _ in self.form if block != JordanBlock("Z")]
        if not blocks:
            return "NoPE"
        if len({block.kind for block in blocks}) > 1:
            return "mixed"
        order = max(block.order for block in blocks)
        if order == 1:
            return FAMILIES[blocks[0].kind]
        return "ALiBi-type lift" if blocks == [JordanBlock("Z", 2)] else "Jordan"

    def __str__(self) -> str:
        rests = f"entries known to {self.precision:.1e}"
        if not self.certain:
            lines = [f"undecided with {rests}: {'; '.join(self.doubts)}", *(f"  may be {reading}" for reading in self.readings)]
            return "\n".join([*lines, f"  largest real part {self.growth:.3g}: it grows"] if self.grows else lines)
        what = f"growing (largest real part {self.growth:.3g}; no encoding)" if self.grows else f"{self.form} ({self.family})"
        nearest = "no other form nearby" if math.isinf(self.distance) else f"nearest other form at distance about {self.distance:.1e}"
        head = f"{what}: {nearest}, {rests}, residual {self.residual:.1e}, basis condition {self.condition:.2g}"
        return "\n".join([head, *(f"  {block}" for block in self.blocks)])


def classify(matrix: Float[Tensor, "D D"] | Float[np.ndarray, "D D"], *, tolerance: float | None = None) -> Classification:
    """The real Jordan form of a matrix, as far as its precision decides it.

    matrix = P J P^-1 with J of blocks (-rate + N) and [[-rate, freq], [-freq, -rate]] + N. Of all forms within the errors of the input
    the most special one is taken, and called certain only if every rival is out of reach: more special forms (eigenvalues that meet,
    ranks that drop, real parts that vanish) by distance, more general ones because they would need eigenvalues that agree to
    1 part in 2000 or a basis of condition 3e4 or worse. Multiplying by a unit or changing the basis does not change the answer.
    In single precision one more rival of a block of order 2 is set aside, because no float32 matrix excludes it: two eigenvalues within
    about 1e-3 of each other whose eigenvectors are parallel to 1e-3, in a basis that is well conditioned otherwise.

    Shape: (D, D), float32 or float64, torch or numpy.
    Units: rates and frequencies (radians) per the unit of time in which the matrix is given.
    ``tolerance``: the error of the input, relative to its Frobenius norm. By default each entry is rounded to its dtype, and in float64,
        where that decides nothing, 32 or 1024 times worse (``precision`` says what was used). State it for matrices that were measured,
        trained, or multiplied together in float32.
    Raises: ShapeError for anything that is no finite square matrix of these types; ConfigError for a tolerance outside [0, 1).
    Source: staircase form, Kublanovskaya (1966), Golub and Wilkinson (1976); deciding for the most special form within the errors of
        the data, Kagstrom and Ruhe (1980).

    >>> import torch
    >>> found = classify(torch.tensor([[-0.5, 2.0], [-2.0, -0.5]], dtype=torch.float64))
    >>> print(found.form, found.family, found.blocks[0].rate, found.blocks[0].freq)
    1S damped RoPE 0.5 2.0
    >>> print(classify(torch.tensor([[-0.5, 1.0], [1e-7, -0.5]]), tolerance=1e-7))
    undecided with entries known to 1.2e-07: one block, or several eigenvalues with nearly parallel eigenvectors
      may be 1D2 at distance 1.0e-07 (basis condition 1.0e+00)
      may be 2D at distance ... (basis condition 3.2e+03)
    """
    A, precision = _checked(matrix)
    if tolerance is not None:
        if not 0 <= tolerance < 1:
            raise ConfigError(f"got tolerance={tolerance!r}; expected the error of the input relative to its norm, at least 0 and below 1")
        precision = STATED
    scale = 2.0 ** (math.frexp(float(np.abs(A).max()))[1] - 1)  # a power of two: dividing by it rounds nothing
    norm = float(np.linalg.norm(A / scale)) * scale
    verdict = _decide(A / scale, precision, tolerance)
    data, found = verdict.search.matrix, _readings(verdict)
    readings = tuple(replace(reading, distance=reading.distance * scale) for reading, _, _, _ in found)
    certain = not verdict.doubts
    parts = found[0][1] if found else []
    top = max(parts, key=lambda part: part.value.real, default=None)
    growth = float(np.real(data.values).max()) if top is None else top.value.real
    return Classification(
        form=readings[0].form if certain else None,
        readings=readings,
        certain=certain,
        blocks=_blocks(parts, scale),
        basis=torch.from_numpy(found[0][2]) if certain else None,
        jordan=torch.from_numpy(found[0][3] * scale) if certain else None,
        condition=readings[0].condition if certain else math.nan,
        residual=readings[0].distance / (norm or 1.0) if certain else math.nan,
        distance=verdict.distance * scale if certain else max((reading.distance for reading in readings), default=math.inf),
        precision=float(np.sqrt(data.variance.sum())) * scale if norm else 0.0,
        growth=growth * scale,
        grows=top is not None and growth > verdict.margin * top.cluster.mean_error,
        doubts=tuple(dict.fromkeys(verdict.doubts)),
    )


@dataclass(frozen=True)
class _Verdict:
    """The most special reading within the errors, what speaks against it, and how far the next form is."""

    search: Search
    parts: list[Part] | None
    doubts: list[str]
    distance: float
    margin: float


def _decide(A: Array, precision: Precision, tolerance: float | None) -> _Verdict:
    """The verdict at the first level of errors that leaves no doubt, or else at the first level."""
    verdicts = []
    for level in precision.levels:
        search = Search(noisy(A, precision.unit, tolerance, level))
        parts = _read(search, 1.0)
        margin, defective = max(20.0, precision.margin / level), max(2.0, precision.margin_defective / level)
        doubts, distance = (
            _judge(search, parts, margin, defective) if parts else (["the eigenvalues form no clusters of one value each"], 0.0)
        )
        if parts and not doubts and not _gives_back(search.matrix, parts):
            doubts = ["the Jordan basis found does not give the matrix back within its errors"]
        verdicts.append(_Verdict(search, parts, doubts, distance, margin))
        if not doubts:
            return verdicts[-1]
    return verdicts[0]


def _gives_back(data: Noisy, parts: list[Part]) -> bool:
    """Whether P J P^-1 is the matrix, up to the errors of the input times the condition of its eigenvalues."""
    reading = _reading(data, parts, *real_basis(parts))
    errors = float(np.sqrt(data.variance.sum())) * max(part.cluster.projector_norm for part in parts)
    return reading.distance <= 30 * errors + 2.0**-50 * data.norm * reading.condition


def _readings(verdict: _Verdict) -> list[tuple[Reading, list[Part], Array, Array]]:
    """The reading decided on, or all that other sizes of the errors would give, with their bases."""
    tried = [verdict.parts]
    if verdict.doubts:
        tried += [_read(verdict.search, factor) for factor in (1e-4, 30.0, 1e3, 1e5)]
    seen: dict[JordanForm | None, tuple[Reading, list[Part], Array, Array]] = {}
    for parts in tried:
        if parts and _form(parts) not in seen:
            P, J = real_basis(parts)
            seen[_form(parts)] = _reading(verdict.search.matrix, parts, P, J), parts, P, J
    return list(seen.values())


def _checked(matrix: object) -> tuple[Array, Precision]:
    """The matrix as float64, and the precision of its own type."""
    kind = str(matrix.dtype).removeprefix("torch.") if isinstance(matrix, Tensor | np.ndarray) else type(matrix).__name__
    shape = tuple(matrix.shape) if isinstance(matrix, Tensor | np.ndarray) else ()
    if kind not in PRECISION or len(shape) != 2 or shape[0] != shape[1] or not shape[0]:
        raise ShapeError(
            f"got {kind} of shape {shape}; expected one real (D, D) matrix in float32 or float64, torch or numpy: "
            "classify the heads one by one, and convert other types yourself, with tolerance= set to what they are good for"
        )
    A = matrix.detach().cpu().double().numpy() if isinstance(matrix, Tensor) else np.asarray(matrix, dtype=np.float64)
    if not np.isfinite(A).all():
        raise ShapeError("got a matrix with entries that are not finite; expected finite numbers: look for the overflow that made them")
    return A, PRECISION[kind]


def _read(search: Search, factor: float) -> list[Part] | None:
    """The most special form within ``factor`` times the errors."""
    clusters = search.clusters(factor)
    if clusters is None:
        return None
    out = []
    for cluster in clusters:
        stairs = staircase(cluster.N, cluster.error, factor)
        if stairs is None:
            return None
        real = cluster.mu.real if abs(cluster.mu.real) > factor * cluster.mean_error else 0.0
        out.append(Part(cluster, stairs, complex(real, 0.0 if cluster.real else cluster.mu.imag)))
    return sorted(out, key=lambda part: (-part.value.real, part.value.imag))


def _kind(value: complex) -> str:
    if value.real > 0:
        return "G"
    return {(False, False): "Z", (True, False): "D", (False, True): "R", (True, True): "S"}[value.real != 0, value.imag != 0]


def _form(parts: list[Part]) -> JordanForm | None:
    if any(part.value.real > 0 for part in parts):
        return None
    return JordanForm(JordanBlock(_kind(part.value), order) for part in parts for order in part.stairs.orders)


def _reading(data: Noisy, parts: list[Part], P: Array, J: Array) -> Reading:
    try:
        distance = float(np.linalg.norm(data.A - np.linalg.solve(P.T, (P @ J).T).T))
    except np.linalg.LinAlgError:
        distance = math.inf
    return Reading(_form(parts), distance, float(np.linalg.cond(P)))


def _blocks(parts: list[Part], scale: float) -> tuple[Eigenblock, ...]:
    out = []
    for part in parts:
        cluster, orders = part.cluster, part.stairs.orders
        for order in sorted(set(orders), reverse=True):
            rate = 0.0 - part.value.real * scale
            error = cluster.mean_error * scale
            out.append(
                Eigenblock(_kind(part.value), rate, part.value.imag * scale, order, orders.count(order), error, cluster.projector_norm)
            )
    return tuple(out)


def _judge(search: Search, parts: list[Part], margin: float, margin_defective: float) -> tuple[list[str], float]:
    """What speaks against calling the reading certain, and the distance to the nearest form that is no splitting of it."""
    data, doubts, distances = search.matrix, [], [math.inf]
    largest = max(abs(part.cluster.mu) for part in parts)
    close = CLOSE * (largest if largest > max(part.cluster.mean_error for part in parts) else (data.norm or 1.0) / math.sqrt(data.n))
    for part in parts:
        cluster, stairs = part.cluster, part.stairs
        if cluster.projector_norm > CONDITION:
            doubts.append("eigenvalues lie among each other within their errors")
        if stairs.kept < margin:
            doubts.append("a rank is neither clearly kept nor clearly lost")
        if not math.isinf(stairs.gap):
            distances.append(stairs.gap * cluster.projector_norm)
        if part.value.real and abs(part.value.real) < margin * cluster.mean_error:
            doubts.append("a real part is neither clearly zero nor clearly not")
        if part.value.real:
            distances.append(abs(part.value.real) / cluster.projector_norm)
        if (cluster.error if cluster.size > 1 else cluster.mean_error) > 0.4 * close:
            doubts.append("the errors of the eigenvalues are as large as the differences that matter")
        if _may_split(data, parts, part, close):
            doubts.append("one block, or several eigenvalues with nearly parallel eigenvectors")
    for pair, cluster in _rivals(search, parts):
        if cluster is None:
            doubts.append("two eigenvalues cannot be told apart")
            continue
        distances.append(cluster.separation)
        defective = any(max(part.stairs.orders) > 1 for part in pair)
        if cluster.ratio < (margin_defective if defective else margin):
            doubts.append("two eigenvalues may be one")
    return doubts, min(distances)


def _may_split(data: Noisy, parts: list[Part], part: Part, close: float) -> bool:
    """Whether distinct eigenvalues are a rival of a block: far enough apart, and their eigenvectors not too parallel.

    Errors of the size allowed move the eigenvalues of a block of order m by up to some radius; their eigenvectors then have a condition
    of about |N^(m-1)| / radius^(m-1).
    """
    cluster, stairs = part.cluster, part.stairs
    longest = stairs.orders[0]
    worst = max(other.cluster.projector_norm for other in parts)
    surrounded = not cluster.real or 4 * cluster.size <= 3 * data.n or stairs.orders.count(2) > 1
    for order in {m for m in stairs.orders if m > 1}:
        for k, _, error, _ in cluster.sums:
            radius = (2 * error / k) ** (1 / k)  # twice the error: once for what is seen, once for what is true
            top = cluster.power_norm(order - 1) if order == longest else stairs.gap ** (order - 1)
            condition = top / radius ** (order - 1)
            if k > order or 2 * radius < close or condition > CONDITION:
                continue
            # In single precision the numbers alone never rule out two rates; that all else is well conditioned speaks for one.
            if longest == 2 and surrounded and cluster.ratio <= 0.5 and worst <= WELL and condition > 20 * worst:
                continue
            return True
    return False


def _rivals(search: Search, parts: list[Part]) -> list[tuple[tuple[Part, ...], Cluster | None]]:
    """The unions of two eigenvalues that are nearest to being one."""
    data, pairs = search.matrix, []
    for i, a in enumerate(parts):
        if not a.cluster.real:
            pairs.append(
                (2 * a.cluster.mu.imag / (2 * a.cluster.projector_norm), (a,), a.cluster.members | data.conjugate(a.cluster.members))
            )
        for b in parts[:i]:
            members = a.cluster.members | b.cluster.members
            if a.cluster.real != b.cluster.real:
                members |= data.conjugate(members)
            reach = abs(a.cluster.mu - b.cluster.mu) / (a.cluster.projector_norm + b.cluster.projector_norm)
            pairs.append((reach, (a, b), members))
    nearest = sorted(pairs, key=lambda entry: entry[0])[:5]
    return [(pair, search.cluster(members, [part.cluster for part in pair])) for _, pair, members in nearest]
