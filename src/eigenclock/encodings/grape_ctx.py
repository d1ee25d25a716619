"""GRAPE-M-ctx: the whole spectrum of RoPE on one learned clock."""

from eigenclock.clocks import Clock, Cumulative
from eigenclock.encodings.base import Encoding
from eigenclock.encodings.learned import features_of, on_pairs
from eigenclock.schedules import geometric


def grape_ctx(
    head_dim: int,
    *,
    heads: int = 1,
    kv_heads: int | None = None,
    features: int | None = None,
    theta: float = 10000.0,
    pairing: str = "interleaved",
    clock: Clock | None = None,
) -> Encoding:
    """GRAPE-M-ctx: score = q^T R(freq (tau_s - tau_t)) k with freq_i = theta^(-2i/d), tau = sum softplus(x w + b), one clock for all heads.

    Calls need ``x=``.

    Args:
        features: the width of x, head_dim * heads by default.
        theta: the base of the frequencies.
        clock: a Cumulative clock in place of its own.
    Units: radians per unit of gated time.
    Raises: ShapeError where head_dim is odd; ConfigError where the clock is not a learned one.
    Source: GRAPE, 2512.07805, section 4.

    >>> grape_ctx(64, heads=8).form
    JordanForm('32R')
    """
    usual = Cumulative(features_of(features, head_dim, heads), per="all")
    options = {"features": features, "theta": None if theta == 10000.0 else theta}
    return on_pairs("grape_ctx", head_dim, heads, kv_heads, geometric(theta)(head_dim // 2).values, pairing, options, clock, usual)
