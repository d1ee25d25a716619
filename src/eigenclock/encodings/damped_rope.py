"""Damped RoPE: each pair of channels turns and shrinks with time."""

from typing import Any

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.parameter import Parameter
from eigenclock.encodings.rates import Numbers, even, fit_rows, given_as, read_learn, read_rates
from eigenclock.encodings.rope import read_spectrum
from eigenclock.encodings.rotary import Rotary
from eigenclock.schedules import retnet_rates
from eigenclock.theory import DampedRotation, Generator, Rotation


def damped_rope(
    head_dim: int,
    *,
    heads: int = 1,
    kv_heads: int | None = None,
    theta: Numbers = None,
    freq: Numbers = None,
    rate: Numbers = None,
    half_life: Numbers = None,
    pairing: str = "interleaved",
    learn: str | tuple[str, ...] = (),
    clock: Clock | None = None,
) -> Encoding:
    """RoPE times decay: score = q^T exp(-rate (t - s)) R(freq (s - t)) k on each pair of channels (a gain on the inner product).

    In softmax the *logit* decays to 0, which is neutral; for recency multiply by :func:`alibi` or :func:`decay_bias`.

    Args:
        theta, freq: as in :func:`rope`, with the amplitude of a schedule.
        rate, half_life: one number, (pairs,) or (heads, pairs); half_life=(lo, hi) spreads over the pairs, the fastest pair first.
            Left out, the rates of RetNet: -ln(1 - 2^(-5-h)) in head h. A schedule such as ``xpos_rates()`` gives one rate per pair.
        learn: any of "freq", "rate", trained on a log scale, per head and pair (out of weight decay: :class:`Parameter`).
    Units: rate and radians per unit of the clock.
    Raises: GrowthError where a rate is negative; ShapeError where head_dim is odd.
    Stability: exponents are taken around a reference time between key and query and never grow with the length.
    Source: Sun et al. (RetNet), 2307.08621; Sun et al. (xPos), 2212.10554.

    >>> damped_rope(64, heads=8, half_life=(16, 4096)).form
    JordanForm('32S')
    """
    pairs = even(head_dim, "head_dim")
    chosen = read_learn(learn, ("freq", "rate"))
    rows = (kv_heads or heads, heads)
    spectrum = read_spectrum(theta, freq, pairs, rows, "freq" in chosen)
    rates = read_rates(rate, half_life, pairs, clock)
    if rates is None:
        rates = retnet_rates()(rows[0]).values[:, None].expand(-1, pairs)
    rates = fit_rows(rates, pairs, rows, given_as(half_life), "rate" in chosen)
    Rotation(spectrum.values, pairing)  # refuses an unknown pairing here
    options: dict[str, Any] = {"theta": theta, "freq": freq, "rate": rate, "half_life": half_life, "learn": list(chosen) or None}
    if pairing != "interleaved":
        options["pairing"] = pairing
    parameters = {"freq": Parameter(spectrum.values, "freq" in chosen), "rate": Parameter(rates, "rate" in chosen)}
    sizes = ("damped_rope", head_dim, heads, kv_heads, clock)
    return Rotary(*sizes, options, parameters, damped_pairs, amplitude=spectrum.attention_scale, turned=head_dim)


def damped_pairs(values: Values, recipe: Recipe) -> Generator:
    """L from the rates and frequencies of a recipe."""
    return DampedRotation(values["rate"], values["freq"], str(recipe.options.get("pairing", "interleaved")))
