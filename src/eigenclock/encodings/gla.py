"""GLA: a forget gate for every key channel, through a projection of low rank."""

from eigenclock.clocks import Clock, Cumulative
from eigenclock.encodings.base import Encoding
from eigenclock.encodings.learned import features_of, on_channels


def gla(
    head_dim: int, *, heads: int, kv_heads: int | None = None, features: int | None = None, rank: int = 16, clock: Clock | None = None
) -> Encoding:
    """Gated linear attention: score = sum over channels c of q_c k_c exp(tau_sc - tau_tc), tau = -sum log sigmoid(x W1 W2 + b) / 16.

    Made for linear attention, where it is recency; in softmax it is a gain (see :func:`wall`). Calls need ``x=``.

    Args:
        features: the width of x, head_dim * heads by default.
        rank: of the projection.
        clock: a Cumulative clock with per="block" in place of one with the gate "forget16".
    Units: rates are 1 per unit of gated time.
    Raises: ConfigError where the clock is not a learned one.
    Source: Yang et al. (GLA), 2312.06635, eq. 4 and section 4.4.

    >>> print(gla(64, heads=8, rank=8))
    gla(head_dim=64, heads=8, rank=8)
    """
    usual = Cumulative(features_of(features, head_dim, heads), per="block", gate="forget16", rank=rank)
    options = {"features": features, "rank": None if rank == 16 else rank}
    return on_channels("gla", head_dim, heads, kv_heads, options, clock, usual)
