"""Rotation: exp(tL) turns each pair of channels by -freq t, so that q^T exp((t-s)L) k is the usual RoPE."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.errors import ConfigError
from eigenclock.theory.generator import Block, Generator, check_width, not_zero, parameter_heads, per_block, per_token, working_dtype
from eigenclock.theory.split import Split, Turn
from eigenclock.theory.trig import cos_sin

PAIRINGS = ("interleaved", "half")


def check_pairing(pairing: str) -> None:
    """Refuse an unknown layout of pairs with one clear line."""
    if pairing not in PAIRINGS:
        raise ConfigError(f"got pairing {pairing!r}; expected 'interleaved' (channels 2i, 2i + 1) or 'half' (channels i, i + n)")


def pair_channels(n: int, pairing: str) -> list[tuple[int, int]]:
    """The channels of each of n pairs.

    >>> pair_channels(2, "half")
    [(0, 2), (1, 3)]
    """
    return [(2 * i, 2 * i + 1) if pairing == "interleaved" else (i, i + n) for i in range(n)]


def pair_blocks(n: int, pairing: str, decays: list[bool], turns: list[bool]) -> tuple[Block, ...]:
    """The blocks of n pairs; a pair that does not turn is two blocks of one channel."""
    out: list[Block] = []
    for pair, decaying, turning in zip(pair_channels(n, pairing), decays, turns, strict=True):
        out += [Block(pair, decaying, True)] if turning else [Block((channel,), decaying) for channel in pair]
    return tuple(out)


def turn_pairs(x: Tensor, angle: Tensor, pairing: str) -> Tensor:
    """Turn pair i of the last axis by angle[..., i] (float64), in float32 or better."""
    cos, sin = cos_sin(angle, working_dtype(x))
    if pairing == "interleaved":
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)


@dataclass(frozen=True)
class Rotation(Generator):
    """L = -freq J on each pair of channels, J = [[0, -1], [1, 0]].

    With freq > 0 both sides turn by plus freq times their own time (the usual RoPE): the query takes exp(tL)^T = R(freq t) and the
    key exp(-sL) = R(freq s). ``freq`` may be negative (recurrences h = R(+theta) h turn both sides by minus).

    Shape: freq (n,) or (heads, n) for 2n channels.
    Units: radians per unit of the clock.
    Stability: the angle is a float64 product reduced by whole turns before it is rounded.
    Source: Su et al. (RoFormer), 2104.09864, eq. 15.

    >>> import torch, math
    >>> round(float(Rotation(torch.tensor([math.pi / 2])).matrix(1.0)[0, 1]), 6)
    1.0
    """

    freq: Float[Tensor, "*heads n"]
    pairing: str = "interleaved"

    def __post_init__(self) -> None:
        check_pairing(self.pairing)

    @property
    def dim(self) -> int:
        return 2 * self.freq.shape[-1]

    @property
    def heads(self) -> int:
        return parameter_heads(self.freq)

    def blocks(self) -> tuple[Block, ...]:
        n = self.freq.shape[-1]
        return pair_blocks(n, self.pairing, [False] * n, not_zero(self.freq, n))

    def act(self, x: Tensor, t: Tensor) -> Tensor:
        check_width(x, self.dim, "Rotation")
        return turn_pairs(x, -per_block(t, x).double() * per_token(self.freq).double(), self.pairing)

    def transpose(self) -> "Rotation":
        return replace(self, freq=-self.freq)

    def split(self) -> Split:
        return Split(self.dim, (Turn(0, self.freq, self.pairing),))
