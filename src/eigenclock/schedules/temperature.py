"""Log-length temperatures: a factor per query, beside the encoding, that keeps attention sharp as the number of keys grows."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.schedules.inner import check_positive


@dataclass(frozen=True)
class ssmax:
    """factor = s ln n for a query that sees n keys: ``attention(q * factor, k, v, enc)`` is softmax of s ln n times the logits.

    No frequency, and no part of an encoding. Where every query has the same n (the length of a call without causality) it is a scale of
    the call, and no law is broken. In causal attention n = t + 1 differs between queries, so a score no longer depends on t - s alone:
    translation invariance is broken by design, and the audit says so. It multiplies what queries and keys say, not a bias that is added
    after the scale: with :func:`alibi` the slopes stay as they are.

    Args: s, one number, learned per head in the paper (start it near 1 / ln of the trained length to begin where softmax is).
    Shape: counts of any shape, for example (T,) or (B, 1, T); the factor has the same, and ``[..., None]`` fits it to q (B, H, T, D).
    Units: none.
    Raises: ConfigError where s is not above 0.
    Source: Nakanishi (Scalable-Softmax), 2501.19399.

    >>> ssmax(0.5)(torch.tensor([1, 10, 100]))
    tensor([0.0000, 1.1513, 2.3026], dtype=torch.float64)
    """

    s: float

    def __post_init__(self) -> None:
        check_positive(self.s, "s")

    def __call__(self, counts: Any) -> Float[Tensor, "*queries"]:
        """The factor of each query, from the number of keys it sees."""
        return self.s * torch.as_tensor(counts).double().log()


@dataclass(frozen=True)
class log_position:
    """factor = 1 + scale ln(1 + floor((t + 1) / step)) for a query at position t: ``attention(q * factor, k, v, enc)``.

    Llama 4 takes it on its layers without rotation. 1 up to position ``step - 2``, then a staircase. It depends on the absolute position,
    so translation invariance is broken by design: a sequence moved by ``step`` gets other scores. Give positions that restart in every
    document and do not count padding. As with :class:`ssmax`, a bias added after the scale is left alone.

    Args:
        scale: how fast the factor grows.
        step: the length of a stair.
    Shape: positions of any shape; the factor has the same, and ``[..., None]`` fits it to q (B, H, T, D).
    Units: positions and step in the unit of the clock.
    Raises: ConfigError where scale or step is not above 0.
    Source: Llama 4 (Meta, 2025), its code; no paper.

    >>> log_position()(torch.tensor([0, 8190, 8191, 100_000]))
    tensor([1.0000, 1.0000, 1.0693, 1.2565], dtype=torch.float64)
    """

    scale: float = 0.1
    step: float = 8192

    def __post_init__(self) -> None:
        check_positive(self.scale, "scale")
        check_positive(self.step, "step")

    def __call__(self, positions: Any) -> Float[Tensor, "*queries"]:
        """The factor of each query, from its position."""
        return 1 + self.scale * ((torch.as_tensor(positions).double() + 1) / self.step).floor().log1p()
