"""Cases 3, 14, 22, 23, 24, 26, 27 given to the auditor: which property breaks, by how much, and what cannot be seen from outside."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import eigenclock as ec
from audit.cases.given import LLAMA, Table, apply, case, faults, found, frequencies, halves, neighbours, sound

BF16 = torch.bfloat16
SLOW = pytest.mark.slow


def angles(x: Tensor, positions: Tensor, theta: float = 1e4) -> Tensor:
    return positions.double()[:, None] * frequencies(x.shape[-1], theta)


# --- 3: the three roundings that look alike in review ------------------------------------------------------------------------------------


def rounded_frequencies(x: Tensor, positions: Tensor) -> Tensor:
    return halves(x, positions.double()[:, None] * frequencies(x.shape[-1]).to(BF16).double())


def rounded_positions(x: Tensor, positions: Tensor) -> Tensor:
    return halves(x, positions.to(BF16).double()[:, None] * frequencies(x.shape[-1]))


def rounded_tables(x: Tensor, positions: Tensor) -> Tensor:
    angle = angles(x, positions)
    cos, sin = angle.cos().to(BF16).to(x.dtype), angle.sin().to(BF16).to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


@pytest.mark.parametrize("dtype", [torch.float64, pytest.param(torch.float32, marks=SLOW)])
def test_3_rounded_frequencies_are_another_group(dtype):
    """A: scores follow the lag, by another generator than the one declared, which the report gives."""
    expect, width = case(3)["expect"]["A"], case(3)["given"]["width"]
    report = ec.audit(rounded_frequencies, head_dim=width, dtype=dtype, length=expect["last_time"] + 1)
    assert faults(report) == {"table"} and report.form == "8R" and report.witness is None
    table = found(report, "table")
    assert table.where["pair"] == expect["worst_pair"] and table.where["radians at"] == expect["last_time"]
    assert table.measured == pytest.approx(expect["angle_error_rad_at_last_time"], abs=expect["abs_tol"])
    assert "another generator than the base 10000 declares" in table.message
    freq = ec.encoding(report.spec).generator().split().turns[0].freq.flatten()
    assert torch.allclose(freq, torch.tensor(case(3)["given"]["rounded_frequencies"]).double(), rtol=1e-6)


def test_3_rounded_positions_are_no_homomorphism():
    """B: A(256) A(1) is not A(257), by the spectral norm of the case."""
    expect, width = case(3)["expect"]["B"], case(3)["given"]["width"]
    report = ec.audit(rounded_positions, head_dim=width, dtype="float64", length=4096)
    law = found(report, "group_law")
    assert (law.where["s"], law.where["t"]) == (expect["s"], expect["t"])
    assert law.measured == pytest.approx(expect["spectral_norm_defect"], abs=expect["abs_tol"])
    shift = found(report, "shift_invariance")
    assert "positions rounded to bfloat16 before use" in shift.message and shift.where["position_error"] >= 1


@pytest.mark.parametrize("dtype", [torch.float64, pytest.param(torch.float32, marks=SLOW)])
def test_3_rounded_tables_are_not_orthogonal(dtype):
    """C: norms change at the first step already; the smallest witness is a query and a key both at 1."""
    expect, width = case(3)["expect"]["C"], case(3)["given"]["width"]
    report = ec.audit(rounded_tables, head_dim=width, dtype=dtype, length=4096)
    sides = found(report, "contragredience")
    assert sides.where["t"] == sides.where["s"] == expect["time"] and sides.where["pair"] == expect["pair"]
    assert "norms change" in sides.message and sides.where["determinant"] == pytest.approx(expect["determinant"], abs=expect["abs_tol"])
    assert "tables of cos and sin rounded to bfloat16" in found(report, "shift_invariance").message


def test_3_one_rounding_at_the_end_is_sound_in_the_dtype_it_is_for():
    sound(ec.audit(rounded_tables, head_dim=16, dtype=BF16, length=4096))
    sound(ec.audit(lambda x, positions: halves(x, angles(x, positions)), head_dim=16, length=4096))


# --- 14: layouts -------------------------------------------------------------------------------------------------------------------------


def mixed(x: Tensor, positions: Tensor) -> Tensor:
    """A table for halves combined with neighbouring pairs."""
    angle = torch.cat([angles(x, positions)] * 2, -1)
    other = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return x * angle.cos().to(x.dtype) + other * angle.sin().to(x.dtype)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=SLOW)])
def test_14_the_mixed_table_is_no_group_and_not_orthogonal(dtype):
    data = case(14)
    s, t = data["given"]["s"], data["given"]["t"]
    report = ec.audit(mixed, head_dim=data["given"]["width"], dtype=dtype, length=512)
    law = found(report, "group_law")
    assert (law.where["s"], law.where["t"]) == (s, t)
    assert law.where["frobenius"] == pytest.approx(data["expect"]["mixed_law_defect"], abs=1e-6)
    assert "one map that is no rotation" in found(report, "contragredience").message and report.form is None


@settings(max_examples=3, deadline=None, derandomize=True)
@given(st.sampled_from([4, 6, 16]), st.sampled_from([1e2, 1e4, 5e5]))
def test_14_the_mixed_table_of_any_width_and_base(width, theta):
    def other(x: Tensor, positions: Tensor) -> Tensor:
        angle = torch.cat([angles(x, positions, theta)] * 2, -1)
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        return x * angle.cos().to(x.dtype) + turned * angle.sin().to(x.dtype)

    assert "group_law" in faults(ec.audit(other, head_dim=width, length=64))


@pytest.mark.parametrize(("turn", "pairing"), [(halves, "half"), (neighbours, "interleaved")])
def test_14_pure_layouts_are_groups_that_a_permutation_exchanges(turn, pairing):
    report = ec.audit(lambda x, positions: turn(x, angles(x, positions)), head_dim=8, length=512)
    sound(report)
    generator = ec.encoding(report.spec).generator()
    order = torch.tensor(case(14)["given"]["permutation_interleaved_to_half"])
    want = ec.rope(8, pairing="interleaved").generator().matrix(2.0).reshape(8, 8)
    got = generator.matrix(2.0).reshape(8, 8)
    if pairing == "half":
        want = want[order][:, order]
    assert torch.allclose(got, want, atol=1e-6)


@pytest.mark.peer("transformers")
def test_14_weights_of_one_layout_under_the_rotation_of_the_other():
    """A live Llama whose attention was patched to turn neighbours: its config says halves."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama import modeling_llama

    model = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in LLAMA.items() if k != "model_type"}))
    sound(ec.audit(model, length=64))
    plain = modeling_llama.apply_rotary_pos_emb

    def other(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **rest: Any) -> tuple[Tensor, Tensor]:
        n = cos.shape[-1] // 2
        cos, sin = (x[..., :n].repeat_interleave(2, -1)[:, None] for x in (cos, sin))
        q, k = (x * cos + torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2) * sin for x in (q, k))
        return q, k

    modeling_llama.apply_rotary_pos_emb = other
    try:
        layout = found(ec.audit(model, length=64), "layout")
    finally:
        modeling_llama.apply_rotary_pos_emb = plain
    assert (layout.measured, layout.limit) == ("interleaved", "half") and layout.where["channels"] == [0, 1]


# --- 22: odd widths ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [9, pytest.param(5, marks=SLOW)])
@pytest.mark.parametrize("config", ["head_dim", "no model type", "quotient"])
def test_22_a_config_of_an_odd_width_is_a_fault_that_names_it(config, width):
    given = {k: v for k, v in LLAMA.items() if k not in ("head_dim", "hidden_size")}
    if config == "quotient":
        given |= {"hidden_size": width * given["num_attention_heads"]}
    else:
        given |= {"head_dim": width}
    if config == "no model type":
        given = {k: given[k] for k in ("head_dim", "num_attention_heads", "rope_theta")}
    report = ec.audit(given)
    message = found(report, "config").message
    assert str(width) in message and "even" in message
    assert report.spec is None  # nothing is measured with a width of one's own making


@pytest.mark.parametrize("spec", ["rope", "sinusoidal"])
def test_22_specs_and_functions_of_an_odd_width_are_refused_in_one_line(spec, capsys):
    width = case(22)["given"]["width"]
    with pytest.raises(ec.ShapeError, match="9.*even"):
        ec.audit(spec, head_dim=width)
    with pytest.raises(ec.ConfigError, match="even one: 9"):
        ec.audit((apply, Table(8)), head_dim=width)
    from eigenclock.cli import main

    assert main(["audit", spec, "--head-dim", str(width)]) == 2
    assert "9" in capsys.readouterr().err


def test_22_an_odd_head_whose_last_channel_stands_still_is_sound():
    def partial(x: Tensor, positions: Tensor) -> Tensor:
        return torch.cat([halves(x[..., :8], angles(x[..., :8], positions)), x[..., 8:]], -1)

    report = ec.audit(partial, head_dim=9, length=128)
    sound(report)
    assert report.form == "4R + 1Z"


# --- 23, 24: gradients and compilation ---------------------------------------------------------------------------------------------------


class Learned(nn.Module):
    """Frequency and rate that train; the score of the case."""

    def __init__(self, detached: bool = False):
        super().__init__()
        given = case(23)["given"]
        self.frequency = nn.Parameter(torch.tensor(given["learned_frequency"], dtype=torch.float64))
        self.rate_of_decay = nn.Parameter(torch.tensor(given["learned_rate"], dtype=torch.float64))
        self.detached = detached

    def forward(self, q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
        lag = (positions_q.double()[:, None] - positions_k.double()).clamp_min(0)
        freq = self.frequency.detach() if self.detached else self.frequency
        c, s = (freq * lag).cos(), (freq * lag).sin()
        even, odd = q @ k.mT, q[..., :1] @ k[..., 1:].mT - q[..., 1:] @ k[..., :1].mT
        return (-self.rate_of_decay * lag).exp().to(q.dtype) * (even * c.to(q.dtype) + odd * s.to(q.dtype))


def test_23_learned_numbers_are_recovered_and_an_audit_leaves_their_gradients_alone():
    """What an auditor can say from outside: the law with the numbers as they stand. Whether a gradient reaches a parameter is no property
    of the law: a detached frequency scores the same, so both get the same report, and tests of gradients are the subject's own. An audit
    builds no graph, leaves no gradient and changes no flag, so that it can stand within a training loop."""
    given, expect = case(23)["given"], case(23)["expect"]
    module = Learned()
    reports = [ec.audit(module, head_dim=2, length=64, dtype="float64"), ec.audit(Learned(True), head_dim=2, length=64, dtype="float64")]
    for report in reports:
        sound(report)
        block = report.blocks[0]
        assert block.rate.value == pytest.approx(given["learned_rate"], abs=1e-9)
        assert abs(block.freq.value) == pytest.approx(given["learned_frequency"], abs=1e-9)
    assert [p.grad for p in module.parameters()] == [None, None] and all(p.requires_grad for p in module.parameters())
    q, k = (torch.tensor([[given[name]]], dtype=torch.float64) for name in ("q", "k"))
    for _ in range(2):  # the graph is the caller's own, before and after
        score = module(q, k, torch.tensor([given["query_time"]]), torch.tensor([given["key_time"]])).sum()
        module.zero_grad()
        score.backward()
        assert score.item() == pytest.approx(expect["score"], abs=expect["abs_tol"])
        assert module.frequency.grad.item() == pytest.approx(expect["d_frequency"], abs=expect["abs_tol"])
        ec.audit(module, head_dim=2, length=8, dtype="float64")


def test_23_a_fixed_table_that_trains_is_a_risk():
    """Fixed tables are not parameters."""

    class Trains(Table):
        def __init__(self) -> None:
            super().__init__(8)
            table = self.inv_freq
            del self.inv_freq
            self.inv_freq = nn.Parameter(table)

    trained = found(ec.audit((apply, Trains()), head_dim=8, length=64), "optimiser", "risk")
    assert trained.where["parameter"] == "inv_freq" and "training moves it" in trained.message
    assert "optimiser" not in {f.rule for f in ec.audit((apply, Table(8)), head_dim=8, length=64).findings}


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=SLOW)])
def test_24_a_compiled_subject_gets_the_report_of_the_eager_one(backend):
    """What an auditor can say of compilation: that the law is the same. Graph breaks and recompilations change no score, and are counted by
    torch's own tools; what does change scores (a table that is built once for the first length and kept) shows as it does in eager code."""
    data = case(24)["given"]
    assert len(data["lengths"]) == 4

    def turned(x: Tensor, positions: Tensor) -> Tensor:
        return halves(x, angles(x, positions, data["theta"]))

    torch._dynamo.reset()
    compiled = torch.compile(turned, backend=backend, dynamic=True)
    reports = [
        ec.audit(f, head_dim=data["width"], length=20, dtype="float64") for f in (turned, lambda x, positions: compiled(x, positions))
    ]
    torch._dynamo.reset()
    eager, other = (report.to_dict() for report in reports)
    assert {k: v for k, v in eager.items() if k not in ("subject", "notes")} == {
        k: v for k, v in other.items() if k not in ("subject", "notes")
    }


# --- 26: several axes --------------------------------------------------------------------------------------------------------------------

QWEN = {**{k: v for k, v in LLAMA.items() if k != "model_type"}, "model_type": "qwen2_vl_text"}


@pytest.mark.parametrize("sections", [[2, 2, 1], [1, 1, 1], [4, 1, 1]])
def test_26_sections_that_do_not_add_up_are_a_fault_that_names_them(sections):
    report = ec.audit({**QWEN, "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": sections}}, length=64)
    config = found(report, "config")
    assert "mrope_section" in config.message and str(sections) in config.message and "expected 4" in config.message


def test_26_sections_of_the_case_have_no_fault_and_text_is_one_axis():
    given = case(26)["given"]
    report = ec.audit({**QWEN, "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": given["sections"]}}, length=64)
    sound(report)
    assert report.form == "4R" and "m_rope" in report.nearest
    enc = ec.m_rope(given["width"], sections=tuple(given["sections"]), pairing="half")
    own = ec.audit(enc, length=64)
    sound(own)
    assert any("3 times for each token" in note for note in own.notes)  # with one time for all axes, which is text, any assignment is alike


# --- 27: translation invariance lost -----------------------------------------------------------------------------------------------------


def scored(turn: Any, times: list[int]) -> float:
    """The score of the case between a query and a key at two times."""
    one = torch.tensor([[[1.0, 0.0]]], dtype=torch.float64)
    q, k = turn(one, one, torch.tensor(times[:1])), turn(one, one, torch.tensor(times[1:]))
    return float((q[0] * k[1]).sum())


def warped(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    t = positions.double() / (1 + positions.double() / 6144)
    return halves(q, angles(q, t)), halves(k, angles(k, t))


def query_only(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    return halves(q, angles(q, positions)), k


@pytest.mark.parametrize("width", [2, pytest.param(8, marks=SLOW)])
def test_27_a_warped_clock_is_a_group_in_another_time(width):
    data = case(27)
    report = ec.audit(warped, head_dim=width, dtype="float64")
    shift = found(report, "shift_invariance")
    assert "a group on a warped clock" in shift.message and "1 at 0" in shift.message
    assert shift.where["shift"] > 0 and "both moved by" in shift.message
    for times, want in zip(data["given"]["times"], data["expect"]["warped"]["scores"], strict=True):
        assert scored(warped, times) == pytest.approx(want, abs=data["expect"]["warped"]["abs_tol"])


@pytest.mark.parametrize("side", ["keys", "queries"])
def test_27_one_side_alone_follows_its_absolute_position(side):
    data = case(27)
    subject = query_only if side == "keys" else lambda q, k, positions: query_only(k, q, positions)[::-1]
    report = ec.audit(subject, head_dim=2, length=512, dtype="float64")
    one = found(report, "contragredience")
    assert one.where["still"] == side and "absolute position" in one.message and one.where["t"] == one.where["s"]
    assert "shift_invariance" in faults(report)
    for times, want in zip(data["given"]["times"], data["expect"]["query_only"]["scores"], strict=True):
        assert scored(query_only, times) == pytest.approx(want, abs=data["expect"]["query_only"]["abs_tol"])


def test_27_a_code_even_in_the_distance_is_said_to_be():
    """Legal, as many biases are: advice, with the two scores that are equal."""

    def code(q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
        d = (positions_q.double()[:, None] - positions_k.double()).abs()
        return q @ k.mT + (d.sin() + d.cos()).to(q.dtype)

    even = found(ec.audit(code, head_dim=2, length=256), "even", "advice")
    assert "past and future cannot be told apart" in even.message and even.where["lag"] == 1

    def odd(q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
        d = positions_q.double()[:, None] - positions_k.double()
        return q @ k.mT + (d.sin() + d.cos()).to(q.dtype)

    report = ec.audit(odd, head_dim=2, length=256)
    sound(report)
    assert "even" not in {f.rule for f in report.findings}


@pytest.mark.parametrize("use", ["added", "rotated"])
def test_27_columns_with_exponents_of_their_own(use):
    """A sinusoid table whose sine and cosine columns do not share a frequency; the sound twin shares it."""

    def per_column(x: Tensor, positions: Tensor, shared: bool = False) -> Tensor:
        d = x.shape[-1]
        column = torch.arange(d, dtype=torch.float64)
        angle = positions.double()[:, None] * 1e4 ** (-(column // 2 * 2 if shared else column) / d)
        if use == "added":
            return x + torch.where(column.long() % 2 == 0, angle.sin(), angle.cos()).to(x.dtype)
        other = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        return x * angle.cos().to(x.dtype) + other * angle.sin().to(x.dtype)

    report = ec.audit(per_column, head_dim=8, length=256)
    shift = found(report, "shift_invariance")
    assert shift.where["t"] >= shift.where["s"] == 0 and report.witness.startswith("translation invariance breaks")
    if use == "rotated":
        sound(ec.audit(lambda x, positions: per_column(x, positions, True), head_dim=8, length=256))
    assert math.isfinite(shift.measured)


@pytest.mark.parametrize("warp", [0.0, 1e-4])
def test_rounded_positions_are_named_where_they_are_what_breaks_the_law(warp):
    """Positions in bfloat16 whatever the vectors are; and the same beside a clock that runs off from the start."""

    def scores(q, k, positions_q, positions_k):
        t, s = (p.bfloat16().double() for p in (positions_q, positions_k))
        t, s = (p + warp * p**2 for p in (t, s))
        return q @ k.mT - 0.01 * (t[:, None] - s).to(q.dtype).abs()

    found = next(f for f in ec.audit(scores, head_dim=8, heads=2, length=1024).findings if f.rule == "shift_invariance")
    assert ("positions are rounded before use" in found.message) == (warp == 0.0)
    assert ("the law itself" in found.message) == (warp != 0.0)
