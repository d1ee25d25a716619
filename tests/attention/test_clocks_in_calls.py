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


CLOCK = ec.Timestamps("s", per="min")
ENCODED = {
    "rope": lambda: ec.rope(D, clock=CLOCK),
    "damped_rope": lambda: ec.damped_rope(D, half_life="2min", clock=CLOCK, learn=("rate",)),
    "alibi": lambda: ec.alibi(D, heads=H, clock=CLOCK, learn=("slope",)),
}


def stamps(*shape: int, seed: int = 0, every: float = 10.0) -> Tensor:
    """Seconds in order, with ties."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(*shape, generator=generator, dtype=torch.float64) * 2 * every).cumsum(-1).round().long() + 1_700_000_000


def padded(length: int) -> Tensor:
    mask = torch.ones(B, length, dtype=torch.bool)
    mask[0, :30] = mask[1, 50:70] = False
    return mask


SPANS: dict[str, Any] = {
    "one clock": lambda: (300, 300, {"times": stamps(300)}),
    "regular": lambda: (512, 512, {"times": torch.arange(512)}),
    "per row": lambda: (300, 300, {"times": stamps(B, 300)}),
    "per head": lambda: (300, 300, {"times": stamps(1, H, 300)}),
    "bursts": lambda: (300, 300, {"times": torch.cat([stamps(100), stamps(100, every=0.02) + 2000, stamps(100) + 4000])}),
    "longer than the row": lambda: (200, 200, {"times": stamps(200, every=0.1)}),
    "documents and padding": lambda: (
        300,
        300,
        {"times": stamps(B, 300), "documents": torch.arange(300) // 130, "mask": padded(300)},
    ),
    "cross": lambda: (300, 260, {"times": stamps(B, 300), "key_times": stamps(260, seed=1)}),
    "cross, padding, unsorted": lambda: (
        200,
        260,
        {"times": stamps(200).flip(-1), "key_times": stamps(B, 260, seed=1).flip(-1), "mask": padded(260)},
    ),
    "one query, long cache": lambda: (1, 700, {"times": stamps(700)[-1:], "key_times": stamps(700)}),
}


@pytest.mark.parametrize("way", SPANS)
@pytest.mark.parametrize("name", ENCODED)
def test_durations_as_windows_on_tiles(name, way):
    """Tiles are cut along a window in time: the oracle's output and gradients, padded rows included."""
    enc = ENCODED[name]()
    torch.manual_seed(2)
    queries, keys, keywords = SPANS[way]()
    q = torch.randn(B, H, queries, D, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(B, H, keys, D, dtype=torch.float64, requires_grad=True) for _ in range(2))
    z = ec.scores(q, k, enc, window="5min", **keywords)
    dead = (z == -torch.inf).all(-1, keepdim=True)
    expected = z.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0) @ v
    out = ec.attention(q, k, v, enc, window="5min", backend="tiled", **keywords)
    close("output", out, expected, 1e-10)
    g = torch.randn_like(out)
    wanted = (q, k, v, *enc.parameters())
    for a, b in zip(torch.autograd.grad(out, wanted, g), torch.autograd.grad(expected, wanted, g), strict=True):
        close("gradient", a, b, 1e-8)


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
