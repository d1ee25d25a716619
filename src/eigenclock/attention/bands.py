"""Windows in time, windows over cached keys and two-way documents: each query sees one interval of keys, first <= j < last.

Both ends move forward with the query, so a plan of tiles can be cut along them and no T x S mask is ever made.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

Predicate = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Span:
    """A window in time: a query at t sees the keys with t - s < size, so a key exactly that old is out.

    size: in the unit of the clock; limit: the same in the counts of the stamps, exact.

    Whole stamps are compared as integers. Floating ones carry the rounding of their own digits: a lag that is the limit to within those
    counts as the limit. So nothing depends on where a sequence begins, and stamps at every tenth of a second behave as they read.
    """

    size: float
    limit: Fraction

    @classmethod
    def of(cls, size: Fraction, resolution: Fraction | None) -> "Span":
        """A window of that size, for times in the unit of the clock or in counts of ``resolution`` each."""
        return cls(float(size), size if resolution is None else size / resolution)

    def holds(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Which pairs of times, which broadcast, are less than the limit apart."""
        if not (queries.is_floating_point() or keys.is_floating_point()):
            return queries - keys < min(math.ceil(self.limit), torch.iinfo(torch.int64).max)
        digits = 2 * max(torch.finfo(x.dtype).eps for x in (queries, keys) if x.is_floating_point())
        queries, keys = queries.double(), keys.double()
        lag = queries - keys
        return (lag <= 0) | (lag + digits * (queries.abs() + keys.abs()) < float(self.limit))


def bisect(predicate: Predicate, low: Tensor, high: Tensor, keys: int) -> Tensor:
    """The first index in low .. high where ``predicate`` (False, then True, along them) holds; ``high`` where it never does.

    ``predicate`` takes indices (B|1, H|1, T) below ``keys`` and answers for each of them.
    """
    # A traced graph must not depend on the length; more steps than needed change nothing.
    for _ in range(40 if torch.compiler.is_compiling() else keys.bit_length()):
        middle = (low + high) // 2
        open_ = low < high
        holds = predicate(middle.clamp(max=keys - 1))
        high = torch.where(open_ & holds, middle, high)
        low = torch.where(open_ & ~holds, middle + 1, low)
    return high


def first_in_span(query_times: Tensor, key_times: Tensor, span: Span, documents: Tensor | None = None) -> Tensor:
    """The first key inside the window, (B|1, H|1, T), for times (B|1, H|1, T) and (B|1, H|1, S) in order, or in order inside each
    document (run numbers (B|1, T)): the test of the dense specification itself."""
    shape = torch.broadcast_shapes(query_times.shape[:2], key_times.shape[:2], (1 if documents is None else documents.shape[0], 1))
    queries, keys = query_times.expand(*shape, -1), key_times.expand(*shape, -1)
    low, count = torch.zeros(queries.shape, dtype=torch.int64, device=keys.device), keys.shape[-1]
    high = torch.full_like(low, count)
    if documents is not None:  # a later document may go back in time, so the search stays inside the query's own
        low, high = (x.expand(low.shape) for x in of_documents(documents, documents))
    return bisect(lambda j: span.holds(queries, keys.gather(-1, j)), low, high, count) if count else low


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
