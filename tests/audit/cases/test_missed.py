"""Kinds of faults that one time, one query, one row or one axis alone does not show, with what is sound beside each."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from audit.cases.given import faults, found, frequencies, halves, near, recovered

D, LENGTH = 16, 128


def turn(x: Tensor, positions: Tensor) -> Tensor:
    return halves(x, positions.double()[:, None] * frequencies(D))


def buckets(lag: Tensor) -> Tensor:
    """A table of buckets as T5 has: linear up to 8, then by octaves."""
    return torch.where(lag < 8, -0.3 * lag, -2.4 - 0.5 * (lag.clamp_min(8) / 8).log2().floor()).double()


def by_origin(of_all: bool) -> Callable[..., Tensor]:
    """Lags of the table from each query, or from the last one of the call."""

    def scores(q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
        origin = positions_q[-1:].expand_as(positions_q) if of_all else positions_q
        return turn(q, positions_q) @ turn(k, positions_k).mT + buckets((origin[:, None] - positions_k).clamp_min(0))

    return scores


def attending(of_all: bool) -> Callable[..., Tensor]:
    """The same as causal attention, which gives outputs alone."""

    def attend(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        z = by_origin(of_all)(q, k, positions, positions) * D**-0.5
        z = z.masked_fill(torch.ones_like(z, dtype=torch.bool).triu(1), -math.inf)
        return (z.softmax(-1) @ v.double()).to(v.dtype)

    return attend


@pytest.mark.parametrize("make", [by_origin, attending])
def test_a_lag_from_another_query_of_the_call_is_found(make):
    broken = found(ec.audit(make(True), head_dim=D, heads=2, length=LENGTH), "order")
    assert "decode and prefill disagree" in broken.message
    assert faults(ec.audit(make(False), head_dim=D, heads=2, length=LENGTH)) == set()


@pytest.mark.parametrize("offset", [3.0, -1.0, 0.5])
def test_a_constant_offset_of_keys_is_advice_with_the_offset(offset):
    report = ec.audit(lambda q, k, positions: (turn(q, positions), turn(k, positions.double() + offset)), head_dim=D, length=LENGTH)
    advice = found(report, "contragredience", "advice")
    assert report.ok and advice.where["offset"] == pytest.approx(offset, abs=1e-5), report
    assert ("later" in advice.message) == (offset > 0)
    assert not ec.audit(lambda q, k, positions: (turn(q, positions), turn(k, positions)), head_dim=D, length=LENGTH).findings


def batched(per_row: bool, switch: int = 64) -> Callable[..., Tensor]:
    """Another base once a row, or any row of the batch, reaches a length."""

    def attend(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        at = positions.expand(q.shape[0], -1)
        last = at.amax(-1, keepdim=True) if per_row else at.max().expand(q.shape[0], 1)
        base = torch.where(last < switch, 1e4, 1e6).double()
        angle = at[..., None] * base[..., None] ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
        z = halves(q.double(), angle[:, None]) @ halves(k.double(), angle[:, None]).mT * D**-0.5
        z = z.masked_fill(torch.ones(z.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
        z = z if mask is None else z.masked_fill(~mask.bool()[:, None, None], -1e30)
        return (z.softmax(-1) @ v.double()).to(v.dtype)

    return attend


def test_rows_that_the_longest_of_a_batch_couples_are_found_across_the_switch():
    coupled, apart = (ec.audit(batched(per_row), head_dim=D, heads=2, length=LENGTH) for per_row in (False, True))
    assert found(coupled, "rows").where["what"] == "offsets" and "reach further" in found(coupled, "rows").message
    assert "rows" in apart.checked and "rows" not in faults(apart)


def partly(rotary: int, width: int, theta: float, runs_over: int) -> Any:
    freq = theta ** (-torch.arange(0, rotary, 2, dtype=torch.float64) / runs_over)

    def one(x: Tensor, positions: Tensor) -> Tensor:
        return torch.cat([halves(x[..., :rotary], positions.double()[:, None] * freq), x[..., rotary:]], -1)

    return lambda q, k, positions: (one(q, positions), one(k, positions))


@pytest.mark.parametrize("theta", [1e4, 1e6])
@pytest.mark.parametrize("length", [128, 1024])
def test_exponents_over_the_whole_head_are_said_and_have_a_spec(theta, length):
    report = ec.audit(partly(16, 64, theta, 64), head_dim=64, length=length)
    advice = found(report, "width", "advice")
    assert f"base {theta:g} with exponents 2i/64" in advice.message and advice.where["channels"] == 16
    assert near(recovered(report), (theta ** (-torch.arange(8, dtype=torch.float64) / 32)).tolist(), 1e-5)
    assert not ec.audit(partly(16, 64, theta, 16), head_dim=64, length=length).findings


@pytest.mark.parametrize("theta", [2.0, 10.0, 50.0])
def test_small_bases_of_a_part_of_the_channels_have_a_spec(theta):
    report = ec.audit(partly(16, 64, theta, 16), head_dim=64, length=512)
    assert report.spec is not None and near(recovered(report), (theta ** (-torch.arange(8, dtype=torch.float64) / 8)).tolist(), 1e-6)


def test_positions_of_two_numbers_are_found_without_being_told():
    freq = frequencies(8, 100.0)

    def axial(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        def one(x: Tensor) -> Tensor:
            parts = (halves(part, positions[:, i].double()[:, None] * freq) for i, part in enumerate(x.chunk(2, -1)))
            return torch.cat(list(parts), -1)

        return one(q), one(k)

    report = ec.audit(axial, head_dim=16, length=32)
    assert report.ok and not report.findings and not report.failed, report
    assert any("axes=2" in note for note in report.notes) and {"axis 0: 4R + 8Z"} <= set((report.form or "").split("; "))


def test_a_witness_shows_two_numbers_that_differ():
    """One slow pair of the keys alone is off by little: in six digits both scores would be one."""
    freq = frequencies(D) * torch.where(torch.arange(D // 2) == 7, 1.02, 1.0)

    def act(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return turn(q, positions), halves(k, positions.double()[:, None] * freq)

    report = ec.audit(act, head_dim=D, length=LENGTH, dtype=torch.float64)
    texts = [f.message for f in report.findings if "moved by" in f.message] + [report.witness or ""]
    pairs = [re.search(r"(-?[\d.e+-]+); both moved by \d+: (-?[\d.e+-]+)", text) for text in texts]
    assert any(pairs) and all(pair is None or pair[1] != pair[2] for pair in pairs), texts
