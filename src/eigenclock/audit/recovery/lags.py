"""The score of one head as a function of the lag, probed with basis vectors: all that recovery sees of a subject."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Block
from eigenclock.encodings import Encoding

COUPLED = 1e-11
"""Channels whose scores are below this part of the largest do not see each other; structural zeros are exact."""


@dataclass(frozen=True)
class Affine:
    """Scores at one lag: q^T content k + of_query . q + of_key . k + bias, for each head."""

    content: Float[Tensor, "H D D"]
    of_query: Float[Tensor, "H D"]
    of_key: Float[Tensor, "H D"]
    bias: Float[Tensor, "H"]

    def all(self) -> Tensor:
        """Every number, for comparisons."""
        return torch.cat([self.content.flatten(), self.of_query.flatten(), self.of_key.flatten(), self.bias])


@dataclass
class Lags:
    """The lags a subject is probed at, and what it answered.

    step: the smallest lag, below 1 where the subject takes fractions. eps: the rounding step of what it computes in.
    """

    probe: Probe
    step: float = 1.0
    eps: float = 2.0**-52
    _known: dict[tuple[float, float], Affine] = field(default_factory=dict)

    @property
    def ladder(self) -> list[float]:
        """Doubling lags up to half of the length, then the longest ones."""
        last = float(self.probe.length - 1)
        out = [self.step]
        while out[-1] * 2 <= last:
            out.append(out[-1] * 2)
        return sorted({*out, last, 3.0, 5.0} & {u for u in (*out, last, 3.0, 5.0) if u <= last})

    def at(self, lag: float, origin: float = 0.0) -> Affine:
        """The scores at a lag; the key stands at the origin, or the query where the lag is negative."""
        if (lag, origin) not in self._known:
            self._known[lag, origin] = affine(self.probe, origin + max(lag, 0.0), origin + max(-lag, 0.0))
        return self._known[lag, origin]

    def noise(self, lag: float, origin: float = 0.0) -> float:
        """What rounding may do to a number at this lag: a table in low precision errs by the rounding step of its positions, and small
        numbers beside a large bias lose what the bias rounds."""
        return self.floor(lag, origin) + (0.0 if self.eps < 1e-12 else 4 * self.eps * (abs(lag) + origin))

    def floor(self, lag: float, origin: float = 0.0) -> float:
        """The same for a block that stands still: nothing of its angle is lost."""
        size = self.at(lag, origin).bias.abs().nan_to_num(nan=0.0, posinf=0.0).max()
        return 4 * self.eps * (4 + float(size))


def affine(probe: Probe, query_time: float, key_time: float) -> Affine:
    """Scores of all pairs of basis vectors, and of the zero vector, at one pair of times."""
    measure = probe.exact or probe.scores
    assert measure is not None
    d = probe.head_dim
    basis = torch.cat([torch.zeros(1, d, dtype=torch.float64), torch.eye(d, dtype=torch.float64)])
    exact = probe.exact is not None
    q, k = (basis.to(torch.float64 if exact else probe.dtype).expand(heads, -1, -1) for heads in (probe.heads, probe.kv_heads))
    at, of = (torch.full((d + 1,), t, dtype=torch.float64) for t in (query_time, key_time))
    z = measure(q, k, at, of).double()
    zero, row, column = z[:, 0, 0], z[:, 0, 1:], z[:, 1:, 0]
    return Affine(
        z[:, 1:, 1:] - column[:, :, None] - row[:, None, :] + zero[:, None, None], column - zero[:, None], row - zero[:, None], zero
    )


def lags_of(probe: Probe) -> Lags:
    """The lags of a probe, with the precision it has: that of the dtype of its answers."""
    measure = probe.exact or probe.scores
    assert measure is not None
    one = torch.ones(1, 1, probe.head_dim, dtype=torch.float64 if probe.exact is not None else probe.dtype)
    z = measure(one.expand(probe.heads, -1, -1), one.expand(probe.kv_heads, -1, -1), torch.ones(1).double(), torch.zeros(1).double())
    step = 1.0
    if probe.fractional:
        step = 0.125
    return Lags(probe, step, max(torch.finfo(z.dtype).eps, _table_eps(probe)))


def _table_eps(probe: Probe) -> float:
    """The rounding of a table kept in less than float64, which no wider arithmetic brings back: seen by turns that miss the law."""
    measure = probe.exact or probe.scores
    assert measure is not None
    last = float(max(1, min(probe.length - 1, 1024) // 2))
    dtype = torch.float64 if probe.exact is not None else probe.dtype
    q, k = (torch.ones(heads, 1, probe.head_dim, dtype=dtype) for heads in (probe.heads, probe.kv_heads))
    near, far = (measure(q, k, torch.tensor([t + 1.0]).double(), torch.tensor([t]).double()).double() for t in (0.0, last))
    gap = float(((near - far).abs() / near.abs().clamp_min(1.0)).nan_to_num(nan=0.0, posinf=0.0).max())
    return 2.0**-23 if 1e-12 * last < gap < 1e-2 or _single(probe) else 0.0


def _single(probe: Probe) -> bool:
    """Whether a bias, or all that products are multiplied by, is made of float32 numbers, and not of short ones that every dtype holds."""
    lag = min(5.0, float(probe.length - 1))
    seen = affine(probe, lag, 0.0)

    def narrow(x: Tensor) -> bool:
        x = x[torch.isfinite(x) & (x != 0)]
        digits = torch.frexp(x).mantissa * 2**16
        long = x[digits != digits.round()]
        return bool(long.numel()) and bool((long.float().double() == long).all())

    return narrow(seen.bias) or narrow(seen.content)


def components(lags: Lags) -> list[list[int]]:
    """Channels that see each other at some lag in some head, as sorted lists in the order of their first channel."""
    d = lags.probe.head_dim
    seen = torch.zeros(d, d, dtype=torch.bool)
    for lag in lags.ladder:
        content = lags.at(lag).content.abs().nan_to_num(nan=0.0)
        seen |= (content > COUPLED * content.amax().clamp_min(1e-300)).any(0)
    seen |= seen.mT.clone()
    left, out = set(range(d)), []
    while left:
        group, edge = set(), {min(left)}
        while edge:
            group |= edge
            edge = {int(j) for i in edge for j in seen[i].nonzero().flatten()} - group
        out.append(sorted(group))
        left -= group
    return out


@dataclass(frozen=True)
class Stretch:
    """Channels start .. start + width - 1 under one recipe; encoding is None where no recipe of ours gives them."""

    start: int
    width: int
    encoding: Encoding | None
    blocks: tuple[Block, ...]
