"""The tables of a run of chunks: what decay, shear and documents multiply on queries, keys, pairs and states."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eigenclock.attention.forms.task import power
from eigenclock.theory.tiles import EXPONENT_BOUND


@dataclass(frozen=True)
class Run:
    """``count`` chunks of ``length`` tokens from token ``first``."""

    first: int
    count: int
    length: int

    @property
    def tokens(self) -> slice:
        return slice(self.first, self.first + self.count * self.length)


def runs(length: int, chunk: int, most: int) -> list[Run]:
    """A sequence as runs of at most ``most`` chunks, a shorter last chunk as a run of its own.

    >>> [(r.first, r.count, r.length) for r in runs(11, 2, 4)]
    [(0, 4, 2), (8, 1, 2), (10, 1, 1)]
    """
    whole, rest = divmod(length, chunk)
    out = [Run(i * chunk, min(most, whole - i), chunk) for i in range(0, whole, most)]
    return out + ([Run(whole * chunk, 1, rest)] if rest else [])


@dataclass(frozen=True)
class Tables:
    """Factors of a run for some key heads: (heads|1, chunks|1, ...), 1 where all share them (regular times, common rates).

    A chunk's pairs are (query * q) . (key * k) where ``inside``, else query . key, times ``pairs``. Queries times ``query`` read the
    state before the chunk times ``read``; keys times ``key`` make a state that counts ``write`` times at the chunk's end, where the
    state before counts ``keep`` times. Factors are <= 1, but for queries and keys around the middle of a chunk, whose exponents are
    below EXPONENT_BOUND; chunks that would break it are ``hot``: their factors start from their ends, and their pairs are weighed
    apart. Moment r of the state (see Task.gathered) takes the weights r, and ``moves`` from one chunk to the next.
    """

    query: Tensor | None  # (.., C, D|1), the scale included
    key: Tensor | None  # (.., C, D|1)
    pairs: list[Tensor]  # of (.., C, C)
    inside: bool  # whether decay is in the factors of queries and keys, not in pairs
    read: Tensor  # (heads|1, chunks, D|1, 1)
    write: Tensor | None
    keep: Tensor
    read_weights: list[Tensor | None]  # of (.., C, 1)
    write_weights: list[Tensor | None]
    moves: list[Tensor]  # of (heads|1, chunks, 1, 1): lag^r / r! over the chunk
    hot: Tensor | None  # (K,) indices into heads x chunks
    hot_times: Tensor | None  # (K, C, W) float64, and the rates (K, D), of the hot chunks
    hot_rate: Tensor | None


def make_tables(
    times: Tensor, before: Tensor, rate: Tensor | None, orders: int, documents: Tensor | None, open_document: Tensor | None,
    scale: float, heads: int, dtype: torch.dtype,
) -> Tables:  # fmt: skip
    """Tables from times (h|1, n, C, W) and the time before the run (h|1, 1, 1, W), both float64; rate (h|1, R) or None.

    documents (h|1, n, C) and the document open before the run (h|1, 1, 1).
    """
    n, length = times.shape[1:3]
    first, last = times[:, :, :1], times[:, :, -1:]
    before = torch.cat([before.expand(times.shape[0], -1, -1, -1), last[:, :-1]], 1)
    middle = times[:, :, length // 2 : length // 2 + 1]
    t, t_last = times, last
    if n > 1 and times.shape[-1] == 1 and bool((times - first == times[:, :1] - first[:, :1]).all()):
        t, t_last = times[:, :1], last[:, :1]  # regular times: one table for all chunks
    column = None if rate is None else rate.double()[:, None, None]
    inside = rate is not None and max(rate.shape[-1], times.shape[-1]) > 1
    seen = torch.ones(length, length, dtype=dtype, device=times.device).tril()[None, None]
    pairs_lag = (t - t.mT).clamp_min(0.0) if not inside or orders > 1 else None
    query = key = write = hot = hot_times = hot_rate = None
    read = times.new_full((1, 1, 1, 1), 1.0 if rate is not None else scale)
    keep = times.new_ones(1, 1, 1, 1)
    if column is not None:
        # Times are subtracted from the reference itself, so that a gap in a chunk takes no digit from the lags behind it.
        query_from, key_from = first, last
        if inside:
            is_hot = (torch.maximum(middle - first, last - middle) * column).amax((-2, -1), keepdim=True) > EXPONENT_BOUND
            query_from, key_from = torch.where(is_hot, first, middle), torch.where(is_hot, last, middle)
            write = (-(last - key_from) * column).exp()
            if bool(is_hot.any()):
                hot = is_hot.expand(heads, n, 1, 1).flatten().nonzero().squeeze(1)
                hot_times = times.expand(heads, n, -1, -1)[hot // n, hot % n]
                hot_rate = column[:, 0, 0].expand(heads, -1)[hot // n]
        else:
            assert pairs_lag is not None
            seen = seen * (-pairs_lag * column).exp().to(dtype)
        narrow = column.to(dtype)
        query = ((query_from[:, : t.shape[1]] - t).to(dtype) * narrow).exp_().mul_(scale)
        key = ((t - key_from[:, : t.shape[1]]).to(dtype) * narrow).exp_()
        read, keep = (-(query_from - before) * column).exp(), (-(last - before) * column).exp()
    if not inside:
        seen = seen * scale
    read_weights: list[Tensor | None] = [None] * orders
    write_weights: list[Tensor | None] = [None] * orders
    if orders > 1:
        read_weights = [None] + [power(times - before, r).to(dtype) for r in range(1, orders)]
        write_weights = [None] + [power(t_last - t, r).to(dtype) for r in range(1, orders)]
    if documents is not None and open_document is not None:
        open_before = torch.cat([open_document.expand(documents.shape[0], -1, -1), documents[:, :-1, -1:]], 1)
        at_end = documents[:, :, -1:]
        seen = seen * (documents[..., None] == documents[..., None, :]).to(dtype)
        read_weights = [_times((documents == open_before).to(dtype)[..., None], w) for w in read_weights]
        write_weights = [_times((documents == at_end).to(dtype)[..., None], w) for w in write_weights]
        keep = keep * (at_end == open_before).to(keep.dtype)[..., None]
    pairs = [seen]
    for r in range(1, orders):
        assert pairs_lag is not None
        pairs.append(seen * power(pairs_lag, r).to(dtype))

    def per_state(x: Tensor) -> Tensor:
        """(h|1, n|1, 1, W) as a column that multiplies the rows of a state."""
        return x.mT.to(dtype).expand(-1, n, -1, -1)

    moves = [power(last - before, r).to(dtype) for r in range(1, orders)]
    return Tables(
        query, key, pairs, inside, per_state(read), None if write is None else per_state(write), per_state(keep),
        read_weights, write_weights, moves, hot, hot_times, hot_rate,
    )  # fmt: skip


def _times(a: Tensor, b: Tensor | None) -> Tensor:
    return a if b is None else a * b
