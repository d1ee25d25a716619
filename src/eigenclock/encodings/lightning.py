"""Lightning attention: one fixed decay per head, slower with depth."""

from eigenclock.clocks import Clock
from eigenclock.encodings.base import Encoding, Recipe, Values
from eigenclock.encodings.parameter import Parameter
from eigenclock.schedules import Schedule, lightning_rates, minimax_rates
from eigenclock.theory import Decay, Generator


def lightning(
    head_dim: int, *, heads: int, kv_heads: int | None = None, layer: int = 0, layers: int = 1, clock: Clock | None = None
) -> Encoding:
    """TransNormer's decay (Lightning attention): score = q . k exp(-rate_h (t - s)), rate_h = (8h/H) (1 - layer/layers), h = 0 .. H-1.

    Head 0 never decays. Made for linear attention, where the gain is recency. The model also rotates in its first layer:
    ``ec.lightning(64, heads=8, layers=24) * ec.rope(64)``. :func:`minimax` has the rates of MiniMax-01 instead.

    Args:
        layer, layers: which layer this is, from 0, of how many.
    Units: rate per unit of the clock.
    Raises: ConfigError where the layer is none of so many.
    Stability: exp() is only ever taken of minus a lag's part.
    Source: Qin et al. (TransNormerLLM), 2307.14995; Qin et al. (Lightning Attention-2), 2401.04658.

    >>> lightning(64, heads=8, layer=3, layers=24).form
    JordanForm('64D')
    """
    return _on_heads("lightning", head_dim, heads, kv_heads, layer, layers, lightning_rates(layer, layers), clock)


def minimax(
    head_dim: int, *, heads: int, kv_heads: int | None = None, layer: int = 0, layers: int = 1, clock: Clock | None = None
) -> Encoding:
    """MiniMax-01's decay (Lightning attention): score = q . k exp(-rate_h (t - s)) with the rates of :class:`minimax_rates`.

    rate_h = 2^(-8(h+1)/H) (1 - layer/(layers - 1 + 1e-5) + 1e-5): the slopes of ALiBi, as a gain, shrinking to almost 0 in the last layer.
    Made for linear attention, where the gain is recency; the model does not scale its scores (``scale=1``).

    Args:
        layer, layers: which layer this is, from 0, of how many.
    Units: rate per unit of the clock.
    Raises: ConfigError where the layer is none of so many.
    Stability: exp() is only ever taken of minus a lag's part.
    Source: MiniMax (MiniMax-01), 2501.08313.

    >>> print(minimax(64, heads=8, layer=3, layers=80))
    minimax(head_dim=64, heads=8, layer=3, layers=80)
    """
    return _on_heads("minimax", head_dim, heads, kv_heads, layer, layers, minimax_rates(layer, layers), clock)


def _on_heads(
    name: str, head_dim: int, heads: int, kv_heads: int | None, layer: int, layers: int, rates: Schedule, clock: Clock | None
) -> Encoding:  # fmt: skip
    options = {"layer": layer or None, "layers": None if layers == 1 else layers}
    rate = {"rate": Parameter(rates(kv_heads or heads).values[:, None])}
    return Recipe(name, head_dim, heads, kv_heads, clock, options, rate, _content)


def _content(values: Values, recipe: Recipe) -> Generator:
    return Decay(values["rate"], recipe.head_dim)
