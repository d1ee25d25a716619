"""What is left of L once keys are turned: how far a key decays and shears between two times, and what a bias adds."""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from eigenclock.attention.lower import Lowered, lower
from eigenclock.attention.problem import Problem, build
from eigenclock.attention.times import Times
from eigenclock.encodings import Encoding
from eigenclock.theory import Split
from eigenclock.theory.split import side_by_side
from eigenclock.theory.tiles import FACTOR_FLOOR

_LARGEST = 1e36
"""Powers of a lag stop here, in float32: what decays is 0 there, and infinity times 0 would be no number."""


@dataclass(frozen=True)
class Law:
    """exp(uL) on turned vectors: decay and shear by a lag, in float32 or better.

    rate (X, R), nilpotent (X, D, D) and slope (H,) as in Lowered; width: channels of a lowered key, stored: with zeros behind them, as
    wide as the values, which kernels want. dtype: what keys and values are stored in.
    """

    rate: Tensor | None
    nilpotent: Tensor | None
    order: int
    slope: Tensor | None
    paired: bool
    width: int
    stored: int
    dtype: torch.dtype

    @property
    def still(self) -> bool:
        """Whether a turned key stays as it is."""
        return self.rate is None and self.nilpotent is None

    def unturned(self, width: int) -> "Law":
        """The law of keys that are stored as they came: a bias that sees each pair reads them, and nothing is done ahead."""
        return replace(self, rate=None, nilpotent=None, order=1, slope=None, width=width, stored=max(self.stored, width))

    def pad(self, x: Tensor) -> Tensor:
        """Zeros behind the channels, as many as are stored."""
        return F.pad(x, (0, self.stored - x.shape[-1])) if x.shape[-1] < self.stored else x

    def keys(self, k: Tensor, lag: Tensor) -> Tensor:
        """Stored keys (..., X, T, stored) moved by a lag (..., X|1, T|1, W) towards later times: exp(lag L) k."""
        return k if self.still else self.pad(self._moved(k[..., : self.width], lag, False)).to(self.dtype)

    def queries(self, q: Tensor, lag: Tensor) -> Tensor:
        """Queries (..., H, T, width) seen from a reference that lies a lag before them, padded: exp(lag L)^T q."""
        return self.pad(q if self.still else self._moved(q, lag, True)).to(self.dtype)

    def _moved(self, x: Tensor, lag: Tensor, transposed: bool) -> Tensor:
        work = torch.promote_types(x.dtype, torch.float32)
        x = x.to(work)
        if self.nilpotent is not None:
            matrix, powers = _for_heads(self.nilpotent, x.shape[-3]).to(work), lag.to(work)
            if self.order > 2:
                powers = powers.clamp(max=_LARGEST ** (1 / (self.order - 1)))
            term, out = x, x
            for r in range(1, self.order):
                term = term @ (matrix if transposed else matrix.mT)
                out = out + term * powers**r / math.factorial(r)
            x = out
        return x if self.rate is None else x * self.factor(lag, x.shape[-3], work)

    def factor(self, lag: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
        """exp(-rate lag) for each channel, (..., X, T, width or 1).

        Stability: lags are differences of float64 times; exponents of float32 stop at -30, where a key adds less than any rounding.
        """
        assert self.rate is not None
        exponent = -_for_heads(self.rate, heads).to(dtype)[:, None] * lag.to(dtype)
        if dtype == torch.float32:
            exponent = exponent.clamp_min(-FACTOR_FLOOR)
        factor = exponent.exp()
        columns = factor.shape[-1]
        if columns in (1, self.width):
            return factor
        return factor.repeat_interleave(2, -1) if self.paired else factor.repeat(*(1,) * (factor.ndim - 1), self.width // columns)


def _for_heads(parameter: Tensor, heads: int) -> Tensor:
    rows = parameter.shape[0]
    return parameter if rows in (1, heads) else parameter.repeat_interleave(heads // rows, 0)


def lowered(problem: Problem) -> tuple[Problem, Lowered, Law]:
    """Turned queries and keys of a call and the law they stand under.

    Coordinates and Jordan blocks that grow with the lag do not fit 16 bits: they are kept in float32, and the values with them. Keys
    that only turn and decay stay in the dtype of the call: a factor <= 1 costs one more rounding of the same size.
    """
    dtype = problem.q.dtype
    if dtype in (torch.float16, torch.bfloat16) and (problem.other_lifts or problem.split.nilpotent is not None):
        dtype = torch.float32
        problem = replace(problem, q=problem.q.float(), k=problem.k.float())
    low = lower(problem)
    width, values = low.q.shape[-1], problem.v.shape[-1]
    stored = max(width, values)
    stored += -stored % 8 if problem.other_lifts else 0  # kernels are slow at other widths
    return problem, low, Law(low.rate, low.nilpotent, low.order, low.slope, low.paired, width, stored, dtype)


def law_of(encoding: Encoding, k: Tensor, values: int) -> tuple[Split, Law]:
    """The law for stored keys (B, G, N, ...) and values of so many channels, without a call; and L with the coordinates of its lifts."""
    empty = k.new_zeros(k.shape[0], k.shape[1], 0, encoding.head_dim)
    q = k.new_zeros(k.shape[0], encoding.heads if encoding.heads > 1 else k.shape[1], 0, encoding.head_dim)
    width = encoding.clock.width
    none = torch.zeros(1, 1, 0, *((width,) if width > 1 else ()), dtype=torch.float64, device=k.device)
    problem = build(
        q, empty, empty[..., :1].expand(-1, -1, -1, values), encoding, times=None, key_times=None, x=None, key_x=None, causal=True,
        window=None, documents=None, mask=None, scale=None, read=Times(none, none),
    )  # fmt: skip
    problem, _, law = lowered(problem)
    return side_by_side([problem.split, *(lift.generator.split() for lift in problem.other_lifts)]), law
