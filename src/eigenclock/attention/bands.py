"""Windows in time, windows over cached keys and two-way documents: each query sees one interval of keys, first <= j < last.

Both ends move forward with the query, so a plan of tiles can be cut along them and no T x S mask is ever made.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Predicate = Callable[[Tensor], Tensor]


def bisect(predicate: Predicate, low: Tensor, keys: int) -> Tensor:
    """The first index in low .. keys where ``predicate`` (False, then True, along the keys) holds; ``keys`` where it never does.

    ``predicate`` takes indices (B|1, H|1, T) and answers for each of them.
    """
    high = torch.full_like(low, keys)
    # A traced graph must not depend on the length; more steps than needed change nothing.
    for _ in range(40 if torch.compiler.is_compiling() else keys.bit_length()):
        middle = (low + high) // 2
        open_ = low < high
        holds = predicate(middle.clamp(max=keys - 1))
        high = torch.where(open_ & holds, middle, high)
        low = torch.where(open_ & ~holds, middle + 1, low)
    return high


def first_in_span(query_times: Tensor, key_times: Tensor, span: float, documents: Tensor | None = None) -> Tensor:
    """The first key with t - s < span, (B|1, H|1, T), for times (B|1, H|1, T) and (B|1, H|1, S) in order, or in order inside each
    document (run numbers (B|1, T)): the test of the dense specification itself, rounding included."""
    shape = torch.broadcast_shapes(query_times.shape[:2], key_times.shape[:2], (1 if documents is None else documents.shape[0], 1))
    queries, keys = query_times.expand(*shape, -1), key_times.expand(*shape, -1)
    low = torch.zeros(queries.shape, dtype=torch.int64, device=keys.device)
    if documents is not None:
        low = low + of_documents(documents, documents)[0]
    return bisect(lambda j: queries - keys.gather(-1, j) < span, low, keys.shape[-1]) if keys.shape[-1] else low


def first_of_latest(query_times: Tensor, key_times: Tensor, key_mask: Tensor | None, window: int) -> Tensor:
    """The first of the ``window`` latest keys with s <= t, (B|1, H|1, T); padding (key_mask (B|1, S), True is real) does not count."""
    s = key_times.shape[-1]
    real = torch.ones(1, s, dtype=torch.bool, device=key_times.device) if key_mask is None else key_mask
    shape = torch.broadcast_shapes(query_times.shape[:2], key_times.shape[:2], (real.shape[0], 1))
    queries, keys = query_times.expand(*shape, -1).contiguous(), key_times.expand(*shape, -1).contiguous()
    seen = torch.searchsorted(keys, queries, right=True)
    count = torch.cat([torch.zeros_like(real[:, :1], dtype=torch.int64), real.long().cumsum(-1)], -1)  # real keys before each index
    count = count[:, None].expand(*shape, -1).contiguous()
    return torch.searchsorted(count, count.gather(-1, seen) - window)


def last_before(query_times: Tensor, key_times: Tensor) -> Tensor:
    """The end of the keys with s < t, (B|1, H|1, T), for times in order."""
    shape = torch.broadcast_shapes(query_times.shape[:2], key_times.shape[:2])
    return torch.searchsorted(key_times.expand(*shape, -1).contiguous(), query_times.expand(*shape, -1).contiguous())


def of_documents(documents: Tensor, key_documents: Tensor) -> tuple[Tensor, Tensor]:
    """The run of keys of each query's document: first and last, (B|1, 1, T); run numbers (B|1, T) and (B|1, S) in order."""
    documents, key_documents = torch.broadcast_tensors(documents, key_documents)
    documents, key_documents = documents.contiguous(), key_documents.contiguous()
    first, last = (torch.searchsorted(key_documents, documents, right=right).unsqueeze(1) for right in (False, True))
    return first, last
