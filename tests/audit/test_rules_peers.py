"""Faults in released packages, found in their own code, and their sound settings passed."""

import pytest
import torch

import eigenclock as ec

pytestmark = pytest.mark.filterwarnings("ignore")


def faults(report) -> set[str]:
    return {f.rule for f in report.findings if f.severity == "fault"}


@pytest.mark.peer("rotary_embedding_torch")
def test_rotary_embedding_torch_builds_positions_in_the_dtype_of_the_queries():
    from rotary_embedding_torch import RotaryEmbedding

    broken = ec.audit(RotaryEmbedding(dim=16), head_dim=16, length=600, dtype=torch.bfloat16)
    assert {"shift_invariance", "group_law", "precision"} <= faults(broken)
    shift = next(f for f in broken.findings if f.rule == "shift_invariance")
    assert "positions rounded to bfloat16" in shift.message
    assert faults(ec.audit(RotaryEmbedding(dim=16), head_dim=16, length=600, dtype=torch.float32)) == set()


@pytest.mark.peer("rotary_embedding_torch")
def test_rotary_embedding_torch_moves_the_centre_of_its_scales_under_a_cache():
    from rotary_embedding_torch import RotaryEmbedding

    assert faults(ec.audit(RotaryEmbedding(dim=16, use_xpos=True), head_dim=16, length=600, dtype=torch.float32)) == {"cache"}


NESTED = {
    "model_type": "gemma3_text",
    "head_dim": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}


@pytest.mark.peer("transformers")
@pytest.mark.parametrize("truncate", [False, True])
def test_transformers_reads_truncate_from_the_outer_dict(truncate):
    yarn = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 8.0, "original_max_position_embeddings": 1024, "truncate": truncate}
    config = {**NESTED, "rope_parameters": {"full_attention": yarn, "sliding_attention": PLAIN}}
    report = ec.audit(config, length=600)
    assert faults(report) == (set() if truncate else {"scaling"})
    if not truncate:
        found = next(f for f in report.findings if f.rule == "scaling")
        assert "truncate is not read" in found.message and found.where["layer"] == "full_attention"


@pytest.mark.peer("transformers")
def test_transformers_changes_the_base_with_the_length_under_a_cache():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32, "num_hidden_layers": 1}
    sizes |= {"vocab_size": 64, "max_position_embeddings": 64}
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    broken = ec.audit(LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=dynamic)), length=256)
    assert "cache_length" in faults(broken) and "linearity" not in faults(broken)
    assert faults(ec.audit(LlamaForCausalLM(LlamaConfig(**sizes)), length=256)) == set()
