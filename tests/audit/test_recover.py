"""L recovered from scores alone: the spec of every recipe gives its scores back, and formulas written out here are recognised."""

import math

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from eigenclock.audit.recovery.dense import logarithm
from eigenclock.audit.recovery.lags import lags_of
from eigenclock.audit.recovery.modes import climb
from eigenclock.audit.recovery.outside import outside
from eigenclock.audit.recovery.recover import recover, verified
from eigenclock.audit.subjects import read
from eigenclock.audit.subjects.options import Options
from eigenclock.encodings import ENCODINGS

NEEDS = {
    "decay": "decay(half_life=(4, 400))",
    "decay_bias": "decay_bias(half_life=(4, 400))",
    "gaussian_bias": "gaussian_bias(sigma=(4, 512))",
    "two_sided": "two_sided(damped_rope(half_life=8))",
}
GIVEN = [name for name in ENCODINGS if not (enc := ec.encoding(NEEDS.get(name, name), head_dim=8, heads=4)).breaks and not enc.clock.sums]
MORE = (
    "rope(theta=500000, pairing='half')", "rope(rotary_dim=6, pairing='half')", "rope(freq=proportional(0.5, theta=1000000.0))",
    "rope(freq=proportional(0.5, theta=1000000.0), pairing='half')", "rope(freq=linear(4.0, theta=500000.0))",
    "rope(freq=yarn(factor=4.0, original_length=64))",
    "rope(freq=llama3(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=64))", "rope * alibi",
    "rope(pairing='half') * decay_bias(half_life=(3, 90))", "jordan_rope(order=4, pairing='half')", "grape_m(basis=0.3)",
    "grape_m(planes=3, basis=0.1)", "rope(freq=(2.5, -3, 0.1, 0))", "(rope(head_dim=4) + decay(head_dim=4, half_life=9)) * alibi",
    "nope(head_dim=2) + rope(head_dim=6, pairing='half')", "damped_rope(rate=0.01, theta=77)",
    "pope(delta='uniform')", "pope(theta=500, delta=-1.0)",
    "sandwich(theta=55370)", "sandwich(theta=777.125, width=36, amplitude=0.3)",
)  # fmt: skip
LENGTH = 512


def gap(spec: str | None, enc: ec.Encoding) -> float:
    """The largest difference of scores on random vectors at random times, over the largest score."""
    assert spec is not None
    random = torch.Generator().manual_seed(11)
    q, k = (torch.randn(1, n, 7, enc.head_dim, dtype=torch.float64, generator=random) for n in (enc.heads, enc.kv_heads or enc.heads))
    times = (torch.rand(7, dtype=torch.float64, generator=random) * (LENGTH - 1)).sort().values
    times = times if enc.clock.width == 1 else times[:, None].expand(-1, enc.clock.width)
    again = ec.encoding(spec)
    wanted = ec.scores(q, k, enc, times=times, scale=1.0).detach()
    got = ec.scores(q, k, again, times=times if again.clock.width > 1 or times.ndim == 1 else times[:, 0], scale=1.0).detach()
    seen = torch.isfinite(wanted)
    return float((got - wanted)[seen].abs().max() / wanted[seen].abs().max())


@pytest.mark.parametrize("text", [NEEDS.get(name, name) for name in GIVEN] + list(MORE))
def test_the_spec_recovered_from_scores_gives_them_back(text):
    enc = ec.encoding(text, head_dim=8, heads=4)
    with torch.no_grad():
        found = recover(read(enc, Options(length=LENGTH)))
    assert gap(found.spec, enc) <= 1e-6
    assert found.witness is None and found.nearest


@pytest.mark.parametrize("text", ["xpos", "rope * alibi", "transformer_xl", "grape_m(basis=0.3)"])
def test_key_heads_that_serve_several_query_heads_stay_shared(text):
    enc = ec.encoding(text, head_dim=8, heads=4, kv_heads=2)
    with torch.no_grad():
        found = recover(read(enc, Options(length=LENGTH)))
    assert found.spec is not None and ec.encoding(found.spec).kv_heads == 2 and gap(found.spec, enc) <= 1e-6


def test_heads_that_agree_within_their_errors_stay_one_row_beside_slopes_of_their_own():
    enc = ec.encoding("rope(theta=257900) * alibi", head_dim=16, heads=12, kv_heads=4)  # slopes that are no powers of two
    with torch.no_grad():
        found = recover(read(enc, Options(length=4096)))
    assert found.spec is not None and ec.encoding(found.spec).kv_heads == 4 and gap(found.spec, enc) <= 1e-6


def test_slow_phases_of_pope_are_read_from_long_lags():
    enc = ec.encoding("pope(delta='uniform')", head_dim=64, heads=2)
    with torch.no_grad():
        found = recover(read(enc, Options(length=4096)))
    assert gap(found.spec, enc) <= 1e-9


NAMES = {
    "rope(theta=500000)": "rope(theta=500000)", "xpos": "xpos", "retnet": "retnet", "alibi": "alibi", "lightning": "lightning",
    "sandwich": "sandwich", "rope(rotary_dim=4)": "rope(rotary_dim=4)", "rope * alibi": "rope * alibi", "nope": "nope",
    "rope(freq=proportional(0.5, theta=1000000.0))": "rope(freq=proportional(share=0.5, theta=1000000))",
    "jordan_rope": "jordan_rope", "hyperbolic": "hyperbolic", "two_sided(alibi)": "two_sided(alibi)",
}  # fmt: skip


@pytest.mark.parametrize("text", NAMES)
def test_published_numbers_are_recognised_by_their_recipe(text):
    with torch.no_grad():
        assert recover(read(text, Options(8, 4, LENGTH))).nearest == NAMES[text]


def turned(x: Tensor, times: Tensor, freq: list[float]) -> Tensor:
    """The paper's rotation, pair by pair: neighbouring channels turn by freq times time."""
    out = x.clone()
    for i, f in enumerate(freq):
        c, s = (times.double() * f).cos(), (times.double() * f).sin()
        out[..., 2 * i], out[..., 2 * i + 1] = x[..., 2 * i] * c - x[..., 2 * i + 1] * s, x[..., 2 * i] * s + x[..., 2 * i + 1] * c
    return out


def test_frequencies_and_rates_of_a_formula_written_out_come_back_with_errors_that_hold():
    freq, rate = [1.7, 0.031, 4e-4], 0.004

    def f(q: Tensor, k: Tensor, at: Tensor, of: Tensor) -> Tensor:
        return turned(q, at, freq) @ turned(k, of, freq).mT * torch.exp(-rate * (at[:, None] - of).double())

    report = ec.audit(f, head_dim=6, heads=1, length=LENGTH, dtype=torch.float64)
    assert report.form == "3S" and gap(report.spec, ec.damped_rope(6, freq=freq, rate=rate)) < 1e-9
    for block, f0 in zip(report.blocks, freq, strict=True):
        assert abs(block.freq.value - f0) <= block.freq.error <= 1e-9
        assert abs(block.rate.value - rate) <= block.rate.error <= 1e-9


def test_a_table_in_single_precision_is_recovered_within_its_own_noise():
    freq = [1.0, 0.1, 0.01, 0.001]

    def f(x: Tensor, positions: Tensor) -> Tensor:
        angle = positions.float()[:, None] * torch.tensor(freq)
        c, s = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        return torch.stack([x[..., ::2] * c - x[..., 1::2] * s, x[..., ::2] * s + x[..., 1::2] * c], -1).flatten(-2)

    report = ec.audit(f, head_dim=8, length=LENGTH)
    assert report.nearest == "rope" and gap(report.spec, ec.rope(8, heads=2)) < 1e-4


@pytest.mark.parametrize(
    "text, axiom", [("learned_absolute", "translation invariance"), ("sinusoidal", "translation invariance"), ("t5_bias", "continuity"),
                    ("kerple_log", "the group law")],
)  # fmt: skip
def test_outside_the_group_the_axiom_is_named_with_a_counterexample(text, axiom):
    with torch.no_grad():
        found = recover(read(text, Options(8, 4, LENGTH)))
    assert found.spec is None and found.form is None
    assert found.witness is not None and found.witness.startswith(f"{axiom} breaks") and any(c.isdigit() for c in found.witness)


def test_the_counterexample_to_invariance_is_the_smallest_and_its_numbers_are_the_scores():
    def f(q: Tensor, k: Tensor, at: Tensor, of: Tensor) -> Tensor:
        return q @ k.mT * (1 + 0.25 * at[:, None])

    with torch.no_grad():
        found = recover(read(f, Options(4, 1, 64, torch.float64)))
    assert found.witness is not None and "t = 0, s = 0: 1; both moved by 1: 1.25" in found.witness


def test_a_norm_of_the_query_breaks_linearity():
    def f(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return q / q.norm(dim=-1, keepdim=True), k

    with torch.no_grad():
        found = recover(read(f, Options(4, 2, 64, torch.float64)))
    assert found.witness is not None and found.witness.startswith("linearity breaks") and "three queries" in found.witness


def test_a_wrong_spec_does_not_verify():
    probe = read("rope", Options(8, 2, LENGTH))
    lags = lags_of(probe)
    assert verified(probe, ec.rope(8, heads=2), lags) <= 1e-12
    assert verified(probe, ec.rope(8, heads=2, theta=10010.0), lags) > 1e-4
    assert outside(lags) is None


def test_the_logarithm_of_a_block_that_is_no_diagonal_one():
    L = torch.tensor([[-0.1, 1.0, 0.3], [-1.0, -0.1, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(logarithm(torch.linalg.matrix_exp(L)), L, atol=1e-13)


@pytest.mark.parametrize("freq, rate", [(3.0, 0.0), (1e-5, 0.2), (-0.7, 1e-4)])
def test_modes_are_climbed_without_a_slip_of_a_turn(freq, rate):
    marks = [0.0, *(2.0**i for i in range(12))]
    values = [torch.tensor([math.exp(-rate * u) * complex(math.cos(freq * u), math.sin(freq * u))], dtype=torch.complex128) for u in marks]
    found = climb(marks, values, [1e-14] * len(marks), step=2.0**-52)
    assert abs(float(found.freq) - freq) <= float(found.freq_error) < 1e-12
    assert abs(float(found.rate) - rate) <= float(found.rate_error)
