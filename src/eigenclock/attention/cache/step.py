"""Softmax attention over a cache: new tokens see all before them and each other, and are stored."""

from dataclasses import replace
from typing import Any, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.attention.cache.look import Merged, Queries, look, merge
from eigenclock.attention.cache.piece import Piece, read_piece
from eigenclock.attention.cache.store import Store
from eigenclock.attention.cache.value import KVCache, check_cache, check_dtype, grown
from eigenclock.attention.precision import warn_of_growth
from eigenclock.attention.problem import Problem
from eigenclock.attention.softmax import run
from eigenclock.clocks.units import Lapse
from eigenclock.encodings import Encoding


@overload
def cached_attention(
    q: Float[Tensor, "B H T D"], k: Float[Tensor, "B G T D"], v: Float[Tensor, "B G T V"], encoding: Encoding, *,
    cache: KVCache | None = None, times: Any = None, x: Tensor | None = None, mask: Tensor | None = None, window: int | Lapse | None = None,
    scale: float | None = None, return_lse: Literal[False] = False, value_encoding: Encoding | None = None,
) -> tuple[Float[Tensor, "B H T V"], KVCache]: ...  # fmt: skip


@overload
def cached_attention(
    q: Float[Tensor, "B H T D"], k: Float[Tensor, "B G T D"], v: Float[Tensor, "B G T V"], encoding: Encoding, *,
    cache: KVCache | None = None, times: Any = None, x: Tensor | None = None, mask: Tensor | None = None, window: int | Lapse | None = None,
    scale: float | None = None, return_lse: Literal[True], value_encoding: Encoding | None = None,
) -> tuple[tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H T"]], KVCache]: ...  # fmt: skip


def cached_attention(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B G T D"],
    v: Float[Tensor, "B G T V"],
    encoding: Encoding,
    *,
    cache: KVCache | None = None,
    times: Any = None,
    x: Tensor | None = None,
    mask: Tensor | None = None,
    window: int | Lapse | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    value_encoding: Encoding | None = None,
) -> tuple[Float[Tensor, "B H T V"] | tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H T"]], KVCache]:
    """What :func:`eigenclock.attention` gives the last T tokens of a sequence, and the cache to go on from.

    Causal by index. One call, pieces of any size, and one token at a time give the same numbers: pass the cache that each returns to the
    next. Keys are turned once, when they come; a step costs one pass over the stored keys and values.

    Args:
        cache: what an earlier piece returned; None begins a sequence.
        times: (T,), (B, T) or (B, H, T) of the new tokens, told apart by rank; None is the clock's own count, which a cache continues.
        x: activations of the new tokens, for clocks that are learned from them.
        mask: key padding (B, T) of the new tokens, True = a real token, wherever the padding stands. It is never seen, counts in no
            window and stops the index clock.
        window: the query and the n - 1 tokens before it, padding left out, or a duration where the clock has a unit (t - s < window);
            :meth:`KVCache.evict` gives the memory of older tokens back.
        scale: 1/sqrt(D) of the head as given.
        return_lse: return (output, log-sum-exp) in place of the output.
        value_encoding: as in :func:`eigenclock.attention`; values are stored turned at their own time.
    Shape: q (B, H, T, D), k (B, G, T, D), v (B, G, T, V) with H a multiple of G; the output has the dtype of q. A row with nothing to
        attend to gives zeros (log-sum-exp -inf).
    Units: times in the unit of the clock.
    Raises: ShapeError, ClockError (times that go back), ConfigError (a cache of another encoding or way of calling), UnsupportedError.
    Stability: factors of keys and queries are <= 1 (see :class:`KVCache`). Keys and values are stored in the dtype of the call (in
        float32 where coordinates or Jordan blocks grow with the lag): in 16 bits the decay to the end of its chunk costs a key one more
        rounding. Outputs of chunks are merged in float32. With gradients, queries on stored keys take memory T x S, and so does an
        encoding outside the group whose bias sees each pair (its keys are stored as they came). No double backward.
    Source: chunks with an anchor after Yang et al. (GLA), 2312.06635; merging by log-sum-exp after Dao et al., 2205.14135.

    >>> import torch
    >>> import eigenclock as ec
    >>> enc, cache = ec.rope(64) * ec.alibi(64, heads=8), None
    >>> for length in (100, 1, 1):
    ...     q = torch.randn(1, 8, length, 64)
    ...     out, cache = ec.cached_attention(q, q, q, enc, cache=cache)
    >>> out.shape, len(cache)
    (torch.Size([1, 8, 1, 64]), 102)
    """
    attend: Any = _attend
    if torch.compiler.is_compiling():  # chunks close by the data's length: the graph ends here and goes on behind the call
        attend = torch.compiler.disable(_attend)
    out, lse, new = attend(q, k, v, encoding, cache, times, x, mask, window, scale, return_lse, value_encoding)
    return ((out, lse) if return_lse else out), new


def _attend(
    q: Tensor, k: Tensor, v: Tensor, encoding: Encoding, cache: KVCache | None, times: Any, x: Tensor | None, mask: Tensor | None,
    window: int | Lapse | None, scale: float | None, return_lse: bool,
    value_encoding: Encoding | None,
) -> tuple[Tensor, Tensor | None, KVCache]:  # fmt: skip
    """The body of :func:`cached_attention`."""
    if cache is not None:
        check_cache(cache, encoding, k, v, times is not None, value_encoding)
    begins = cache is None or not len(cache) or not q.shape[2]
    piece = read_piece(
        cache, q, k, v, encoding, times=times, x=x, mask=mask, window=window, scale=scale, want_lse=return_lse or not begins,
        value_encoding=value_encoding,
    )  # fmt: skip
    if cache is not None:
        check_dtype(cache, piece)
    new, problem = grown(cache, piece, encoding, times is not None, value_encoding), piece.problem
    if begins:
        out, lse = run(problem)
    elif problem.biased:
        out, lse = run(_on_all(problem, new))
    elif q.shape[2] == 1:  # the new token is the last of those stored
        out, lse = look(new.store, piece.law, _queries(piece, new.store, len(new.store) - 1))
    else:
        assert cache is not None
        _warn(piece, new.store)
        own, own_lse = run(problem)
        assert own_lse is not None
        out, lse = look(cache.store, piece.law, _queries(piece, cache.store, len(cache.store)))
        out, lse = _merged((out[..., : own.shape[-1]], lse), (own, own_lse))
    out = out[..., : v.shape[-1]]
    out = out if piece.side is None else piece.side.turned_back(out)
    return out.to(q.dtype), lse if return_lse else None, new


def _queries(piece: Piece, store: Store, start: int) -> Queries:
    problem, low = piece.problem, piece.low
    real, count = problem.key_mask, None
    if problem.window is not None:
        own = torch.arange(1, low.q.shape[2] + 1, device=low.q.device)[None] if real is None else real.long().cumsum(-1)
        count = store.before(start)[:, None] + own
    return Queries(
        low.q, low.query_times, problem.scalar_times[0], real, start, problem.scale, problem.window, problem.span, count,
        problem.query_counts,
    )  # fmt: skip


def _merged(a: Merged, b: Merged) -> Merged:
    return merge([(out[None], lse[None].to(a[1].dtype)) for out, lse in (a, b)])


def _on_all(problem: Problem, cache: KVCache) -> Problem:
    """The new tokens on all keys as they came, for a bias that sees each pair: in order by place, times beside it."""
    tokens = cache.store.tokens()
    t, n, device = problem.q.shape[2], len(tokens), problem.q.device
    place = torch.arange(n, dtype=torch.float64, device=device)
    allowed = None
    if problem.window is not None:  # by place, as in one piece, not by time
        count = place[None] if tokens.real is None else tokens.real.long().cumsum(-1)
        allowed = (count[:, n - t :, None] - count[:, None] < problem.window).unsqueeze(1)
    k, v = tokens.keys[..., : problem.k.shape[-1]], tokens.values[..., : problem.v.shape[-1]]
    return replace(
        problem, q=problem.q.to(k.dtype), k=k, v=v, query_times=place[None, None, n - t :], key_times=place[None, None],
        key_vectors=tokens.ticks, cross=True, key_mask=tokens.real, allowed=allowed, window=None, key_counts=tokens.counts,
    )  # fmt: skip


def _warn(piece: Piece, store: Store) -> None:
    """Warn where Jordan blocks outgrow the dtype over the lags of the whole sequence; steps of one token do not repeat it."""
    if piece.law.nilpotent is None or store.real is not None:
        return
    problem, (last, first) = piece.problem, (store.ticks.tensor[:, :, i : i + 1] for i in (len(store) - 1, store.first))
    q = problem.q[:, :, :1].to(piece.law.dtype)
    warn_of_growth(replace(problem, q=q, query_times=last, query_vectors=last, key_times=first, key_vectors=first, window=None))
