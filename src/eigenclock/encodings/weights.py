"""What tokens weigh in linear attention, where not every token weighs 1 on every query from its own on."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Weights:
    """Weights of tokens on the queries of linear attention, with the current token apart from those before it:

        out_t = scale * (sum over s < t of (later_s + ahead_(s+1)) q_t^T A(t, s) k_s v_s + q_t^T diag(own_t) k_t v_t)

    Args:
        own: what a token weighs on its own query, one number, or one per channel.
        later: what it weighs on later ones by itself; None is 1.
        ahead: what a token adds to the weight of the token before it, in the same document: a rule that looks one step ahead. None is 0.
        before: whether a query stands at the token before it, and reads what that one left before its own step: A(t - 1, s) for A(t, s).
    Shape: rows of key heads; those of ``own`` may be of query heads.
    """

    own: Float[Tensor, "batch heads tokens channels"]
    later: Float[Tensor, "batch heads T"] | None = None
    ahead: Float[Tensor, "batch heads T"] | None = None
    before: bool = False
