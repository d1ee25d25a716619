"""Case 31 given to the auditor: a factor of the query's own position is advice, and everything else is measured without it."""

from typing import Any

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from audit.cases.given import LLAMA, case, faults, found, frequencies, halves

WIDTH, LENGTH = 16, case(31)["given"]["length"]


def temperature(positions: Tensor) -> Tensor:
    return 1 + 0.1 * (torch.floor(positions.double() / 1024) + 1).log()


def by_log(positions: Tensor) -> Tensor:
    """log n scaling, 1 up to a length."""
    return ((positions.double() + 1).log() / torch.tensor(512.0).log()).clamp_min(1.0)


def turn(x: Tensor, positions: Tensor) -> Tensor:
    return halves(x.double(), positions.double()[:, None] * frequencies(WIDTH)).to(x.dtype)


def hot(x: Tensor, positions: Tensor, factor: Any = temperature) -> Tensor:
    return (turn(x, positions).double() * factor(positions)[:, None]).to(x.dtype)


def test_31_the_factors_are_those_of_the_case():
    given, expect = case(31)["given"], case(31)["expect"]
    assert temperature(torch.tensor(given["positions"])).tolist() == pytest.approx(expect["temperature"], abs=expect["abs_tol"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("factor", [temperature, by_log])
def test_31_a_factor_of_the_query_is_advice_alone(factor, dtype):
    report = ec.audit(lambda q, k, positions: (hot(q, positions, factor), turn(k, positions)), head_dim=WIDTH, length=LENGTH, dtype=dtype)
    assert report.ok and [finding.rule for finding in report.findings] == ["shift_invariance"], report
    advice = found(report, "shift_invariance", "advice")
    first = 1024 if factor is temperature else 512
    assert first <= advice.where["t"] <= first + 513 and "factor of the query's own position" in advice.message
    assert advice.where["factor"] == pytest.approx(float(factor(torch.tensor([advice.where["t"]]))[0]), rel=1e-6)
    assert report.nearest == "rope(pairing='half')" and "by rounding" not in str(report)


def test_31_scores_given_as_a_function_are_the_same():
    report = ec.audit(lambda q, k, positions_q, positions_k: hot(q, positions_q) @ turn(k, positions_k).mT, head_dim=WIDTH, length=LENGTH)
    assert report.ok and [finding.rule for finding in report.findings] == ["shift_invariance"], report


def slow(positions: Tensor) -> Tensor:
    return (positions.double() / LENGTH).exp()


STILL: dict[str, Any] = {
    "on keys alone": lambda q, k, positions: (turn(q, positions), hot(k, positions)),
    "on both": lambda q, k, positions: (hot(q, positions), hot(k, positions)),
    "growing on both": lambda q, k, positions: (hot(q, positions, slow), hot(k, positions, slow)),
    "growing slowly with the query": lambda q, k, positions: (hot(q, positions, slow), turn(k, positions)),
    "growing with the query": lambda q, k, positions: (hot(q, positions, lambda t: (0.01 * t.double()).exp()), turn(k, positions)),
}


@pytest.mark.parametrize("name", STILL)
def test_31_other_factors_are_still_faults(name):
    assert "shift_invariance" in faults(ec.audit(STILL[name], head_dim=WIDTH, length=LENGTH))


@pytest.mark.peer("transformers")
def test_31_a_live_model_with_temperatures_is_sound():
    from transformers import Ministral3Config, Ministral3ForCausalLM

    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.1}
    rope |= {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    sizes = {key: value for key, value in LLAMA.items() if key not in ("model_type", "rope_theta", "max_position_embeddings")}
    config = Ministral3Config(**sizes, max_position_embeddings=512, rope_parameters=rope, bos_token_id=1, eos_token_id=2)
    report = ec.audit(Ministral3ForCausalLM(config), length=256)
    advice = found(report, "shift_invariance", "advice")
    assert report.ok and not faults(report), report
    assert (advice.where["t"], advice.where["factor"]) == (64, pytest.approx(1.0693147, rel=1e-5))


@pytest.mark.peer("transformers")
@pytest.mark.parametrize("interleaved", [True, False])
def test_32_the_layout_is_that_of_the_function_that_attention_calls(interleaved):
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    from eigenclock.encodings.config import encodings

    given, expect = case(32)["given"], case(32)["expect"]
    sizes: dict[str, Any] = {"num_key_value_heads": 4, "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32, "vocab_size": 64}
    sizes |= {"n_routed_experts": 2, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
    sizes |= {"max_position_embeddings": 256, "first_k_dense_replace": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    model = DeepseekV3ForCausalLM(DeepseekV3Config(**given["sizes"], **sizes, rope_interleave=interleaved))
    layout = "interleaved" if interleaved else "half"
    q, k = (
        torch.tensor(given[side], dtype=torch.float64)[None, None, None]
        for side in ("q_rotary_part_as_projected", "k_rotary_part_as_projected")
    )
    for subject in (model, model.config):
        report = ec.audit(subject, length=128)
        enc = ec.encoding(report.spec)
        assert ("half" in report.spec) == (not interleaved), report
        score = ec.scores(
            q.expand(-1, enc.heads, -1, -1),
            k.expand(-1, enc.heads, -1, -1),
            enc,
            times=torch.tensor([given["t"]]),
            key_times=torch.tensor([given["s"]]),
            scale=1.0,
        )
        assert float(score[0, 0, 0, 0]) == pytest.approx(expect["score_by_layout"][layout], abs=expect["abs_tol"])
    assert encodings(model.config.to_dict()).conventions.pairing == layout
