"""GRAPE-M: rotations in planes that are learned, RoPE in an orthogonal basis of its own."""

from typing import Any

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.parameter import Parameter, as_numbers
from eigenclock.encodings.rates import Numbers, even, fit_rows, read_learn
from eigenclock.encodings.rope import read_frequencies
from eigenclock.errors import ConfigError, ShapeError
from eigenclock.theory import Conjugate, DirectSum, Generator, Plane, Rotation, Zero, cayley
from eigenclock.theory.numbers import exact


def grape_m(
    head_dim: int,
    *,
    heads: int = 1,
    kv_heads: int | None = None,
    planes: int | None = None,
    theta: Numbers = None,
    freq: Numbers = None,
    basis: Numbers = None,
    a: Numbers = None,
    b: Numbers = None,
    learn: str | tuple[str, ...] = (),
    clock: Clock | None = None,
) -> Encoding:
    """Multiplicative GRAPE: score = q^T exp((t - s) L) k with L skew-symmetric, a rotation in planes that need not be pairs of channels.

    Several orthogonal planes are RoPE in another basis, L = Q (-freq J (+) .. (+) 0) Q^T with Q orthogonal: Q = (I - S)(I + S)^-1 by
    the Cayley map of a skew-symmetric S, the identity at S = 0, where this is :func:`rope` with interleaved pairs. A single plane is
    the rank-2 generator L = freq (a b^T - b a^T), and exp(tL) the Rodrigues formula.

    Args:
        planes: how many planes turn; head_dim / 2 if left out. The rest of the head stays.
        theta, freq: as in :func:`rope`, for these planes: freq_i = theta^(-i/planes).
        basis: the numbers above the diagonal of S, row by row: (n,) or (heads, n) with n = head_dim (head_dim - 1) / 2; 0 if left out.
        a, b: for planes=1, (head_dim,) or (heads, head_dim); the first two channels if left out.
        learn: any of "freq" (on a log scale) and "basis" (S, or a and b), per key head.
    Units: radians per unit of the clock, times the area of a and b.
    Raises: ShapeError where the planes do not fit; ConfigError where a and b meet several planes, or are parallel.
    Stability: a rotation keeps norms at any time; float32 input is turned into the basis in float32.
        Frequencies get gradients proportional to time: the authors learn them some 16 times slower than the weights.
    Source: Zhang et al. (GRAPE), 2512.07805, section 3; the authors turn by minus freq, the same encoding for freq < 0.

    >>> print(grape_m(8, planes=3, learn="basis"), grape_m(8, planes=3).form)
    grape_m(head_dim=8, heads=1, planes=3, learn=('basis',)) 3R + 2Z
    """
    count = even(head_dim, "head_dim") if planes is None else planes
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= head_dim // 2:
        raise ShapeError(f"got planes={planes!r} for head_dim={head_dim}; expected a whole number from 1 to {head_dim // 2}")
    chosen = read_learn(learn, ("freq", "basis"))
    rows = (kv_heads or heads, heads)
    one = planes == 1
    if one and basis is not None:
        raise ConfigError("got basis with planes=1; expected a and b, the two vectors of the plane")
    if not one and (a is not None or b is not None):
        raise ConfigError(f"got a or b with {count} planes; expected them with planes=1 (basis gives the directions of several planes)")
    parameters = {"freq": Parameter(read_frequencies(theta, freq, count, rows, "freq" in chosen), "freq" in chosen)}
    learned = "basis" in chosen
    if one:
        for name, value, axis in (("a", a, 0), ("b", b, 1)):
            start = exact([float(c == axis) for c in range(head_dim)]) if value is None else as_numbers(value, name)
            parameters[name] = Parameter(fit_rows(start, head_dim, rows, name, learned), learned, "real")
    elif learned or basis is not None:
        n = head_dim * (head_dim - 1) // 2
        start = exact([0.0] * n) if basis is None else as_numbers(basis, "basis")
        parameters["basis"] = Parameter(
            fit_rows(start.reshape(1) if start.ndim == 0 else start, n, rows, "basis", learned), learned, "real"
        )
    options: dict[str, Any] = {
        "planes": planes,
        "theta": theta,
        "freq": freq,
        "basis": basis,
        "a": a,
        "b": b,
        "learn": list(chosen) or None,
    }
    recipe = Recipe("grape_m", head_dim, heads, kv_heads, clock, options, parameters, _content)
    recipe.generator()  # refuses parallel vectors here
    return recipe


def _content(values: Values, recipe: Recipe) -> Generator:
    freq = values["freq"]
    if "a" in values:
        return Plane(values["a"] * freq, values["b"])
    rotation = Rotation(freq)
    rest = recipe.head_dim - rotation.dim
    turning = DirectSum((rotation, Zero(rest))) if rest else rotation
    return Conjugate(turning, cayley(values["basis"])) if "basis" in values else turning
