"""CARoPE: rotations whose angles are powers of one number read from each token."""

import numpy as np

from eigenclock.clocks import Clock, Cumulative
from eigenclock.encodings.base import Encoding
from eigenclock.encodings.learned import features_of, on_pairs
from eigenclock.theory.numbers import exact


def carope(
    head_dim: int,
    *,
    heads: int,
    kv_heads: int | None = None,
    features: int | None = None,
    pairing: str = "interleaved",
    clock: Clock | None = None,
) -> Encoding:
    """CARoPE: score = q^T R(tau_s - tau_t) k, pair i (from 1) on tau = sum of f^i, f = 1 / (1 + softplus(x w)), per head.

    Calls need ``x=``.

    Args:
        features: the width of x, head_dim * heads by default.
        clock: a Cumulative clock in place of its own.
    Units: radians per unit of gated time.
    Raises: ShapeError where head_dim is odd; ConfigError where the clock is not a learned one.
    Source: CARoPE, 2507.23083.

    >>> carope(64, heads=8).form
    JordanForm('32R')
    """
    usual = Cumulative(features_of(features, head_dim, heads), per="block", gate="reciprocal", powers=True)
    options = {"features": features}
    return on_pairs("carope", head_dim, heads, kv_heads, exact(np.ones(head_dim // 2)), pairing, options, clock, usual)
