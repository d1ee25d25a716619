"""What a measurement of an axiom is made of: the times and content it is tried on, the residual, and the witness against it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Map = Callable[[Float[Tensor, "N D"], float], Float[Tensor, "N E"]]
Kernel = Callable[[float], Float[Tensor, "p q"]]


def told_apart(*values: float) -> tuple[str, ...]:
    """Numbers in six digits, or in as many more as keep those that differ different.

    >>> told_apart(0.5403021, 0.5403024), told_apart(1.0, 2.0)
    (('0.5403021', '0.5403024'), ('1', '2'))
    """
    for digits in range(6, 18):
        texts = tuple(f"{value:.{digits}g}" for value in values)
        if len(set(texts)) == len(set(values)):
            break
    return texts


@dataclass(frozen=True)
class Sampling:
    """Where the axioms are tried, and how large a residual may be.

    Left alone, the times are 0, 1, 2, 3, the powers of two up to ``span`` and their neighbours (where low precision rounds), and 8
    irregular times.

    Args:
        span: the longest lag that matters; it also sets the lags of the singular case.
        times, shifts: what to try instead.
        causal: try t >= s only, which anything that decays needs.
        integer: times are whole numbers; continuity is then not measured.
        dtype: what the maps calculate in; queries and keys are given to them in it.
        limit: the largest residual that counts as holding. Left at 0 it is 1e-9 in float64. In a narrower dtype it is 16 of its
            rounding steps, and 16 of those of float32 for each unit of the span (64 at the least): angles are off by a step times the time.
        probes: how many random queries and keys are tried.
        seed: of those and of the irregular times; nothing else is random.
    Units: times in the unit of the clock; residuals relative to the largest number of their kind.

    >>> Sampling(span=4, integer=True).grid()
    (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    >>> Sampling().limit, Sampling(dtype=torch.float32).limit, Sampling(dtype=torch.float32, span=1024).limit
    (1e-09, 0.0001239776611328125, 0.0019550323486328125)
    """

    span: float = 64.0
    times: tuple[float, ...] = ()
    shifts: tuple[float, ...] = ()
    causal: bool = False
    integer: bool = False
    limit: float = 0.0
    probes: int = 16
    seed: int = 0
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        if not self.limit:
            vectors, angles = (16 * torch.finfo(dtype).eps for dtype in (self.dtype, torch.float32))
            narrow = vectors + angles * max(64.0, self.span)
            object.__setattr__(self, "limit", 1e-9 if self.dtype == torch.float64 else narrow)

    def grid(self) -> tuple[float, ...]:
        """The times tried, in order."""
        if self.times:
            return tuple(sorted({float(t) for t in self.times}))
        powers = [2.0**k for k in range(1, 60) if 2.0**k <= self.span]
        irregular = [] if self.integer else self.random(8, 1).mul(self.span * 64).round().div(64).tolist()
        return tuple(sorted({0.0, 1.0, 2.0, 3.0, *powers, *(p + 1 for p in powers), *irregular}))

    def moves(self) -> tuple[float, ...]:
        """The shifts tried."""
        if self.shifts:
            return tuple(sorted({float(c) for c in self.shifts}))
        whole = {1.0, 3.0, float(round(self.span / 2)), float(round(self.span))}
        return tuple(sorted(c for c in whole | (set() if self.integer else {0.34375}) if c > 0))

    def content(self, dim: int) -> tuple[Tensor, Tensor]:
        """Queries and keys of norm about 1, (probes, dim) each."""
        both = self.random(2 * self.probes * dim, 2).mul(2).sub(1).reshape(2, self.probes, dim)
        return both[0] * (3 / dim) ** 0.5, both[1] * (3 / dim) ** 0.5

    def random(self, n: int, stream: int) -> Tensor:
        """n numbers in [0, 1] of one of several streams of the seed."""
        return torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(1000 * self.seed + stream))


@dataclass(frozen=True)
class Witness:
    """A counterexample: the times, the shift where there is one, the two numbers that should be equal, and the same in words.

    >>> print(Witness((1.0, 0.0), (0.5, 0.7), "t = 1, s = 0: score 0.5; both moved by 3: 0.7", shift=3.0))
    t = 1, s = 0: score 0.5; both moved by 3: 0.7
    """

    times: tuple[float, ...]
    values: tuple[float, float]
    text: str
    shift: float | None = None
    defect: float = 0.0

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Residual:
    """How far one axiom is from holding: the worst value found, None where it was not measured, and the smallest witness against it.

    >>> print(Residual("group_law", 0.0, 1e-9))
    group_law          0.0e+00  holds
    """

    name: str
    value: float | None
    limit: float
    witness: Witness | None = None
    note: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether the value is within the limit; None where the axiom was not measured."""
        return None if self.value is None else self.value <= self.limit

    def __str__(self) -> str:
        head = f"{self.name:<18} " + ("not measured" if self.value is None else f"{self.value:.1e}  {'holds' if self.holds else 'breaks'}")
        return head + "".join(f"; {part}" for part in (self.witness, self.note) if part)


def unknown(name: str, at: Sampling, note: str) -> Residual:
    """An axiom that was not measured, and why."""
    return Residual(name, None, at.limit, note=note)


def scale_of(numbers: Sequence[Tensor]) -> float:
    """The largest finite number; 1 where all are 0."""
    size = max((float(x[torch.isfinite(x)].abs().max()) for x in numbers if bool(torch.isfinite(x).any())), default=0.0)
    return size or 1.0
