"""The plan that makes exp((t-s)L) safe: query ranges x key ranges, each with a reference time between its keys and its queries.

For t >= c >= s, exp((t-s)L) = exp((t-c)L) exp((c-s)L), and both factors have norm <= 1 on semisimple blocks: nothing overflows, and
what underflows is truly that small. A causal square is cut into leaves on its diagonal and, for every doubling, the rectangles
"right half of the queries x left half of the keys", so each pair is visited once.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace

import torch
from torch import Tensor

EXPONENT_BOUND = 40.0
"""Largest |exponent| of a factor inside a leaf, whose reference is its middle: a product of two stays a normal float32 (they end at
exp(88) above and exp(-87) below, and subnormal numbers slow matrix products down several times)."""

FACTOR_FLOOR = 30.0
"""Exponents of a factor stop here in float32: exp(-30) = 1e-13 of a logit is below every rounding, and products of two such factors with
small entries of q and k are still normal numbers."""

BIAS_BOUND = 500.0
"""Largest |bias| relative to the middle of a leaf: float32 keeps 3e-5 of a logit beside it."""

LEAVES = (128, 16, 1)
"""Leaf sizes, tried in turn where the exponents or the bias of a leaf break their bound; in a leaf of one token both are 0."""


@dataclass(frozen=True)
class Tile:
    """``outer`` x ``count`` equal tiles, handled by one call.

    kind: "causal" (a leaf on the diagonal), "full" (every query after every key), "flip" (a window's neighbour: query i sees keys
    j >= i once both axes are reversed), "ragged" (a leaf of cross attention: key time <= query time decides pair by pair).
    Tile (a, b) covers queries query + a * outer_stride + b * stride ... + queries, keys likewise.
    """

    kind: str
    query: int
    key: int
    queries: int
    keys: int
    count: int = 1
    stride: int = 0
    outer: int = 1
    outer_stride: int = 0

    def keys_from(self, device: torch.device) -> Tensor:
        """The index of the first key of each tile, (outer, count)."""
        a, b = torch.arange(self.outer, device=device)[:, None], torch.arange(self.count, device=device)
        return self.key + a * self.outer_stride + b * self.stride

    def each(self) -> list["Tile"]:
        """The tiles one by one."""
        return [
            replace(self, query=self.query + move, key=self.key + move, count=1, stride=0, outer=1, outer_stride=0)
            for move in (a * self.outer_stride + b * self.stride for a in range(self.outer) for b in range(self.count))
        ]


def square(length: int, leaf: int, window: int | None = None) -> list[Tile]:
    """Tiles of causal self-attention over ``length`` tokens, each query seeing the ``window`` latest keys (itself included).

    Any length; ragged ends are tiles of their own. With a window W the blocks are squares of W, plus one "flip" tile each for the
    neighbour on the left, whose reference is the boundary between the two.

    >>> [(t.kind, t.query, t.key, t.queries, t.keys, t.count) for t in square(5, 2)]
    [('causal', 0, 0, 2, 2, 2), ('causal', 4, 4, 1, 1, 1), ('full', 2, 0, 2, 2, 1), ('full', 4, 0, 1, 4, 1)]
    """
    if window is None or window >= length:
        return _square(0, length, leaf, 1, 0)
    blocks, rest = divmod(length, window)
    out = _square(0, window, leaf, blocks, window)
    if rest:
        out += _square(blocks * window, rest, leaf, 1, 0)
    if window > 1:
        if blocks > 1:
            out.append(Tile("flip", window, 1, window - 1, window - 1, blocks - 1, window))
        if rest:
            out.append(Tile("flip", blocks * window, (blocks - 1) * window + 1, min(rest, window - 1), window - 1))
    return out


def _square(base: int, n: int, leaf: int, outer: int, outer_stride: int) -> list[Tile]:
    """One causal square of n tokens at ``base``, repeated ``outer`` times."""
    out = []
    whole, rest = divmod(n, leaf)
    if whole:
        out.append(Tile("causal", base, base, leaf, leaf, whole, leaf, outer, outer_stride))
    if rest:
        out.append(Tile("causal", base + whole * leaf, base + whole * leaf, rest, rest, 1, 0, outer, outer_stride))
    half = leaf
    while half < n:
        whole, rest = divmod(n, 2 * half)
        if whole:
            out.append(Tile("full", base + half, base, half, half, whole, 2 * half, outer, outer_stride))
        if rest > half:
            out.append(Tile("full", base + whole * 2 * half + half, base + whole * 2 * half, rest - half, half, 1, 0, outer, outer_stride))
        half *= 2
    return out


def continued(queries: int, keys: int, leaf: int) -> list[Tile]:
    """Tiles of a decode step, whose queries are the last of the keys: their own causal square, then all keys before them at once.

    Order is by index, so the reference of each tile may be any number of clocks, one for each channel.

    >>> [(t.kind, t.query, t.key, t.queries, t.keys, t.count) for t in continued(3, 10, 2)]
    [('causal', 0, 7, 2, 2, 1), ('causal', 2, 9, 1, 1, 1), ('full', 2, 7, 1, 2, 1), ('full', 0, 0, 3, 7, 1)]
    """
    before = keys - queries
    tiles = [replace(tile, key=tile.key + before) for tile in square(queries, leaf)]
    return [*tiles, Tile("full", 0, 0, queries, before)] if queries and before else tiles


def staircase(query_times: Tensor, key_times: Tensor, leaf: int, reach: float = float("inf")) -> list[Tile]:
    """Tiles of cross attention with key time <= query time, for sorted times of shape (T,) and (S,).

    The two sequences are merged (keys before queries at equal times) and the merged square is cut as above, so a tile's query and
    key counts differ; tiles without queries or without keys are dropped. A leaf is cut further while its times reach
    farther than ``reach`` from their middle.

    >>> import torch
    >>> [(t.kind, t.query, t.key, t.queries, t.keys) for t in staircase(torch.tensor([2.0, 5.0]), torch.arange(4.0), 1)]
    [('full', 0, 0, 1, 2), ('full', 0, 2, 1, 1), ('full', 1, 0, 1, 3), ('full', 1, 3, 1, 1)]
    """
    tq, tk = query_times.detach().double().cpu(), key_times.detach().double().cpu()
    n, m = tq.numel(), tk.numel()
    is_query = torch.cat([torch.zeros(m, dtype=torch.bool), torch.ones(n, dtype=torch.bool)])
    merged, order = torch.cat([tk, tq]).sort(stable=True)
    seen = torch.cat([torch.zeros(1, dtype=torch.int64), is_query[order].cumsum(0)]).tolist()  # queries before each merged position
    out: list[Tile] = []

    def cut(low: int, high: int) -> None:
        queries, keys = seen[high] - seen[low], (high - low) - (seen[high] - seen[low])
        if not queries or not keys:
            return
        if high - low <= leaf and float(merged[high - 1] - merged[low]) / 2 <= reach:
            out.append(Tile("ragged", seen[low], low - seen[low], queries, keys))
            return
        middle = low + max(1, 1 << ((high - low - 1).bit_length() - 1)) if high - low > 1 else high
        left_keys, right_queries = (middle - low) - (seen[middle] - seen[low]), seen[high] - seen[middle]
        cut(low, middle)
        if left_keys and right_queries:
            out.append(Tile("full", seen[middle], low - seen[low], right_queries, left_keys))
        cut(middle, high)

    if n and m:
        cut(0, n + m)
    return out


@dataclass(frozen=True)
class Ends:
    """One end of the interval of keys that each query sees: its least and greatest index over rows and heads, both nondecreasing."""

    least: list[int]
    greatest: list[int]

    @classmethod
    def of(cls, end: Tensor) -> "Ends":
        """From indices of shape (B, H, T)."""
        flat = end.flatten(0, -2)
        return cls(flat.amin(0).tolist(), flat.amax(0).tolist())


def within(tiles: list[Tile], leaf: int, first: Ends | None, last: Ends | None) -> list[Tile]:
    """A plan cut down to the keys first <= j < last of each query: rectangles outside are dropped, those across an end are quartered.

    What is left across an end has at most ``leaf`` queries and keys, so a mask over it stays small: memory is linear whatever the
    window. Leaves stay as they are.

    >>> window = Ends([max(0, i - 1) for i in range(8)], [max(0, i - 1) for i in range(8)])
    >>> [(t.query, t.key, t.queries, t.keys, t.count) for t in within(square(8, 2), 2, window, None) if t.kind == "full"]
    [(2, 1, 1, 1, 1), (6, 5, 1, 1, 1), (4, 3, 1, 1, 1)]
    """
    out = []
    for tile in tiles:
        if tile.kind != "full":
            out.append(tile)
            continue
        pieces = [piece for one in tile.each() for piece in _inside(one, leaf, first, last)]
        out += [tile] if pieces == tile.each() else pieces
    return out


def _inside(tile: Tile, leaf: int, first: Ends | None, last: Ends | None) -> list[Tile]:
    """One rectangle cut down to its part between the ends."""
    q0, q1, k0, k1 = tile.query, tile.query + tile.queries, tile.key, tile.key + tile.keys
    if first is not None:
        q1 = bisect_left(first.least, k1, q0, q1)
        k0 = max(k0, first.least[q0])
    if last is not None:
        q0 = bisect_right(last.greatest, k0, q0, q1)
        k1 = min(k1, last.greatest[q1 - 1]) if q1 > q0 else k1
    if q0 >= q1 or k0 >= k1:
        return []
    part = replace(tile, query=q0, key=k0, queries=q1 - q0, keys=k1 - k0)
    whole = (first is None or first.greatest[q1 - 1] <= k0) and (last is None or last.least[q0] >= k1)
    if whole or max(part.queries, part.keys) <= leaf:
        return [part]
    if part.queries >= part.keys:
        half = part.queries // 2
        halves = replace(part, queries=half), replace(part, query=q0 + half, queries=part.queries - half)
    else:
        half = part.keys // 2
        halves = replace(part, keys=half), replace(part, key=k0 + half, keys=part.keys - half)
    return [piece for one in halves for piece in _inside(one, leaf, first, last)]
