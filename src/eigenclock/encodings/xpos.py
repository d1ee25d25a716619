"""xPos: RoPE whose pairs also decay, each at its own rate."""

from typing import Any

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe
from eigenclock.encodings.damped_rope import damped_pairs
from eigenclock.encodings.parameter import Parameter
from eigenclock.encodings.rates import Numbers, even, fit_rows, read_learn
from eigenclock.encodings.rope import read_frequencies
from eigenclock.schedules import xpos_rates
from eigenclock.theory import Rotation


def xpos(
    head_dim: int,
    *,
    heads: int = 1,
    kv_heads: int | None = None,
    theta: Numbers = None,
    scale_base: float | None = None,
    pairing: str = "interleaved",
    learn: str | tuple[str, ...] = (),
    clock: Clock | None = None,
) -> Encoding:
    """Extrapolatable rotary: score = sum_i zeta_i^((t - s)/scale_base) q_i^T R(freq_i (s - t)) k_i over pairs of channels (a gain).

    zeta_i = (2i/d + 0.4)/1.4. It is :func:`damped_rope` with these rates. Scaling queries by zeta^(t/b) and keys by zeta^(-s/b)
    overflows (float16 after some 4500 positions), and centring both on the current length does not survive a cache of keys; here only
    lags are exponentiated. In softmax far *logits* go to 0, which is neutral.

    Args:
        theta: the base (10000), or one per head.
        scale_base: units of the clock per power of zeta (512).
        pairing: "interleaved" (2i, 2i + 1), as the authors' code, or "half" (i, i + n).
        learn: any of "freq", "rate", trained on a log scale, per head and pair (out of weight decay: :class:`Parameter`).
    Units: rate and radians per unit of the clock.
    Raises: ShapeError where head_dim is odd; ConfigError where scale_base is not above 0.
    Source: Sun et al. (xPos), 2212.10554.

    >>> print(xpos(64, scale_base=256))
    xpos(head_dim=64, heads=1, scale_base=256)
    """
    pairs = even(head_dim, "head_dim")
    chosen = read_learn(learn, ("freq", "rate"))
    rows = (kv_heads or heads, heads)
    frequencies = read_frequencies(theta, None, pairs, rows, "freq" in chosen)
    schedule = xpos_rates() if scale_base is None else xpos_rates(scale_base)
    rates = fit_rows(schedule(pairs).values, pairs, rows, "rate", "rate" in chosen)
    Rotation(frequencies, pairing)  # refuses an unknown pairing here
    options: dict[str, Any] = {"theta": theta, "scale_base": scale_base, "learn": list(chosen) or None}
    if pairing != "interleaved":
        options["pairing"] = pairing
    parameters = {"freq": Parameter(frequencies, "freq" in chosen), "rate": Parameter(rates, "rate" in chosen)}
    return Recipe("xpos", head_dim, heads, kv_heads, clock, options, parameters, damped_pairs)
