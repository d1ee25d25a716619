"""What the tile engine works on: plain tensors, and views of them tile by tile."""

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from eigenclock.theory.tiles import LEAVES, Tile, square


class Workspace:
    """Memory reused from tile to tile: fresh pages cost as much as the arithmetic on them."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialised tensor, valid until the same name is taken again."""
        need = math.prod(size)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < need:
            buffer = self._buffers[name, dtype] = torch.empty(need, dtype=dtype, device=device)
        return buffer[:need].view(size)


@dataclass(frozen=True)
class Edges:
    """Queries carried to the first time of their block of leaves[0] tokens and keys to the last one of theirs, (B, X, whole blocks, D)
    in float32 or better: a rectangle of whole blocks then needs one factor for each block in place of one for each token."""

    q: Tensor
    k: Tensor
    calm: bool  # no factor fades out inside a block, so that leaves may start from the edges too


@dataclass(frozen=True)
class Job:
    """One attention call, lowered: everything that turns has been turned; what is left decays, shears or adds a bias.

    q (B, H, T, D), k and v (B, G, S, D), equal widths. query_times and key_times (B|1, H|1, T, W) float64, nondecreasing, W one clock
    or one per column of rate. rate (heads, R) >= 0 with R dividing D: channel c decays
    with column c % R, or, where ``paired``, with column c // 2. nilpotent (heads, D, D).
    slope (H,): the logit gets -slope (t - s). documents (B|1, T) and key_documents (B|1, S): run numbers in order. key_mask (B|1, S)
    and allowed (B|1, H|1, T|1, S): True may attend. first and last (B|1, H|1, T): the keys each query sees are first <= j < last.
    ``tiles`` is the plan; ``leaf`` the index of its leaf size in LEAVES.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    query_times: Tensor
    key_times: Tensor
    scale: float
    tiles: tuple[Tile, ...]
    rate: Tensor | None = None
    paired: bool = False
    nilpotent: Tensor | None = None
    order: int = 1
    slope: Tensor | None = None
    documents: Tensor | None = None
    key_documents: Tensor | None = None
    key_mask: Tensor | None = None
    allowed: Tensor | None = None
    first: Tensor | None = None
    last: Tensor | None = None
    leaf: int = 0
    query_norms: Tensor | None = None  # (B, H, T): |scale| |q|, where rows and keys that cannot count may be dropped
    key_norms: Tensor | None = None  # (B, H, S): |k|
    edges: Edges | None = None
    workspace: Workspace = field(default_factory=Workspace, compare=False)

    @property
    def accumulate(self) -> torch.dtype:
        """Partial results are merged in float32, float64 for float64."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    def per_head(self, parameter: Tensor, heads: int) -> Tensor:
        """A parameter (1|G|H, ...) with as many rows as a side has heads (or one)."""
        rows = parameter.shape[0]
        return parameter if rows in (1, heads) else parameter.repeat_interleave(heads // rows, 0)

    def by_column(self, x: Tensor) -> Tensor:
        """Channels summed to the columns of rate, (..., D) -> (..., R)."""
        assert self.rate is not None
        columns = self.rate.shape[-1]
        return x.unflatten(-1, (columns, 2)).sum(-1) if self.paired else x.unflatten(-1, (-1, columns)).sum(-2)

    def leaves(self, tile: Tile, chosen: Tensor) -> "Job":
        """The chosen leaves (indices into batch x outer x count) of a causal tile as a batch of short sequences of their own."""
        batch = self.q.shape[0]

        def pick(x: Tensor, start: int) -> Tensor:
            part = take(x, start, tile.queries, tile)
            part = part.expand(batch, *part.shape[1:]).permute(0, 2, 3, 1, *range(4, part.ndim))
            return part.flatten(0, 2)[chosen]

        def pick_rows(x: Tensor | None, start: int) -> Tensor | None:
            return None if x is None else pick(x.unsqueeze(1), start).squeeze(1)

        key = tile.keys_from(chosen.device).flatten().repeat(batch)[chosen, None, None]

        def pick_end(x: Tensor | None) -> Tensor | None:
            return None if x is None else pick(x, tile.query) - key

        allowed = self.allowed
        if allowed is not None:
            part = take_block(allowed, tile)
            allowed = part.expand(batch, *part.shape[1:]).permute(0, 2, 3, 1, 4, 5).flatten(0, 2)[chosen]

        return replace(
            self,
            q=pick(self.q, tile.query), k=pick(self.k, tile.key), v=pick(self.v, tile.key),
            query_times=pick(self.query_times, tile.query), key_times=pick(self.key_times, tile.key),
            query_norms=None, key_norms=None, edges=None, workspace=Workspace(),
            documents=pick_rows(self.documents, tile.query), key_documents=pick_rows(self.key_documents, tile.key),
            key_mask=pick_rows(self.key_mask, tile.key), allowed=allowed, first=pick_end(self.first), last=pick_end(self.last),
            tiles=tuple(square(tile.queries, LEAVES[self.leaf + 1])), leaf=self.leaf + 1,
        )  # fmt: skip


def take(x: Tensor, start: int, length: int, tile: Tile) -> Tensor:
    """The tile's ranges of axis 2 as a view: (B, X, T, ...) -> (B, X, outer, count, length, ...)."""
    s = x.stride()
    size = (x.shape[0], x.shape[1], tile.outer, tile.count, length, *x.shape[3:])
    return x.as_strided(size, (s[0], s[1], tile.outer_stride * s[2], tile.stride * s[2], s[2], *s[3:]), x.storage_offset() + start * s[2])


def take_block(x: Tensor, tile: Tile) -> Tensor:
    """The tile's blocks of a (B, X, T|1, S) mask as a view (B, X, outer, count, queries|1, keys)."""
    b, h, row, column = x.stride()
    rows = tile.queries
    if x.shape[2] == 1:
        row, rows = 0, 1
    size = (x.shape[0], x.shape[1], tile.outer, tile.count, rows, tile.keys)
    both = row + column
    return x.as_strided(
        size, (b, h, tile.outer_stride * both, tile.stride * both, row, column), x.storage_offset() + tile.query * row + tile.key * column
    )


def fold(x: Tensor) -> Tensor:
    """(B, X, outer, count, L, ...) as the (N, X, L, ...) a kernel takes."""
    return x.permute(0, 2, 3, 1, *range(4, x.ndim)).flatten(0, 2)


def unfold(x: Tensor, batch: int, tile: Tile) -> Tensor:
    """The inverse of :func:`fold`, as a view."""
    x = x.unflatten(0, (batch, tile.outer, tile.count))
    return x.permute(0, 3, 1, 2, *range(4, x.ndim))
