"""The decay rates of Lightning attention, one per head and slower with depth: those of TransNormer, and those of MiniMax-01."""

from dataclasses import dataclass

import numpy as np

from eigenclock.errors import ConfigError
from eigenclock.schedules.spectrum import Spectrum
from eigenclock.theory.numbers import exact


@dataclass(frozen=True)
class lightning_rates:
    """rate_h = (8h/n) (1 - layer/layers) for heads h = 0 .. n-1: head 0 never decays, and deep layers decay slower.

    Args: layer, from 0; layers, how many the model has.
    Units: rate per unit of the clock.
    Raises: ConfigError where the layer is none of so many.
    Source: Qin et al. (TransNormerLLM), 2307.14995; the count of heads and layers is that of public code.

    >>> lightning_rates(layer=1, layers=2)(4).values
    tensor([0., 1., 2., 3.], dtype=torch.float64)
    """

    layer: int = 0
    layers: int = 1

    def __post_init__(self) -> None:
        _check_layer(self.layer, self.layers)

    def __call__(self, n: int) -> Spectrum:
        return Spectrum(exact(8 * np.arange(n) / n * (1 - self.layer / self.layers)))


@dataclass(frozen=True)
class minimax_rates:
    """rate_h = 2^(-8(h+1)/n) (1 - layer/(layers - 1 + 1e-5) + 1e-5) for heads h = 0 .. n-1: ALiBi's slopes, all but 0 in the last layer.

    Args: layer, from 0; layers, how many the model has.
    Units: rate per unit of the clock.
    Raises: ConfigError where the layer is none of so many.
    Source: MiniMax (MiniMax-01), 2501.08313; the factor of the layer is that of its public code.

    >>> minimax_rates(layer=0, layers=3)(4).values / 1.00001
    tensor([0.2500, 0.0625, 0.0156, 0.0039], dtype=torch.float64)
    """

    layer: int = 0
    layers: int = 1

    def __post_init__(self) -> None:
        _check_layer(self.layer, self.layers)

    def __call__(self, n: int) -> Spectrum:
        depth = 1 - self.layer / (self.layers - 1 + 1e-5) + 1e-5
        return Spectrum(exact(2.0 ** (-8 * np.arange(1, n + 1) / n) * depth))


def _check_layer(layer: int, layers: int) -> None:
    if any(isinstance(x, bool) or not isinstance(x, int) for x in (layer, layers)) or not 0 <= layer < layers:
        raise ConfigError(f"got layer={layer!r} of layers={layers!r}; expected whole numbers with 0 <= layer < layers")
