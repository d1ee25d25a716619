"""Case 23: gradients to frequencies, rates, slopes, times, q, k and v; two passes through one module."""

import pytest
import torch
from torch import Tensor

import eigenclock as ec

F64 = torch.float64


def values(enc: ec.Encoding, width: int) -> tuple[Tensor, Tensor]:
    """(rate, frequency) of the first pair as functions of the trainable parameters, read off L = [[-a, f], [-f, -a]]."""
    matrix = enc.generator().matrix().reshape(-1, width, width)[0]
    return -matrix[0, 0], matrix[0, 1]


def pull_back(enc: ec.Encoding, width: int, d_rate: float, d_frequency: float) -> list[Tensor]:
    """What the parameters' gradients must be, given those to rate and frequency, whatever the parametrisation."""
    rate, frequency = values(enc, width)
    return list(torch.autograd.grad(d_rate * rate + d_frequency * frequency, list(enc.parameters())))


def the_encoding(case):
    given = case["given"]
    return ec.damped_rope(2, freq=[given["learned_frequency"]], rate=given["learned_rate"], learn=("freq", "rate")).double()


@pytest.mark.parametrize("road", ["scores", "lse"])
def test_numbers_of_the_case_twice(case, road):
    given, expect = case["given"], case["expect"]
    enc = the_encoding(case)
    seen = []
    for _ in range(2):
        q, k = (torch.tensor(given[name], dtype=F64)[None, None, None].requires_grad_() for name in "qk")
        time = torch.tensor([given["query_time"]], dtype=F64, requires_grad=True)
        key_time = torch.tensor([given["key_time"]], dtype=F64)
        if road == "scores":
            score = ec.scores(q, k, enc, times=time, key_times=key_time, scale=1.0)
        else:  # one key in sight: its logit is the log-sum-exp
            score = ec.attention(q, k, k, enc, times=time, key_times=key_time, scale=1.0, return_lse=True)[1]
            if not score.requires_grad:
                pytest.skip("the log-sum-exp carries no gradient")
        score = score.squeeze()
        enc.zero_grad()
        score.backward()
        assert score.item() == pytest.approx(expect["score"], abs=expect["abs_tol"])
        assert time.grad.item() == pytest.approx(expect["d_query_time"], abs=expect["abs_tol"])
        assert q.grad.flatten().tolist() == pytest.approx(expect["d_q"], abs=expect["abs_tol"])
        for p, expected in zip(enc.parameters(), pull_back(enc, 2, expect["d_rate"], expect["d_frequency"]), strict=True):
            assert torch.allclose(p.grad, expected, rtol=0, atol=expect["abs_tol"])
        seen.append([p.grad.clone() for p in enc.parameters()] + [q.grad, k.grad, time.grad])
    for a, b in zip(*seen, strict=True):
        assert torch.equal(a, b)


def test_fixed_values_are_not_parameters(case):
    given = case["given"]
    fixed = ec.damped_rope(2, freq=[given["learned_frequency"]], rate=given["learned_rate"])
    assert list(fixed.parameters()) == [] and list(fixed.state_dict()) == []
    assert len(list(the_encoding(case).parameters())) == 2
    assert len(list(ec.damped_rope(8, rate=0.1, learn=("rate",)).parameters())) == 1


BUILD = {
    "rope": lambda: ec.rope(4, learn=("freq",)),
    "rope per head": lambda: ec.rope(4, heads=2, theta=(10.0, 1e3), learn=("freq",), pairing="half"),
    "decay": lambda: ec.decay(4, half_life=5.0, learn=("rate",)),
    "damped_rope": lambda: ec.damped_rope(4, heads=2, half_life=(2.0, 9.0), learn=("freq", "rate")),
    "alibi": lambda: ec.alibi(4, heads=2, learn=("slope",)),
    "decay_bias": lambda: ec.decay_bias(4, heads=2, rate=0.2, learn=("rate",)),
    "rope * alibi": lambda: ec.rope(4, heads=2, learn=("freq",)) * ec.alibi(4, heads=2, learn=("slope",)),
}


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
@pytest.mark.parametrize("length", [6, 70])
@pytest.mark.parametrize("name", BUILD)
def test_numerical_differentiation_agrees(attend, name, length, backend):
    """Along random directions in all arguments at once: central differences in float64 against the gradient, to 1e-6 of its size."""
    torch.manual_seed(0)
    enc = BUILD[name]().double()
    q, k, v, g = (torch.randn(1, 2, length, 4, dtype=F64) for _ in range(4))
    times = torch.linspace(0.0, 6.0, length, dtype=F64) + 0.3 * torch.linspace(0, 1, length, dtype=F64).square()
    parameters = list(enc.parameters())
    assert parameters
    arguments = [x.requires_grad_() for x in (q, k, v, times)] + parameters
    (attend(q, k, v, enc, times=times, backend=backend) * g).sum().backward()
    for which, x in enumerate(arguments):
        before, direction, ends, points = x.detach().clone(), torch.randn_like(x), [], []
        with torch.no_grad():
            for sign in (1, -1):
                x.copy_(before + sign * 1e-5 * direction)
                points.append(x.detach().double().clone())  # where it really is: trainable numbers are float32
                ends.append((attend(q, k, v, enc, times=times, backend=backend) * g).sum().item())
            x.copy_(before)
        predicted = (x.grad.double() * (points[0] - points[1])).sum().item()
        assert predicted / 2e-5 == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-6), f"argument {which}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", BUILD)
def test_no_gradient_is_dropped_in_any_dtype(name, dtype):
    torch.manual_seed(1)
    enc = BUILD[name]()
    q, k, v = (torch.randn(1, 2, 30, 4).to(dtype).requires_grad_() for _ in range(3))
    times = (torch.arange(30, dtype=F64) * 0.37).requires_grad_()
    for _ in range(2):
        ec.attention(q, k, v, enc, times=times).float().square().sum().backward()
    for x in (q, k, v, times, *enc.parameters()):
        assert x.grad is not None and torch.isfinite(x.grad).all() and x.grad.abs().max() > 0


@pytest.mark.parametrize("name", BUILD)
def test_training_steps_move_the_parameters_and_keep_them_valid(name):
    torch.manual_seed(2)
    enc = BUILD[name]()
    before = [p.detach().clone() for p in enc.parameters()]
    q, k, v, target = (torch.randn(1, 2, 20, 4) for _ in range(4))
    optimizer = torch.optim.SGD(enc.parameters(), lr=1e-3)
    for _ in range(5):
        optimizer.zero_grad()
        (ec.attention(q, k, v, enc) - target).square().sum().backward()
        optimizer.step()
    assert all(not torch.equal(a, b) for a, b in zip(before, enc.parameters(), strict=True))
    assert torch.isfinite(ec.attention(q, k, v, enc)).all()
