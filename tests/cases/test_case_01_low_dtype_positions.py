"""Case 01: positions and angles keep their precision when the module and the activations are 16-bit."""

import pytest
import torch

import eigenclock as ec


def turned_units(enc: ec.Encoding, width: int, times: torch.Tensor, dtype: torch.dtype, pairing: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(cos, sin) in use, (times, pairs): what the key side makes of the first unit vector of every pair."""
    first = torch.arange(0, width, 2) if pairing == "interleaved" else torch.arange(width // 2)
    second = first + 1 if pairing == "interleaved" else first + width // 2
    x = torch.zeros(1, 1, len(times), width, dtype=dtype)
    x[..., first] = 1
    y = enc.generator().act(x, -times)
    assert y.dtype == dtype
    return y[0, 0][:, first], y[0, 0][:, second]


def angles(width: int, theta: float, times: torch.Tensor) -> torch.Tensor:
    return times.double()[:, None] * theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


TOLERANCE = {torch.float32: 5e-4, torch.bfloat16: 4.5e-3, torch.float16: 1e-3}


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("autocast", [False, True])
def test_numbers_of_the_case(case, dtype, pairing, autocast):
    given, expect = case["given"], case["expect"]
    enc = ec.rope(given["width"], theta=given["theta"], pairing=pairing).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        cos, sin = turned_units(enc, given["width"], torch.tensor(given["times"]), dtype, pairing)
    tolerance = TOLERANCE[dtype]
    assert (cos.double() - torch.tensor(expect["cos"], dtype=torch.float64)).abs().max() <= tolerance
    assert (sin.double() - torch.tensor(expect["sin"], dtype=torch.float64)).abs().max() <= tolerance


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("width", "theta"), [(2, 1e4), (8, 1e2), (64, 1e4), (128, 5e5)])
@pytest.mark.parametrize("start", [0, 255, 2047, 65_000, 999_000, 16_777_210])
def test_any_width_base_and_length(dtype, width, theta, start):
    times = torch.arange(start, start + 12)
    enc = ec.rope(width, theta=theta).to(dtype)
    cos, sin = turned_units(enc, width, times, dtype, "interleaved")
    angle = angles(width, theta, times)
    # the output is rounded once: half a unit in the last place of a number up to 1, plus a float32 rounding
    tolerance = torch.finfo(dtype).eps / 2 + 1e-6
    assert (cos.double() - angle.cos()).abs().max() <= tolerance
    assert (sin.double() - angle.sin()).abs().max() <= tolerance


@pytest.mark.parametrize("module_dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_consecutive_times_never_collapse(module_dtype):
    times = torch.arange(4090, 4200)
    enc = ec.rope(16).to(module_dtype)
    cos, sin = turned_units(enc, 16, times, torch.float32, "interleaved")
    table = torch.cat([cos, sin], -1)
    assert len(torch.unique(table, dim=0)) == len(times)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "build",
    [
        lambda: ec.rope(32),
        lambda: ec.rope(32, pairing="half"),
        lambda: ec.rope(32, rotary_dim=8),
        lambda: ec.alibi(32, heads=2),
        lambda: ec.damped_rope(32, heads=2, half_life=(4, 400)),
        lambda: ec.decay(32, half_life=50.0),
        lambda: ec.rope(32) * ec.alibi(32, heads=2),
    ],
    ids=["rope", "half", "partial", "alibi", "damped", "decay", "rope*alibi"],
)
@pytest.mark.parametrize("start", [0, 4000, 300_000])
def test_sixteen_bit_attention_is_as_good_as_plain_attention(dtype, build, start):
    """Error against float64 of the same (rounded) inputs: no more than twice that of plain fused attention in this dtype."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 150, 32).to(dtype) for _ in range(3))
    enc = build().to(dtype)
    times = torch.arange(start, start + 150)
    out = ec.attention(q, k, v, enc, times=times)
    assert out.dtype == dtype
    exact = ec.scores(q.double(), k.double(), build(), times=times).softmax(-1) @ v.double()
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    dense = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    error, floor = (out.double() - exact).square().mean().sqrt(), (plain.double() - dense).square().mean().sqrt()
    assert error <= 2 * floor, f"{error:.2e} against {floor:.2e} of plain attention"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_positions_are_exact(dtype):
    """Autocast may round q, k and v; it may not round times, frequencies or rates."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 40, 16).to(dtype).float() for _ in range(3))
    times = torch.arange(1_000_000, 1_000_040)
    enc = ec.damped_rope(16, half_life=20.0)
    with torch.autocast("cpu", dtype=dtype):
        out = ec.attention(q, k, v, enc, times=times)
    exact = ec.scores(q.double(), k.double(), enc, times=times).softmax(-1) @ v.double()
    assert (out.double() - exact).abs().max() <= 16 * torch.finfo(dtype).eps
