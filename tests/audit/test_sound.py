"""Sound encodings as strangers write them: no fault, no rule that fails, no advice that is untrue, and the recipe they are."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import eigenclock as ec

F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16


def slopes(heads: int) -> list[float]:
    """The published rule: powers of two, the odd ones of the next power appended."""
    n = 2 ** int(math.log2(heads))
    own = [2 ** (-8 * (i + 1) / n) for i in range(n)]
    return own if n == heads else own + [2 ** (-4 * (i + 1) / n) for i in range(0, 2 * (heads - n), 2)]


def angles(times: Tensor, width: int, theta: float = 1e4) -> Tensor:
    """In float32, as most code has them."""
    return times.float()[..., None] / theta ** (torch.arange(0, width, 2).float() / width)


def halves(x: Tensor, times: Tensor, theta: float = 1e4) -> Tensor:
    """x cos + rotate_half(x) sin, tables cast to the dtype of x."""
    angle = angles(times, x.shape[-1], theta).repeat(1, 2)
    a, b = x.chunk(2, -1)
    return x * angle.cos().to(x.dtype) + torch.cat([-b, a], -1) * angle.sin().to(x.dtype)


def neighbours(x: Tensor, times: Tensor) -> Tensor:
    angle = angles(times, x.shape[-1])
    turn = torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * turn).flatten(-2).to(x.dtype)


def acting(turn: Callable[..., Tensor], **more: Any) -> Callable[..., Any]:
    def apply(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return turn(q, positions, **more), turn(k, positions, **more)

    return apply


def scoring(
    turn: Callable[..., Tensor] | None = None,
    bias: Callable[[Tensor, int], Tensor] | None = None,
    mask: float | None = None,
    window: int | None = None,
    scale: bool = False,
    gain: float = 0.0,
    cap: float | None = None,
) -> Callable[..., Tensor]:
    """f(q, k, positions_q, positions_k) -> scores, with what people put into one."""

    def f(q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
        lag = positions_q.double()[:, None] - positions_k
        a, b = (q, k) if turn is None else (turn(q, positions_q), turn(k, positions_k))
        z = a @ b.mT * (q.shape[-1] ** -0.5 if scale else 1.0) * (-gain * lag).exp().to(q.dtype)
        z = z if cap is None else cap * torch.tanh(z / cap)
        z = z if bias is None else z + bias(lag, q.shape[-3]).to(z.dtype)
        z = z if mask is None else z.masked_fill(lag < 0, mask)
        return z if window is None else z.masked_fill(lag >= window, -math.inf if mask is None else mask)

    return f


def linear(lag: Tensor, heads: int) -> Tensor:
    return -torch.tensor(slopes(heads), dtype=F64)[:, None, None] * lag


def kerple(lag: Tensor, heads: int) -> Tensor:
    return -torch.linspace(0.5, 2, heads)[:, None, None] * torch.log1p(0.3 * lag.abs().float())


def by_key(q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
    """ALiBi as BLOOM adds it: a term of the key alone."""
    return q @ k.mT + (torch.tensor(slopes(q.shape[-3]), dtype=F64)[:, None, None] * positions_k).to(q.dtype)


def transformer_xl(q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
    d, random = q.shape[-1], torch.Generator().manual_seed(3)
    w, u, v = (torch.randn(*shape, dtype=F64, generator=random) * 0.2 for shape in ((d, d), (d,), (d,)))
    lag = (positions_q.double()[:, None] - positions_k)[..., None] * 1e4 ** (-torch.arange(0, d, 2, dtype=F64) / d)
    waves = torch.cat([lag.sin(), lag.cos()], -1) @ w
    return ((q + u.to(q.dtype)) @ k.mT) + torch.einsum("...td,tsd->...ts", q + v.to(q.dtype), waves.to(q.dtype))


Case = tuple[str, Callable[..., Any], dict[str, Any], str | None]
CASES: list[Case] = [
    ("halves", acting(halves), {"head_dim": 64, "dtype": F32}, "rope(pairing='half')"),
    ("halves in bfloat16", acting(halves), {"head_dim": 80, "heads": 3, "dtype": BF16, "length": 131072}, "rope(pairing='half')"),
    ("halves in float16", acting(halves, theta=5e5), {"head_dim": 6, "dtype": F16, "length": 100}, "rope(theta=500000, pairing='half')"),
    ("two channels, two positions", acting(halves), {"head_dim": 2, "heads": 1, "dtype": F64, "length": 2}, "rope(freq=..)"),
    ("complex products", acting(neighbours), {"head_dim": 16, "dtype": BF16, "length": 2048}, "rope"),
    ("turning back", lambda x, positions: halves(x, -positions), {"head_dim": 8, "dtype": F32}, "rope(freq=.., pairing='half')"),
    ("no positions", lambda q, k, positions: (q, k), {"head_dim": 8, "dtype": F16}, "nope"),
    ("the usual scale", scoring(halves, scale=True), {"head_dim": 80, "dtype": F64, "length": 1000}, "rope(pairing='half')"),
    ("the usual scale, no positions", scoring(scale=True, mask=-math.inf), {"head_dim": 80, "dtype": F32}, "nope"),
    ("ALiBi with the usual scale", scoring(bias=linear, scale=True), {"head_dim": 16, "heads": 20, "dtype": F32}, "alibi"),
    ("ALiBi of 12 heads", scoring(bias=linear), {"head_dim": 8, "heads": 12, "dtype": F16, "length": 100}, "alibi"),
    ("ALiBi of 6 heads, masked", scoring(bias=linear, mask=-math.inf), {"head_dim": 8, "heads": 6, "dtype": F32}, "alibi"),
    ("ALiBi, masked by -1e4", scoring(bias=linear, mask=-1e4), {"head_dim": 8, "heads": 4, "dtype": F32}, "alibi"),
    ("ALiBi by the key", by_key, {"head_dim": 16, "heads": 12, "dtype": F32}, "alibi"),
    ("ALiBi by the distance", scoring(bias=lambda u, h: linear(u.abs(), h)), {"head_dim": 8, "heads": 4, "dtype": F64}, "two_sided(alibi)"),
    ("rotation and ALiBi, masked", scoring(halves, linear, mask=-math.inf), {"head_dim": 8, "heads": 3, "dtype": F32},
     "rope(pairing='half') * alibi"),
    ("masked by -inf", scoring(halves, mask=-math.inf), {"head_dim": 16, "dtype": F32, "length": 1000}, "rope(pairing='half')"),
    ("masked by 0", scoring(neighbours, mask=0.0, gain=0.002), {"head_dim": 8, "dtype": F32, "length": 1000}, "damped_rope(rate=..)"),
    ("a window", scoring(halves, mask=-math.inf, window=64), {"head_dim": 16, "dtype": F32, "length": 1000}, "rope(pairing='half')"),
    ("a window of -1e9", scoring(halves, mask=-1e9, window=200), {"head_dim": 8, "dtype": F64, "length": 1000}, "rope(pairing='half')"),
    ("a window alone", scoring(halves, window=4), {"head_dim": 8, "dtype": BF16, "length": 1000}, "rope(pairing='half')"),
    ("a cap of the logits", scoring(halves, cap=30.0, mask=-math.inf), {"head_dim": 16, "dtype": F32}, None),
    ("KERPLE in float32", scoring(bias=kerple, mask=-math.inf), {"head_dim": 8, "heads": 2, "dtype": F32}, None),
    ("Dai et al.", transformer_xl, {"head_dim": 16, "dtype": F64, "length": 1000}, "transformer_xl(weight=.., content=.., position=..)"),
]  # fmt: skip

NO_LAW = {"a cap of the logits"}
"""What keeps to the lag and is not linear: no fault, and nothing that could be called OK."""


@pytest.mark.parametrize("name, subject, options, nearest", CASES, ids=[case[0] for case in CASES])
def test_a_sound_encoding_has_no_fault_and_is_known(name: str, subject: Callable[..., Any], options: dict[str, Any], nearest: str | None):
    report = ec.audit(subject, **options)
    assert report.ok is (None if name in NO_LAW else True) and not report.failed, str(report)
    assert report.nearest == nearest and (report.spec is None) == (nearest is None)
    rules = {finding.rule for finding in report.findings}
    assert "growth" not in rules and "slopes" not in rules
    assert nearest is None or not rules & {"group_law", "continuity", "linearity"}, str(report)  # what it is, it is not also denied to be


def test_what_stands_around_the_law_is_said():
    notes = {name: ec.audit(subject, **options).notes for name, subject, options, _ in CASES if name.startswith(("a window", "ALiBi"))}
    assert any("keys 64 and more before the query are masked" in note for note in notes["a window"])
    assert any("the scale 1/sqrt(16)" in note for note in notes["ALiBi with the usual scale"])
    assert any("a constant for each query" in note for note in notes["ALiBi by the key"])
    assert not any(words in note for note in notes["ALiBi of 12 heads"] for words in ("masked", "the scale 1/sqrt", "a constant"))


def test_slopes_of_ones_own_are_not_called_a_wrong_rule():
    report = ec.audit(scoring(bias=lambda u, h: -torch.tensor([0.3, 0.02], dtype=F64)[:, None, None] * u), head_dim=8, heads=2, length=512)
    advice = [finding.advice for finding in report.findings if finding.rule == "slopes"]
    assert report.ok and report.nearest == "alibi(slopes=..)" and advice and advice[0].startswith("nothing, if")


@pytest.mark.parametrize("unit", ["s", "ms", "ns"])
def test_a_clock_of_time_is_judged_by_its_own_steps(unit: str):
    report = ec.audit(ec.rope(8, heads=2, clock=ec.Timestamps(unit)), length=1000)
    assert report.ok and not report.failed, str(report)
    idle = next(finding.measured for finding in report.findings if finding.rule == "wavelengths")
    assert idle == {"s": 1, "ms": 4, "ns": 4}[unit]  # pairs that never turn within so many units
    assert "base" not in {finding.rule for finding in report.findings}
