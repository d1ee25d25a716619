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


SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 32, "num_hidden_layers": 1}
SIZES |= {"vocab_size": 64}


@pytest.mark.peer("transformers")
@pytest.mark.parametrize("masked", [False, True])
def test_transformers_takes_real_positions_without_a_mask_for_documents(masked):
    from transformers import LlamaConfig
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import create_causal_mask
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(**SIZES)
    config._attn_implementation = "sdpa"
    rotary, layer = LlamaRotaryEmbedding(config), LlamaAttention(config, 0)

    def attend(q, k, v, positions):  # what a layer does with the positions that its model is given
        q, k = apply_rotary_pos_emb(q, k, *rotary(v, positions[None]))
        embeddings = v.transpose(1, 2).flatten(2)
        ones = torch.ones(1, positions.numel(), dtype=torch.long) if masked else None
        mask = create_causal_mask(config, embeddings, ones, None, position_ids=positions[None])
        return sdpa_attention_forward(layer, q, k, v, mask)[0].transpose(1, 2)

    report = ec.audit(attend, head_dim=8, heads=4, length=128)
    assert faults(report) == (set() if masked else {"steps"}), report
    assert masked or "every token then sees itself alone" in report.findings[0].message


@pytest.mark.peer("transformers")
def test_a_live_model_says_what_it_does_without_a_mask_and_is_sound_with_one():
    from transformers import LlamaConfig, LlamaForCausalLM

    report = ec.audit(LlamaForCausalLM(LlamaConfig(**SIZES)), length=128)
    found = next(f for f in report.findings if f.rule == "steps")
    assert report.ok and found.severity == "advice" and "documents of one token each" in found.message


@pytest.mark.peer("transformers")
def test_a_growing_factor_in_the_table_of_transformers_breaks_the_law():
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    class Growing(LlamaRotaryEmbedding):
        def forward(self, x, position_ids):
            size = (0.004 * position_ids.double()).exp()[..., None]
            cos, sin = super().forward(x, position_ids)
            return (size * cos).to(x.dtype), (size * sin).to(x.dtype)

    config = LlamaConfig(**SIZES)
    model = LlamaForCausalLM(config)
    assert faults(ec.audit(model, length=256)) == set()
    model.model.rotary_emb = Growing(config)
    for subject in (model, (apply_rotary_pos_emb, Growing(config))):
        assert {"contragredience", "shift_invariance"} <= faults(ec.audit(subject, length=256))
    assert faults(ec.audit((apply_rotary_pos_emb, LlamaRotaryEmbedding(config)), length=256)) == set()


@pytest.mark.peer("transformers")
def test_a_rotary_module_of_transformers_is_held_to_the_config_it_keeps():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(LlamaConfig(**SIZES))
    assert faults(ec.audit(rotary, length=128)) == set()
    rotary.inv_freq = rotary.inv_freq / 4
    assert "scaling" in faults(ec.audit(rotary, length=128))
