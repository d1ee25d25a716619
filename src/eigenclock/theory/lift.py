"""Coordinates beside the content: an encoding is (read-out C, generator L, read-in B), and a bias is C exp((t-s)L) B."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.theory.generator import Generator
from eigenclock.theory.generators.jordan import Jordan


@dataclass(frozen=True)
class Lift:
    """Coordinates appended to queries and keys; their inner product is a bias on the logit.

    bias = Q^T exp(uL) K with Q = query + q @ query_map and K = key + k @ key_map, an exponential polynomial in the lag u = t - s. With
    L = [[0, 1], [0, 0]], query = (-m, 0), key = (0, 1) and no maps it is -m u: ALiBi.

    Args:
        query, key: constants, (n,) or (heads, n), for a generator of width n.
        query_map, key_map: (D, n) or (heads, D, n), where the coordinates also read the content (Transformer-XL).
        scaled: whether the bias is multiplied by the scale of the call, as the content is; otherwise it is added after the scale.
        directed: whether a key after its query would be rewarded or grow, so that the bias needs causality and times in order.
    Units: logits; the lag in the unit of the clock.
    Source: Press et al. (ALiBi), 2108.12409, section 3; Dai et al. (Transformer-XL), 1901.02860, section 3.3.

    >>> import torch
    >>> slope_half = Lift(Jordan(torch.zeros(1), order=2), torch.tensor([-0.5, 0.0]), torch.tensor([0.0, 1.0]))
    >>> slope_half.bias(torch.tensor([2.0, 4.0]))
    tensor([-1., -2.], dtype=torch.float64)
    """

    generator: Generator
    query: Float[Tensor, "*heads n"]
    key: Float[Tensor, "*heads n"]
    query_map: Float[Tensor, "*heads D n"] | None = None
    key_map: Float[Tensor, "*heads D n"] | None = None
    scaled: bool = False
    directed: bool = True
    linear: bool = False  # set by `linear_bias`: the constants have the ALiBi pattern, nothing decays

    @property
    def reads_content(self) -> bool:
        """Whether the bias depends on the queries or the keys."""
        return self.query_map is not None or self.key_map is not None

    def queries(self, q: Float[Tensor, "B H T D"]) -> Float[Tensor, "B H T n"]:
        """The coordinates appended to queries, in the dtype of ``q``."""
        return _coordinates(q, self.query, self.query_map)

    def keys(self, k: Float[Tensor, "B G S D"]) -> Float[Tensor, "B G S n"]:
        """The coordinates appended to keys, in the dtype of ``k``."""
        return _coordinates(k, self.key, self.key_map)

    def bias(self, lag: Tensor) -> Tensor:
        """The bias of the constants at each lag: lags (...) give (...), or (..., heads, T, S) the same where heads differ."""
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


def _coordinates(x: Tensor, constant: Tensor, matrix: Tensor | None) -> Tensor:
    """constant + x @ matrix for every token, (B, H, T, n), in float32 or better, rounded once."""
    work = torch.promote_types(x.dtype, torch.float32)
    rows = (constant if constant.ndim == 2 else constant[None])[None, :, None].to(work)
    if matrix is None:
        return rows.expand(x.shape[0], x.shape[1], x.shape[2], rows.shape[-1]).to(x.dtype)
    return (x.to(work) @ matrix.to(work) + rows).to(x.dtype)


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
