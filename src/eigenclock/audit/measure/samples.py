"""What rules share: times, contents and scores sampled from a probe, and how much of a difference is rounding."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from eigenclock.audit.probe import Probe, Scores
from eigenclock.theory.axioms.sampling import Sampling

SINGLE = torch.finfo(torch.float32).eps


def times_of(values: Sequence[float] | Tensor) -> Tensor:
    """Times as int64 where all are whole, else as float64.

    >>> times_of([1.0, 2.0]).dtype, times_of([0.5]).dtype
    (torch.int64, torch.float64)
    """
    times = torch.as_tensor(values, dtype=torch.float64)
    return times.long() if bool((times == times.round()).all()) else times


def needs_scores(probe: Probe) -> str | None:
    """Why a rule on scores can't be asked."""
    return None if probe.scores is not None else "no scores can be read from it" + (f": {probe.unread}" if probe.unread else "")


def coarse(probe: Probe, contents: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Queries and keys (H | G, P, D) in eighths of small size, float64: sums of a few are exact in 16 bits too."""
    q, k = (x.double() for x in probe.content(contents, seed=seed))
    return (q.clamp(-3, 3) * 8).round() / 8, (k.clamp(-3, 3) * 8).round() / 8


def best(probe: Probe) -> Scores:
    """The scores in float64 where the subject has them, else those in its dtype."""
    exact = probe.exact
    if exact is not None:
        return lambda q, k, t, s: exact(q.double(), k.double(), t, s)
    assert probe.scores is not None  # rules ask needs_scores first
    return probe.scores


def rounding(probe: Probe, times: float, exact: bool = False) -> float:
    """The part of a score that may be rounding at a time: some steps of the dtype, and of a float32 angle at that time."""
    own = torch.finfo(torch.float64).eps if exact and probe.exact is not None else probe.unit_roundoff
    return 16 * own + 4 * SINGLE * (1 + abs(times))


def most_of(probe: Probe, most: int) -> int:
    """How many positions are tried one by one: fewer of what is measured as an encoding of ours, which has a formula and no table, and
    where each takes a pass of attention."""
    return min(most, 512) if probe.encoding is not None or probe.as_read or probe.weighed else most


def lags_of(probe: Probe, most: float | None = None) -> list[float]:
    """Lags at all scales, up to half the length."""
    top = (probe.length - 1) // 2 if most is None else min(int(most), probe.length - 1)
    powers = [float(2**j) for j in range(2, 60) if 2**j <= top]
    return sorted({lag for lag in (0.0, 1.0, 2.0, 3.0, *powers) if lag <= max(top, 1)})


def shifts_of(probe: Probe) -> list[float]:
    """Shifts at all scales up to the length, those included where narrow dtypes begin to round."""
    last = probe.length - 1
    tried = (1, 3, 64, 257, 2049, last // 4 + 1, last // 2, 3 * last // 4 + 1, last - 3, last if last < 4 else 0)
    return sorted({float(c) for c in tried if 0 < c <= last})


def many(fn: Scores, probe: Probe, q: Tensor, k: Tensor, lags: Sequence[float], start: float) -> Tensor:
    """Scores (H, lags, P) of P contents: each query at start + lag, its own key at start."""
    n, p = len(lags), q.shape[1]
    queries = times_of((torch.tensor(lags, dtype=torch.float64) + start).repeat_interleave(p))
    keys = times_of(torch.full((p,), start, dtype=torch.float64))
    z = fn(q.repeat(1, n, 1), k, queries, keys).double()
    return z.unflatten(1, (n, p)).diagonal(dim1=-2, dim2=-1)


def shifted(fn: Scores, probe: Probe, contents: int = 4, seed: int = 0) -> tuple[list[float], list[float], Tensor, Tensor]:
    """Lags, shifts, the scores (H, lags, P) at the origin and those (C, H, lags, P) of both sides moved; NaN beyond the length."""
    q, k = probe.content(contents, seed=seed)
    lags, shifts = lags_of(probe), shifts_of(probe)
    base = many(fn, probe, q, k, lags, 0.0)
    moved = base.new_full((len(shifts), *base.shape), math.nan)
    for i, c in enumerate(shifts):
        inside = [lag for lag in lags if lag + c <= probe.length - 1]
        moved[i, :, : len(inside)] = many(fn, probe, q, k, inside, c)
    return lags, shifts, base, moved


def unlike_heads(probe: Probe, most: int = 4) -> list[int]:
    """The heads that treat the same contents differently, the first of each kind, up to some."""
    if probe.heads == 1:
        return [0]
    q, k = coarse(probe)
    last = float(probe.length - 1)
    lags = sorted({0.0, 1.0, min(7.0, last), last})
    z = many(
        best(probe),
        probe,
        q[:1].expand(probe.heads, -1, -1).to(probe.dtype),
        k[:1].expand(probe.kv_heads, -1, -1).to(probe.dtype),
        lags,
        0.0,
    )
    z = z.nan_to_num(nan=1e30, posinf=1e30, neginf=-1e30)
    chosen = [0]
    for head in range(1, probe.heads):
        gaps = [float(((z[head] - z[other]).abs() / z[other].abs().max().clamp_min(1e-300)).max()) for other in chosen]
        if min(gaps) > 64 * probe.unit_roundoff and len(chosen) < most:
            chosen.append(head)
    return chosen


def size_at(base: Tensor, moved: Tensor, floor: float = 1e-6, least: float = 1e-300) -> Tensor:
    """The size of scores at each lag (lags,), over heads, contents and shifts; at least a small part of the largest of all."""
    both = torch.cat([base[None], moved]).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs()
    return both.amax((0, 1, 3)).clamp_min(max(floor * float(both.max()), least))


def least_of(probe: Probe) -> float:
    """The size below which scores are not told apart: logarithms of weights are known to the rounding of 1, others to that of their own."""
    return 1.0 if probe.weighed else 1e-300


def floor_of(dtype: torch.dtype) -> float:
    """The part of the largest score below which a narrow dtype loses digits to underflow."""
    info = torch.finfo(dtype)
    return max(1e-6, info.tiny / info.eps)


HIDDEN = 5e3
"""How far a score falls from one lag to the next where a mask begins: -1e4 is the smallest that is used for one."""


def hidden_from(probe: Probe) -> int | None:
    """The first lag from which on keys before the query are masked (a window): scores fall to -inf, or by thousands; else None."""
    fn = best(probe)
    q, k = (torch.zeros_like(x) for x in probe.content(1))

    def at(lag: int) -> Tensor:
        return fn(q, k, times_of([float(lag)]), times_of([0.0])).double().nan_to_num(nan=-torch.inf)[:, 0, 0]

    start = at(0)

    def hidden(lag: int) -> bool:
        return bool((at(lag) < start - HIDDEN).all())

    low, high = 0, min(4, probe.length - 1)
    while not hidden(high):
        if high == probe.length - 1:
            return None
        low, high = high, min(2 * high, probe.length - 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if hidden(middle) else (middle, high)
    return high if bool((at(high) < at(low) - HIDDEN).all()) else None


def basis_scores(fn: Scores, probe: Probe, queries: Sequence[float], keys: Sequence[float], head: int = 0) -> Tensor:
    """Matrices (T, S, D + 1, D + 1) of one head: scores of the basis vectors, and first the constant coordinate that is always 1."""
    d = probe.head_dim
    rows = torch.cat([torch.zeros(1, d, dtype=torch.float64), torch.eye(d, dtype=torch.float64)]).to(probe.dtype)
    q = rows.repeat(len(queries), 1).expand(probe.heads, -1, -1)
    k = rows.repeat(len(keys), 1).expand(probe.kv_heads, -1, -1)
    each = [times_of(torch.tensor(list(t), dtype=torch.float64).repeat_interleave(d + 1)) for t in (queries, keys)]
    z = fn(q, k, *each).double()[head].unflatten(0, (-1, d + 1)).unflatten(2, (-1, d + 1)).transpose(1, 2)  # (T, S, D+1, D+1)
    bias, by_query, by_key = z[..., :1, :1], z[..., 1:, :1], z[..., :1, 1:]
    linear = z[..., 1:, 1:] - by_query - by_key + bias
    return torch.cat([torch.cat([bias, by_key - bias], -1), torch.cat([by_query - bias, linear], -1)], -2)


def content_matrix(fn: Scores, probe: Probe, t: float, s: float, head: int = 0) -> Tensor:
    """A(t, s) of one head on the content alone, (D, D)."""
    return basis_scores(fn, probe, [t], [s], head)[0, 0, 1:, 1:]


def sampling(probe: Probe, span: float = 64.0) -> Sampling:
    """How the axioms of the derivation are tried on a probe: at few times, since matrices of a whole head are read at each."""
    narrow = 0.0 if probe.exact is not None else 64 * probe.unit_roundoff
    limit = max(1e-4, narrow)  # angles in float32 are good to 1e-5 at these times
    last = (probe.length - 1) // 2
    wide = probe.head_dim > 64
    whole = [t for t in ((0.0, 1.0, 2.0, 5.0) if wide else (0.0, 1.0, 2.0, 5.0, 17.0, span)) if t <= max(last, 1)]
    times = whole if wide or not probe.fractional else [*whole, 0.375, 3.25]
    return Sampling(
        span=min(span, max(2, last)), times=tuple(times), causal=probe.causal, integer=not probe.fractional, limit=limit, probes=4
    )


def said(probe: Probe, axiom: str) -> bool:
    """Whether the subject says by itself that an axiom does not hold."""
    named = probe.outside + (probe.encoding.breaks if probe.encoding is not None else "")
    return axiom in named or ("absolute" in named and axiom == "translation invariance")


def step_of(probe: Probe) -> float:
    """How far the clock of an encoding goes, over the length, for each unit of the times it is given: 1e-9 for seconds from nanoseconds."""
    if probe.encoding is None or probe.encoding.clock.sums or probe.encoding.clock.width > 1:
        return 1.0
    ticks = probe.encoding.clock(torch.tensor([0, probe.length - 1])).ticks.double()
    return float(ticks.diff(dim=-1).flatten()[0]) / (probe.length - 1)


def name_of(dtype: torch.dtype) -> str:
    """The name of a dtype as people write it.

    >>> name_of(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")
