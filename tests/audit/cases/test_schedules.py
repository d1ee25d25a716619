"""Cases 6 to 10 and 25 given to the auditor: tables that are not what their config asks for, or were never filled."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import eigenclock as ec
from audit.cases.given import LLAMA, PLAIN, Table, apply, case, faults, found, frequencies, live, model_of, near, recovered, scaled, sound

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

# --- 6: schedules that follow the length -------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("original", "factor", "width"), [(64, 4.0, 8), pytest.param(2048, 2.0, 16, marks=pytest.mark.slow)])
def test_6_a_table_that_remembers_the_longest_call(original, factor, width):
    kept = found(ec.audit((apply, Dynamic(original, factor, True, width)), head_dim=width, length=2 * original), "history")
    assert kept.where["after"] > kept.where["position"] and "once a call reached" in kept.message
    follows = ec.audit((apply, Dynamic(original, factor, False, width)), head_dim=width, length=2 * original)
    assert faults(follows) == {"cache_length"}  # it forgets, and still is no group: its scores follow the longest position of a call
    assert found(follows, "cache_length").where["position"] == original
    sound(ec.audit((apply, Dynamic(original, factor, False, width)), head_dim=width, length=original))


@pytest.mark.parametrize(("length", "severity"), [(2048, "risk"), pytest.param(5000, "fault", marks=pytest.mark.slow)])
def test_6_a_config_of_a_length_dependent_schedule_names_the_cached_keys(length, severity):
    given = case(6)["given"]
    config = scaled({"rope_type": "dynamic", "factor": given["factor"]}, max_position_embeddings=given["original_length"])
    report = ec.audit({k: v for k, v in config.items() if k != "model_type"}, length=length)
    stale = found(report, "cache_length", severity)
    assert "dynamic" in stale.message and "keys cached before 2048" in stale.message and stale.where["position"] == 2048
    found(report, "moved_keys", "advice")
    assert "cache_length" not in {f.rule for f in ec.audit(PLAIN, length=length).findings}


@pytest.mark.slow
@pytest.mark.peer("transformers")
def test_6_a_live_model_decodes_with_keys_of_other_frequencies():
    config = scaled({"rope_type": "dynamic", "factor": 2.0}, max_position_embeddings=16)
    report = ec.audit(model_of(config), length=64)
    assert faults(report) & {"cache", "cache_length"} and not report.ok
    sound(ec.audit(model_of(LLAMA), length=64))


# --- 7: lists for short and for long sequences -------------------------------------------------------------------------------------------


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
    message = found(
        ec.audit({**PLAIN, "max_position_embeddings": most, "rope_scaling": {**given, name: numbers}}, length=16), "config"
    ).message
    assert name in message and f"expected {case(7)['given']['width'] // 2}" in message


# --- 8, 9: interpolation by parts --------------------------------------------------------------------------------------------------------


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


# --- 10: the blend of Llama 3 ------------------------------------------------------------------------------------------------------------


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


# --- 25: tables that were never filled ---------------------------------------------------------------------------------------------------

BUFFER_FOUND = [6.93e-18, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("found_there", [BUFFER_FOUND, [math.nan, 1.0, 0.0, 0.0], [math.inf, 0.1, 0.0, 0.0], [3e9, 1.0, 2e-38, 0.0]])
def test_25_what_memory_held_is_no_table(found_there):
    module = Table(4 * 2)
    module.inv_freq = torch.tensor(found_there)
    table = found(ec.audit((apply, module), head_dim=8, length=64), "table")
    assert "never filled" in table.message and (math.isnan(table.measured) or table.measured == pytest.approx(max(found_there), rel=1e-6))


@pytest.mark.parametrize(
    ("numbers", "words"), [([0.0] * 4, "nothing turns"), ([1.0, 0.1, -0.01, 0.001], "-0.01"), ([0.3, 0.7, 1e-3, 0.2], "faster")]
)
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
