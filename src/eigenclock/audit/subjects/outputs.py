"""Scores of attention that gives outputs alone: where values are chosen, each channel of an output is the weight of one key.

The logarithm of a softmax weight is the score up to a constant for each query. That constant is taken off by a key of zeros at the place
of the query: what is read is by how much a key scores more than nothing does there, in the scale of the attention itself.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Attention of a batch: queries, keys and values (B, H, T, D) and times (T,) -> (B, H, T, D)."""
HARDLY = 1e-3
"""Where the key of zeros has a smaller part of the largest weight, what is lost beside that one may show alone."""


@dataclass(frozen=True)
class Reader:
    """Reads scores from what attention gives.

    Args:
        attend: the attention.
        products: whether its weights are the scores themselves (linear attention), not those of a softmax.
    """

    attend: Attend
    products: bool = False

    def scores(self, q: Tensor, k: Tensor, query_times: Tensor, key_times: Tensor) -> Tensor:
        """(q (H, T, D), k (H, S, D), (T,), (S,)) -> (H, T, S); -inf for what has no weight. Each query is last in its sequence."""
        out = torch.empty(q.shape[0], q.shape[1], k.shape[1], dtype=torch.float64)
        for t in query_times.unique():
            rows = (query_times == t).nonzero().flatten()
            some = q[:, rows].transpose(0, 1)  # (B, H, D)
            for keys in torch.arange(k.shape[1]).split(q.shape[-1] - 1):
                out[:, rows[:, None], keys] = self._row(some, t, k[:, keys], key_times[keys]).transpose(0, 1)
        return out

    def _row(self, q: Tensor, t: Tensor, k: Tensor, times: Tensor) -> Tensor:
        """Scores (B, H, S) of queries (B, H, D) at one time."""
        w, own = self.weights(q, t, k, times)
        if self.products:
            return w
        z = _logarithm(w) - own.log()[..., None]
        hidden = ~torch.isfinite(z)
        if k.shape[1] > 1 and bool((hidden & (own < HARDLY * w.amax(-1))[..., None]).any()):
            for j in hidden.flatten(0, 1).any(0).nonzero().flatten().tolist():
                one, beside = self.weights(q, t, k[:, j : j + 1], times[j : j + 1])
                z[..., j] = torch.where(hidden[..., j], _logarithm(one)[..., 0] - beside.log(), z[..., j])
        return z

    def weights(self, q: Tensor, t: Tensor, k: Tensor, times: Tensor, turned: int = 0) -> tuple[Tensor, Tensor]:
        """The weights (B, H, S) of the keys and (B, H) of the key of zeros; channels are dealt out beginning with ``turned``."""
        b, h, d = q.shape
        s = k.shape[1]
        at = torch.cat([times.to(torch.promote_types(times.dtype, t.dtype)), t[None]])
        queries, keys, values = (q.new_zeros(b, h, s + 1, d) for _ in range(3))
        queries[:, :, -1], keys[:, :, :-1] = q, k
        channels = (torch.arange(s + 1) + turned) % d
        values[:, :, torch.arange(s + 1), channels] = 1
        out = self.attend(queries, keys, values, at)[:, :, -1].double()[..., channels]
        least = torch.finfo(q.dtype).tiny
        out = out if self.products else torch.where(out < least, 0.0, out)  # below it a weight has lost its digits
        return out[..., :-1], out[..., -1]


def _logarithm(w: Tensor) -> Tensor:
    return torch.where(w > 0, w, 0.0).log()


def reader(attend: Attend, heads: int, width: int, dtype: torch.dtype) -> Reader | str:
    """What reads the scores of an attention; why they cannot be read, in words, where its weights are neither a softmax nor products."""
    n, random = min(5, width - 1), torch.Generator().manual_seed(23)
    if n < 2:
        return "its values are too narrow to tell two keys apart"
    q, k = (torch.randn(heads, n, width, generator=random).to(dtype) for _ in range(2))
    q, t, times = q[None, :, 0], torch.tensor(n), torch.arange(n)
    raw = Reader(attend, products=True)

    def weights(q: Tensor, k: Tensor, turned: int = 0) -> Tensor:
        w, own = raw.weights(q, t, k, times, turned)
        return torch.cat([w, own[..., None]], -1)[0]  # (H, n + 1)

    def beside_nothing(j: int) -> Tensor:
        """Key j with the others 0, at its own place among them."""
        return weights(q, torch.where(torch.arange(n)[:, None] == j, k, 0))

    try:
        w, again, double = weights(q, k), weights(q, k, turned=1), weights(2 * q, k)
        single = [beside_nothing(j) for j in range(n)]
        apart = raw.weights(q, t, k[:, n - 2 : n - 1], times[n - 2 : n - 1])[0]
    except Exception as error:  # code of others refuses with whatever it happens to run into
        return f"it does not take the keys its scores are read with: {type(error).__name__}: {' '.join(str(error).split())[:120]}"
    if bool((w[:, n - 2] != 0).any()) and not bool((apart != 0).any()):
        return "a key two steps before the query has a weight where one stands between them, and none where none does"
    return _judged(attend, w, again, double, torch.stack([one[:, j] for j, one in enumerate(single)], -1),
                   torch.stack([one[:, -1] for one in single], -1), 64 * torch.finfo(dtype).eps)  # fmt: skip


def _judged(attend: Attend, w: Tensor, again: Tensor, double: Tensor, single: Tensor, beside: Tensor, limit: float) -> Reader | str:
    """By the weights (H, n + 1) of keys and the key of zeros, those in other channels, those of twice the query, and each key's own beside
    keys of zeros, with those of the key of zeros then."""
    size = float(w.abs().max())
    if not bool(torch.isfinite(w).all()) or size == 0:
        return "what it gives for values of 0 and 1 is not finite, or nothing"
    if float((again - w).abs().max()) > limit * size:
        return "its outputs are no mean of the values: in other channels the same values have other weights"
    if float((double - 2 * w)[:, :-1].abs().max()) <= limit * size and float((single - w[:, :-1]).abs().max()) <= limit * size:
        return Reader(attend, products=True)
    if bool((w < -limit).any()) or float(w.sum(-1).max()) > 1 + limit or bool((w[:, -1] <= 0).any()):
        return "its weights are not those of a softmax"
    seen = (w[:, :-1] > 0) & (single > 0)
    gap = (w[:, :-1] / w[:, -1:]).log() - (single / beside).log()
    if not bool(seen.any()) or float(gap[seen].abs().max()) > 16 * limit:
        return "its weights are not those of a softmax: what is beside a key counts for more than their sum"
    return Reader(attend)


__all__ = ["Attend", "Reader", "reader"]
