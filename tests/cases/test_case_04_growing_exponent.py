"""Case 04: an extrapolating rotary (a rate per pair on top of the rotation) at large times; only differences matter."""

import math

import pytest
import torch

import eigenclock as ec


def gains(width: int, base: float) -> list[float]:
    """-ln z_i / B with z_i = (2i + 0.4 d)/(1.4 d): the pair of a score has the factor z_i^((m - n)/B)."""
    return [-math.log((2 * i + 0.4 * width) / (1.4 * width)) / base for i in range(width // 2)]


def content(width: int) -> tuple[torch.Tensor, torch.Tensor]:
    j = torch.arange(width, dtype=torch.float64)
    return ((3 * j) % 7 - 3) / 4, ((5 * j) % 9 - 4) / 4


def longhand(q: torch.Tensor, k: torch.Tensor, lag: float, theta: float, rates: list[float], half: bool) -> float:
    """sum_i e^(-a_i lag) ((q_x k_x + q_y k_y) cos(f_i lag) + (q_x k_y - q_y k_x) sin(f_i lag)), pair by pair."""
    width, total = len(q), 0.0
    for i, rate in enumerate(rates):
        x, y = (i, i + width // 2) if half else (2 * i, 2 * i + 1)
        angle = lag * theta ** (-2 * i / width)
        straight, crossed = q[x] * k[x] + q[y] * k[y], q[x] * k[y] - q[y] * k[x]
        total += math.exp(-rate * lag) * float(straight * math.cos(angle) + crossed * math.sin(angle))
    return total


def test_numbers_of_the_case(case):
    given, expect = case["given"], case["expect"]
    width = given["width"]
    q, k = (x.float()[None, None, None] for x in content(width))
    enc = ec.damped_rope(width, theta=given["theta"], rate=gains(width, given["scale_base"]), pairing=given["layout"])
    for (m, n), score in zip(given["times"], expect["scores"], strict=True):
        z = ec.scores(q, k, enc, times=torch.tensor([m]), key_times=torch.tensor([n]), scale=1.0)
        assert z.item() == pytest.approx(score, rel=expect["rel_tol"], abs=expect["abs_tol"])


@pytest.mark.parametrize("backend", ["auto", "reference", "tiled"])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_numbers_of_the_case_come_out_of_attention(case, attend, backend, pairing):
    """With a single key in sight the log-sum-exp is the logit."""
    given, expect = case["given"], case["expect"]
    width = given["width"]
    q, k = (x.float()[None, None, None] for x in content(width))
    enc = ec.damped_rope(width, theta=given["theta"], rate=gains(width, given["scale_base"]), pairing=pairing)
    if pairing == "interleaved":  # the same numbers in the other layout: permute the channels alike
        order = torch.arange(width).reshape(2, -1).T.reshape(-1)
        q, k = q[..., order], k[..., order]
    for (m, n), score in zip(given["times"], expect["scores"], strict=True):
        _, lse = attend(
            q, k, torch.ones_like(k), enc, times=torch.tensor([m]), key_times=torch.tensor([n]), scale=1.0, return_lse=True, backend=backend
        )
        assert lse.item() == pytest.approx(score, rel=expect["rel_tol"], abs=expect["abs_tol"])


@pytest.mark.parametrize(("width", "theta", "base"), [(2, 1e4, 64.0), (8, 1e2, 512.0), (64, 1e4, 512.0), (64, 5e5, 1.0), (128, 1e4, 8.0)])
@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize(("m", "n"), [(5, 0), (1_000_000, 999_993), (1_000_000, 1_000_000), (40_000, 0)])
def test_other_widths_bases_and_times(width, theta, base, half, m, n):
    q, k = content(width)
    rates = gains(width, base)
    enc = ec.damped_rope(width, theta=theta, rate=rates, pairing="half" if half else "interleaved")
    z = ec.scores(q[None, None, None], k[None, None, None], enc, times=torch.tensor([m]), key_times=torch.tensor([n]), scale=1.0)
    assert z.item() == pytest.approx(longhand(q, k, m - n, theta, rates, half), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("backend", ["auto", "reference", "tiled"])
@pytest.mark.parametrize("start", [0, 10_000, 100_000_000])
def test_long_contexts_stay_finite_forward_and_backward(attend, dtype, backend, start):
    """A key factor on its own would reach exp(0.16 * 600 * 8) here; float16 ends at exp(11)."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 600, 8).to(dtype).requires_grad_() for _ in range(3))
    enc = ec.damped_rope(8, rate=[8 * rate for rate in gains(8, 8.0)])
    times = torch.arange(start, start + 600)
    out = attend(q, k, v, enc, times=times, backend=backend)
    out.double().square().sum().backward()
    for x in (out, q.grad, k.grad, v.grad):
        assert torch.isfinite(x).all()
    exact = ec.scores(q.detach().double(), k.detach().double(), enc, times=times).softmax(-1) @ v.detach().double()
    assert (out.double() - exact).abs().max() <= 16 * max(torch.finfo(dtype).eps, 1e-11)


def test_the_form_written_with_two_separate_factors_overflows():
    """Why the test above can fail: the textbook form is not finite at these times."""
    q, k = (x.float() for x in content(8))
    rate = torch.tensor(gains(8, 64.0)).repeat_interleave(2)
    product = (q * torch.exp(-rate * 10_000)) @ (k * torch.exp(rate * 9_990))
    assert not torch.isfinite(product)
