"""The learned clock: a running sum of increments computed from the activations."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenclock.clocks.clock import Clock, Reading, elapsed, with_heads
from eigenclock.clocks.gates import GATES, Gate, bounded, check_bound, start_bias
from eigenclock.clocks.index import Index
from eigenclock.errors import ClockError, ConfigError, ShapeError
from eigenclock.registry import lookup
from eigenclock.theory.numbers import exact, keeping_dtype

PER = ("all", "head", "block")


class Cumulative(Clock):
    """tau_t = sum over s <= t of gate(x_s W + b) times the time elapsed since s - 1: a gate that speeds time up or slows it down.

    Without times every step counts 1, where the base has a count of its own. With times the first token of a sequence has no step, and
    that of a later piece the time since the last token of the piece before: pass ``origin=clock.continued(..)`` and
    ``since=reading.last``, as a state does.

    Give it to any encoding: ``ec.rope(64, heads=8, clock=ec.Cumulative(512))`` turns with learned time. Calls then need ``x=``.

    Args:
        features: the width of the activations.
        per: "all" for one time for all heads, "head" for one per head, "block" for one per head and block of the generator (channel of
            a decay, pair of a rotation).
        gate: a name in GATES: "softplus" (Mamba), "forget" (Forgetting Transformer), "forget16" (GLA), "forget_late" (Wall),
            "exponential" (RWKV-6), "reciprocal" (CARoPE); "signed" (Selective RoPE) and "half_turn" (Mamba-3) for rotations only.
        rank: a projection through so many features, as in GLA; None is one full matrix.
        powers: per="block" from one number f per head: block i gets f^(i + 1), as in CARoPE.
        base: the clock that reads given times; increments are then gate times elapsed time.
        lower_bound: for the gate "forget", whose f = exp(-increment) is then lower_bound + (1 - lower_bound) sigmoid(z), as in HGRN2.
        seed: of the start weights.
    Shape: x (B, T, features); times as the base reads them. Ticks are (B, H, T), or (B, H, T, blocks).
    Units: rates and frequencies are per unit of gated time.
    Raises: ClockError where ``x`` is missing or gives NaN; ShapeError where it or the times have another shape; ConfigError for unknown
        options; UnknownNameError for an unknown gate.
    Stability: increments are float32 or better and are summed in float64: after a million steps neighbours still differ exactly.
    Training: leave the bias out of weight decay, which would pull it from the start that its gate wants. Rates and frequencies learned
        beside the clock are on a log scale (see :class:`Parameter`): no weight decay either, and a lower learning rate for frequencies.
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
        lower_bound: float = 0.0,
        seed: int = 0,
    ):
        super().__init__()
        lookup(GATES, gate, "gate")
        if per not in PER:
            raise ConfigError(f"got per={per!r}; expected 'all', 'head' or 'block'")
        if powers and per != "block":
            raise ConfigError("got powers=True with one time for all blocks; expected per='block', whose times are powers of one number")
        self.features, self.per, self.gate_name, self.rank, self.powers, self.seed = features, per, gate, rank, powers, seed
        self.lower_bound = check_bound(lower_bound, gate)
        for name, number in (("features", features), ("rank", 1 if rank is None else rank)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ConfigError(f"got {name}={number!r}; expected a whole number of at least 1")
        self.base = Index() if base is None else base
        if not isinstance(self.base, Clock) or self.base.width > 1 or self.base.sums:
            raise ConfigError(f"got base={base!r}; expected a clock that reads one given time per token, such as Timestamps('ns')")
        self.unit, self.signed, self.heads, self.blocks = self.base.unit, self.gate.signed, 0, 0
        self.weight: nn.ParameterList | None = None
        self.bias: nn.Parameter | None = None

    @property
    def gate(self) -> Gate:
        """What makes an increment of a number; looked up by its name, so that a clock is pickled without its functions."""
        return GATES[self.gate_name]

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
        usual = {"per": "head", "gate": "softplus", "rank": None, "powers": False, "lower_bound": 0.0, "seed": 0}
        given = {name: getattr(self, "gate_name" if name == "gate" else name) for name in usual}
        base = self.base.spec()
        return (
            {"name": "cumulative", "features": self.features}
            | {name: value for name, value in given.items() if value != usual[name]}
            | ({} if base == {"name": "index"} else {"base": base})
        )

    def project(self, x: Tensor) -> Tensor:
        """x W + b, (B, T, outputs), float32 or better."""
        if self.weight is None or self.bias is None:
            raise ConfigError("got a learned clock without weights; expected an encoding to take it, or clock.bind(heads=, blocks=)")
        if x.ndim != 3 or x.shape[-1] != self.features:
            raise ShapeError(f"got x of shape {tuple(x.shape)}; expected activations (batch, time, {self.features})")
        z = x.to(torch.promote_types(x.dtype, torch.float32))
        for matrix in self.weight:
            z = z @ matrix.to(z.dtype)
        return z + self.bias.to(z.dtype)

    def increments(self, x: Tensor) -> Tensor:
        """The gate's value at each token, (B, H, T, blocks), float32 or better."""
        z = self.project(x)
        steps = bounded(z, self.lower_bound) if self.lower_bound else self.gate.increments(z)
        steps = steps.unflatten(-1, (self.heads, -1)).transpose(1, 2)
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
        since: Tensor | None = None,
        device: torch.device | None = None,
    ) -> Reading:
        if x is None:
            raise ClockError(f"got no activations for a learned clock; expected x= of shape (batch, time, {self.features})")
        if times is None:
            self.base(None, length=x.shape[1])  # a base that has no count of its own says what is missing
        if mask is not None:  # padding may hold anything, and no gradient passes it
            x = x.masked_fill(~mask[..., None], 0.0)
        steps, last = self.increments(x), None
        if times is not None:
            elapsed, last = self._elapsed(times, tuple(steps.shape[:3]), documents, mask, since, device)
            steps = steps * elapsed[..., None]
        if mask is not None:  # padding stops the clock
            steps = steps.masked_fill(~mask[:, None, :, None], 0.0)
        ticks = running_sum(steps)
        if not torch.compiler.is_compiling() and not bool(torch.isfinite(ticks.detach()[:, :, -1:]).all()):
            row, _, token, _ = (~torch.isfinite(ticks.detach())).nonzero()[0].tolist()
            raise ClockError(
                f"got NaN or infinite increments from a learned clock at token {token} (row {row}); "
                "expected finite activations and weights: mask such tokens"
            )
        ticks = ticks[..., 0] if self.width == 1 else ticks
        if origin is None:
            return Reading(ticks, ticks.new_zeros(*ticks.shape[:2], 1, *ticks.shape[3:]), last)
        return Reading(ticks - origin, origin, last)

    def _elapsed(
        self, times: Any, shape: tuple[int, ...], documents: Tensor | None, mask: Tensor | None, since: Tensor | None,
        device: torch.device | None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Time since the real token before, (B|1, H|1, T), 0 at the very first one, and the last time given."""

        def read(origin: Tensor | None) -> Reading:
            reading = self.base(times, origin=origin, documents=documents, mask=mask, since=since, device=device)
            found = tuple(with_heads(reading.ticks).shape)
            if found[-1] != shape[2] or any(n not in (1, m) and m > 1 for n, m in zip(found, shape, strict=False)):
                raise ShapeError(
                    f"got times of shape {found} for activations of {shape[0]} rows and {shape[2]} tokens on a learned clock of "
                    f"{shape[1]} heads; expected ({shape[2]},), {shape[0], shape[2]} or {shape}"
                )
            return reading

        steps, last = elapsed(read, mask, since)
        return with_heads(steps), last

    def continued(self, reading: Reading, given: bool) -> Tensor | None:
        """The origin with which the next piece is read: minus the last tick, so that its sum goes on from there."""
        return -reading.ticks[:, :, -1:] if reading.ticks.shape[2] else reading.origin

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Cumulative":
        super()._apply(keeping_dtype(fn), recurse)
        return self


RUN = 64
"""Tokens summed one after another before the sums of such runs are: a sum along a whole sequence leaves the cache at every token."""


def running_sum(steps: Tensor) -> Tensor:
    """The sums of the steps (B, H, T, blocks) up to each token, in float64; each is at least the one before where steps are >= 0."""
    steps = steps.to(torch.float64, memory_format=torch.contiguous_format)
    runs = steps.shape[2] // RUN
    if torch.compiler.is_compiling() or runs < 4:
        return steps.cumsum(2)
    inside, rest = steps[:, :, : runs * RUN].unflatten(2, (runs, RUN)).cumsum(3), steps[:, :, runs * RUN :]
    before = F.pad(inside[:, :, :, -1].cumsum(2), (0, 0, 1, 0))
    ticks = (inside + before[:, :, :-1, None]).flatten(2, 3)
    return torch.cat([ticks, before[:, :, -1:] + rest.cumsum(2)], 2) if rest.shape[2] else ticks
