"""What rules measure: a subject reduced to the few things that any positional encoding has, each None where it has it not."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eigenclock.encodings import Encoding
from eigenclock.encodings.config import Encodings

Scores = Callable[[Float[Tensor, "H T D"], Float[Tensor, "G S D"], Tensor, Tensor], Float[Tensor, "H T S"]]
Action = Callable[[Float[Tensor, "H T D"], Float[Tensor, "G T D"], Tensor], tuple[Tensor, Tensor]]
Full = Callable[[Float[Tensor, "H T D"], Float[Tensor, "G T D"], Float[Tensor, "G T V"], Tensor], Float[Tensor, "H T V"]]
Decode = Callable[[Float[Tensor, "H T D"], Float[Tensor, "G T D"], Float[Tensor, "G T V"], Tensor, tuple[int, ...]], Float[Tensor, "H T V"]]
Batch = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None], Tensor]

Projections = Callable[[int], Iterator[tuple[int, Float[Tensor, "H D I"], Float[Tensor, "G D I"]]]]


@dataclass(frozen=True)
class RotaryTable:
    """The rotary table that the code or model builds by itself.

    Args:
        inv_freq: radians per token of each pair, (n,), in the dtype it is kept in.
        amplitude: the factor on cos and sin.
        rotary_dim: channels that turn, 2n.
        pairing: "half" or "interleaved"; None where it is not known.
        source: whose table it is, in words.
    """

    inv_freq: Float[Tensor, "n"]
    amplitude: float = 1.0
    rotary_dim: int = 0
    pairing: str | None = None
    source: str = ""


@dataclass(frozen=True)
class Probe:
    """One positional encoding as it can be measured from outside; made by a subject, read by rules.

    Args:
        name: what the report calls it.
        kind: which kind of subject made it, a key of ``SUBJECTS``.
        head_dim, heads, kv_heads: sizes of the vectors it takes.
        length: the positions it is used with, 0 .. length - 1; faults are what breaks among them, risks what breaks beyond.
        dtype: the dtype it is used in. Vectors are given to it in this dtype, and it answers in the dtype of its own arithmetic.
        causal: scores hold for keys at or before the query only; later ones are -inf or mean nothing.
        fractional: whether it takes times that are not whole numbers.
        scores: (q (H, T, D), k (G, S, D), query_times (T,), key_times (S,)) -> (H, T, S), unscaled logits without softmax.
        exact: the same in float64 throughout, where the subject can (``scores`` itself where dtype is float64).
        action: (q (H, T, D), k (G, T, D), times (T,)) -> both after the action, where it has such a stage.
        bare: the same on the very vectors that are given, where ``action`` copies them first.
        full, decode: attention over a whole sequence, and the same through its cache in pieces ending at the cuts given.
        weighed: whether its scores are the logarithms of softmax weights, which are known to the rounding of 1, however small they are.
        follows: the first position that changes the scores of those before it in a call, where its scores follow the longest one.
        factor: times (T,) -> the factor (H, T) of the query's own position that was taken off its scores, where it has one.
        axes: how many numbers its positions have, where one of them, or all, are the times that are measured.
        counts: whether it is given positions and counts the places in its calls instead.
        unread: why no scores can be read from it, in words, where that is known.
        unmasked: full without a mask, where it takes a mask that changes nothing.
        batch: attention of a batch: (q (B, H, T, D), k (B, G, T, D), v, times (B, T) | None, mask (B, T) | None, documents (B, T) | None).
        tables: layer type -> the rotary table it builds itself.
        encodings, config: what its config was read as, and the config; refused: why the config could not be read.
        encoding, module, path: the Encoding, the live module, the file or folder it is, where it is one.
        layers: layer type -> probe, for models with several; each is audited, and its findings name the layer type.
        projections: the rows of W_q (H, D, I) and W_k (G, D, I), layer by layer, of as many layers as have so many key heads.
        stands_for: the heads and key heads of the whole, of which those measured are some: all are treated alike.
        turns: index -> whether an attention layer of a live model turns queries and keys by their position, where that could be measured.
        outside: what breaks the axioms, where the subject says so itself ("learned absolute positions, ..").
        declared: what the caller says it is.
        asked: pairs of times (t, s) at which the caller wants the law measured.
        notes: how it was read, for the report.
    Units: times in the unit of the subject's clock, float64 or int64.

    >>> Probe("mine", "callable", head_dim=8).length
    4096
    """

    name: str
    kind: str
    head_dim: int
    heads: int = 1
    kv_heads: int = 1
    length: int = 4096
    dtype: torch.dtype = torch.float64
    causal: bool = False
    fractional: bool = False
    scores: Scores | None = None
    exact: Scores | None = None
    action: Action | None = None
    bare: Action | None = None
    full: Full | None = None
    decode: Decode | None = None
    weighed: bool = False
    follows: float | None = None
    factor: Callable[[Tensor], Tensor] | None = None
    axes: int = 1
    counts: bool = False
    unread: str = ""
    unmasked: Full | None = None
    batch: Batch | None = None
    tables: Mapping[str, RotaryTable] = field(default_factory=dict)
    encodings: Encodings | None = None
    config: Mapping[str, Any] | None = None
    refused: str = ""
    encoding: Encoding | None = None
    module: nn.Module | None = None
    path: str | None = None
    layers: Mapping[str, "Probe"] = field(default_factory=dict)
    projections: Projections | None = None
    stands_for: tuple[int, int] | None = None
    turns: Mapping[int, bool] = field(default_factory=dict)
    outside: str = ""
    declared: Encoding | None = None
    asked: tuple[tuple[float, float], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def unit_roundoff(self) -> float:
        """The spacing of numbers near 1 in the subject's dtype.

        >>> Probe("mine", "callable", head_dim=8, dtype=torch.float32).unit_roundoff
        1.1920928955078125e-07
        """
        return torch.finfo(self.dtype).eps

    @property
    def as_read(self) -> bool:
        """Whether what is measured is the encoding that its config was read as, since the model's own code is not here.

        >>> Probe("mine", "config", head_dim=8).as_read
        False
        """
        return self.kind in ("config", "checkpoint") and self.scores is not None and self.action is None and not self.tables

    def content(self, tokens: int, keys: int | None = None, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Random queries (H, tokens, D) and keys (G, keys, D) of a seed, in the subject's dtype."""
        random = torch.Generator().manual_seed(seed)
        shapes = ((self.heads, tokens, self.head_dim), (self.kv_heads, tokens if keys is None else keys, self.head_dim))
        q, k = (torch.randn(*shape, dtype=torch.float64, generator=random).to(self.dtype) for shape in shapes)
        return q, k
