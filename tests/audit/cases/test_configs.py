"""Cases 11 to 13 given to the auditor: configs that do not hold together, layer types and widths that are mixed up."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

import eigenclock as ec
from audit.cases.given import LLAMA, PLAIN, case, faults, found, frequencies, halves, near, recovered, sound
from eigenclock.cli import main

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

# --- 11: keys ----------------------------------------------------------------------------------------------------------------------------

CONFIGS = case(11)["given"]["configs"]
SIZES = {"head_dim": case(11)["given"]["width"], "num_attention_heads": 2}


@pytest.mark.parametrize("model", [{}, {k: v for k, v in LLAMA.items() if k not in ("rope_theta", "head_dim", "num_attention_heads")}])
@pytest.mark.parametrize(
    ("name", "severity", "words"),
    [
        ("number_as_text", "fault", ("rope_theta", "not text")),
        ("no_theta_in_replacement", "fault", ("rope_theta",)),
        ("conflict", "risk", ("factor=2 is used", "original_max_position_embeddings", "= 4")),
        ("unknown_key", "fault", ("attn_factor", "did you mean 'attention_factor'")),
        ("unknown_type", "fault", ("rope_type", "'spiral'")),
    ],
)
def test_11_keys_that_mean_nothing_or_two_things_are_named(model, name, severity, words):
    report = ec.audit({**model, **SIZES, **CONFIGS[name]}, length=64)
    message = found(report, "config", severity).message
    assert all(word in message for word in words), message


def test_11_old_and_new_forms_are_one():
    expect = case(11)["expect"]
    for (one, other), name in zip(expect["equal"], ("old_frequencies", "linear_frequencies"), strict=True):
        reports = [ec.audit({**SIZES, **CONFIGS[form]}, length=64) for form in (one, other)]
        for report in reports:
            sound(report)
            assert near(recovered(report), expect[name], expect["rel_tol"])
        assert reports[0].spec == reports[1].spec


def test_11_an_audit_leaves_the_config_that_it_is_given_as_it_is():
    """A model class fills sections with what it takes for granted; a config that was audited must not carry that on."""
    config = {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    before = json.dumps(config)
    ec.audit(config, length=32)
    assert json.dumps(config) == before


def test_11_from_the_command_line(tmp_path, capsys):
    for name, status in (("unknown_key", 1), ("old_alias", 0)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**SIZES, **CONFIGS[name]}))
        assert main(["audit", str(path), "--length", "64", "--json"]) == status
        report = json.loads(capsys.readouterr().out)
        assert report["ok"] is (status == 0) and (status == 0 or "attn_factor" in report["findings"][0]["message"])


# --- 12: layer types ---------------------------------------------------------------------------------------------------------------------


def layered(**more: Any) -> dict[str, Any]:
    given = case(12)["given"]
    sizes = {"head_dim": given["width"], "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 8, "num_hidden_layers": 4}
    return {**sizes, "layer_types": given["layer_types"], "rope_parameters": given["rope_parameters"], **more}


@pytest.mark.peer("transformers")
def test_12_parameters_of_layer_types_exchanged_in_a_live_model():
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    def model() -> Any:
        sizes = {"intermediate_size": 8, "vocab_size": 16, "pad_token_id": 0}
        return Gemma3ForCausalLM(Gemma3TextConfig(**json.loads(json.dumps(layered(**sizes)))))

    sound(ec.audit(model(), length=64))
    mixed = model()
    rotary: Any = next(m for m in mixed.modules() if hasattr(m, "sliding_attention_inv_freq"))
    rotary.sliding_attention_inv_freq = rotary.full_attention_inv_freq.clone()
    off = found(ec.audit(mixed, length=64), "layer_types")
    assert off.where["layer"] == "sliding_attention" and "the table of the full_attention layers" in off.message


def test_12_angles_of_the_case_are_those_of_each_layer_type_and_a_missing_section_is_named():
    given, expect = case(12)["given"], case(12)["expect"]
    report = ec.audit(layered(), length=256)
    sound(report)
    for layer, name in (("full_attention", "angles_full"), ("sliding_attention", "angles_sliding")):
        spec = next(part.split(": ", 1)[1] for part in report.spec.split("; ") if part.startswith(layer))
        freq = ec.encoding(spec).generator().split().turns[0].freq.flatten()
        assert float((freq * given["time"] - torch.tensor(expect[name]).double()).abs().max()) <= expect["abs_tol"]
    parts = {k: v for k, v in given["rope_parameters"].items() if k != "sliding_attention"}
    assert "sliding_attention" in found(ec.audit(layered(rope_parameters=parts), length=64), "config").message


@pytest.mark.parametrize("flags", [[1, 1, 1, 0], [0, 1, 0, 1]])
def test_12_a_list_that_can_be_read_both_ways_is_not_used_without_saying_how(flags):
    report = ec.audit({**PLAIN, "num_hidden_layers": 4, "no_rope_layers": flags}, length=64)
    sound(report)
    said = [note for note in report.notes if "no_rope_layers is read as 1 = the layer turns" in note]
    still = ", ".join(str(i) for i, flag in enumerate(flags) if not flag)
    assert said and f"{sum(flags)} of 4 layers turn, not those with the index {still}" in said[0]
    other = ec.audit({**PLAIN, "num_hidden_layers": 4, "no_rotary_layers": flags}, length=64)
    assert "no_rotary_layers" in found(other, "config").message


# --- 13: partial rotary ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [{"partial_rotary_factor": 0.5}, {"rotary_dim": 4}])
def test_13_both_names_of_the_width_give_one_spec_which_is_reported(key):
    given, expect = case(13)["given"], case(13)["expect"]
    report = ec.audit({"head_dim": given["head_dim"], "num_attention_heads": 2, "rope_theta": given["theta"], **key}, length=256)
    sound(report)
    assert report.form == "2R + 4Z" and "rotary_dim=4" in report.spec
    enc = ec.encoding(report.spec)
    x = torch.tensor(given["x"], dtype=torch.float64)
    got = enc.generator().matrix(-float(given["time"])).reshape(8, 8) @ x
    assert float((got - torch.tensor(expect["contiguous"]).double()).abs().max()) <= expect["abs_tol"]


def test_13_two_widths_are_a_contradiction_that_names_both_keys():
    config = {"head_dim": 8, "num_attention_heads": 2, "rope_theta": 1e4, "partial_rotary_factor": 0.5, "rotary_dim": 6}
    message = found(ec.audit(config, length=64), "config").message
    assert "partial_rotary_factor" in message and "rotary_dim" in message


@pytest.mark.slow
@settings(max_examples=2, deadline=None, derandomize=True)
@drawn(st.sampled_from([0.25, 0.5, 0.75]), st.sampled_from(["exponent over the head", "all turn"]))
@pytest.mark.peer("transformers")
def test_13_a_live_model_with_another_convention_of_the_width(share, wrong):
    """The exponent over the head in place of the part that turns, or the whole head where a part should."""
    from transformers import StableLmConfig, StableLmForCausalLM

    def model() -> Any:
        sizes = {k: v for k, v in PLAIN.items() if k not in ("head_dim", "hidden_size")}
        return StableLmForCausalLM(StableLmConfig(**sizes, hidden_size=32, partial_rotary_factor=share))

    live_model = model()
    rotary: Any = next(m for m in live_model.modules() if hasattr(m, "inv_freq"))
    n = rotary.inv_freq.numel()
    assert 2 * n == int(16 * share)
    rotary.inv_freq = frequencies(16)[:n].float() if wrong == "exponent over the head" else frequencies(16).float()
    if n == 1 and wrong == "exponent over the head":
        return
    try:
        report = ec.audit(live_model, length=64)
    except ec.EigenclockError:
        return
    assert faults(report) & {"scaling", "width"}, report


def test_13_the_two_conventions_are_told_apart_by_measurement():
    """Contiguous: the first channels turn. Proportional: pairs (i, i + d/2) over the whole head, of which the slow ones stand still."""
    given, expect = case(13)["given"], case(13)["expect"]

    def contiguous(x: Tensor, positions: Tensor) -> Tensor:
        return torch.cat([halves(x[..., :4], positions.double()[:, None] * frequencies(4)), x[..., 4:]], -1)

    def proportional(x: Tensor, positions: Tensor) -> Tensor:
        freq = torch.cat([frequencies(8)[:2], torch.zeros(2, dtype=torch.float64)])
        return halves(x, positions.double()[:, None] * freq)

    x = torch.tensor(given["x"], dtype=torch.float64)[None]
    for f, name in ((contiguous, "contiguous"), (proportional, "proportional")):
        report = ec.audit(f, head_dim=8, length=256)
        sound(report)
        enc = ec.encoding(report.spec)
        want = torch.tensor(expect[name], dtype=torch.float64)
        assert float((f(x, torch.tensor([given["time"]]))[0] - want).abs().max()) <= expect["abs_tol"]
        assert float((enc.generator().matrix(-float(given["time"])).reshape(8, 8) @ x[0] - want).abs().max()) <= 1e-4
