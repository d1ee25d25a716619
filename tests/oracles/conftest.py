"""How an oracle is compared: outputs and gradients, at the precision of each dtype."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import eigenclock as ec

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def _plain(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> list[Tensor]:
    """Fused attention without positions: the output and the gradients to q, k and v."""
    arguments = [x.detach().repeat_interleave(q.shape[1] // x.shape[1], 1).requires_grad_() for x in (q, k, v)]
    out = scaled_dot_product_attention(*arguments, is_causal=True)
    out.backward(g.to(out.dtype))
    return [out.detach(), *(x.grad for x in arguments)]


@pytest.fixture
def agree() -> Callable[..., None]:
    """``agree(ours, oracle, q, k, v, extra=[(mine, theirs), ...])`` compares output and gradients of two functions of (q, k, v).

    q, k, v are float64. In float64 everything agrees to 1e-10 of its size and in float32 to 1e-5. In 16 bits the error against float64 (of
    the same rounded inputs) is held against the error plain fused attention has in that dtype.
    """

    def compare(
        ours: Callable[..., Tensor],
        oracle: Callable[..., Tensor],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        dtype: torch.dtype = torch.float64,
        extra: list[tuple[Tensor, Tensor]] | None = None,
        factor: float = 2.5,
        slack: float = 0.0,
    ) -> None:
        q, k, v = (x.to(dtype).double() for x in (q, k, v))
        mine = [x.to(dtype).clone().requires_grad_() for x in (q, k, v)]
        theirs = [x.clone().requires_grad_() for x in (q, k, v)]
        expected = oracle(*theirs)
        g = torch.randn_like(expected).to(dtype).double()
        try:
            out = ours(*mine)
        except ec.UnsupportedError as refusal:
            pytest.skip(f"declined: {refusal}")
        assert out.dtype == dtype and out.shape == expected.shape
        pairs = list(extra or ())
        got = torch.autograd.grad(out, mine + [a for a, _ in pairs], g.to(dtype))
        want = torch.autograd.grad(expected, theirs + [b for _, b in pairs], g)
        results = [("output", out.detach(), expected.detach())]
        results += list(zip(["d q", "d k", "d v", *(f"d extra {i}" for i in range(len(pairs)))], got, want, strict=True))
        floor: list[float] = []
        if dtype not in TOLERANCE:
            low, high = _plain(*(x.to(dtype) for x in (q, k, v)), g.to(dtype)), _plain(q, k, v, g)
            floor = [_relative(a, b) for a, b in zip(low, high, strict=True)]
        for what, a, b in results:
            error = _relative(a, b)
            limit = slack + (TOLERANCE.get(dtype) or factor * max(floor))
            assert error <= limit, f"{what}: relative error {error:.2e}, limit {limit:.2e}"

    return compare


def _relative(a: Tensor, b: Tensor) -> float:
    """Root mean square error relative to the size of ``b``."""
    size: Any = b.double().square().mean().sqrt().clamp_min(1e-30)
    return float((a.double() - b.double()).square().mean().sqrt() / size)
