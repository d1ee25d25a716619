"""HGRN2: a forget gate with a lower bound for every key channel; the key is what the gate lets go."""

from jaxtyping import Float
from torch import Tensor

from eigenclock.clocks import Clock, Cumulative
from eigenclock.encodings.base import Encoding
from eigenclock.encodings.learned import features_of, on_channels
from eigenclock.errors import ConfigError


def hgrn2(
    head_dim: int,
    *,
    heads: int,
    kv_heads: int | None = None,
    features: int | None = None,
    lower_bound: float = 0.0,
    clock: Clock | None = None,
) -> Encoding:
    """HGRN2's gate: score = sum over channels c of q_c k_c exp(tau_sc - tau_tc), tau = -sum log f, f = lb + (1 - lb) sigmoid(x W + b).

    Keys are tied to the gate, k = 1 - f, and come from the clock:

        k = -torch.expm1(-enc.clock.increments(x))      # 1 - f, (B, G, T, head_dim)
        out, state = ec.linear_attention(q, k, v, enc, x=x, scale=1.0)

    Made for linear attention, where it is recency; in softmax it is a gain (see :func:`wall`). Calls need ``x=``.

    Args:
        features: the width of x, head_dim * heads by default.
        lower_bound: the smallest f, from 0 to below 1, rising with depth: :func:`hgrn2_bounds`. It is fixed here.
        clock: a Cumulative clock with per="block" in place of one with the gate "forget".
    Units: rates are 1 per unit of gated time.
    Raises: ConfigError where the clock is not a learned one, or the bound is out of range or given beside a clock.
    Stability: -log f is taken of f's own fraction and is finite for every x.
    Source: Qin et al. (HGRN2), 2404.07904; the bounds are those of Qin et al. (HGRN), 2311.04823.

    >>> print(hgrn2(64, heads=8, lower_bound=0.5))
    hgrn2(head_dim=64, heads=8, lower_bound=0.5)
    """
    if clock is not None and lower_bound:
        raise ConfigError(f"got lower_bound={lower_bound:g} beside a clock; expected it in the clock, Cumulative(.., lower_bound=..)")
    usual = Cumulative(features_of(features, head_dim, heads), per="block", gate="forget", lower_bound=lower_bound)
    options = {"features": features, "lower_bound": lower_bound or None}
    return on_channels("hgrn2", head_dim, heads, kv_heads, options, clock, usual)


def hgrn2_bounds(logits: Float[Tensor, "layers *channels"]) -> Float[Tensor, "layers *channels"]:
    """The lower bound of each layer's gate: the running sum of softmax(logits) over the layers, less its first term.

    The first layer has 0, and bounds rise with depth. Logits of 0, with which training starts, give layer/layers.

    Source: Qin et al. (HGRN), 2311.04823.

    >>> import torch
    >>> hgrn2_bounds(torch.zeros(4))
    tensor([0.0000, 0.2500, 0.5000, 0.7500])
    """
    shares = logits.softmax(0)
    return shares.cumsum(0) - shares[:1]
