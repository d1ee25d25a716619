"""Names for the shapes used in signatures: B batch, H query heads, G key heads, T and S time, D head width, P pairs."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

Queries = Float[Tensor, "B H T D"]
Keys = Float[Tensor, "B G S D"]
Values = Float[Tensor, "B G S V"]
Output = Float[Tensor, "B H T V"]
LogSumExp = Float[Tensor, "B H T"]
Logits = Float[Tensor, "B H T S"]
Ticks = Float[Tensor, "*clock T"]  # float64, origin removed; rank 3 inside attention: (B|1, H|1, T)
Ids = Int[Tensor, "*batch T"]
Allowed = Bool[Tensor, "*batch S"]

__all__ = ["Allowed", "Ids", "Keys", "LogSumExp", "Logits", "Output", "Queries", "Tensor", "Ticks", "Values"]
