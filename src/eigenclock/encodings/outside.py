"""What no generator gives: biases and vectors that break an axiom of the group, offered for comparison and named for what they break."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from eigenclock.clocks import Clock
from eigenclock.encodings.rates import clock_or_index
from eigenclock.errors import ConfigError, ShapeError


@dataclass(frozen=True)
class Pairs:
    """The pairs of a call as a bias sees them: vectors, exact times with a common origin, and which keys each query sees.

    origin: what the times lack of those that were given, None where the clock counts from 0.
    """

    q: Float[Tensor, "B H T D"]
    k: Float[Tensor, "B G S D"]
    query_times: Float[Tensor, "b h T"]
    key_times: Float[Tensor, "b h S"]
    seen: Bool[Tensor, "b h T S"]
    scale: float
    origin: Tensor | None = None

    @property
    def lag(self) -> Float[Tensor, "b h T S"]:
        """t - s in float64, 0 where a key is not seen (which no result depends on)."""
        lag = self.query_times[..., :, None] - self.key_times[..., None, :]
        return lag.masked_fill(~self.seen, 0.0)

    @property
    def time(self) -> Float[Tensor, "b h T 1"]:
        """The time of each query itself, from where the clock begins."""
        return absolute(self.query_times, self.origin)[..., None]

    @property
    def dtype(self) -> torch.dtype:
        """What a bias is computed in: float32 or better."""
        return torch.promote_types(self.q.dtype, torch.float32)


Vectors = Callable[[Tensor, Tensor | None], Tensor]
"""Times (B|1, H|1, T) and which tokens are real (B|1, T) to vectors (B|1, H|1, T, D)."""


@dataclass(frozen=True)
class Outside:
    """One part of an encoding that is in no group: a bias for each pair, or vectors added to queries and keys.

    Args:
        breaks: the axioms that do not hold, in words: "continuity", "translation invariance", "linearity" or "finite dimension".
        why: one sentence on it.
        bias: what is added to each logit, (B|1, H|1, T, S).
        query_vectors, key_vectors: what is added to queries and keys at their times, before anything else.
        directed: whether keys after the query have no law, so that it needs causality and times in order.
        alone: whether it reads the logits themselves and stands in no sum or product.
        length: how many whole positions it knows; None where any time will do.
        start: the first channel that the vectors are added to.
    """

    breaks: tuple[str, ...]
    why: str
    bias: Callable[[Pairs], Tensor] | None = None
    query_vectors: Vectors | None = None
    key_vectors: Vectors | None = None
    directed: bool = False
    alone: bool = False
    length: int | None = None
    start: int = 0

    def curve(self, context: float) -> Callable[[Tensor], Tensor] | None:
        """Lags (u,) to the bias (heads, u) for a query at the end of a context; None where it reads the content, or there is none."""
        bias = self.bias
        if bias is None or self.alone:
            return None

        def at(lag: Tensor) -> Tensor:
            nothing, last = torch.zeros(1, 1, 1, 1, dtype=torch.float64), torch.full((1, 1, 1), context, dtype=torch.float64)
            seen = torch.ones(1, 1, 1, lag.shape[0], dtype=torch.bool)
            return bias(Pairs(nothing, nothing, last, last - lag.double(), seen, 1.0))[0, :, 0].detach().cpu()

        return at


def absolute(times: Tensor, origin: Tensor | None) -> Tensor:
    """Times from where the clock begins, from those with an origin subtracted."""
    return times if origin is None else times + origin.double()


def place(parts: tuple[Outside, ...], x: Tensor, times: Tensor, real: Tensor | None, *, keys: bool) -> Tensor:
    """Queries or keys (B, H, T, D) with the vectors of their times added, in their dtype.

    Raises: ShapeError where there is not one clock, or one per head.
    """
    for part in parts:
        vectors = part.key_vectors if keys else part.query_vectors
        if vectors is None:
            continue
        if times.shape[1] not in (1, x.shape[1]):
            raise ShapeError(
                f"got times for {times.shape[1]} heads and {'keys' if keys else 'queries'} with {x.shape[1]}; expected one clock per key "
                "head, or repeat the keys and values"
            )
        added = vectors(times, real).to(x.dtype)
        if added.shape[1] not in (1, x.shape[1]):
            raise ShapeError(
                f"got positions for {added.shape[1]} heads and {'keys' if keys else 'queries'} with {x.shape[1]}; expected one for each "
                "key head (build the encoding with kv_heads=), or repeat the keys and values"
            )
        x = x + F.pad(added, (part.start, x.shape[-1] - part.start - added.shape[-1]))
    return x


def counting(clock: Clock | None, name: str) -> Clock | None:
    """The clock given, for an encoding that sees time itself.

    Raises: ConfigError where the clock does not count steps from 0.
    """
    found = clock_or_index(clock)
    if found.unit is not None or found.width > 1 or found.sums:
        raise ConfigError(
            f"got clock={found.spec()} for {name}, which sees where time begins; expected a clock that counts steps: ec.Index() or "
            "ec.Documents()"
        )
    return clock


__all__ = ["Outside", "Pairs", "absolute", "counting", "place"]
