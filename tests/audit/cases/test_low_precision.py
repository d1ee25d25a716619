"""Cases 1, 2, 19, 20 given to the auditor: positions, frequencies, timestamps and offsets that do not survive their dtype or cache."""

import contextlib
import math
from typing import Any

import pytest
import torch
from cases.conftest import default_dtype
from torch import Tensor, nn

import eigenclock as ec
from audit.cases.given import LLAMA, Table, apply, case, faults, found, frequencies, halves, neighbours, sound

BF16, FP16 = torch.bfloat16, torch.float16
SLOW = pytest.mark.slow
NOW = 1_700_000_000


# --- 1: positions or angles in a low dtype -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "first", "width", "theta"), [(BF16, 256, 16, 1e4), (FP16, 2048, 16, 1e4), pytest.param(BF16, 256, 4, 5e5, marks=SLOW)]
)
def test_1_a_module_cast_with_its_model_merges_neighbours(dtype, first, width, theta):
    """(f(q, k, cos, sin), module) after module.to(dtype): its positions are numbers of the dtype of its buffer."""
    report = ec.audit((apply, Table(width, theta, careless=True).to(dtype)), head_dim=width, dtype=dtype)
    merged = found(report, "precision")
    assert merged.where["positions"] == [first, first + 1] and f"{first} and {first + 1}" in merged.message
    law = found(report, "shift_invariance")
    name = str(dtype).removeprefix("torch.")
    assert f"rounded to {name}" in law.message and "positions" in law.message and law.where["position_error"] >= 1
    sound(ec.audit((apply, Table(width, theta)), head_dim=width, dtype=dtype))


@pytest.mark.parametrize("length", [200, 257])
def test_1_below_the_first_merged_position_it_is_a_risk_or_nothing(length):
    """Faults are what breaks within the length: 0 .. 256 are exact in bfloat16."""

    def positions_of_x(x: Tensor, positions: Tensor) -> Tensor:
        return halves(x, positions.to(x.dtype).float()[:, None] * frequencies(8).float())

    report = ec.audit(positions_of_x, head_dim=8, length=length, dtype=BF16)
    assert "precision" not in faults(report) and found(report, "precision", "risk").where["positions"] == [256.0, 257.0]


def test_1_autocast_is_as_silent_and_as_wrong():
    """A product of frequencies and positions under autocast runs in bfloat16 whatever their dtype; the caller's autocast is measured."""

    class Outer(nn.Module):
        def __init__(self, guarded: bool):
            super().__init__()
            self.inv_freq, self.guarded = nn.Buffer(frequencies(16).float()), guarded

        def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
            with torch.autocast("cpu", enabled=False) if self.guarded else contextlib.nullcontext():
                angle = (self.inv_freq[None, :, None] @ position_ids[:, None].float()).mT
            both = torch.cat([angle, angle], -1)
            return both.cos().to(x.dtype), both.sin().to(x.dtype)

    with torch.autocast("cpu", BF16):
        assert found(ec.audit((apply, Outer(False)), head_dim=16), "precision").where["positions"] == [256.0, 257.0]
        sound(ec.audit((apply, Outer(True)), head_dim=16))


@pytest.mark.parametrize(("dtype", "kept"), [(torch.float32, "table kept in float32"), (BF16, "table rounded once to bfloat16")])
def test_1_the_table_of_the_case_is_what_the_sound_module_makes(dtype, kept):
    data = case(1)
    given, expect = data["given"], data["expect"]
    module = Table(given["width"], given["theta"])
    sound(ec.audit((apply, module), head_dim=given["width"], dtype=dtype))
    cos, sin = module(torch.ones(1, dtype=dtype), torch.tensor(given["times"])[None])
    for name, got in (("cos", cos), ("sin", sin)):
        want = torch.tensor(expect[name], dtype=torch.float64)
        assert float((got[0, :, : given["width"] // 2].double() - want).abs().max()) <= expect["abs_tol"][kept]


# --- 2: frequencies rounded by a cast or by the default dtype ----------------------------------------------------------------------------


class Ambient(Table):
    """inv_freq computed in whatever dtype is the default."""

    def __init__(self, width: int, theta: float):
        super().__init__(width, theta)
        self.inv_freq = nn.Buffer(theta ** -(torch.arange(0, width, 2) / width))


def cast(width: int, theta: float, step: str) -> nn.Module:
    """The steps of the case."""
    if step == "half":
        return Table(width, theta).half().float()
    if step == "bfloat16":
        return Table(width, theta).to(BF16).to(torch.float32)
    with default_dtype(BF16):
        return Ambient(width, theta).float()


@pytest.mark.parametrize(
    ("step", "width", "theta"),
    [("half", 16, 1e4), ("bfloat16", 16, 1e4), ("default dtype", 16, 1e4), pytest.param("bfloat16", 32, 5e5, marks=SLOW)],
)
def test_2_a_cast_there_and_back_is_seen_in_the_table(step, width, theta):
    report = ec.audit((apply, cast(width, theta, step)), head_dim=width)
    table = found(report, "table")
    assert ("float16" if step == "half" else "bfloat16") + " number" in table.message and table.measured > 0.1
    assert report.form == f"{width // 2}R"  # a group all the same
    with default_dtype(BF16) if step == "default dtype" else contextlib.nullcontext():
        module = Table(width, theta)
    sound(ec.audit((apply, module), head_dim=width))


def test_2_the_frequencies_of_the_case_are_recovered_from_the_sound_module_alone():
    data = case(2)
    given, expect = data["given"], data["expect"]
    report = ec.audit((apply, Table(given["width"], given["theta"])), head_dim=given["width"])
    freq = ec.encoding(report.spec).generator().split().turns[0].freq.flatten()
    want = torch.tensor(expect["frequencies"], dtype=torch.float64)
    assert float((freq / want - 1).abs().max()) <= expect["rel_tol"]


@pytest.mark.slow
@pytest.mark.peer("transformers")
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_2_a_live_model_that_went_through_a_low_dtype(dtype):
    """Its table against its own config: the worst pair and its angle at the last position."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**{k: v for k, v in LLAMA.items() if k != "model_type"})
    sound(ec.audit(LlamaForCausalLM(config), length=1024))
    report = ec.audit(LlamaForCausalLM(config).to(dtype).float(), length=8192)
    assert faults(report) & {"table", "scaling"}
    rounded = frequencies(8).float().to(dtype).double()
    assert found(report, "table").measured == pytest.approx(float((rounded - frequencies(8)).abs().max()) * 8191, rel=1e-3)


# --- 19: large timestamps ----------------------------------------------------------------------------------------------------------------


def raw_seconds(x: Tensor, positions: Tensor) -> Tensor:
    return halves(x, positions.float()[:, None] * frequencies(x.shape[-1]).float())


def raw_nanoseconds(q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
    """float32 before the difference: it is 0 up to 137 seconds."""
    lag = (positions_q.float()[:, None] - positions_k.float()) / 1e9
    return (q @ k.mT) * (-0.5 * lag).exp().to(q.dtype)


def exact_nanoseconds(q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
    lag = (positions_q.long()[:, None] - positions_k.long()).double() / 1e9
    return (q @ k.mT) * (-0.5 * lag).exp().to(q.dtype)


def test_19_seconds_since_1970_in_float32_when_the_length_reaches_them():
    """``length`` says that such times are used: then it is a fault, and advice where only tokens are counted."""
    report = ec.audit(raw_seconds, head_dim=8, length=NOW + 100)
    assert found(report, "precision").where["positions"] == [2.0**24, 2.0**24 + 1]
    stamps = found(report, "timestamps")
    assert stamps.where["t"] == NOW and "1700000000 (seconds since 1970)" in stamps.message
    assert found(ec.audit(raw_seconds, head_dim=8), "timestamps", "advice").where["t"] == NOW
    sound(ec.audit(lambda x, positions: halves(x, positions.double()[:, None] * frequencies(8)), head_dim=8, length=NOW + 100))


@pytest.mark.parametrize(("second", "unit"), [(1_000, "milliseconds"), (1_000_000, "microseconds"), (1_000_000_000, "nanoseconds")])
def test_19_finer_units_are_known_by_the_length(second, unit):
    def coarse(q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
        lag = (positions_q.float()[:, None] - positions_k.float()) / second
        return (q @ k.mT) * (-0.5 * lag).exp().to(q.dtype)

    stamps = found(ec.audit(coarse, head_dim=4, length=(NOW + 2) * second), "timestamps")
    assert stamps.where == {"t": NOW * second, "step": second} and unit in stamps.message


def test_19_integers_subtracted_first_are_sound_to_the_nanosecond():
    data = case(19)
    given, expect = data["given"], data["expect"]
    sound(ec.audit(exact_nanoseconds, head_dim=4, length=given["timestamps"][-1] + 1))
    assert not ec.audit(raw_nanoseconds, head_dim=4, length=given["timestamps"][-1] + 1).ok
    times = torch.tensor(given["timestamps"])
    lag = (times[-1] - times).double() / given["units_per_time_unit"]
    assert float((lag - torch.tensor(expect["differences_in_time_units"]).double()).abs().max()) <= expect["abs_tol"]


@pytest.mark.parametrize(
    ("unit", "half_life"), [("ns", "2s"), pytest.param("ms", "1min", marks=SLOW), pytest.param("s", "30min", marks=SLOW)]
)
def test_19_our_clock_of_timestamps_has_no_fault(unit, half_life):
    enc = ec.damped_rope(2, half_life=half_life, clock=ec.Timestamps(unit))
    report = ec.audit(enc)
    sound(report)
    assert "timestamps" in report.checked and "clock" in report.checked and "rows" in report.checked


def test_19_a_clock_that_takes_float32_seconds_is_named_with_their_spacing():
    class Coarse(type(ec.Timestamps("s"))):  # type: ignore[misc]
        """A clock of one's own that rounds before it subtracts."""

        def forward(self, times: Any = None, **options: Any) -> Any:
            reading = super().forward(None if times is None else torch.as_tensor(times).double(), **options)
            return reading if times is None else reading._replace(ticks=torch.as_tensor(times).float().double())

    clock = found(ec.audit(ec.rope(4, clock=Coarse("s")), length=64), "clock")
    assert clock.where == {"shift": NOW} and "all times move" in clock.message
    sound(ec.audit(ec.rope(4, clock=ec.Timestamps("s")), length=64))


# --- 20: offsets at decode ---------------------------------------------------------------------------------------------------------------


class Offsets(nn.Module):
    """rotate_queries_or_keys(x, offset=) with tables that are kept. The faulty one keys them by length alone."""

    def __init__(self, width: int, by_length: bool):
        super().__init__()
        self.freqs, self.by_length, self.kept = nn.Parameter(frequencies(width).float(), requires_grad=False), by_length, {}

    def rotate_queries_or_keys(self, x: Tensor, offset: int = 0) -> Tensor:
        n = x.shape[-2]
        key = n if self.by_length else (offset, n)
        if key not in self.kept:
            self.kept[key] = (torch.arange(n) + offset)[:, None] * self.freqs
        return neighbours(x, self.kept[key])


@pytest.mark.parametrize("width", [4, pytest.param(16, marks=SLOW)])
def test_20_a_table_kept_by_length_alone_is_seen_by_two_calls_as_long(width):
    kept = found(ec.audit(Offsets(width, True), length=64), "history")
    assert "in one call" in kept.message and kept.where["tokens"] > 1
    sound(ec.audit(Offsets(width, False), length=64))


@pytest.mark.parametrize("end", [16, pytest.param(24, marks=SLOW)])
@pytest.mark.parametrize("beyond", ["wraps", "stays"])
def test_20_a_table_that_ends_must_refuse_what_lies_beyond(end, beyond):
    table = torch.arange(end).double()[:, None] * frequencies(4)

    def unchecked(x: Tensor, positions: Tensor) -> Tensor:
        rows = positions.long() % end if beyond == "wraps" else positions.long().clamp_max(end - 1)
        return halves(x, table[rows])

    report = ec.audit(unchecked, head_dim=4, length=64)
    law = found(report, "shift_invariance")
    assert law.where["t"] + law.where["shift"] >= end and "shift_invariance" in faults(report)
    if beyond == "stays":
        assert found(report, "precision").where["positions"] == [end - 1, end]

    def checked(x: Tensor, positions: Tensor) -> Tensor:
        return halves(x, table[positions.long()])

    ends = ec.audit(checked, head_dim=4, length=64)
    sound(ends)
    assert ends.length == end and found(ends, "reach", "advice").where["position"] == end
    sound(ec.audit(unchecked, head_dim=4, length=end))


def test_20_vectors_turned_in_place_are_changed_for_the_caller():
    def turned(x: Tensor, positions: Tensor) -> Tensor:
        return halves(x, positions.double()[:, None] * frequencies(x.shape[-1]))

    def in_place(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        q.copy_(turned(q, positions))
        return q, turned(k, positions)

    report = ec.audit(in_place, head_dim=4, length=64)
    written = found(report, "inputs")
    assert faults(report) == {"inputs"} and written.where["side"] == "queries" and report.form == "2R"
    sound(ec.audit(turned, head_dim=4, length=64))


def test_20_strides_of_views_are_read():
    """A kernel that takes the memory as it lies: right for contiguous vectors, wrong for views of (B, T, H, D)."""

    def packed(x: Tensor, positions: Tensor) -> Tensor:
        flat = x.as_strided(x.shape, torch.empty(x.shape).stride())
        return neighbours(flat, positions.double()[:, None] * frequencies(x.shape[-1]))

    strided = found(ec.audit(packed, head_dim=4, length=64), "inputs")
    assert "strides" in strided.message and strided.where["side"] in ("queries", "keys")
    sound(ec.audit(lambda x, positions: neighbours(x, positions.double()[:, None] * frequencies(4)), head_dim=4, length=64))


def test_20_the_numbers_of_the_case_are_those_of_the_module_that_passes():
    data = case(20)
    given, expect = data["given"], data["expect"]
    freq = frequencies(given["width"], given["theta"])
    x = torch.tensor(given["x_each_step"])
    for call in given["calls_in_this_order"]:
        times = torch.arange(call["length"]) + call["offset"]
        got = halves(x.expand(1, 1, call["length"], x.numel()), times[:, None] * freq)
        assert float((got[0, 0].double() - torch.tensor(expect["rotated"][str(call["offset"])]).double()).abs().max()) <= expect["abs_tol"]
    assert math.isclose(float(freq[1]), 0.01)
    sound(ec.audit(lambda x, positions: halves(x, positions.double()[:, None] * freq), head_dim=given["width"], length=64))
