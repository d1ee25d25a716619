"""Constants beside the content: an encoding is (read-out C, generator L, read-in B), and a bias is C exp((t-s)L) B."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.theory.generator import Generator
from eigenclock.theory.generators.jordan import Jordan


@dataclass(frozen=True)
class Lift:
    """Constant coordinates appended to queries and keys; their inner product is a bias on the logit, added after the scale.

    bias(u) = query^T exp(uL) key, an exponential polynomial in the lag u = t - s. With L = [[0, 1], [0, 0]], query = (-m, 0) and
    key = (0, 1) it is -m u: ALiBi.

    Shape: query (n,) or (heads, n), key (n,) or (heads, n), for a generator of width n.
    Units: logits; the lag in the unit of the clock.
    Source: Press et al. (ALiBi), 2108.12409, section 3.

    >>> import torch
    >>> slope_half = Lift(Jordan(torch.zeros(1), order=2), torch.tensor([-0.5, 0.0]), torch.tensor([0.0, 1.0]))
    >>> slope_half.bias(torch.tensor([2.0, 4.0]))
    tensor([-1., -2.], dtype=torch.float64)
    """

    generator: Generator
    query: Float[Tensor, "*heads n"]
    key: Float[Tensor, "*heads n"]

    def bias(self, lag: Tensor) -> Tensor:
        """The bias at each lag: lags (...) give (...) for shared constants; (..., heads, T, S) give the same where heads differ."""
        query, key = self.query.double(), self.key.double()
        if query.ndim > 1:
            query = query[:, None, None]
        if key.ndim > 1:
            key = key[:, None, None]
        moved = self.generator.act(key.expand(*torch.broadcast_shapes(lag.shape, key.shape[:-1]), key.shape[-1]), lag.double())
        return (query * moved).sum(-1)

    @property
    def slope(self) -> Float[Tensor, "*heads"] | None:
        """m where the bias is exactly -m u by construction (one nilpotent block of order 2, read as ALiBi does), else None."""
        g = self.generator
        if not (isinstance(g, Jordan) and g.order == 2 and g.dim == 2 and g.freq is None and g.eta is None and not g.lowered):
            return None
        return -self.query[..., 0] * self.key[..., 1] if self.linear else None

    linear: bool = False  # set by `linear_bias`: the constants have the ALiBi pattern, nothing decays


def linear_bias(slope: Float[Tensor, "heads"]) -> Lift:
    """The lift whose bias is -slope * u: the nilpotent block of order 2 on constants.

    Shape: slope (heads,). Units: logits per unit of the clock.

    >>> import torch
    >>> linear_bias(torch.tensor([0.5, 0.25])).slope
    tensor([0.5000, 0.2500], dtype=torch.float64)
    """
    slope = slope.double()
    zero = torch.zeros_like(slope)
    nilpotent = Jordan(torch.zeros(1, dtype=torch.float64, device=slope.device), order=2)
    return Lift(nilpotent, torch.stack([-slope, zero], -1), torch.tensor([0.0, 1.0], dtype=torch.float64, device=slope.device), linear=True)
