"""Sandwich: the inner product of sinusoids as a bias, rotations lifted on constants."""

from typing import Any

import torch

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.decay_bias import no_content
from eigenclock.encodings.parameter import Parameter, as_numbers
from eigenclock.encodings.rates import Numbers, even, fit_rows, read_learn
from eigenclock.errors import ConfigError
from eigenclock.schedules import geometric
from eigenclock.theory import Lift, Rotation
from eigenclock.theory.numbers import exact


def sandwich(
    head_dim: int,
    *,
    heads: int,
    kv_heads: int | None = None,
    width: int | None = None,
    theta: float | None = None,
    amplitude: Numbers = None,
    learn: str | tuple[str, ...] = (),
    clock: Clock | None = None,
) -> Encoding:
    """Sandwich: logit = q . k / sqrt(d) + amplitude_h sum_i cos(freq_i (t - s)), the overlap of two sinusoidal position vectors.

    freq_i = theta^(-2i/width) for i = 1 .. width/2, amplitude_h = heads/(8h) for head h = 1 .. heads, added after the scale. The bias is
    even in the lag, so it may be used in both directions. Softmax does not see the constant that some implementations subtract.

    Args:
        width: of the sinusoidal vectors (128); so many coordinates are appended to queries and keys.
        theta: the base (10000).
        amplitude: one number or (heads,).
        learn: any of "freq", "amplitude", trained on a log scale.
    Units: amplitude in logits; radians per unit of the clock.
    Raises: ShapeError where width is odd; ConfigError where theta is not above 0.
    Source: Chi et al. (Sandwich), 2212.10356.

    >>> sandwich(64, heads=8).form
    JordanForm('64R + 64Z')
    """
    pairs = even(128 if width is None else width, "width")
    if not pairs:
        raise ConfigError(f"got width={width}; expected an even width above 0, such as 128")
    chosen = read_learn(learn, ("freq", "amplitude"))
    base = 10000.0 if theta is None else theta
    frequencies = geometric(base)(pairs).values * base ** (-1 / pairs)  # i starts at 1
    values = exact([heads / (8 * h) for h in range(1, heads + 1)]) if amplitude is None else as_numbers(amplitude, "amplitude")
    values = fit_rows(values.reshape(1) if values.ndim == 0 else values, heads, (1,), "amplitude", False).reshape(-1).expand(heads).clone()
    options: dict[str, Any] = {"width": width, "theta": theta, "amplitude": amplitude, "learn": list(chosen) or None}
    parameters = {"freq": Parameter(frequencies, "freq" in chosen), "amplitude": Parameter(values, "amplitude" in chosen)}
    return Recipe("sandwich", head_dim, heads, kv_heads, clock, options, parameters, no_content, _lift)


def _lift(values: Values, recipe: Recipe) -> tuple[Lift, ...]:
    one = torch.zeros_like(values["freq"]).repeat_interleave(2)
    one[::2] = 1.0  # the first channel of each pair: (1, 0) R(x) (1, 0)^T = cos x
    return (Lift(Rotation(values["freq"]), values["amplitude"][:, None] * one, one, directed=False),)
