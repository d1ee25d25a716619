"""RoPE: each pair of channels turns with time."""

from dataclasses import replace
from typing import Any, cast

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.parameter import Parameter, as_numbers
from eigenclock.encodings.rates import Numbers, even, fit_rows, read_learn, scheduled
from eigenclock.encodings.rotary import Rotary
from eigenclock.errors import ConfigError, ShapeError
from eigenclock.schedules import Schedule, Spectrum, geometric
from eigenclock.theory import DirectSum, Generator, Rotation, Zero


def rope(
    head_dim: int,
    *,
    heads: int = 1,
    kv_heads: int | None = None,
    theta: Numbers = None,
    freq: Numbers = None,
    rotary_dim: int | None = None,
    pairing: str = "interleaved",
    learn: str | tuple[str, ...] = (),
    clock: Clock | None = None,
) -> Encoding:
    """Rotary position embedding: score = q^T R(freq (s - t)) k on each pair of channels, so both sides turn by plus freq times time.

    freq_i = theta^(-2i/rotary_dim). The first ``rotary_dim`` channels turn, the rest are left alone (partial rotary).

    Args:
        theta: the base (10000), or one per head.
        freq: explicit frequencies (pairs,) or (heads, pairs), or a schedule, in place of theta. The amplitude of a schedule (YaRN,
            LongRoPE) multiplies the channels that turn, of queries and of keys.
        pairing: "interleaved" (2i, 2i + 1) as in the paper, or "half" (i, i + n) as in GPT-NeoX and Hugging Face.
        learn: "freq" to train the frequencies (on a log scale; out of weight decay, and slower than weights: :class:`Parameter`).
    Units: radians per unit of the clock.
    Raises: ShapeError where the rotary width is odd; ConfigError where theta and freq are both given.
    Source: Su et al. (RoFormer), 2104.09864.

    >>> print(rope(64, theta=500000))
    rope(head_dim=64, heads=1, theta=500000)
    >>> rope(64, rotary_dim=16).form
    JordanForm('8R + 48Z')
    >>> from eigenclock.schedules import proportional, yarn
    >>> rope(128, freq=yarn(4.0, original_length=32768, theta=1e6))  # doctest: +ELLIPSIS
    rope(head_dim=128, ...)  # 64R, acts on score, amplitude 1.13863 on q and k
    >>> print(rope(64, freq=proportional(0.25)))  # p-RoPE: the 8 highest of all 32 frequencies, which rotary_dim=16 would not give
    rope(head_dim=64, heads=1, freq=proportional(share=0.25, theta=10000.0))
    """
    width = head_dim if rotary_dim is None else rotary_dim
    pairs = even(width, "head_dim" if rotary_dim is None else "rotary_dim")
    if width > head_dim:
        raise ShapeError(f"got rotary_dim={width} for head_dim={head_dim}; expected at most the head")
    chosen = read_learn(learn, ("freq",))
    rows = (kv_heads or heads, heads)
    spectrum = read_spectrum(theta, freq, pairs, rows, "freq" in chosen)
    options: dict[str, Any] = {"theta": theta, "freq": freq, "rotary_dim": rotary_dim, "learn": list(chosen) or None}
    if pairing != "interleaved":
        options["pairing"] = pairing
    Rotation(spectrum.values, pairing)  # refuses an unknown pairing here
    parameters = {"freq": Parameter(spectrum.values, "freq" in chosen)}
    amplitude = spectrum.attention_scale
    return Rotary("rope", head_dim, heads, kv_heads, clock, options, parameters, _content, amplitude=amplitude, turned=width)


def read_frequencies(theta: Numbers, freq: Numbers, pairs: int, rows: tuple[int, ...], expand: bool) -> Any:
    """Frequencies from a base, explicit numbers or a schedule, (pairs,) or (heads, pairs), for an encoding that has no amplitude.

    Raises: ConfigError where the schedule asks for one.
    """
    if callable(freq):
        scheduled(freq, pairs, "freq")
    return read_spectrum(theta, freq, pairs, rows, expand).values


def read_spectrum(theta: Numbers, freq: Numbers, pairs: int, rows: tuple[int, ...], expand: bool) -> Spectrum:
    """Frequencies from a base, explicit numbers or a schedule, (pairs,) or (heads, pairs), with the amplitude of the schedule."""
    if theta is not None and freq is not None:
        raise ConfigError("got both theta and freq; expected one of them (freq_i = theta^(-i/pairs))")
    if callable(freq):
        spectrum = cast(Schedule, freq)(pairs)
        return replace(spectrum, values=fit_rows(spectrum.values, pairs, rows, "freq", expand))
    if freq is not None:
        numbers = as_numbers(freq, "freq")
        return Spectrum(fit_rows(numbers.reshape(1) if numbers.ndim == 0 else numbers, pairs, rows, "freq", expand))
    base = as_numbers(10000.0 if theta is None else theta, "theta")
    if base.ndim == 1 and base.numel() not in rows:
        raise ShapeError(f"got {base.numel()} values of theta; expected one, or one per head ({rows[0]})")
    chosen = geometric(float(base)) if base.ndim == 0 else geometric(tuple(base.flatten().tolist()))
    return Spectrum(fit_rows(chosen(pairs).values, pairs, rows, "theta", expand))


def _content(values: Values, recipe: Recipe) -> Generator:
    rotation = Rotation(values["freq"], str(recipe.options.get("pairing", "interleaved")))
    rest = recipe.head_dim - rotation.dim
    return DirectSum((rotation, Zero(rest))) if rest else rotation
