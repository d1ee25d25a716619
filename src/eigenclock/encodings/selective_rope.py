"""Selective RoPE: rotations whose speed and sense are chosen by each token."""

from eigenclock.clocks import Clock, Cumulative
from eigenclock.encodings.base import Encoding
from eigenclock.encodings.learned import features_of, on_pairs
from eigenclock.schedules import geometric


def selective_rope(
    head_dim: int,
    *,
    heads: int,
    kv_heads: int | None = None,
    features: int | None = None,
    theta: float = 500000.0,
    pairing: str = "interleaved",
    clock: Clock | None = None,
) -> Encoding:
    """Selective RoPE: score = q^T R(freq (tau_s - tau_t)) k, tau = sum of x W, of either sign, one clock per head and pair.

    freq_i = theta^(-2i/d) is the temperature of pair i. The paper also puts a short convolution and a norm before the projection: give
    ``x=`` what they return. Calls need ``x=``.

    Args:
        features: the width of x, head_dim * heads by default.
        theta: the base of the temperatures.
        clock: a Cumulative clock in place of its own.
    Units: radians per unit of gated time.
    Raises: ShapeError where head_dim is odd; ConfigError where the clock is not a learned one.
    Source: Selective RoPE, 2511.17388.

    >>> selective_rope(64, heads=8).form
    JordanForm('32R')
    """
    usual = Cumulative(features_of(features, head_dim, heads), per="block", gate="signed")
    options = {"features": features, "theta": None if theta == 500000.0 else theta}
    return on_pairs("selective_rope", head_dim, heads, kv_heads, geometric(theta)(head_dim // 2).values, pairing, options, clock, usual)
