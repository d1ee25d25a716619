"""Encodings and ways of calling that every test of linear attention shares, and the dense float64 oracle."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import eigenclock as ec
from eigenclock.clocks import Clock, Reading

F64 = torch.float64
B, H, D, V = 2, 4, 8, 5
RATES = [[1.0, 0.3, 0.02, 0.004], [5.0, 0.1, 0.1, 0.5], [1e-3, 2.0, 0.7, 0.05], [0.2, 0.2, 0.01, 3.0]]

# name -> the encoding for this number of key heads
ENCODED: dict[str, Callable[[int], ec.Encoding]] = {
    "nope": lambda kv: ec.nope(D),
    "rope": lambda kv: ec.rope(D, learn=("freq",)),
    "rope, partial": lambda kv: ec.rope(D, rotary_dim=4),
    "rope, half": lambda kv: ec.rope(D, pairing="half", theta=50.0, learn=("freq",)),
    "rope, per head": lambda kv: ec.rope(D, heads=H, kv_heads=kv, theta=(10.0, 1e2, 1e3, 1e4)[:kv], learn=("freq",)),
    "decay": lambda kv: ec.decay(D, rate=0.05, learn=("rate",)),
    "decay, per head": lambda kv: ec.decay(D, heads=H, kv_heads=kv, half_life=(2.0, 60.0), learn=("rate",)),
    "decay, per channel": lambda kv: ec.decay(D, rate=[1e-4, 0.01, 0.4, 5.0, 1.0, 0.1, 0.7, 0.002], learn=("rate",)),
    "decay, some channels": lambda kv: ec.decay(D, rate=[0.0, 0.01, 0.4, 5.0, 1.0, 0.1, 0.0, 0.002]),
    "damped_rope": lambda kv: ec.damped_rope(D, rate=0.03, learn=("freq", "rate")),
    "damped_rope, per head and pair": lambda kv: ec.damped_rope(D, heads=H, kv_heads=kv, rate=RATES[:kv], learn=("freq", "rate")),
    "damped_rope, half": lambda kv: ec.damped_rope(D, heads=H, kv_heads=kv, rate=RATES[:kv], pairing="half", learn=("freq", "rate")),
    "retnet": lambda kv: ec.retnet(D, heads=H, kv_heads=kv, learn=("freq", "rate")),
    "xpos": lambda kv: ec.xpos(D),
    "jordan_rope": lambda kv: ec.jordan_rope(D, heads=H, kv_heads=kv, eta=0.2, half_life=9.0, learn=("freq", "rate", "eta")),
    "hyperbolic": lambda kv: ec.hyperbolic(D),
    "grape_m": lambda kv: ec.grape_m(D),
    "rope + decay": lambda kv: ec.rope(4, learn=("freq",)) + ec.decay(4, half_life=7.0, learn=("rate",)),
    "rope + nope": lambda kv: ec.rope(4) + ec.nope(4),
    "rope * decay": lambda kv: ec.rope(D, learn=("freq",)) * ec.decay(D, half_life=9.0),
    "axial_rope": lambda kv: ec.axial_rope(D, clock=ec.Axes(("x", "y"))),
}


class Gate(Clock):
    """A clock of its own kind: time advances by softplus of the activations, one time per head."""

    def __init__(self, features: int, heads: int):
        super().__init__()
        self.weight = nn.Parameter(normal(features, heads, seed=11) * 0.3)

    def forward(self, times: Any = None, *, length: int | None = None, origin: Tensor | None = None, documents: Tensor | None = None,
                mask: Tensor | None = None, x: Tensor | None = None, since: Tensor | None = None,
                device: torch.device | None = None) -> Reading:  # fmt: skip
        assert x is not None
        steps = nn.functional.softplus(x.double() @ self.weight)
        if mask is not None:
            steps = steps * mask[..., None]
        ticks = steps.transpose(1, 2).cumsum(-1)
        origin = torch.zeros_like(ticks[..., :1].detach()) if origin is None else origin
        return Reading(ticks - origin, origin)

    def continued(self, reading: Reading, given: bool) -> Tensor | None:
        return -reading.ticks[..., -1:]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def inputs(length: int, kv_heads: int = H, *, grad: bool = False, dtype: torch.dtype = F64, seed: int = 0) -> list[Tensor]:
    """q, k and v."""
    shapes = ((B, H, length, D), (B, kv_heads, length, D), (B, kv_heads, length, V))
    return [normal(*shape, seed=seed + i, dtype=dtype).requires_grad_(grad) for i, shape in enumerate(shapes)]


def irregular(*shape: int, seed: int = 5) -> Tensor:
    """Nondecreasing float64 times with steps between 0 and 2, some of them ties."""
    steps = torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64) * 2
    steps[..., 1::4] = 0
    return steps.cumsum(-1)


def weights(q: Tensor, k: Tensor, encoding: ec.Encoding, **keywords: Any) -> Tensor:
    """scale q^T exp((t - s) L) k for every visible pair, 0 elsewhere, (B, H, T, T) in float64."""
    z = ec.scores(q, k, encoding, **keywords)
    return z.masked_fill(z == -torch.inf, 0.0)


def oracle(q: Tensor, k: Tensor, v: Tensor, encoding: ec.Encoding, **keywords: Any) -> Tensor:
    """The definition, dense in float64."""
    return weights(q, k, encoding, **keywords) @ v.double().repeat_interleave(q.shape[1] // v.shape[1], 1)


def close(got: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    """Equal to a tolerance relative to the largest entry."""
    assert got.shape == expected.shape
    assert bool(torch.isfinite(got).all())
    if got.numel():
        error = float((got.detach().double() - expected.detach().double()).abs().max()) / (
            1 + float(expected.detach().double().abs().max())
        )
        assert error < tolerance, error


def part(keywords: dict[str, Any], piece: slice) -> dict[str, Any]:
    """The keywords of a piece of the tokens: every tensor is cut along its axis of time."""
    return {name: x[piece] if x.ndim == 1 else x[:, piece] if x.ndim == 2 else x[:, :, piece] for name, x in keywords.items()}


def pieces(cuts: list[int], length: int) -> list[slice]:
    """A sequence cut at some places; empty pieces stay."""
    ends = [0, *sorted(cuts), length]
    return [slice(a, b) for a, b in pairwise(ends)]


def in_pieces(q: Tensor, k: Tensor, v: Tensor, encoding: ec.Encoding, cuts: list[int], *, keywords: dict[str, Any] | None = None,
              **options: Any) -> tuple[Tensor, ec.State | None]:  # fmt: skip
    """The outputs of all pieces, each from the state of the one before, and the last state."""
    out, state = [], None
    for piece in pieces(cuts, q.shape[2]):
        one, state = ec.linear_attention(
            *(x[:, :, piece] for x in (q, k, v)), encoding, state=state, **part(keywords or {}, piece), **options
        )  # fmt: skip
        out.append(one)
    return torch.cat(out, 2), state
