"""The numbers of every Jordan block of a generator: rate, frequency along each axis, order, and how far it can grow."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.theory import Generator, JordanBlock


@dataclass(frozen=True)
class Blocks:
    """The real Jordan blocks of a generator with their numbers, one row per head (a single one where all heads share them).

    corner: the largest coefficient of u^(order - 1) in exp(uL), 1 for blocks of order 1.
    rebased: whether the channels are those of a basis in which L is block diagonal, and not those of q and k.
    ordered: whether L decays or shears, so that attention asks for times in order.
    """

    jordan: tuple[JordanBlock, ...]
    channels: tuple[tuple[int, ...], ...]
    rate: Float[Tensor, "heads n"]
    freq: Float[Tensor, "heads axes n"]
    corner: Float[Tensor, "heads n"]
    rebased: bool = False
    ordered: bool = False

    @property
    def heads(self) -> int:
        return self.rate.shape[0]

    @property
    def axes(self) -> int:
        return self.freq.shape[1]

    @property
    def order(self) -> Float[Tensor, "n"]:
        return torch.tensor([float(block.order) for block in self.jordan], dtype=torch.float64)

    def mean(self, lag: Float[Tensor, "u"], axis: int | None = None) -> Float[Tensor, "heads u"]:
        """tr exp(uL) / D, the mean over channels of e^(-rate u) cos(freq u), for lags along one axis (None: along all at once)."""
        sizes = torch.tensor([float(block.dim) for block in self.jordan], dtype=torch.float64)
        return (self.each(lag, axis) * sizes).sum(-1) / sizes.sum()

    def each(self, lag: Float[Tensor, "u"], axis: int | None = None) -> Float[Tensor, "heads u n"]:
        """e^(-rate u) cos(freq u) of every block."""
        freq = self.freq.sum(1) if axis is None else self.freq[:, axis]
        u = lag[None, :, None]
        return (-self.rate[:, None] * u).exp() * (freq[:, None] * u).cos()

    def growth(self, lag: Float[Tensor, "u"]) -> Float[Tensor, "heads u n"]:
        """corner u^(order - 1) e^(-rate u), the envelope of the fastest growing entry of every block."""
        u = lag[None, :, None]
        return self.corner[:, None] * u ** (self.order - 1) * (-self.rate[:, None] * u).exp()

    def peak(self, context: float) -> Float[Tensor, "heads n"]:
        """The largest value of the envelope within the context, reached at lag (order - 1) / rate or at its end."""
        at = torch.where(self.rate > 0, (self.order - 1) / self.rate.clamp_min(1e-300), math.inf).clamp_max(context)
        return self.corner * at ** (self.order - 1) * (-self.rate * at).exp()


def read_blocks(generator: Generator) -> Blocks:
    """The blocks of any generator with their numbers, read from its commuting parts.

    >>> import eigenclock as ec
    >>> found = read_blocks(ec.damped_rope(4, rate=0.5, freq=[2.0, 1.0]).generator())
    >>> found.freq, found.rate
    (tensor([[[2., 1.]]], dtype=torch.float64), tensor([[0.5000, 0.5000]], dtype=torch.float64))
    """
    blocks, split = generator.blocks(), generator.split()
    first = [block.channels[0] for block in blocks]
    rates = split.rate_per_channel()
    rate = torch.zeros(1, split.dim) if rates is None else rates.reshape(-1, split.dim)
    rate = rate.detach().double().cpu()[:, first]
    axes = max([1, *(turn.axes for turn in split.turns)])
    freq = torch.zeros(1, axes, split.dim, dtype=torch.float64)
    for turn in split.turns:
        rows = turn.per_head.detach().double().cpu()
        rows = rows[:, None] if turn.axes == 1 else rows
        added = torch.zeros(rows.shape[0], axes, split.dim, dtype=torch.float64)
        added[:, : rows.shape[1], turn.first] = rows
        added[:, : rows.shape[1], turn.second] = rows
        freq = freq + added
    corner = torch.ones(1, len(blocks), dtype=torch.float64)
    if split.nilpotent is not None:
        nilpotent = split.nilpotent.detach().double().cpu().reshape(-1, split.dim, split.dim)
        corners = [_corner(nilpotent[:, block.channels][:, :, block.channels], block.order) for block in blocks]
        corner = torch.stack(corners, -1)
    heads = max(rate.shape[0], freq.shape[0], corner.shape[0])
    return Blocks(
        tuple(block.jordan for block in blocks),
        tuple(block.channels for block in blocks),
        rate.expand(heads, -1),
        freq[:, :, first].expand(heads, -1, -1),
        corner.expand(heads, -1),
        split.basis is not None,
        split.rate is not None or split.nilpotent is not None,
    )


def _corner(nilpotent: Tensor, order: int) -> Tensor:
    """max |N^(order - 1)| / (order - 1)! for each head."""
    return torch.linalg.matrix_power(nilpotent, order - 1).abs().flatten(1).amax(-1) / math.factorial(order - 1)


@dataclass(frozen=True)
class Group:
    """Blocks that are equal in everything, in every head: where they act, what they are, how many, and their numbers per head.

    part: "content", or "bias" for coordinates beside the content. ``slope`` is set for a linear bias, per head.
    rate and slope hold one number per head, freq one row per axis; a single number where all heads share it.
    """

    part: str
    block: JordanBlock
    count: int
    channels: tuple[int, ...]
    rate: tuple[float, ...]
    freq: tuple[tuple[float, ...], ...]
    peak: tuple[float, ...]
    slope: tuple[float, ...] | None = None

    @property
    def half_life(self) -> tuple[float, ...]:
        """ln 2 over the rate, or over the slope of a linear bias (where it is the softmax weight that halves); inf where nothing fades."""
        return tuple(math.log(2) / rate if rate > 0 else math.inf for rate in (self.rate if self.slope is None else self.slope))

    @property
    def wavelength(self) -> tuple[tuple[float, ...], ...]:
        """2 pi over the frequency, one row per axis; inf where nothing turns."""
        return tuple(tuple(2 * math.pi / abs(freq) if freq else math.inf for freq in row) for row in self.freq)


def groups(blocks: Blocks, part: str, context: float, slope: Float[Tensor, "heads"] | None = None) -> list[Group]:
    """Blocks that are equal in kind, order and numbers, gathered in the order in which they first appear."""
    peak = blocks.peak(context)
    found: dict[tuple[object, ...], list[int]] = {}
    for i, block in enumerate(blocks.jordan):
        key = (block, _shared(blocks.rate[:, i]), tuple(_shared(row) for row in blocks.freq[:, :, i].T), _shared(peak[:, i]))
        found.setdefault(key, []).append(i)
    return [
        Group(
            part,
            blocks.jordan[members[0]],
            len(members),
            tuple(sorted(c for i in members for c in blocks.channels[i])),
            _shared(blocks.rate[:, members[0]]),
            tuple(_shared(row) for row in blocks.freq[:, :, members[0]].T),
            _shared(peak[:, members[0]]),
            None if slope is None else _shared(slope.detach().double().cpu().reshape(-1)),
        )
        for members in found.values()
    ]


def _shared(row: Tensor) -> tuple[float, ...]:
    """One number per head, or a single one where all heads have the same."""
    values = tuple(row.tolist())
    return values[:1] if len(set(values)) == 1 else values


__all__ = ["Blocks", "Group", "groups", "read_blocks"]
