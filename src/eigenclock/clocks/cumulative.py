"""The learned clock: a running sum of increments computed from the activations."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eigenclock.clocks.clock import Clock, Reading, with_heads
from eigenclock.clocks.gates import GATES, start_bias
from eigenclock.clocks.index import Index
from eigenclock.errors import ClockError, ConfigError, ShapeError
from eigenclock.registry import lookup
from eigenclock.theory.numbers import exact, keeping_dtype

PER = ("all", "head", "block")


class Cumulative(Clock):
    """tau_t = sum over s <= t of gate(x_s W + b) times the time elapsed since s - 1: a gate that speeds time up or slows it down.

    Give it to any encoding: ``ec.rope(64, heads=8, clock=ec.Cumulative(512))`` turns with learned time. Calls then need ``x=``.

    Args:
        features: the width of the activations.
        per: "all" for one time for all heads, "head" for one per head, "block" for one per head and block of the generator (channel of
            a decay, pair of a rotation).
        gate: a name in GATES: "softplus" (Mamba), "forget" (Forgetting Transformer), "forget16" (GLA), "forget_late" (Wall),
            "exponential" (RWKV-6), "reciprocal" (CARoPE); "signed" (Selective RoPE) and "half_turn" (Mamba-3) for rotations only.
        rank: a projection through so many features, as in GLA; None is one full matrix.
        powers: per="block" from one number f per head: block i gets f^(i + 1), as in CARoPE.
        base: the clock that reads given times; increments are then gate times elapsed time. Without times every step counts 1.
        seed: of the start weights.
    Shape: x (B, T, features); times as the base reads them. Ticks are (B, H, T), or (B, H, T, blocks).
    Units: rates and frequencies are per unit of gated time.
    Raises: ClockError where ``x`` is missing or gives NaN; ShapeError where it has another shape; ConfigError for unknown options.
    Stability: increments are float32 or better and are summed in float64: after a million steps neighbours still differ exactly.
    Source: Gu and Dao (Mamba), 2312.00752; Lin et al. (Forgetting Transformer), 2503.02130.

    >>> clock = Cumulative(16).bind(heads=2, blocks=1)
    >>> clock(x=torch.randn(1, 5, 16)).ticks.shape
    torch.Size([1, 2, 5])
    """

    sums = True

    def __init__(
        self,
        features: int,
        *,
        per: str = "head",
        gate: str = "softplus",
        rank: int | None = None,
        powers: bool = False,
        base: Clock | None = None,
        seed: int = 0,
    ):
        super().__init__()
        self.gate = lookup(GATES, gate, "gate")
        if per not in PER:
            raise ConfigError(f"got per={per!r}; expected 'all', 'head' or 'block'")
        if powers and per != "block":
            raise ConfigError("got powers=True with one time for all blocks; expected per='block', whose times are powers of one number")
        self.features, self.per, self.gate_name, self.rank, self.powers, self.seed = features, per, gate, rank, powers, seed
        self.base = Index() if base is None else base
        self.unit, self.signed, self.heads, self.blocks = self.base.unit, self.gate.signed, 0, 0
        self.weight: nn.ParameterList | None = None
        self.bias: nn.Parameter | None = None

    def bind(self, heads: int, blocks: int) -> "Cumulative":
        """Make the weights for so many heads and blocks; an encoding calls it when it takes the clock.

        Raises: ConfigError where the clock is bound to other numbers already.
        """
        wanted = (1 if self.per == "all" else heads, blocks if self.per == "block" else 1)
        if self.weight is not None and wanted != (self.heads, self.blocks):
            raise ConfigError(
                f"got a clock made for {self.heads} heads and {self.blocks} times each; expected {wanted[0]} and {wanted[1]}: "
                "make one clock for each encoding"
            )
        if self.weight is None:
            self.heads, self.blocks = wanted
            self.width = self.blocks if self.per == "block" else 1
            sizes = [self.features, *([] if self.rank is None else [self.rank]), self.outputs]
            self.weight = nn.ParameterList([nn.Parameter(torch.empty(n, m)) for n, m in itertools.pairwise(sizes)])
            self.bias = nn.Parameter(torch.empty(self.outputs))
            self.reset_parameters()
        return self

    @property
    def outputs(self) -> int:
        """How many numbers are projected for each token."""
        return self.heads * (1 if self.powers else self.blocks)

    def reset_parameters(self) -> None:
        """Start weights normal with deviation 1 / sqrt(features), the bias as the gate wants it; also after ``to_empty``."""
        if self.weight is None or self.bias is None:
            return
        random = np.random.default_rng(self.seed)
        with torch.no_grad():
            for matrix in self.weight:
                matrix.copy_(exact(random.normal(0.0, matrix.shape[0] ** -0.5, tuple(matrix.shape))))
            self.bias.copy_(start_bias(self.gate, self.outputs, self.seed))

    def spec(self) -> dict[str, Any]:
        usual = {"per": "head", "gate": "softplus", "rank": None, "powers": False, "seed": 0}
        given = {"per": self.per, "gate": self.gate_name, "rank": self.rank, "powers": self.powers, "seed": self.seed}
        base = self.base.spec()
        return (
            {"name": "cumulative", "features": self.features}
            | {name: value for name, value in given.items() if value != usual[name]}
            | ({} if base == {"name": "index"} else {"base": base})
        )

    def increments(self, x: Tensor) -> Tensor:
        """The gate's value at each token, (B, H, T, blocks), float32 or better."""
        if self.weight is None or self.bias is None:
            raise ConfigError("got a learned clock without weights; expected an encoding to take it, or clock.bind(heads=, blocks=)")
        if x.ndim != 3 or x.shape[-1] != self.features:
            raise ShapeError(f"got x of shape {tuple(x.shape)}; expected activations (batch, time, {self.features})")
        z = x.to(torch.promote_types(x.dtype, torch.float32))
        for matrix in self.weight:
            z = z @ matrix.to(z.dtype)
        steps = self.gate.increments(z + self.bias.to(z.dtype)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        if self.powers:
            steps = steps ** torch.arange(1, self.blocks + 1, device=steps.device)
        return steps

    def forward(
        self,
        times: Any = None,
        *,
        length: int | None = None,
        origin: Tensor | None = None,
        documents: Tensor | None = None,
        mask: Tensor | None = None,
        x: Tensor | None = None,
        device: torch.device | None = None,
    ) -> Reading:
        if x is None:
            raise ClockError(f"got no activations for a learned clock; expected x= of shape (batch, time, {self.features})")
        steps = self.increments(x)
        if times is not None:
            ticks = self.base(times, documents=documents, mask=mask, device=device).ticks
            steps = steps * with_heads(ticks.diff(dim=-1, prepend=ticks[..., :1]))[..., None]
        if mask is not None:  # padding stops the clock
            steps = steps.masked_fill(~mask[:, None, :, None], 0.0)
        ticks = steps.double().cumsum(2)
        if not torch.compiler.is_compiling() and not bool(torch.isfinite(ticks.detach()[:, :, -1:]).all()):
            raise ClockError("got NaN or infinite increments from a learned clock; expected finite activations and weights")
        ticks = ticks[..., 0] if self.width == 1 else ticks
        if origin is None:
            origin = torch.zeros_like(ticks[:, :, :1].detach())
        return Reading(ticks - origin, origin)

    def continued(self, reading: Reading, given: bool) -> Tensor:
        """The origin with which the next piece is read: minus the last tick, so that its sum goes on from there."""
        return -reading.ticks[:, :, -1:]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Cumulative":
        super()._apply(keeping_dtype(fn), recurse)
        return self
