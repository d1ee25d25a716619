"""Learned frequencies, rates and gates train at great length: a step moves each of them by a bounded share of itself."""

import math

import pytest
import torch
from torch import Tensor, nn

import eigenclock as ec

T, D, LR, STEPS = 4096, 8, 1e-3, 3
# Adam with betas 0.9, 0.999 moves a number by no more than this in a step (Kingma and Ba, 1412.6980, section 2.1).
MOST = LR * 0.1 / math.sqrt(0.001)


def qkv(heads: int = 2, width: int = D) -> list[Tensor]:
    return [torch.randn(1, heads, T, width) for _ in range(3)]


def softmax(enc: ec.Encoding, x: Tensor) -> Tensor:
    return ec.attention(*qkv(), enc, x=x)


def linear(enc: ec.Encoding, x: Tensor) -> Tensor:
    return ec.linear_attention(*qkv(), enc, x=x)[0]


MODELS = {
    "rope": (lambda: ec.rope(D, heads=2, learn="freq"), softmax),
    "rope on a learned clock": (lambda: ec.rope(D, heads=2, learn="freq", clock=ec.Cumulative(5)), softmax),
    "damped_rope": (lambda: ec.damped_rope(D, heads=2, half_life=(2.0, 1e4), learn=("freq", "rate")), linear),
    "mamba1": (lambda: ec.mamba1(D, heads=2, features=5), linear),
    "mamba2": (lambda: ec.mamba2(D, heads=2, features=5), linear),
    "alibi": (lambda: ec.alibi(D, heads=2, learn="slope"), softmax),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_bounded_relative_to_the_number(name):
    """Three steps of Adam at 1e-3 on a target that asks for other times, at 4096 tokens."""
    make, run = MODELS[name]
    enc = make()
    x, target = torch.randn(1, T, 5), torch.randn(1, 2, T, D)
    optimiser = torch.optim.Adam(enc.parameters(), lr=LR)
    start = {name: p.value().detach().clone() for name, p in enc.values.items() if p.learned}
    assert start
    for _ in range(STEPS):
        optimiser.zero_grad()
        torch.manual_seed(1)
        nn.functional.mse_loss(run(enc, x), target).backward()
        assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in enc.parameters())
        optimiser.step()
    for name, before in start.items():
        moved = (enc.values[name].value().detach() / before).log().abs()
        assert 0 < float(moved.max()) <= STEPS * MOST * 1.001


def test_the_same_step_on_the_number_itself_is_not():
    """Without the log scale the slowest frequency of RoPE jumps by several times itself."""
    freq = nn.Parameter(ec.geometric()(32).values.float())
    q, k, v = qkv(1, 64)
    optimiser = torch.optim.Adam([freq], lr=LR)
    before, time = freq.detach().clone(), torch.arange(T)[:, None]
    turn = torch.polar(torch.ones(T, 32), time * freq)
    q, k = (torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2) for x in (q, k))
    nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).square().mean().backward()
    optimiser.step()
    moved = ((freq - before) / before).abs()
    assert float(moved.max()) > 1


def test_weight_decay_on_the_log_scale_pulls_towards_one():
    """So learned numbers stay out of it: the slowest frequency alone grows by 1 % in ten steps of an ordinary setting."""
    enc = ec.rope(64, learn="freq")
    slow = float(enc.values["freq"].value()[..., -1].detach())
    optimiser = torch.optim.AdamW(enc.parameters(), lr=LR, weight_decay=0.1)
    for _ in range(10):
        for p in enc.parameters():
            p.grad = torch.zeros_like(p)
        optimiser.step()
    grown = float(enc.values["freq"].value()[..., -1].detach()) / slow
    assert grown == pytest.approx(math.exp(-math.log(slow) * (1 - (1 - 1e-4) ** 10)), rel=1e-4) and grown > 1.008
