"""L as three commuting parts: one turns, one decays, one is nilpotent (the Jordan-Chevalley decomposition).

exp(tL) = P exp(tR) exp(-t diag(rate)) exp(tN) P^-1. Rotations are applied once from any origin (they keep norms), decays and
nilpotent parts only around a reference time between key and query; this value is the seam between theory and the fast paths.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.errors import UnsupportedError
from eigenclock.theory.trig import J


@dataclass(frozen=True)
class Turn:
    """A run of rotations: pair i of the channels start .. start + 2n turns with -freq[i] * J in L.

    ``pairing`` says how the run is cut into pairs: "interleaved" (2i, 2i + 1) or "half" (i, i + n). With several ``axes`` time is a
    vector and freq (axes, n) or (heads, axes, n): pair i turns by the sum over the axes. ``clock`` names, for each pair, the one of
    several times that it reads; None is the only one, or one each in order.
    """

    start: int
    freq: Float[Tensor, "*heads n"]
    pairing: str = "interleaved"
    axes: int = 1
    clock: tuple[int, ...] | None = None

    @property
    def per_head(self) -> Float[Tensor, "heads *axes n"]:
        """The frequencies with their axis of heads, of size 1 where all heads share them."""
        return self.freq if self.freq.ndim > (1 if self.axes == 1 else 2) else self.freq[None]

    @property
    def rows(self) -> int:
        """How many heads the frequencies tell apart."""
        return self.per_head.shape[0]

    @property
    def width(self) -> int:
        return 2 * self.freq.shape[-1]

    @property
    def first(self) -> slice:
        n = self.width // 2
        return slice(self.start, self.start + 2 * n, 2) if self.pairing == "interleaved" else slice(self.start, self.start + n)

    @property
    def second(self) -> slice:
        n = self.width // 2
        return slice(self.start + 1, self.start + 2 * n, 2) if self.pairing == "interleaved" else slice(self.start + n, self.start + 2 * n)


@dataclass(frozen=True)
class Split:
    """The three commuting parts of L on ``dim`` channels.

    turns: rotations, applied one after another (they commute).
    rate: (R,) or (heads, R) with R dividing dim, the rate of channel c in column c % R; None where nothing decays.
    rate_clock: for each column of rate, the one of several times that it reads; None is the only one, or one each in order.
    nilpotent: (dim, dim) or (heads, dim, dim), with nilpotent^order = 0; None where L is semisimple.
    basis, inverse: the constant change of basis P and P^-1, (dim, dim) or (heads, dim, dim), around all of it.
    """

    dim: int
    turns: tuple[Turn, ...] = ()
    rate: Tensor | None = None
    nilpotent: Tensor | None = None
    order: int = 1
    basis: Tensor | None = None
    inverse: Tensor | None = None
    rate_clock: tuple[int, ...] | None = None

    def example(self) -> Tensor:
        """Any tensor of the value, to learn its device."""
        found = [self.rate, self.nilpotent, self.basis, *(turn.freq for turn in self.turns)]
        return next((x for x in found if x is not None), torch.empty(0))

    @property
    def is_scalar(self) -> bool:
        """Whether L is a multiple of the identity by construction, the same in every basis."""
        return not self.turns and self.nilpotent is None and (self.rate is None or self.rate.shape[-1] == 1)

    def rate_per_channel(self) -> Tensor | None:
        """The rate of every channel: (dim,) or (heads, dim)."""
        return None if self.rate is None else self.rate.repeat(*(1,) * (self.rate.ndim - 1), self.dim // self.rate.shape[-1])

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """The turning, decaying and nilpotent part as dense float64 matrices, basis included; they sum to L."""
        example = self.example()
        zero = torch.zeros(self.dim, self.dim, dtype=torch.float64, device=example.device)
        turning = zero
        for turn in self.turns:
            turning = turning + _turn_matrix(turn, self.dim)
        rate = self.rate_per_channel()
        decaying = zero if rate is None else -torch.diag_embed(rate.double())
        nilpotent = zero if self.nilpotent is None else self.nilpotent.double()
        if self.basis is None or self.inverse is None:
            return turning, decaying, nilpotent
        p, q = self.basis.double(), self.inverse.double()
        return p @ turning @ q, p @ decaying @ q, p @ nilpotent @ q

    def matrix(self) -> Float[Tensor, "*heads D D"]:
        """L as a dense float64 matrix."""
        turning, decaying, nilpotent = self.parts()
        return turning + decaying + nilpotent


def _turn_matrix(turn: Turn, dim: int) -> Tensor:
    freq = turn.freq.double() if turn.axes == 1 else turn.freq.double().sum(-2)  # all axes moving together
    channels = torch.arange(dim, device=freq.device)
    a, b = channels[turn.first], channels[turn.second]
    out = torch.zeros(*freq.shape[:-1], dim, dim, dtype=torch.float64, device=freq.device)
    block = -freq[..., None, None] * J.to(freq.device)  # the sign of the convention: freq > 0 turns both sides by +freq * time
    pair = torch.stack([a, b], -1)
    return out.index_put(
        (*(torch.arange(n, device=freq.device).reshape(n, 1, 1, 1) for n in freq.shape[:-1]), pair[:, :, None], pair[:, None, :]), block
    )


def _block_diagonal(matrices: list[tuple[Tensor | None, int]], fill_identity: bool, like: Tensor) -> Tensor | None:
    """Per-head block-diagonal of square matrices; a missing one is zero, or the identity for a change of basis."""
    if all(m is None for m, _ in matrices):
        return None
    full = []
    for m, n in matrices:
        if m is None:
            m = (
                torch.eye(n, dtype=like.dtype, device=like.device)
                if fill_identity
                else torch.zeros(n, n, dtype=like.dtype, device=like.device)
            )
        full.append(m)
    heads = max([0, *(m.shape[0] for m in full if m.ndim == 3)])
    if not heads:
        return torch.block_diag(*full)
    full = [m.expand(heads, *m.shape[-2:]) for m in full]
    return torch.stack([torch.block_diag(*(m[h] for m in full)) for h in range(heads)])


def side_by_side(splits: list[Split]) -> Split:
    """The split of a direct sum: channels laid one after another."""
    dim, turns, start = sum(s.dim for s in splits), [], 0
    for s in splits:
        turns += [replace(turn, start=turn.start + start) for turn in s.turns]
        start += s.dim
    like = torch.empty(0, dtype=torch.float64, device=next((s.example().device for s in splits if s.example().numel()), None))
    rate = None
    if any(s.rate is not None for s in splits):
        rates = [_rates_or_zeros(s, like) for s in splits]
        heads = max([0, *(r.shape[0] for r in rates if r.ndim > 1)])
        rate = torch.cat([r.expand(heads, r.shape[-1]) if heads else r for r in rates], -1)
    return Split(
        dim,
        tuple(turns),
        rate,
        _block_diagonal([(s.nilpotent, s.dim) for s in splits], False, like),
        max(s.order for s in splits),
        _block_diagonal([(s.basis, s.dim) for s in splits], True, like),
        _block_diagonal([(s.inverse, s.dim) for s in splits], True, like),
        _clocks_side_by_side(splits),
    )


def _clocks_side_by_side(splits: list[Split]) -> tuple[int, ...] | None:
    """Which time each channel's rate reads, where any part says so."""
    if all(s.rate_clock is None for s in splits):
        return None
    if any(s.rate is not None and s.rate_clock is None for s in splits):
        raise UnsupportedError("got a sum of decays of which some name their clock and some do not; expected all of them inside OnClock")
    out: list[int] = []
    for s in splits:
        out += [0] * s.dim if s.rate_clock is None else list(s.rate_clock) * (s.dim // len(s.rate_clock))
    return tuple(out)


def _rates_or_zeros(split: Split, like: Tensor) -> Tensor:
    rate = split.rate_per_channel()
    return torch.zeros(split.dim, dtype=torch.float64, device=like.device) if rate is None else rate


def on_top(a: Split, b: Split) -> Split:
    """The split of a product of commuting generators on the same channels: the parts add."""
    basis = a.basis if b.basis is None else b.basis
    if a.basis is not b.basis and not any(s.basis is None and s.is_scalar for s in (a, b)):
        raise UnsupportedError(
            "got a product of two generators with different changes of basis; expected one common basis (put both inside one conjugate())"
        )
    rate = a.rate if b.rate is None else b.rate
    if a.rate is not None and b.rate is not None:
        rate = a.rate + b.rate if a.rate.shape[-1] == b.rate.shape[-1] else _sum(a.rate_per_channel(), b.rate_per_channel())
    nilpotent = a.nilpotent if b.nilpotent is None else b.nilpotent
    if a.nilpotent is not None and b.nilpotent is not None:
        nilpotent = a.nilpotent + b.nilpotent
    if a.rate is not None and b.rate is not None and a.rate_clock != b.rate_clock:
        raise UnsupportedError("got a product of two decays that read different clocks; expected at most one decay on each channel")
    clock = b.rate_clock if a.rate is None else a.rate_clock
    inverse = a.inverse if b.inverse is None else b.inverse
    return Split(a.dim, (*a.turns, *b.turns), rate, nilpotent, a.order + b.order - 1, basis, inverse, clock)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor:
    assert a is not None and b is not None  # both were checked by the caller
    return a + b
