"""Mamba-3: a decay and rotations on clocks of their own, and inputs integrated by the trapezoidal rule."""

import numpy as np
from torch import Tensor

from eigenclock.clocks import Clock, Selective
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.learned import features_of
from eigenclock.encodings.parameter import Parameter
from eigenclock.encodings.rates import even
from eigenclock.encodings.weights import Weights
from eigenclock.errors import ConfigError
from eigenclock.theory import Decay, DirectSum, Generator, OnClock, Product, Rotation, Zero
from eigenclock.theory.numbers import exact


def mamba3(
    head_dim: int,
    *,
    heads: int,
    kv_heads: int | None = None,
    features: int | None = None,
    rope_fraction: float = 0.5,
    pairing: str = "interleaved",
    clock: Clock | None = None,
) -> Encoding:
    """Mamba-3: h_t = e^(-D_t a_t) R(D_t theta_t) (h_(t-1) + (1 - l_t) D_t k_(t-1) v_(t-1)) + l_t D_t k_t v_t, read by q_t.

    As a sum over keys, with alpha = sum D a and phi = sum D theta: q_t^T e^(alpha_s - alpha_t) R(phi_t - phi_s) k_s v_s, times l_t D_t for
    the current token and l_s D_s + (1 - l_(s+1)) D_(s+1) for those before it. A damped rotation on a learned step D per head, its rate a
    and its speeds theta chosen by each token (:class:`eigenclock.Selective`), inputs integrated by the trapezoidal rule.

    The paper has q = C, k = B, v = x and no scale: give ``scale=1.0``. Its RMSNorm on B and C and their biases belong to the model, before
    this call. Both sides turn by -phi, as in the paper; its released code turns by +phi: negate the weights of the speeds to load them.
    For linear attention only: softmax has no weights of tokens. Calls need ``x=``.

    Args:
        features: the width of x, head_dim * heads by default.
        rope_fraction: the share of the channels that turns, the first ones: 0.5 or 1 in the paper.
        pairing: "interleaved" as in the single-input form of the paper, "half" as in the one with several inputs.
        clock: a Selective clock in place of its own.
    Units: rates and speeds are per unit of learned time.
    Raises: ShapeError where the turning width is odd; ConfigError where the share turns nothing or the clock is of another kind.
    Stability: as :func:`linear_attention`; the local term q_t . k_t v_t is added in the dtype of the sums.
    Source: Lahoti et al. (Mamba-3), 2603.15569, the exponential-trapezoidal step and propositions 2 to 4.

    >>> mamba3(64, heads=8).form, mamba3(64, heads=8, rope_fraction=1.0).form
    (JordanForm('32D + 16S'), JordanForm('32S'))
    """
    width = round(head_dim * rope_fraction)
    if not 0 < width <= head_dim:
        raise ConfigError(f"got rope_fraction={rope_fraction!r}; expected a share of the {head_dim} channels above 0 and at most 1")
    pairs = even(width, f"{rope_fraction} * head_dim")
    if clock is not None and not isinstance(clock, Selective):
        raise ConfigError(f"got clock={clock!r} for mamba3; expected a Selective clock, such as Selective(features)")
    usual = Selective(features_of(features, head_dim, heads))
    options = {
        "features": features,
        "rope_fraction": None if rope_fraction == 0.5 else rope_fraction,
        "pairing": None if pairing == "interleaved" else pairing,
    }
    freq = exact(np.full(pairs, -1.0))  # h = R(+phi) h: both sides turn by -phi
    Rotation(freq, pairing)  # refuses an unknown pairing here
    values = {"rate": Parameter(exact(np.ones(1))), "freq": Parameter(freq)}
    return Recipe(
        "mamba3", head_dim, heads, kv_heads, clock, options, values, _content, usual_clock=usual, weigh=_trapezoid,
        weighs="both ends of each step by the trapezoidal rule",
    )  # fmt: skip


def _content(values: Values, recipe: Recipe) -> Generator:
    """The decay on the second time of the clock, the pairs on those from the third on; the first one is time itself."""
    pairs = values["freq"].shape[-1]
    turning: Generator = OnClock(Rotation(values["freq"], str(recipe.options.get("pairing", "interleaved"))), 2, pairs)
    if 2 * pairs < recipe.head_dim:
        turning = DirectSum((turning, Zero(recipe.head_dim - 2 * pairs)))
    return Product(turning, OnClock(Decay(values["rate"], recipe.head_dim), 1, 1))


def _trapezoid(values: Values, recipe: Recipe, x: Tensor, steps: Tensor) -> Weights:
    """The generalised trapezoidal rule: a step's input is that of its end with the share l, that of its start with 1 - l."""
    assert isinstance(recipe.clock, Selective)
    step, share = steps[..., 0], recipe.clock.share(x)
    own = share * step
    return Weights(own[..., None], later=own, ahead=step - own)
