"""Faults in one place of a sound whole are found, and the numbers that a finding gives are the first and smallest there are."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from audit.families import tiny
from audit.twins import base, decayed, rotate, turner
from eigenclock.audit import Finding, Report
from eigenclock.audit.measure.samples import coarse, many
from eigenclock.audit.subjects import read
from eigenclock.audit.subjects.options import Options

D = 8


def of(rule: str, report: Report) -> Finding:
    return next(f for f in report.findings if f.rule == rule)


def at_times(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def turn(x: Tensor, positions: Tensor) -> Tensor:
        return turner()(x, change(positions).double())

    return turn


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "bfloat16": lambda t: t.bfloat16(),
    "bfloat16 tenths": lambda t: t.bfloat16() * 0.1,
    "float16 thirds": lambda t: t.half() / 3,
    "an end": lambda t: t.clamp(max=1777),
    "one alone": lambda t: torch.where(t == 777, t - 1, t),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_first_merged_positions_are_the_first(name: str) -> None:
    change, length = CHANGES[name], 2560
    tokens = change(torch.arange(length)).double()
    first = int((tokens[1:] == tokens[:-1]).int().argmax())
    report = ec.audit(at_times(change), head_dim=D, length=length)
    assert of("precision", report).where["positions"] == [first, first + 1]


@pytest.mark.parametrize(("rate", "dtype"), [(0.0271, torch.float32), (0.1, torch.bfloat16), (0.01, torch.float16)])
def test_the_first_lost_position_is_the_first(rate: float, dtype: torch.dtype) -> None:
    def f(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return decayed(-1, rate)(q, positions), decayed(1, rate)(k, positions)

    found = of("growth", ec.audit(f, head_dim=D, length=4096, dtype=dtype))
    probe = read(f, Options(D, None, 4096, dtype))
    assert probe.scores is not None
    q, k = (x.to(dtype) for x in coarse(probe))
    first, lags = int(found.where["s"]), [0.0, 1.0, 8.0]
    kept = {s: bool(torch.isfinite(many(probe.scores, probe, q, k, lags, float(s))).all()) for s in (*range(0, first, 9), first - 1, first)}
    assert found.severity == "fault" and not kept.pop(first) and all(kept.values())


def wrapping(x: Tensor, positions: Tensor) -> Tensor:
    return turner()(x, positions % 1500)


def test_the_witness_has_the_smallest_last_position_and_holds() -> None:
    found = of("shift_invariance", ec.audit(wrapping, head_dim=D, length=2048))
    where: dict[str, Any] = dict(found.where)
    assert found.severity == "fault" and where["t"] + where["shift"] == 1500  # all before it are sound
    q, k = torch.ones(2, 1, D, dtype=torch.float64)[:, None].unbind()
    t, c = torch.tensor([where["t"]]), where["shift"]
    assert not torch.allclose(wrapping(q, t) @ wrapping(k, 0 * t).mT, wrapping(q, t + c) @ wrapping(k, 0 * t + c).mT)


def test_before_it_breaks_it_is_a_risk_and_no_fault() -> None:
    report = ec.audit(at_times(lambda t: t.clamp(max=700)), head_dim=D, length=512)
    assert report.ok and of("precision", report).severity == "risk" and of("growth", report).severity == "risk"
    assert not ec.audit(at_times(lambda t: t.clamp(max=700)), head_dim=D, length=1024).ok


def patched(index: int, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Any:
    """A model one of whose layers is given other tables."""
    model = tiny("llama")
    layer = model.model.layers[index].self_attn
    forward = layer.forward

    def changed(*args: Any, position_embeddings: tuple[Tensor, Tensor], **options: Any) -> Any:
        return forward(*args, position_embeddings=change(*position_embeddings), **options)

    layer.forward = changed
    return model


@pytest.mark.peer("transformers")
def test_a_fault_of_the_last_layer_alone_is_found() -> None:
    report = ec.audit(patched(1, lambda cos, sin: (cos, -sin)), length=128)
    assert of("layer_types", report).severity == "advice"
    found = of("scaling", report)
    assert found.severity == "fault" and found.where["layer"] == "layer 1" and "backwards" in found.message
    rounded = ec.audit(patched(1, lambda cos, sin: (cos.half().float(), sin.half().float())), length=128)
    assert of("shift_invariance", rounded).where["layer"] == "layer 1"
    assert not of("layer_types", rounded).where.get("kind") and not rounded.ok


@pytest.mark.peer("transformers")
@pytest.mark.parametrize("ratio", [1.001, 1 / 1.001])
def test_a_speed_between_the_table_and_the_scores_is_found(ratio: float) -> None:
    model = tiny("llama")
    rotary = model.model.rotary_emb
    forward = rotary.forward
    rotary.forward = lambda x, position_ids: forward(x, position_ids * ratio)
    found = of("scaling", ec.audit(model, length=128))
    assert found.severity == "fault" and "all pairs turn" in found.message and abs(found.measured / 1e-3 - 1) < 0.01


def test_the_sound_rotation_of_this_file_is_clean() -> None:
    def sound(x: Tensor, positions: Tensor) -> Tensor:
        angle = positions.double()[:, None] * base()
        return rotate(x, angle.cos().to(x.dtype), angle.sin().to(x.dtype))

    assert not [f for f in ec.audit(sound, head_dim=D, length=2048).findings if f.severity != "advice"]
