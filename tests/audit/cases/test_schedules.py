"""Cases 6 to 13 and 25 given to the auditor: tables that are not what their config asks for, and configs that do not hold together."""

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor, nn

import eigenclock as ec
from audit.cases.given import LLAMA, Table, apply, case, faults, found, frequencies, halves, sound
from eigenclock.audit import Report
from eigenclock.cli import main

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
PLAIN = {k: v for k, v in LLAMA.items() if k != "model_type"}


def scaled(scaling: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**LLAMA, "rope_scaling": scaling, **more}


def live(config: dict[str, Any], inv_freq: Tensor | None = None, amplitude: float | None = None) -> Any:
    """The rotary module of a tiny Llama, which keeps its config, with another table where one is given."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    given = json.loads(json.dumps({k: v for k, v in config.items() if k != "model_type"}))
    rotary: Any = LlamaRotaryEmbedding(LlamaConfig(**given))
    if inv_freq is not None:
        rotary.inv_freq = inv_freq.float()
        rotary.rope_type = "default"  # else some schedules make their own at every call
    rotary.attention_scaling = rotary.attention_scaling if amplitude is None else amplitude
    return rotary


def model_of(config: dict[str, Any]) -> Any:
    """The model itself."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**json.loads(json.dumps({k: v for k, v in config.items() if k != "model_type"}))))


def recovered(report: Report) -> Tensor:
    """The frequencies of the spec in a report."""
    return ec.encoding(report.spec).generator().split().turns[0].freq.detach().flatten().abs()


def near(got: Tensor, want: list[float], rel: float) -> bool:
    return bool(((got.double() / torch.tensor(want, dtype=torch.float64) - 1).abs() <= rel).all())


# --- 6: schedules that follow the length ---------------------------------------------------------------------------------------------------


class Dynamic(nn.Module):
    """The base follows the longest sequence seen, or the length of the call at hand."""

    def __init__(self, original: int, factor: float, keeps: bool, width: int = 8):
        super().__init__()
        self.original, self.factor, self.keeps, self.width, self.longest = original, factor, keeps, width, 0

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        n = int(position_ids.max()) + 1
        self.longest = max(self.longest, n) if self.keeps else n
        grown = max(self.factor * self.longest / self.original - (self.factor - 1), 1.0)
        angle = position_ids[..., None].double() * frequencies(self.width, 1e4 * grown ** (self.width / (self.width - 2)))
        both = torch.cat([angle, angle], -1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)


@pytest.mark.parametrize(("original", "factor", "width"), [(2048, 2.0, 8), (64, 4.0, 16)])
def test_6_a_table_that_remembers_the_longest_call(original, factor, width):
    kept = found(ec.audit((apply, Dynamic(original, factor, True, width)), head_dim=width, length=2 * original), "history")
    assert kept.where["after"] > kept.where["position"] and "once a call reached" in kept.message
    follows = ec.audit((apply, Dynamic(original, factor, False, width)), head_dim=width, length=2 * original)
    assert "history" not in faults(follows) and "shift_invariance" in faults(follows)  # it forgets, and still is no group
    sound(ec.audit((apply, Dynamic(original, factor, False, width)), head_dim=width, length=original))


@pytest.mark.parametrize(("length", "severity"), [(2048, "risk"), (5000, "fault")])
def test_6_a_config_of_a_length_dependent_schedule_names_the_cached_keys(length, severity):
    given = case(6)["given"]
    config = scaled({"rope_type": "dynamic", "factor": given["factor"]}, max_position_embeddings=given["original_length"])
    report = ec.audit({k: v for k, v in config.items() if k != "model_type"}, length=length)
    stale = found(report, "cache_length", severity)
    assert "dynamic" in stale.message and "keys cached before 2048" in stale.message and stale.where["position"] == 2048
    found(report, "moved_keys", "advice")
    assert "cache_length" not in {f.rule for f in ec.audit(PLAIN, length=length).findings}


@pytest.mark.peer("transformers")
def test_6_a_live_model_decodes_with_keys_of_other_frequencies():
    config = scaled({"rope_type": "dynamic", "factor": 2.0}, max_position_embeddings=16)
    report = ec.audit(model_of(config), length=64)
    assert faults(report) & {"cache", "cache_length"} and not report.ok
    sound(ec.audit(model_of(LLAMA), length=64))


# --- 7: lists for short and for long sequences ---------------------------------------------------------------------------------------------


@pytest.mark.peer("transformers")
@pytest.mark.parametrize("which", ["short_factor", "long_factor"])
def test_7_the_list_of_the_case_the_amplitude_and_their_absence(which):
    data = case(7)
    given, expect = dict(data["given"]["config"]), data["expect"]
    most = given.pop("max_position_embeddings")
    config = scaled({**given, "factor": most / given["original_max_position_embeddings"]}, max_position_embeddings=most)
    want = expect["frequencies_by_length"]["10" if which == "short_factor" else "40"]
    amplitude = expect["amplitude_on_q_and_on_k"]
    table = torch.tensor(want)
    report = ec.audit(live(config, table, amplitude), length=16)
    sound(report)
    found(report, "cache_length", "risk")  # the lists differ: the choice follows the length
    soft = found(ec.audit(live(config, table, 1.0), length=16), "amplitude")
    assert soft.limit == pytest.approx(amplitude, abs=expect["amplitude_abs_tol"]) and "left out" in soft.message
    neither = torch.tensor(want) * torch.tensor([1.0, 1.0, 1.3, 1.0])
    assert found(ec.audit(live(config, neither, amplitude), length=16), "scaling").where["pairs off"] >= 1


@pytest.mark.parametrize("name", ["short_factor", "long_factor"])
@pytest.mark.parametrize("numbers", [[1.0, 2.0], [1.0] * 5])
def test_7_a_list_of_another_length_names_the_list_and_the_length(name, numbers):
    given = dict(case(7)["given"]["config"])
    most = given.pop("max_position_embeddings")
    message = found(ec.audit({**PLAIN, "max_position_embeddings": most, "rope_scaling": {**given, name: numbers}}, length=16), "config").message
    assert name in message and f"expected {case(7)['given']['width'] // 2}" in message


# --- 8, 9: interpolation by parts ----------------------------------------------------------------------------------------------------------


def yarn(**more: Any) -> dict[str, Any]:
    given = case(8)["given"]
    section = {
        "rope_type": "yarn", "factor": given["factor"], "original_max_position_embeddings": given["original_length"],
        "beta_fast": given["beta_fast"], "beta_slow": given["beta_slow"], **more,
    }  # fmt: skip
    return scaled(section, head_dim=given["width"], hidden_size=32, max_position_embeddings=16384)


@pytest.mark.peer("transformers")
@pytest.mark.parametrize("truncate", [True, False])
def test_8_the_table_of_the_case_passes_and_that_of_the_other_flag_does_not(truncate):
    expect = case(8)["expect"]
    own, other = (expect[f"truncate_{str(flag).lower()}"]["frequencies"] for flag in (truncate, not truncate))
    report = ec.audit(live(yarn(truncate=truncate)), length=1024)
    sound(report)
    assert near(recovered(report), own, 1e-5)
    sound(ec.audit(live(yarn(truncate=truncate), torch.tensor(own)), length=256))
    ignored = found(ec.audit(live(yarn(truncate=truncate), torch.tensor(other)), length=256), "scaling")
    assert ignored.where["pair"] == 3 and "truncate is not read" in ignored.message


@pytest.mark.peer("transformers")
def test_8_betas_exchanged_and_the_length_of_the_table_as_original_length():
    given = case(8)["given"]
    wrong = {
        "other betas": ec.encodings(yarn(beta_fast=8.0, beta_slow=2.0)).only,
        "the table size": ec.encodings(yarn(original_max_position_embeddings=16384)).only,
    }
    for name, enc in wrong.items():
        freq = enc.generator().split().turns[0].freq
        off = found(ec.audit(live(yarn(), freq), length=256), "scaling")
        assert "the config asks for" in off.message and off.where["pairs off"] >= 1, name
    assert given["beta_fast"] > given["beta_slow"]


@pytest.mark.parametrize(
    ("change", "words"),
    [({"beta_fast": 1.0, "beta_slow": 32.0}, ("beta_fast", "beta_slow")), ({"original_max_position_embeddings": None}, ("original_max",))],
)
def test_8_errors_name_the_keys(change, words):
    config = {k: v for k, v in yarn(**change).items() if k not in ("model_type", "max_position_embeddings")}
    config["rope_scaling"] = {k: v for k, v in config["rope_scaling"].items() if v is not None}
    report = ec.audit(config, length=64)
    message = found(report, "config").message
    assert all(word in message for word in words), message


VARIANTS = {
    "as_given": {"mscale": 0.707, "mscale_all_dim": 0.707},
    "explicit_one": {"attention_factor": 1.0},
    "no_keys": {},
}


@pytest.mark.peer("transformers")
@pytest.mark.parametrize("variant", VARIANTS)
def test_9_the_amplitude_of_each_variant_once_twice_and_left_out(variant):
    expect = case(9)["expect"][variant]
    section = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, **VARIANTS[variant]}
    config = scaled(section, max_position_embeddings=163840)
    sound(ec.audit(live(config), length=64))
    right = expect["table_amplitude"]
    sound(ec.audit(live(config, amplitude=right), length=64))
    full = 0.1 * math.log(40.0) + 1
    assert case(9)["expect"]["no_keys"]["table_amplitude"] == pytest.approx(full, abs=case(9)["expect"]["abs_tol"])
    for wrong, words in ((right**2, "applied twice"), (1.0, "left out"), (full**2, "")):
        if abs(wrong - right) > 1e-6:
            off = found(ec.audit(live(config, amplitude=wrong), length=64), "amplitude")
            assert words in off.message and (off.measured, off.limit) == (pytest.approx(wrong), pytest.approx(right, abs=1e-7))


# --- 10: the blend of Llama 3 --------------------------------------------------------------------------------------------------------------


def llama3(**more: Any) -> dict[str, Any]:
    given = case(10)["given"]
    section = {k: v for k, v in {**given["config"], **more}.items() if v is not None}
    return scaled(section, head_dim=given["width"], hidden_size=64, rope_theta=given["theta"], max_position_embeddings=65536)


@pytest.mark.peer("transformers")
def test_10_scaling_left_out_and_blended_in_the_wavelength():
    data = case(10)
    given, want = data["given"], data["expect"]["frequencies"]
    report = ec.audit(live(llama3()), length=2048)
    sound(report)
    assert near(recovered(report), want, 1e-5)
    sound(ec.audit(live(llama3(), torch.tensor(want)), length=256))
    plain = frequencies(given["width"], given["theta"])
    assert "the scaling is left out" in found(ec.audit(live(llama3(), plain), length=256), "scaling").message
    wave, length = 2 * math.pi / plain, given["config"]["original_max_position_embeddings"]
    low, high = length / given["config"]["low_freq_factor"], length / given["config"]["high_freq_factor"]
    weight = ((low - wave) / (low - high)).clamp(0, 1)  # linear in the wavelength
    blended = plain * weight + plain / given["config"]["factor"] * (1 - weight)
    off = found(ec.audit(live(llama3(), blended), length=256), "scaling")
    assert off.where["pair"] == data["expect"]["bands"].index("blend") and off.where["pairs off"] == 1


@pytest.mark.parametrize(("change", "word"), [({"rope_type": "llama4"}, "llama4"), ({"low_freq_factor": None}, "low_freq_factor")])
def test_10_errors_name_the_type_and_the_missing_key(change, word):
    message = found(ec.audit({k: v for k, v in llama3(**change).items() if k != "model_type"}, length=64), "config").message
    assert word in message


# --- 11: keys ------------------------------------------------------------------------------------------------------------------------------

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


# --- 12: layer types -----------------------------------------------------------------------------------------------------------------------


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
    assert said and f"{sum(flags)} of 4 layers turn" in said[0]
    other = ec.audit({**PLAIN, "num_hidden_layers": 4, "no_rotary_layers": flags}, length=64)
    assert "no_rotary_layers" in found(other, "config").message


# --- 13: partial rotary --------------------------------------------------------------------------------------------------------------------


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


@settings(max_examples=4, deadline=None, derandomize=True)
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


# --- 25: tables that were never filled -----------------------------------------------------------------------------------------------------

BUFFER_FOUND = [6.93e-18, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("found_there", [BUFFER_FOUND, [math.nan, 1.0, 0.0, 0.0], [math.inf, 0.1, 0.0, 0.0], [3e9, 1.0, 2e-38, 0.0]])
def test_25_what_memory_held_is_no_table(found_there):
    module = Table(4 * 2)
    module.inv_freq = torch.tensor(found_there)
    table = found(ec.audit((apply, module), head_dim=8, length=64), "table")
    assert "never filled" in table.message and (math.isnan(table.measured) or table.measured == pytest.approx(max(found_there), rel=1e-6))


@pytest.mark.parametrize(("numbers", "words"), [([0.0] * 4, "nothing turns"), ([1.0, 0.1, -0.01, 0.001], "-0.01"), ([0.3, 0.7, 1e-3, 0.2], "faster")])
def test_25_a_table_that_is_no_falling_row_from_1_is_said_to_be_none(numbers, words):
    """Finite memory can be anything: without a config that says what the table should be this is advice."""
    module = Table(8)
    module.inv_freq = torch.tensor(numbers)
    assert words in found(ec.audit((apply, module), head_dim=8, length=64), "table", "advice").message
    assert not [f for f in ec.audit((apply, Table(8)), head_dim=8, length=64).findings if f.rule == "table"]


@pytest.mark.peer("transformers")
def test_25_a_model_built_on_the_meta_device_and_filled_without_its_buffers():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**PLAIN)
    with torch.device("meta"):
        model: Any = LlamaForCausalLM(config)
    model = model.to_empty(device="cpu")
    model.load_state_dict(LlamaForCausalLM(config).state_dict())  # nothing positional is in it
    model.model.rotary_emb.inv_freq = torch.tensor(BUFFER_FOUND)
    assert "6.93e-18" in found(ec.audit(model, length=64), "table").message
    old = torch.tensor(case(25)["given"]["old_state_dict"]["rotary_emb.inv_freq"])
    model.model.rotary_emb.inv_freq = old
    mismatch = found(ec.audit(model, length=64), "scaling")
    assert mismatch.where["pair"] == 1 and "0.1" in mismatch.message and "0.037606" in mismatch.message
    model.model.rotary_emb.inv_freq = torch.tensor(case(25)["expect"]["frequencies"])
    sound(ec.audit(model, length=64))
