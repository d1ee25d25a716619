"""Case 33 given to the auditor, and the kind: OK is said of nothing that was not measured, in the report and by the exit status."""

import json
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from audit.cases.given import LLAMA, case, faults, frequencies, halves
from eigenclock.audit.subjects import read
from eigenclock.audit.subjects.options import Options

D, LENGTH = 8, 200
CONFIGS: dict[str, dict[str, Any]] = case(33)["given"]["configs"]
SAYS_NOTHING: dict[str, Any] = {"model_type": "a_transformer", "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 512}

# --- 33: configs -------------------------------------------------------------------------------------------------------------------------


def judged(report: ec.Report) -> None:
    """OK only where scores were measured; else no verdict, with a reason that is shown."""
    law = {"linearity", "shift_invariance"} <= set(report.checked)
    assert report.ok is not True or law, report
    assert report.verdict == {True: "OK", False: "FAULT", None: "NOT JUDGED"}[report.ok] and report.verdict in str(report).splitlines()[0]
    if report.ok is None:
        assert report.unjudged and f"why      {report.unjudged[0][:40]}" in str(report)


@pytest.mark.parametrize("name", CONFIGS)
def test_33_a_config_that_was_not_read_is_not_ok(name):
    report = ec.audit(CONFIGS[name])
    judged(report)
    if not name.startswith("esm2"):  # these are types that are known, and read as the rotation that they name
        assert report.ok is None, report


WORDS = {
    "esm2": "position_embedding_type names a rotation: its base, 10000",
    "esm2_te": "position_embedding_type names a rotation: its base, 10000",
    "rwkv6": "no rotation, a recurrence with a decay per channel",
    "flux": "axes_dims_rope=[16, 56, 56]",
    "plain": "without rope_theta or rope_parameters",
}


@pytest.mark.parametrize("name", CONFIGS)
def test_33_what_is_said_names_what_the_config_says(name):
    report = ec.audit(CONFIGS[name])
    said = [*report.notes, *report.unjudged]
    assert any(WORDS[name] in text for text in said), said
    assert not any("expected rope_theta" in text for text in said)


def test_33_esm2_turns_as_the_case_says():
    expect = case(33)["expect"]["esm2"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is assumed
        enc = ec.encodings(CONFIGS["esm2"]).only
    turn = enc.generator().split().turns[0]
    assert (enc.head_dim, turn.freq.numel(), turn.pairing) == (expect["rotary_width"], expect["pairs"], expect["layout"])
    assert abs(float(turn.freq.reshape(-1)[-1]) - expect["last_frequency"]) < 1e-15


def test_33_the_exit_status_says_so_alone_and_among_others(run, tmp_path):
    files = {}
    good, bad = {**LLAMA, "max_position_embeddings": 64}, {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": -1.0}}
    for name, config in {**CONFIGS, "good": good, "bad": bad}.items():
        files[name] = tmp_path / f"{name}.json"
        files[name].write_text(json.dumps(config))
    for name in ("rwkv6", "flux", "plain"):
        status, out, _ = run(files[name])
        assert status == 2 and out.splitlines()[0].endswith("NOT JUDGED"), out
        data = json.loads(run(files[name], "--json")[1])
        assert (data["ok"], data["verdict"]) == (None, "NOT JUDGED") and data["unjudged"]
    assert [run(files[name], "--length", 64)[0] for name in ("good", "bad")] == [0, 1]
    assert run(files["good"], files["plain"], "--length", 64)[0] == 2
    assert run(files["plain"], files["bad"], files["good"], "--length", 64)[0] == 1


@pytest.mark.parametrize("config", [SAYS_NOTHING, {**SAYS_NOTHING, "rope_theta": 1e4}], ids=["silent", "with a base"])
def test_33_how_a_model_of_an_unknown_type_turns_is_not_known(config):
    """Also where its config can be read: what is measured then is what it was taken for."""
    report = ec.audit(config, length=LENGTH)
    judged(report)
    assert report.ok is None and (("is not known here" in report.unjudged[-1]) == ("rope_theta" in config))
    assert ec.audit({**config, "model_type": "llama", "rope_theta": 1e4}, length=LENGTH).ok


@pytest.mark.parametrize("spec, axiom", [("learned_absolute(length=64)", "translation invariance"), ("pope", "linearity")])
def test_33_what_has_no_law_by_its_own_word_is_not_ok(spec, axiom):
    report = ec.audit(spec, head_dim=D, heads=2, length=64)
    judged(report)
    assert report.ok is None and axiom in report.unjudged[0], report


def test_33_scores_that_say_nothing_are_not_ok():
    report = ec.audit(lambda q, k, positions_q, positions_k: q @ k.mT * 0, head_dim=D, length=LENGTH)
    judged(report)
    assert report.ok is not True


# --- the kind: functions that give outputs ---------------------------------------------------------------------------------------------

Turn = Callable[[Tensor, Tensor], Tensor]


def turn(x: Tensor, positions: Tensor) -> Tensor:
    return halves(x, positions.double()[:, None] * frequencies(x.shape[-1], 100.0))


def back(x: Tensor, positions: Tensor) -> Tensor:
    return turn(x, -positions)


def still(x: Tensor, positions: Tensor) -> Tensor:
    return x


def counted(x: Tensor, positions: Tensor) -> Tensor:
    """The places in the call, whatever positions are given."""
    return turn(x, torch.arange(x.shape[-2]))


def attention(
    on_q: Turn = turn, on_k: Turn = turn, on_v: Turn = still, slopes: Tensor | None = None, weigh: str = "softmax", causal: str = "index"
) -> Callable[..., Tensor]:
    """f(q, k, v, positions) -> out."""

    def attend(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        z = on_q(q, positions) @ on_k(k, positions).mT
        lag = positions[:, None] - positions
        z = z if slopes is None else z - (slopes[:, None, None] * lag).to(z.dtype)
        hidden = torch.ones_like(lag, dtype=torch.bool).triu(1) if causal == "index" else lag < 0
        if weigh == "products":
            return z.masked_fill(hidden, 0.0) @ on_v(v, positions)
        z = (z * q.shape[-1] ** -0.5).masked_fill(hidden, -math.inf)
        if weigh == "sink":
            z = torch.cat([z, torch.zeros_like(z[..., :1])], -1).softmax(-1)[..., :-1]
            return z @ on_v(v, positions)
        return (z.sigmoid() if weigh == "sigmoid" else z.softmax(-1)) @ on_v(v, positions)

    return attend


SOUND = {
    "halves": (attention(), "rope(theta=100, pairing='half')"),
    "by time": (attention(causal="time"), "rope(theta=100, pairing='half')"),
    "a sink": (attention(weigh="sink"), "rope(theta=100, pairing='half')"),
    "products": (attention(weigh="products"), "rope(theta=100, pairing='half')"),
    "slopes": (attention(still, still, slopes=torch.tensor([0.25, 0.0625])), "alibi(slopes=..)"),
    "no positions": (attention(still, still), "nope"),
}


@pytest.mark.parametrize("name", SOUND)
def test_scores_are_read_from_the_weights_of_attention(name):
    """By chosen values, so that the law is measured on functions that give nothing but outputs."""
    subject, nearest = SOUND[name]
    report = ec.audit(subject, head_dim=D, heads=2, length=LENGTH)
    judged(report)
    assert report.ok and report.nearest == nearest, report
    assert any("scores are read from what it gives for chosen values" in note for note in report.notes)


@pytest.mark.parametrize("weigh", ["softmax", "sink", "products"])
def test_what_is_read_is_the_score(weigh):
    probe = read(attention(weigh=weigh), Options(D, 2, LENGTH, torch.float64))
    q, k = probe.content(5, 20)
    at, of = torch.tensor([30, 30, 31, 99, 199]), torch.arange(20) * 10
    assert probe.scores is not None
    scale = 1.0 if weigh == "products" else D**-0.5
    assert torch.allclose(probe.scores(q, k, at, of), turn(q, at) @ turn(k, of).mT * scale, atol=1e-12)


def test_weights_too_small_for_the_dtype_are_hidden_and_others_beside_large_ones_are_not():
    probe = read(attention(still, still, slopes=torch.tensor([1.0, 2.0])), Options(D, 2, LENGTH, torch.float32))
    assert probe.scores is not None
    zero = torch.zeros(2, 1, D)
    z = probe.scores(zero, zero.expand(-1, 3, -1), torch.tensor([150]), torch.tensor([0, 100, 150]))[:, 0] * D**0.5
    assert torch.allclose(z, torch.tensor([[-150.0, -50.0, 0.0], [-math.inf, -100.0, 0.0]]).double(), rtol=1e-5, atol=1e-5)
    apart = 25 * torch.tensor([1.0, -1.0])[None, :, None] * torch.ones(2, 2, D)  # one has a weight of e^-141 beside the other
    z = probe.scores(torch.ones(2, 1, D), apart, torch.tensor([0]), torch.tensor([0, 0]))[:, 0]
    assert torch.allclose(z, 25 * D**0.5 * torch.tensor([1.0, -1.0]).double().expand(2, -1), rtol=1e-5)


FAULTY = {
    "keys turned the wrong way": (attention(turn, back), {"shift_invariance", "contragredience"}),
    "queries alone": (attention(turn, still), {"shift_invariance", "contragredience"}),
    "positions ignored": (attention(counted, counted), {"order"}),
    "values turned too": (attention(on_v=turn), {"values"}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_of_attention_that_gives_outputs_alone_is_found(name, dtype):
    subject, rules = FAULTY[name]
    assert faults(ec.audit(subject, head_dim=D, heads=2, length=LENGTH, dtype=dtype)) >= rules


@pytest.mark.parametrize("weigh", ["softmax", "products"])
def test_positions_that_are_not_used_are_one_fault(weigh):
    report = ec.audit(attention(counted, counted, weigh=weigh), head_dim=D, heads=2, length=LENGTH)
    assert [finding.rule for finding in report.findings] == ["order"] and "are not used" in report.findings[0].message, report


def test_weights_that_are_no_softmax_are_not_judged():
    report = ec.audit(attention(weigh="sigmoid"), head_dim=D, heads=2, length=LENGTH)
    judged(report)
    assert report.ok is None and "not those of a softmax" in report.unjudged[0], report


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_a_norm_before_the_action_is_no_part_of_it_and_one_behind_a_gain_is_not_called_linear(norm):
    def before(x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True) if norm == "layer" else x
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * torch.linspace(0.5, 2, D)

    normed = ec.audit(lambda q, k, positions: (turn(before(q), positions), turn(before(k), positions)), head_dim=D, length=LENGTH)
    judged(normed)
    linear = next(finding for finding in normed.findings if finding.rule == "linearity")
    assert normed.ok and "linear behind a" in linear.message and linear.severity == "advice", normed
    capped = ec.audit(lambda q, k, positions_q, positions_k: 9 * (q @ k.mT / 9).tanh(), head_dim=D, length=LENGTH)
    judged(capped)
    assert capped.ok is None and "linearity does not hold" in capped.unjudged[0]


# --- the kind: models ------------------------------------------------------------------------------------------------------------------


@pytest.mark.peer("transformers")
def test_a_stock_gptj_is_measured_and_no_rule_fails():
    """Its table is indexed by position: times between whole ones are none of its own."""
    from transformers import GPTJConfig, GPTJForCausalLM

    sizes: dict[str, Any] = {"n_embd": 32, "n_head": 2, "n_layer": 2, "vocab_size": 40, "rotary_dim": 8, "n_positions": 256, "n_inner": 48}
    report = ec.audit(GPTJForCausalLM(GPTJConfig(**sizes, bos_token_id=1, eos_token_id=2)), length=LENGTH)
    judged(report)
    assert report.ok and not report.failed and report.spec == "rope(head_dim=16, heads=2, theta=10000.0, rotary_dim=8)", report


@pytest.mark.peer("transformers")
def test_models_of_which_nothing_can_be_read_are_not_judged():
    from transformers import ViTConfig, ViTModel, WhisperConfig, WhisperModel

    sizes: dict[str, Any] = {
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "vocab_size": 60,
    }
    heads: dict[str, Any] = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "suppress_tokens": [], "begin_suppress_tokens": []}
    tokens: dict[str, Any] = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0)
    vit: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "image_size": 8,
        "patch_size": 4,
    }
    for model in (WhisperModel(WhisperConfig(**sizes, **heads, **tokens)), ViTModel(ViTConfig(**vit))):
        report = ec.audit(model, length=LENGTH)
        judged(report)
        assert report.ok is None and "no scores can be read from it" in report.unjudged[0], report
