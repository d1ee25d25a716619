"""STRING: rotations over several axes in a learned orthogonal basis, the general answer for commuting skew generators."""

from typing import Any

from eigenclock.clocks import Axes, Clock
from eigenclock.encodings.axial_rope import axial_frequencies
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.mixed_rope import axes_clock
from eigenclock.encodings.parameter import Parameter, as_numbers
from eigenclock.encodings.rates import Numbers, fit_rows, read_learn
from eigenclock.theory import AxesRotation, Conjugate, Generator, cayley
from eigenclock.theory.numbers import exact


def string(
    head_dim: int,
    *,
    heads: int = 1,
    kv_heads: int | None = None,
    theta: float = 100.0,
    basis: Numbers = None,
    learn: str | tuple[str, ...] = ("freq", "basis"),
    clock: Clock | None = None,
) -> Encoding:
    """Cayley-STRING: score = q^T exp(sum_a (t_a - s_a) L_a) k with L_a = Q (-freq_a J (+) ..) Q^T, one orthogonal Q for all axes.

    Q = (I - S)(I + S)^-1 for a skew-symmetric S, the identity at S = 0, where this is :func:`axial_rope`. Times have a last axis.

    Args:
        theta: the base of the start frequencies, those of :func:`axial_rope`.
        basis: the numbers above the diagonal of S, row by row: (n,) or (heads, n) with n = head_dim (head_dim - 1) / 2; 0 if left out.
        learn: any of "freq" and "basis" (both by default).
        clock: the axes, by default ``Axes(("height", "width"))``.
    Units: radians per unit of each axis.
    Raises: ShapeError where the pairs cannot be shared equally; ConfigError where the clock has one axis.
    Source: Schenck et al. (STRING), 2502.02562, section 3.2.

    >>> string(8).form
    JordanForm('4R')
    """
    clock, chosen = axes_clock(clock, Axes()), read_learn(learn, ("freq", "basis"))
    n = head_dim * (head_dim - 1) // 2
    start = exact([0.0] * n) if basis is None else as_numbers(basis, "basis")
    upper = fit_rows(start, n, (kv_heads or heads, heads), "basis", "basis" in chosen)
    options: dict[str, Any] = {"theta": None if theta == 100.0 else theta, "basis": basis}
    options |= {} if chosen == ("freq", "basis") else {"learn": list(chosen)}
    parameters = {
        "freq": Parameter(axial_frequencies(head_dim, clock.width, theta), "freq" in chosen, "real"),
        "basis": Parameter(upper, "basis" in chosen, "real"),
    }
    return Recipe("string", head_dim, heads, kv_heads, clock, options, parameters, _content)


def _content(values: Values, recipe: Recipe) -> Generator:
    return Conjugate(AxesRotation(values["freq"]), cayley(values["basis"]))
