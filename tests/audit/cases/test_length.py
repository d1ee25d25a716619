"""Scores that follow the longest position of a call: one fault, measured in calls of one length, and no other rule takes it for its own."""

from typing import Any

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from audit.cases.given import found, frequencies, halves, near, recovered

WIDTH = 16


def switching(at: int) -> Any:
    """f(q, k, positions) on another base in calls that reach a position."""

    def act(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        freq = frequencies(WIDTH, 1e4 if int(positions.max()) < at else 1e6)
        angle = positions.double()[:, None] * freq
        return halves(q, angle), halves(k, angle)

    return act


def stretched(original: int) -> Any:
    """f(q, k, positions) whose base grows with the length of the call beyond the original one, as dynamic NTK's does."""

    def act(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        factor = max(1.0, (float(positions.max()) + 1) / original)
        angle = positions.double()[:, None] * frequencies(WIDTH, 1e4 * factor ** (WIDTH / (WIDTH - 2)))
        return halves(q, angle), halves(k, angle)

    return act


@pytest.mark.parametrize("make", [switching, stretched])
@pytest.mark.parametrize("at", [16, 64])
def test_within_the_length_it_is_one_fault_with_its_position(make, at):
    report = ec.audit(make(at), head_dim=WIDTH, length=256)
    assert [finding.rule for finding in report.findings] == ["cache_length"], report
    assert found(report, "cache_length").where["position"] == at
    last = frequencies(WIDTH, 1e6 if make is switching else 1e4 * (256 / at) ** (WIDTH / (WIDTH - 2)))
    assert near(recovered(report), last.tolist(), 1e-6), report  # what it is in calls that reach the last position
    assert any(f"from {at} on" in note for note in report.notes)


@pytest.mark.parametrize("make", [switching, stretched])
def test_beyond_the_length_it_is_one_risk_of_the_length(make):
    report = ec.audit(make(512), head_dim=WIDTH, length=256)
    assert [(finding.rule, finding.severity) for finding in report.findings] == [("growth", "risk")], report
    assert "longest position" in report.findings[0].message and 512 <= report.findings[0].where["position"] < 540
    assert near(recovered(report), frequencies(WIDTH).tolist(), 1e-6)


def test_scores_of_both_positions_are_held_alike():
    act = switching(64)

    def scores(q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
        both = torch.cat([q, k], 1), torch.cat([positions_q, positions_k])
        moved = act(both[0], both[0], both[1])[0]
        return moved[:, : q.shape[1]] @ moved[:, q.shape[1] :].mT

    report = ec.audit(scores, head_dim=WIDTH, length=256)
    assert [finding.rule for finding in report.findings] == ["cache_length"], report


@pytest.mark.peer("transformers")
@pytest.mark.parametrize("partial", [1.0, 0.5])
def test_longrope_beyond_its_original_length_appears_once(partial):
    """Also where its amplitude stands beside channels that pass through, which is no gain of unequal axes."""
    from transformers import Phi3Config, Phi3ForCausalLM

    pairs = int(8 * partial)
    scaling = {"type": "longrope", "short_factor": [1.0] * pairs, "long_factor": [1 + 0.5 * i for i in range(pairs)]}
    sizes: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 64}
    sizes |= {"num_hidden_layers": 1, "vocab_size": 64, "max_position_embeddings": 1024, "pad_token_id": 0, "eos_token_id": 1}
    sizes |= {"original_max_position_embeddings": 128, "rope_theta": 1e4, "partial_rotary_factor": partial, "rope_scaling": scaling}
    model = Phi3ForCausalLM(Phi3Config(**sizes))
    within, beyond = ec.audit(model, length=100), ec.audit(model, length=1024)
    assert [f.rule for f in beyond.findings if f.severity != "advice"] == ["cache_length"], beyond
    assert "shift_invariance" not in {f.rule for f in beyond.findings}, beyond
    assert [(f.rule, f.severity) for f in within.findings if f.severity != "advice"] == [("cache_length", "risk")], within
    want = frequencies(2 * pairs) / torch.tensor(scaling["long_factor"])
    assert near(recovered(beyond), want.tolist(), 1e-6)
