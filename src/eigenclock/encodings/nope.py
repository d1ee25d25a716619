"""NoPE: no encoding at all; order enters through the causal mask alone."""

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.theory import Generator, Zero


def nope(head_dim: int, *, heads: int = 1, kv_heads: int | None = None, clock: Clock | None = None) -> Encoding:
    """No positional encoding: L = 0, score = q . k.

    Source: Haviv et al., 2203.16634; Kazemnejad et al., 2305.19466.

    >>> print(nope(64))
    nope(head_dim=64, heads=1)
    """
    return Recipe("nope", head_dim, heads, kv_heads, clock, {}, {}, _content)


def _content(values: Values, recipe: Recipe) -> Generator:
    return Zero(recipe.head_dim)
