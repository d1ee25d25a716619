"""Cases 15, 16, 21 given to the auditor: padding, packed documents, and stored keys that are moved."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from audit.cases.given import LLAMA, PLAIN, case, faults, found, frequencies, halves, sound
from eigenclock.audit import Finding, Report

Attention = Callable[..., Tensor]


def of_rows(report: Report, what: str) -> Finding:
    """What the rule on rows says of padding, documents or offsets."""
    assert not report.failed, report
    return next(finding for finding in report.findings if finding.rule == "rows" and finding.where["what"] == what)


def attention(
    counted: str = "given", masked: bool = True, parted: bool = True, rows: bool = True, decay: float = 0.1, dead: str = "zeros"
) -> Attention:
    """f(q, k, v, positions, mask=, documents=) over a batch, with a linear bias beside the rotation, or with one thing left out.

    counted: positions as they are "given", or from "real" tokens by the mask, or from "columns"; masked, parted: padding and documents are
    kept apart; rows: each row has its own positions. dead: what a token with nothing to attend to gives.
    """

    def call(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, mask: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        b, _, n, d = q.shape
        t = positions.expand(b, n)
        t = t if rows else t[:1].expand(b, n)
        seen = torch.ones(n, n, dtype=torch.bool).tril().expand(b, 1, n, n)
        if mask is not None:
            seen = seen & mask[:, None, None] if masked else seen
            t = torch.where(mask, mask.long().cumsum(-1) - 1, 0) if counted == "real" else t
        if documents is not None and parted:
            seen = seen & (documents[:, None, :, None] == documents[:, None, None])
        t = torch.arange(n).expand(b, n) if counted == "columns" else t
        angle = t.double()[..., None] * frequencies(d)
        a, c = (torch.stack([halves(x[i], angle[i]) for i in range(b)]) for x in (q, k))
        z = a @ c.mT - decay * (t[:, None, :, None] - t[:, None, None]).to(q.dtype)
        weight = z.masked_fill(~seen, -math.inf).softmax(-1)
        return (weight.nan_to_num() if dead == "zeros" else weight) @ v

    return call


# --- 15: padding -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_15_padding_that_is_seen_changes_the_real_tokens(width):
    report = ec.audit(attention(masked=False), head_dim=width, length=64)
    padded = of_rows(report, "left padding")
    assert padded.severity == "fault" and "padded on the left" in padded.message and padded.measured > padded.limit
    sound(ec.audit(attention(), head_dim=width, length=64))
    sound(ec.audit(attention("real"), head_dim=width, length=64))


def test_15_a_row_with_every_key_masked_gives_zeros_and_never_nan():
    empty = of_rows(ec.audit(attention(dead="nan"), head_dim=4, length=64), "empty rows")
    assert empty.severity == "fault" and empty.measured == "nan"


def test_15_one_counter_for_all_rows():
    """Rows whose positions begin elsewhere and step otherwise, beside others and alone."""
    shared = of_rows(ec.audit(attention(rows=False), head_dim=4, length=64), "offsets")
    assert shared.severity == "fault" and "beside others" in shared.message


def test_15_scores_of_the_case_by_the_sound_function():
    """The padded row and the plain one, on real tokens."""
    given, expect = case(15)["given"], case(15)["expect"]
    mask = torch.tensor(given["attention_mask"], dtype=torch.bool)
    times = torch.where(mask, mask.long().cumsum(0) - 1, 0)
    assert times[mask].tolist() == expect["positions_of_real_tokens"]
    q, k = (halves(torch.tensor(given[name]), times[mask].double()[:, None] * frequencies(given["width"])) for name in ("q", "k"))
    for i, row in enumerate(expect["scores_on_real_tokens"]):
        for j, want in enumerate(row):
            assert float(q[i] @ k[j]) == pytest.approx(want, abs=expect["abs_tol"])


@pytest.mark.peer("transformers")
def test_15_a_live_model_whose_decoding_counts_columns():
    """Positions of the prompt from the mask, those of generated tokens from the length of the cache: a padded row jumps there."""
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

    class Columns(LlamaModel):
        def forward(
            self, input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None, past_key_values: Any = None, **rest: Any
        ):
            past = past_key_values.get_seq_length() if past_key_values is not None else 0
            if attention_mask is not None and past == 0:
                position_ids = (attention_mask.long().cumsum(-1) - 1).clamp_min(0)[:, -input_ids.shape[1] :]
            elif past:
                position_ids = past + torch.arange(input_ids.shape[1])[None]
            return super().forward(
                input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=past_key_values, **rest
            )

    model: Any = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in LLAMA.items() if k != "model_type"}))
    sound(ec.audit(model, length=64))
    model.model.__class__ = Columns
    padded = of_rows(ec.audit(model, length=64), "left padding")
    assert padded.severity == "fault"


# --- 16: documents -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_16_documents_that_see_each_other(width):
    report = ec.audit(attention(parted=False), head_dim=width, length=64)
    joined = of_rows(report, "documents")
    assert joined.severity == "fault" and "packed behind another" in joined.message
    assert joined.where["token"] >= 4  # the first document is what it was
    sound(ec.audit(attention(), head_dim=width, length=64))


def test_16_a_state_that_runs_on_into_the_next_document():
    """A recurrence that restarts neither its sum nor its decay, against one that does. Its decay goes by the positions that are given."""

    def recurrence(restarts: bool) -> Attention:
        def call(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, documents: Tensor | None = None) -> Tensor:
            out, state = [], torch.zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
            steps = positions.expand(q.shape[0], -1).diff(dim=-1, prepend=positions[..., :1].expand(q.shape[0], 1))
            for i in range(q.shape[2]):
                state = state * (-case(16)["given"]["decay_rate"] * steps[:, i, None, None, None]).exp()
                if restarts and documents is not None and i and bool((documents[:, i] != documents[:, i - 1]).any()):
                    state = torch.zeros_like(state)
                state = state + k[:, :, i, :, None] * v[:, :, i, None]
                out.append((q[:, :, i, None] @ state)[:, :, 0])
            return torch.stack(out, 2)

        return call

    leaked = of_rows(ec.audit(recurrence(False), head_dim=4, length=64), "documents")
    assert leaked.severity == "fault" and leaked.where["token"] >= 4
    sound(ec.audit(recurrence(True), head_dim=4, length=64))


@pytest.mark.parametrize("recipe", ["rope", "alibi", "decay_bias"])
def test_16_ours_give_each_document_what_it_gives_alone(recipe):
    more = {"half_life": 8} if recipe == "decay_bias" else {}
    report = ec.audit(getattr(ec, recipe)(4, heads=2, **more), length=64)
    sound(report)
    assert "rows" in report.checked


# --- 21: stored keys that are moved ------------------------------------------------------------------------------------------------------


def moved(subject: Any, **more: Any) -> Finding | None:
    report = ec.audit(subject, length=64, **more)
    sound(report) if report.ok else None
    return next((finding for finding in report.findings if finding.rule == "moved_keys"), None)


LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 4.0, 8.0], "original_max_position_embeddings": 1024}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("scaling", [{"rope_type": "dynamic", "factor": 2.0}, LONG], ids=lambda s: s["rope_type"])
def test_21_re_rotation_is_not_valid_under_schedules_that_follow_the_length(scaling):
    said = moved({**PLAIN, "rope_scaling": scaling})
    assert said is not None and "re-rotation) is not valid" in said.message and "follow the length" in said.message
    assert scaling["rope_type"] in said.message and "not turned" in said.advice


@pytest.mark.parametrize("made", [lambda: ec.m_rope(8, sections=(2, 1, 1)), lambda: ec.axial_rope(8)], ids=["m_rope", "axial"])
def test_21_re_rotation_by_one_difference_is_not_valid_for_several_axes(made):
    said = moved(made())
    assert said is not None and "re-rotation) is not valid" in said.message and said.measured == made().clock.width


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_21_it_is_valid_for_a_group_in_one_time():
    """Amplitudes included: the group law holds for the turn, and the factor is not applied again."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    for subject in (PLAIN, {**PLAIN, "rope_scaling": yarn}, ec.rope(8), "alibi"):
        assert moved(subject, **({"head_dim": 4, "heads": 2} if subject == "alibi" else {})) is None


def test_21_code_that_is_no_group_is_told_that_moved_keys_are_wrong():
    def rounded(x: Tensor, positions: Tensor) -> Tensor:
        return halves(x, positions.to(torch.bfloat16).double()[:, None] * frequencies(x.shape[-1]))

    assert "moving stored keys by a difference of times is wrong" in found(ec.audit(rounded, head_dim=4, length=300), "group_law").advice


def test_21_keys_of_the_case_are_moved_by_the_spec_of_the_report():
    """A table with the amplitude of the case: the report's spec moves stored keys, and applies the amplitude to none again."""
    given, expect = case(21)["given"], case(21)["expect"]

    def amplified(x: Tensor, positions: Tensor) -> Tensor:
        return given["amplitude"] * halves(x, positions.double()[:, None] * frequencies(x.shape[-1]))

    report = ec.audit(amplified, head_dim=given["width"], length=64, dtype="float64")
    sound(report)
    generator = ec.encoding(report.spec).generator()
    stored = torch.tensor(given["stored_keys"], dtype=torch.float64)
    steps = [new - old for old, new in zip(given["stored_at"], given["move_to"], strict=True)]
    got = torch.stack([generator.matrix(-float(s)).reshape(4, 4) @ key for s, key in zip(steps, stored, strict=True)])
    assert float((got - torch.tensor(expect["moved_keys"]).double()).abs().max()) <= expect["abs_tol"]


def test_21_from_the_command_line(tmp_path, capsys):
    from eigenclock.cli import main

    path = tmp_path / "config.json"
    path.write_text(json.dumps({**PLAIN, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}))
    assert main(["audit", str(path), "--length", "64", "--json"]) == 0
    assert "moved_keys" in {f["rule"] for f in json.loads(capsys.readouterr().out)["findings"]}
    assert main(["audit", str(path), "--length", "8192", "--json"]) == 1
    assert "cache_length" in {f["rule"] for f in json.loads(capsys.readouterr().out)["findings"] if f["severity"] == "fault"}
    assert faults(ec.audit(str(path), length=64)) == set()
