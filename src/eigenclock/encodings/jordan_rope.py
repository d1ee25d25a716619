"""Jordan-RoPE: rotary blocks of order m, whose pairs also feed one another in proportion to time."""

from typing import Any, cast

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.parameter import Parameter, as_numbers
from eigenclock.encodings.rates import Numbers, fit_rows, given_as, read_learn, read_rates
from eigenclock.encodings.rope import read_frequencies
from eigenclock.errors import ConfigError, ShapeError
from eigenclock.theory import Generator, Jordan
from eigenclock.theory.numbers import exact

RAW_RATE, RAW_ETA = 1e-4, 0.1  # where the paper's raw rates start, and the bound of its learned shear


def jordan_rope(
    head_dim: int,
    *,
    heads: int = 1,
    kv_heads: int | None = None,
    order: int = 2,
    length: float | None = None,
    c: Numbers = None,
    eta: Numbers = None,
    rate: Numbers = None,
    half_life: Numbers = None,
    theta: Numbers = None,
    freq: Numbers = None,
    pairing: str = "interleaved",
    learn: str | tuple[str, ...] = (),
    clock: Clock | None = None,
) -> Encoding:
    """Jordan-RoPE: score = q^T e^(-rate u) R(-freq u) sum_{r<m} (eta u)^r / r! N^r k, u = t - s, on blocks of 2m channels (a gain).

    A block is the order-m Jordan block of -rate +- i freq, so scores hold u^r e^(-rate u) cos and sin for every r < m. Two regimes:

        raw      rate and eta as given, per unit of the clock (the default)
        scaled   rate = c / length and superdiagonal eta / length, with ``length`` the training length: the same growth at every length

    freq_k = theta^(-2k/d) for k < d/(2m): the upper 1/m of RoPE's spectrum, as published (``freq=geometric()`` spreads the whole of it).
    Channels are m levels of equal width, level by level, each cut into pairs; the authors' code puts the levels of a block side by side
    and turns the other way: the same encoding up to a fixed permutation and sign of channels.

    Args:
        order: m, at least 1 (1 is damped RoPE on that spectrum).
        length, c: the scaled regime; c is 1 if left out.
        eta: the superdiagonal, one number, (blocks,) or (heads, blocks): 0.1 raw, 1 scaled. Its size is a matter of basis (q and k can
            absorb it), its sign too.
        rate, half_life: the raw regime, one number, (blocks,) or (heads, blocks); 1e-4 if left out.
        learn: any of "freq", "rate" (trained on a log scale) and "eta" (as it is, so that it may start at 0).
    Units: rate, eta and radians per unit of the clock; c and, where length is given, eta per length.
    Raises: ShapeError where head_dim is no multiple of 2m; ConfigError where the regimes are mixed; GrowthError for a negative rate.
    Stability: entries of exp(uL) grow like u^(m-1) where nothing damps them. Worst logit error of the largest tile at 16 384 tokens, 16
        blocks, q and k of size 1, in float32 and (in brackets) with its operands cast to bfloat16:

            eta 1, rate 0              order 2: 1e-2 (1e2) of logits to 5e4    order 3: 9e1 (5e5) of logits to 3e8
            eta 1, rate 1e-3           order 2: 5e-4 (3) of logits to 1e3      order 3: 0.5 (2e3) of logits to 8e5
            eta 1, rate 1e-2           order 2: 3e-5 (0.3) of logits to 1e2    order 3: 4e-3 (17) of logits to 8e3
            raw defaults               order 2: 5e-4 (4) of logits to 1e3      order 3: 0.3 (1e3) of logits to 6e5
            length=16384 or 1024, c 1  order 2 and 3: 2e-6 (1e-2) of logits to 5

        Fast paths warn in float32, and refuse 16 bits, where a rounding step times the largest entry exceeds 1e-2.
        The stabilised variant of the paper (the shear takes p/(1 + |p|/L) of the *absolute* position p) and its jet mixes (free
        coefficients on the powers of N) are no functions of the lag, or no group: they are outside and not offered.
    Source: Zhang (Jordan-RoPE), 2605.04217.

    >>> print(jordan_rope(64, length=1024, c=0.5), jordan_rope(64, order=4).form)
    jordan_rope(head_dim=64, heads=1, length=1024, c=0.5) 8S4
    """
    if isinstance(order, bool) or not isinstance(order, int) or order < 1:
        raise ConfigError(f"got order={order!r} for a Jordan block; expected a whole number of at least 1")
    if head_dim % (2 * order):
        raise ShapeError(
            f"got head_dim={head_dim} for Jordan blocks of order {order}; expected a multiple of {2 * order}, the width of a block"
        )
    blocks = head_dim // (2 * order)
    chosen = read_learn(learn, ("freq", "rate", "eta"))
    rows = (kv_heads or heads, heads)
    if theta is not None and freq is not None:
        raise ConfigError("got both theta and freq; expected one of them")
    frequencies = read_frequencies(theta, freq, blocks if freq is not None else head_dim // 2, rows, "freq" in chosen)[..., :blocks]
    rates, shears = _read_regime(length, c, eta, rate, half_life, blocks, clock)
    rates = fit_rows(rates, blocks, rows, given_as(half_life) if length is None else "c", "rate" in chosen)
    shears = fit_rows(shears, blocks, rows, "eta", "eta" in chosen)
    options: dict[str, Any] = {"order": order if order != 2 else None, "length": length, "c": c, "eta": eta, "rate": rate}
    options |= {"half_life": half_life, "theta": theta, "freq": freq, "learn": list(chosen) or None}
    if pairing != "interleaved":
        options["pairing"] = pairing
    Jordan(rates, order, frequencies, shears, pairing)  # refuses an unknown pairing here
    parameters = {
        "freq": Parameter(frequencies, "freq" in chosen),
        "rate": Parameter(rates, "rate" in chosen),
        "eta": Parameter(shears, "eta" in chosen, "real"),
    }
    return Recipe("jordan_rope", head_dim, heads, kv_heads, clock, options, parameters, _content)


def _read_regime(
    length: float | None, c: Numbers, eta: Numbers, rate: Numbers, half_life: Numbers, blocks: int, clock: Clock | None
) -> tuple[Any, Any]:
    """Rates and superdiagonals per unit of the clock."""
    if length is None:
        if c is not None:
            raise ConfigError("got c without length; expected length=, the training length: the scaled regime has rate = c / length")
        rates = read_rates(rate, half_life, blocks, clock)
        return exact([RAW_RATE]) if rates is None else rates, _row(RAW_ETA if eta is None else eta, "eta")
    if rate is not None or half_life is not None:
        raise ConfigError("got length together with rate or half_life; expected c (rate = c / length), or the raw regime without length")
    if not length > 0:
        raise ConfigError(f"got length={length}; expected the training length, above 0")
    scaled = read_rates(1.0 if c is None else c, None, blocks, clock, "c")
    return scaled / length, _row(1.0 if eta is None else eta, "eta") / length  # type: ignore[operator]


def _row(value: Numbers, what: str) -> Any:
    numbers = as_numbers(value, what)
    return numbers.reshape(1) if numbers.ndim == 0 else numbers


def _content(values: Values, recipe: Recipe) -> Generator:
    pairing = str(recipe.options.get("pairing", "interleaved"))
    return Jordan(values["rate"], cast(int, recipe.options.get("order", 2)), values["freq"], values["eta"], pairing)
