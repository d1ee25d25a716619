"""Heads whose linear bias reaches little and heads whose reaches far, in one call: two roads, one result."""

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from eigenclock.attention.backends.by_reach import by_reach
from eigenclock.attention.problem import build

F64 = torch.float64
H, D, T = 8, 8, 150


def problem_of(q: Tensor, k: Tensor, enc: ec.Encoding, **more):
    keywords = {"times": None, "key_times": None, "x": None, "key_x": None, "window": None, "documents": None, "mask": None, "scale": None}
    return build(q, k, k, enc, causal=True, **(keywords | more))


def tensors(kv: int, dtype: torch.dtype) -> list[Tensor]:
    random = torch.Generator().manual_seed(4)
    return [torch.randn(2, heads, T, D, generator=random, dtype=F64).to(dtype).requires_grad_() for heads in (H, kv, kv)]


def oracle(q: Tensor, k: Tensor, v: Tensor, enc: ec.Encoding, **keywords) -> Tensor:
    weights = ec.scores(q, k, enc, **keywords).softmax(-1).nan_to_num(0.0)
    return weights @ v.double().repeat_interleave(H // v.shape[1], 1)


MIXED = [4.0, 1e-3, 2.0, 5e-3, 1.0, 2e-3, 3.0, 1e-4]  # near and far heads take turns
CALLS = {
    "alternating": (lambda kv: ec.alibi(D, heads=H, kv_heads=kv, slopes=MIXED, learn="slope"), {}),
    "in two runs": (lambda kv: ec.alibi(D, heads=H, kv_heads=kv, slopes=sorted(MIXED)[::-1], learn="slope"), {}),
    "frequencies per head": (
        lambda kv: ec.rope(D, heads=H, kv_heads=kv, theta=[10.0 * (i + 2) for i in range(kv)]) * ec.alibi(D, heads=H, slopes=MIXED), {},
    ),
    "padding": (
        lambda kv: ec.alibi(D, heads=H, kv_heads=kv, slopes=sorted(MIXED)),
        {"mask": (torch.arange(T) >= torch.tensor([[3], [60]]))},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kv", [H, 2])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_both_roads_together_are_the_oracle(name, kv, dtype):
    make, keywords = CALLS[name]
    enc = make(kv)
    q, k, v = tensors(kv, dtype)
    if kv == H or name in ("in two runs", "padding"):
        assert by_reach(problem_of(q, k, enc, **keywords)) is not None
    elif name == "alternating":
        assert by_reach(problem_of(q, k, enc, **keywords)) is None  # every group has a far head, and keys stay together
    learned = list(enc.parameters())
    out = ec.attention(q, k, v, enc, backend="tiled", **keywords)
    wanted = oracle(q, k, v, enc, **keywords)
    tolerance = 1e-10 if dtype == F64 else 2e-5
    assert (out.double() - wanted).abs().max() < tolerance
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=F64)
    got = torch.autograd.grad((out.double() * g).sum(), [q, k, v, *learned])
    expected = torch.autograd.grad((wanted * g).sum(), [q, k, v, *learned])
    for a, b in zip(got, expected, strict=True):
        assert (a.double() - b.double()).abs().max() < (1e-9 if dtype == F64 and a.dtype == F64 else 1e-4) * (1 + b.abs().max())


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_gates_that_forget_at_different_speeds(dtype):
    """The reach of a learned clock is known only in the call; gradients reach the gate from both roads."""
    enc = ec.fox(D, heads=H, features=5)
    with torch.no_grad():
        enc.clock.bias.copy_(torch.linspace(-3.0, 12.0, H))
        for weight in enc.clock.weight:
            weight.mul_(0.1)
    x = torch.randn(2, T, 5, dtype=dtype, generator=torch.Generator().manual_seed(6)).requires_grad_()
    q, k, v = tensors(H, dtype)
    parts = by_reach(problem_of(q, k, enc, x=x))
    assert parts is not None and 0 < parts.near.q.shape[1] < H
    out, wanted = ec.attention(q, k, v, enc, x=x), oracle(q, k, v, enc, x=x)
    tolerance = 1e-9 if dtype == F64 else 1e-4
    assert (out.double() - wanted).abs().max() < tolerance
    leaves = [q, k, v, x, *enc.parameters()]
    got, expected = torch.autograd.grad(out.double().square().sum(), leaves), torch.autograd.grad(wanted.square().sum(), leaves)
    for a, b in zip(got, expected, strict=True):
        assert (a.double() - b.double()).abs().max() < max(tolerance, 1e-5 if a.dtype == torch.float32 else 0) * (1 + b.abs().max())
