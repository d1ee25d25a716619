"""RetNet: damped RoPE with one rate per head and angles of its own."""

from typing import Any

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe
from eigenclock.encodings.damped_rope import damped_pairs
from eigenclock.encodings.parameter import Parameter
from eigenclock.encodings.rates import even, fit_rows, read_learn
from eigenclock.encodings.rope import read_frequencies
from eigenclock.schedules import retnet_angles, retnet_rates
from eigenclock.theory import Rotation


def retnet(
    head_dim: int,
    *,
    heads: int,
    kv_heads: int | None = None,
    theta: float | None = None,
    pairing: str = "interleaved",
    learn: str | tuple[str, ...] = (),
    clock: Clock | None = None,
) -> Encoding:
    """The retention of RetNet: score = gamma_h^(t - s) q^T R(freq (s - t)) k with gamma_h = 1 - 2^(-5-h) in head h = 0, 1, .. (a gain).

    freq_i = theta^(-i/(n-1)) over the n pairs, which is not RoPE's spectrum. Made for linear attention, where the gain is recency. In
    softmax a gain sends far *logits* to 0, which is neutral; its softmax twin, sum_s gamma^(t-s) e^(q.k) v over its sum, is ALiBi with
    slope -ln gamma: ``rope(64, freq=retnet_angles()) * decay_bias(64, heads=8, rate=retnet_rates())``. RetNet's own normalisers (rows
    divided by the root of their sum of decays, and by their absolute sum) depend on the length, are no part of the group and are left out;
    the norm that follows in the model cancels them.

    Args:
        theta: the base of the angles (10000).
        pairing: "interleaved" (2i, 2i + 1), as the authors' code, or "half" (i, i + n).
        learn: any of "freq", "rate", trained on a log scale, per head and pair (out of weight decay: :class:`Parameter`).
    Units: rate and radians per unit of the clock.
    Raises: ShapeError where head_dim is odd.
    Source: Sun et al. (RetNet), 2307.08621.

    >>> retnet(64, heads=8).form
    JordanForm('32S')
    """
    pairs = even(head_dim, "head_dim")
    chosen = read_learn(learn, ("freq", "rate"))
    rows = (kv_heads or heads, heads)
    angles = retnet_angles() if theta is None else retnet_angles(theta)
    frequencies = read_frequencies(None, angles, pairs, rows, "freq" in chosen)
    rates = fit_rows(retnet_rates()(rows[0]).values[:, None].expand(-1, pairs), pairs, rows, "rate", "rate" in chosen)
    Rotation(frequencies, pairing)  # refuses an unknown pairing here
    options: dict[str, Any] = {"theta": theta, "learn": list(chosen) or None}
    if pairing != "interleaved":
        options["pairing"] = pairing
    parameters = {"freq": Parameter(frequencies, "freq" in chosen), "rate": Parameter(rates, "rate" in chosen)}
    return Recipe("retnet", head_dim, heads, kv_heads, clock, options, parameters, damped_pairs)
