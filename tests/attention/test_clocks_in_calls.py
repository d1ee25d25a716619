"""What the clock adds to a call: windows given as durations, and stamps sorted as asked."""

from typing import Any

import pytest
import torch
from torch import Tensor

import eigenclock as ec

B, H, D = 2, 4, 8


def content(length: int) -> list[Tensor]:
    return [torch.randn(B, H, length, D, dtype=torch.float64).requires_grad_() for _ in range(3)]


def call(q: Tensor, k: Tensor, v: Tensor, enc: ec.Encoding, **keywords: Any) -> Any:
    try:
        return ec.attention(q, k, v, enc, **keywords)
    except ec.UnsupportedError as refusal:
        if keywords["backend"] in ("auto", "reference"):
            raise
        pytest.skip(f"declined: {refusal}")


def close(what: str, a: Tensor, b: Tensor, tolerance: float) -> None:
    assert torch.allclose(a, b, rtol=0, atol=tolerance), f"{what}: error {float((a - b).detach().abs().max()):.2e}"


@pytest.mark.parametrize("backend", ["auto", "sdpa", "tiled", "reference"])
@pytest.mark.parametrize("name", ["rope", "damped_rope", "decay_bias"])
def test_durations_as_windows(name, backend):
    """A window in words reaches back that long in the unit of the clock."""
    clock = ec.Timestamps("s", per="min")
    enc = {
        "rope": lambda: ec.rope(D, clock=clock),
        "damped_rope": lambda: ec.damped_rope(D, half_life="2min", clock=clock),
        "decay_bias": lambda: ec.decay_bias(D, heads=H, half_life="2min", clock=clock),
    }[name]()
    q, k, v = content(140)
    times = (torch.rand(140, dtype=torch.float64) * 120).cumsum(0).round().long() + 1_700_000_000
    lag = times[:, None] - times
    near = (lag < 300) & torch.ones(140, 140, dtype=torch.bool).tril()
    z = ec.scores(q, k, enc, times=times, window="5min")
    assert torch.equal((z > -torch.inf)[0, 0], near) or torch.equal(
        (z > -torch.inf)[0, 0], (lag <= 300) & torch.ones(140, 140, dtype=torch.bool).tril()
    )
    out = call(q, k, v, enc, times=times, window="5min", backend=backend)
    close("output", out, z.softmax(-1) @ v, 1e-10)


@pytest.mark.parametrize("backend", ["auto", "sdpa", "tiled", "reference"])
@pytest.mark.parametrize("name", ["rope", "damped_rope", "alibi"])
def test_sorting_clock(name, backend):
    """Stamps out of order, sorted as asked: results come back in the order given and equal those of the sorted call."""
    clock = ec.Timestamps("s", decreasing="sort")
    enc = {
        "rope": lambda: ec.rope(D, clock=clock),
        "damped_rope": lambda: ec.damped_rope(D, half_life=5.0, clock=clock),
        "alibi": lambda: ec.alibi(D, heads=H, clock=clock),
    }[name]()
    torch.manual_seed(0)
    q, k, v = content(50)
    times = torch.arange(50)[torch.randperm(50)] * 2
    order = times.argsort(stable=True)
    out = call(q, k, v, enc, times=times, backend=backend)
    expected = ec.attention(q[:, :, order], k[:, :, order], v[:, :, order], enc, times=times[order])
    close("output", out[:, :, order], expected, 1e-11)
    g = torch.randn_like(out)
    for a, b in zip(torch.autograd.grad(out, (q, k, v), g), torch.autograd.grad(expected, (q, k, v), g[:, :, order]), strict=True):
        close("gradient", a, b, 1e-10)


@pytest.mark.parametrize("encoding", [ec.damped_rope(8, heads=4, half_life=5.0), ec.alibi(8, heads=4)], ids=str)
def test_times_of_padding(encoding):
    """Padding with times in order equals the oracle in every row; with any times at all the real rows stay the same."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, 60, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    mask = torch.rand(2, 60, generator=generator) < 0.7
    mask[:, 0] = False
    times = torch.rand(2, 60, generator=generator, dtype=torch.float64).cumsum(1)
    want = ec.attention(q, k, v, encoding, times=times, mask=mask, backend="reference")
    got = ec.attention(q, k, v, encoding, times=times, mask=mask)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
    wild = torch.where(mask, times, 1e6 * (torch.rand(2, 60, generator=generator, dtype=torch.float64) - 0.5))
    moved = ec.attention(q, k, v, encoding, times=wild, mask=mask)
    real = mask[:, None, :, None]
    torch.testing.assert_close(moved * real, want * real, rtol=1e-8, atol=1e-9)  # float64 times near 5e5 are 6e-11 apart
    assert bool(torch.isfinite(moved).all())
