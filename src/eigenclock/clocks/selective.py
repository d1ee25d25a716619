"""The selective clock: a learned step per head, and how fast each token lets the state decay and turn while it lasts."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from eigenclock.clocks.clock import Clock
from eigenclock.clocks.cumulative import Cumulative

SLOWEST = 1e-4
"""The least rate of decay."""


class Selective(Cumulative):
    """A learned step per head, and the rate and the speeds that each token gives the state while its step lasts.

        D_t = softplus(x_t W + b),   ticks = (sum D, sum D a, sum D theta_1, .., sum D theta_n)

    Time itself, the time of a decay with its rate a_t > 0 per head, and the phases with speeds theta_t of either sign, shared by heads:
    a = 1 + z for z >= 0 and 1 / (1 - z) below, at least 1e-4; theta = pi tanh(z). A fourth projection says by which rule the input is
    integrated over a step: :meth:`share`. Calls need ``x=``.

    Args:
        features: the width of the activations.
        base: the clock that reads given times; a step is then multiplied by the time elapsed since the token before, and the first token
            of a sequence has none.
        seed: of the start weights; steps start log-uniform between 0.001 and 0.1, the other projections around 0.
    Shape: x (B, T, features). Ticks are (B, H, T, 2 + pairs): time, decay, phases.
    Units: rates and speeds are per unit of learned time.
    Raises: as :class:`Cumulative`.
    Stability: increments are float32 or better and are summed in float64; phases need not be reduced.
    Source: Lahoti et al. (Mamba-3), 2603.15569; constants as in the code released with it (whose first versions had a = softplus(z)).

    >>> clock = Selective(16).bind(heads=2, blocks=3)
    >>> clock(x=torch.randn(1, 5, 16)).ticks.shape
    torch.Size([1, 2, 5, 5])
    """

    def __init__(self, features: int, *, base: Clock | None = None, seed: int = 0):
        super().__init__(features, per="block", base=base, seed=seed)

    def bind(self, heads: int, blocks: int) -> "Selective":
        super().bind(heads, blocks)
        self.width = 2 + self.blocks
        return self

    @property
    def order_axis(self) -> int:
        """Time itself."""
        return 0

    @property
    def outputs(self) -> int:
        """A step, a rate and a share for each head, a speed for each pair."""
        return 3 * self.heads + self.blocks

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.bias is not None:
            with torch.no_grad():
                self.bias[self.heads :] = 0.0

    def spec(self) -> dict[str, Any]:
        usual = super().spec()
        return {"name": "selective"} | {name: usual[name] for name in ("features", "seed", "base") if name in usual}

    def increments(self, x: Tensor) -> Tensor:
        step, rate, _, speed = self._parts(x)
        step = F.softplus(step)
        decay = torch.where(rate >= 0, 1 + rate, 1 / (1 + rate.abs())).clamp_min(SLOWEST)
        phases = step[..., None] * (torch.pi * torch.tanh(speed))[:, :, None]  # (B, T, H, pairs)
        return torch.cat([step[..., None], (step * decay)[..., None], phases], -1).transpose(1, 2)

    def share(self, x: Float[Tensor, "B T features"]) -> Float[Tensor, "B H T"]:
        """The share of a step's input that is taken at its end: 1 is Euler's rule, 1/2 the trapezoidal one."""
        return torch.sigmoid(self._parts(x)[2]).transpose(1, 2)

    def _parts(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.project(x).split([self.heads, self.heads, self.heads, self.blocks], -1)
