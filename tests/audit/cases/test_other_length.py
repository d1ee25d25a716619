"""A table built for another length than the one in use: the schedule that follows the length was frozen, or never moved."""

from typing import Any

import pytest
import torch

import eigenclock as ec

pytest.importorskip("transformers")

SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 32, "intermediate_size": 64}
PAIRS, SHORT, LONG = 8, 256, 2048


def phi3() -> Any:
    from transformers import Phi3Config, Phi3ForCausalLM

    scaling = {"rope_type": "longrope", "short_factor": [1.0] * PAIRS, "long_factor": [1.0 + 0.5 * i for i in range(PAIRS)]}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    lengths = {"max_position_embeddings": LONG, "original_max_position_embeddings": SHORT}
    return Phi3ForCausalLM(Phi3Config(**SIZES, **tokens, **lengths, rope_parameters={"rope_theta": 10000.0, **scaling}))


def dynamic() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    rope = {"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 4.0}
    return LlamaForCausalLM(LlamaConfig(**SIZES, max_position_embeddings=SHORT, rope_parameters=rope))


def keeps_its_table(model: Any) -> Any:
    """The tables of the length at which the model was made, whatever it is called with."""
    rotary = model.model.rotary_emb
    freq, scale = rotary.inv_freq.clone(), rotary.attention_scaling

    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angle = (position_ids[..., None].float() * freq).repeat(1, 1, 2)
        return (angle.cos() * scale).to(x.dtype), (angle.sin() * scale).to(x.dtype)

    rotary.forward = forward
    return model


@pytest.mark.parametrize("make", [phi3, dynamic])
def test_a_table_of_another_length_is_found(make: Any) -> None:
    torch.manual_seed(0)
    report = ec.audit(keeps_its_table(make()), length=1024)
    said = [f.message for f in report.findings if f.severity == "fault"]
    assert any("its table is that of another length" in message and "1024 positions are in use" in message for message in said), report


@pytest.mark.parametrize("make", [phi3, dynamic])
@pytest.mark.parametrize("length", [128, SHORT, 1024])
def test_one_that_follows_the_length_is_not_called_that(make: Any, length: int) -> None:
    torch.manual_seed(0)
    report = ec.audit(make(), length=length)
    assert not any("another length" in f.message for f in report.findings)
    assert not [f for f in report.findings if f.severity == "fault" and f.rule in ("scaling", "table", "layer_types")], report


@pytest.mark.parametrize("make", [phi3, dynamic])
def test_a_table_kept_is_right_at_the_length_it_was_made_for(make: Any) -> None:
    torch.manual_seed(0)
    assert not any("another length" in f.message for f in ec.audit(keeps_its_table(make()), length=128).findings)
