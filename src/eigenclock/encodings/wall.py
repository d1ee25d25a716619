"""Wall attention: a forget gate for every channel of the inner product, inside softmax."""

from eigenclock.clocks import Clock, Cumulative
from eigenclock.encodings.base import Encoding
from eigenclock.encodings.learned import features_of, on_channels


def wall(head_dim: int, *, heads: int, kv_heads: int | None = None, features: int | None = None, clock: Clock | None = None) -> Encoding:
    """Wall attention: logit = sum over channels c of q_c k_c exp(tau_sc - tau_tc) / sqrt(d), tau = -sum log sigmoid(x W + 8).

    One clock per head and channel. It is a gain: content far back stops being told apart, it is not forgotten. Calls need ``x=``.

    Args:
        features: the width of x, head_dim * heads by default.
        clock: a Cumulative clock with per="block" in place of one with the gate "forget_late".
    Units: rates are 1 per unit of gated time.
    Raises: ConfigError where the clock is not a learned one.
    Source: Wall attention (Tilde Research, 2026), after Yang et al. (GLA), 2312.06635.

    >>> wall(64, heads=8).form
    JordanForm('64D')
    """
    usual = Cumulative(features_of(features, head_dim, heads), per="block", gate="forget_late")
    return on_channels("wall", head_dim, heads, kv_heads, {"features": features}, clock, usual)
