"""PoPE: each channel is a magnitude that turns with time, so that what is compared and where it stands stay apart."""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.parameter import Parameter, as_numbers, within
from eigenclock.encodings.rates import Numbers, fit_rows, read_learn
from eigenclock.encodings.rope import read_frequencies
from eigenclock.errors import ConfigError, ShapeError
from eigenclock.theory import Generator, Rotation
from eigenclock.theory.numbers import exact


def pope(
    head_dim: int,
    *,
    heads: int = 1,
    kv_heads: int | None = None,
    theta: Numbers = None,
    freq: Numbers = None,
    delta: Numbers | str = None,
    seed: int = 0,
    learn: str | tuple[str, ...] = ("delta",),
    clock: Clock | None = None,
) -> Encoding:
    """PoPE: score = sum_c m(q_c) m(k_c) cos(w_c (s - t) + delta_c) / sqrt(d), m = softplus, w_c = theta^(-c/d).

    In the group, with A(0) = R(delta) in place of the identity: :meth:`read_in` makes of q the pairs (m(q_c), 0) and of k the pairs
    m(k_c) (cos delta_c, sin delta_c), 2 ``head_dim`` channels, and L turns each of the ``head_dim`` pairs. A state of linear attention
    is twice as large as with RoPE.

    Args:
        theta: the base (10000), or one per key head.
        freq: explicit frequencies (head_dim,) or (kv_heads, head_dim), or a schedule, in place of theta.
        delta: the phase of each channel, one number, (head_dim,) or (kv_heads, head_dim), within [-2 pi, 0] and kept there; 0 if left
            out, or "uniform" to draw it from that interval, which the authors offer as well.
        seed: of that draw.
        learn: "delta" (by default), or () for fixed phases.
    Units: radians per unit of the clock.
    Raises: ConfigError where a phase lies outside the interval, or theta and freq are both given; ShapeError where a shape does not fit.
    Stability: magnitudes in float32 or better, rounded once.
    Source: Gopalakrishnan et al. (PoPE), 2509.10534, section 3.

    >>> enc = pope(64, heads=8)
    >>> enc.form, enc.head_dim, enc.width
    (JordanForm('64R'), 64, 128)
    """
    chosen = read_learn(learn, ("delta",))
    rows = (kv_heads or heads, heads)
    frequencies = read_frequencies(theta, freq, head_dim, rows, False)
    options: dict[str, Any] = {"theta": theta, "freq": freq, "delta": delta, "seed": seed or None}
    options |= {"learn": list(chosen)} if chosen != ("delta",) else {}
    parameters = {"freq": Parameter(frequencies), "delta": Parameter(_phases(delta, head_dim, rows, seed), "delta" in chosen, "real")}
    return _Polar("pope", head_dim, heads, kv_heads, clock, options, parameters, _content)


class _Polar(Recipe):
    """A recipe whose channels become pairs: a magnitude with the phase it starts from."""

    @property
    def reads_in(self) -> str:
        return "softplus makes magnitudes of q and k, and delta turns those of the keys, A(0) = R(delta)"

    @property
    def width(self) -> int:
        return 2 * self.head_dim

    def read_in(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        delta = within(self._current(k.device)["delta"], -2 * math.pi, 0.0)
        if delta.ndim > 1 and delta.shape[0] not in (1, k.shape[1]):
            raise ShapeError(
                f"got phases for {delta.shape[0]} heads and keys with {k.shape[1]} heads; expected one per key head: "
                f"build the encoding with kv_heads={k.shape[1]}, or repeat the keys and values"
            )
        work = torch.promote_types(q.dtype, torch.float32)
        of_query, of_key = F.softplus(q.to(work)), F.softplus(k.to(work))
        cos, sin = (x.to(work).unsqueeze(-2) for x in (delta.cos(), delta.sin()))
        queries = torch.stack([of_query, torch.zeros_like(of_query)], -1)
        keys = torch.stack([of_key * cos, of_key * sin], -1)
        return queries.flatten(-2).to(q.dtype), keys.flatten(-2).to(k.dtype)


def _phases(delta: Numbers | str, columns: int, rows: tuple[int, ...], seed: int) -> Tensor:
    if delta is None:
        return exact(np.zeros((rows[0], columns)))
    if isinstance(delta, str):
        if delta != "uniform":
            raise ConfigError(f"got delta={delta!r}; expected numbers within [-2 pi, 0], or 'uniform'")
        return exact(np.random.default_rng(seed).uniform(-2 * math.pi, 0.0, (rows[0], columns)))
    numbers = as_numbers(delta, "delta")
    if bool((numbers > 0).any()) or bool((numbers < -2 * math.pi).any()):
        raise ConfigError(f"got a phase of {float(numbers.flatten()[numbers.abs().argmax()]):g}; expected phases within [-2 pi, 0]")
    return fit_rows(numbers.reshape(1) if numbers.ndim == 0 else numbers, columns, rows, "delta", True)


def _content(values: Values, recipe: Recipe) -> Generator:
    return Rotation(values["freq"])
