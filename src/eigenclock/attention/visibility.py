"""Which keys a tile's queries see: documents, padding, masks and order, as an additive bias and a set of live rows."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from eigenclock.attention.job import Job, take, take_block
from eigenclock.theory.tiles import Tile


class Visible(NamedTuple):
    """``keys``: (B|1, X|1, outer, count, 1|L, S) True may attend, None when all may; ``rows``: (B|1, X|1, outer, count, L) rows that
    see at least one key of the tile, None when all do."""

    keys: Tensor | None
    rows: Tensor | None


def visible(job: Job, tile: Tile) -> Visible:
    """Visibility inside one tile; its own causal or flipped order is the kernel's business and counted in ``rows``."""
    keys: Tensor | None = None
    rows: Tensor | None = None

    def also(a: Tensor | None, b: Tensor) -> Tensor:
        return b if a is None else a & b

    if job.key_mask is not None:
        keys = take(job.key_mask.unsqueeze(1), tile.key, tile.keys, tile).unsqueeze(-2)
    if job.documents is not None and job.key_documents is not None:
        of_query = take(job.documents.unsqueeze(1), tile.query, tile.queries, tile)
        of_key = take(job.key_documents.unsqueeze(1), tile.key, tile.keys, tile)
        if tile.kind == "causal":
            keys = also(keys, of_query[..., :, None] == of_key[..., None, :])
        else:  # documents are runs, so only the one that holds the first query can reach across the boundary
            straddling = of_query[..., :1]
            keys = also(keys, (of_key == straddling).unsqueeze(-2))
            rows = of_query == straddling
    if job.allowed is not None:
        keys = also(keys, take_block(job.allowed, tile))
    if tile.kind == "ragged":
        times = take(job.query_times[..., 0], tile.query, tile.queries, tile), take(job.key_times[..., 0], tile.key, tile.keys, tile)
        keys = also(keys, times[0][..., :, None] >= times[1][..., None, :])
    for end, is_first in ((job.first, True), (job.last, False)):
        if end is not None:
            inside = _inside(end, tile, is_first)
            keys = keys if inside is None else also(keys, inside)
    if keys is None:
        return Visible(None, rows)
    alive = _rows(keys, tile)
    return Visible(keys, alive if rows is None else rows & alive)


def _inside(end: Tensor, tile: Tile, is_first: bool) -> Tensor | None:
    """The pairs on the right side of one end of the intervals, (B|1, X|1, outer, count, L, S); None where all are."""
    low = tile.keys_from(end.device)[..., None]
    end = take(end, tile.query, tile.queries, tile)
    if bool((end <= low).all() if is_first else (end >= low + tile.keys).all()):
        return None
    index = low[..., None] + torch.arange(tile.keys, device=end.device)
    return index >= end[..., None] if is_first else index < end[..., None]


def _rows(keys: Tensor, tile: Tile) -> Tensor:
    """The rows that see a key, the order inside the tile included."""
    if keys.shape[-2] == 1:
        keys = keys.squeeze(-2)
        if tile.kind == "causal":
            return keys.long().cumsum(-1) > 0
        if tile.kind == "flip":  # query i sees keys j >= i
            return (keys.flip(-1).long().cumsum(-1).flip(-1) > 0)[..., : tile.queries]
        return keys.any(-1, keepdim=True).expand(*keys.shape[:-1], tile.queries)
    i = torch.arange(tile.queries, device=keys.device)[:, None]
    j = torch.arange(tile.keys, device=keys.device)
    if tile.kind == "causal":
        keys = keys & (j <= i)
    elif tile.kind == "flip":
        keys = keys & (j >= i)
    return keys.any(-1)


def additive(keys: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The kernel's bias from visibility and an additive key term, (B|1, X|1, outer, count, 1|L, S)."""
    if keys is None:
        return None if bias is None else bias.to(dtype)
    if bias is None:
        return torch.zeros(keys.shape, dtype=dtype, device=keys.device).masked_fill_(~keys, -math.inf)
    return bias.to(dtype).masked_fill(~keys, -math.inf)
