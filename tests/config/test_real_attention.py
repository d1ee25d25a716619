"""What ``encodings`` says of a config is what the attention layers of transformers do: some types here, all of them where it is slow."""

from importlib.metadata import version

import pytest
import torch

import eigenclock as ec
from config import compared
from config.compared import PAGE, TOLERANCE, compare, difference, kinds, of, page, rows_of, runs
from config.shrunk import model_of, shrunk

pytestmark = pytest.mark.peer("transformers")
QUICK = {  # model type: laws; each of them agrees
    **dict.fromkeys(("afmoe", "cohere2", "cohere2_moe", "exaone_moe"), ("default",)),  # full-attention layers do not turn
    **dict.fromkeys(("axk2", "deepseek_v32", "glm_moe_dsa", "glm4v_text", "glm_ocr_text", "gptj"), ("default",)),  # neighbours turn
    **dict.fromkeys(("gemma2", "gemma3n_text", "gemma4_unified_text", "granite"), ("default",)),  # scales
    **dict.fromkeys(("ernie4_5_vl_moe_text", "hy_v4_vl_text", "qwen2_vl_text", "qwen3_vl_text"), ("default",)),  # axes
    **dict.fromkeys(("bloom", "mpt", "gpt_oss"), ("default",)),
    **dict.fromkeys(("bamba", "jamba", "lfm2_moe", "mllama_text_model", "zamba", "zamba2"), ("default",)),  # some layers attend
    **dict.fromkeys(("ministral3", "mistral4", "llama4_text", "hunyuan_v1_dense"), ("yarn",)),  # temperatures, norms after the turn
    "deepseek_v3": ("default", "yarn"),
    "falcon": ("linear",),
    "gpt_neox": ("yarn",),
    "llama": ("default", "linear", "yarn", "llama3", "longrope"),
    "openai_privacy_filter": ("default",),
    "smollm3": ("llama3",),
    **dict.fromkeys(("dinov3_vit", "gemma4_vision", "llama4_vision_model", "pixtral", "qwen2_vl_vision"), ("default",)),  # towers
}


@pytest.mark.parametrize(("kind", "law"), [(kind, law) for kind, laws in QUICK.items() for law in laws])
def test_scores_are_the_logits_of_real_layers(kind, law):
    found = compare(kind, law)
    assert (found.what, found.layers > 1) == ("agrees", True), found


READINGS = {  # what a wrong reading of a model with half pairs, base 10000 and scale 1/4 would say
    "another layout": "rope(pairing='interleaved')",
    "another base": "rope(theta=10001, pairing='half')",
    "half of the width": "rope(rotary_dim=8, pairing='half')",
    "no position": "nope",
    "a bias": "rope(pairing='half') * alibi",
    "an amplitude": "rope(freq=yarn(factor=1.1, original_length=100000), pairing='half')",
}


@pytest.mark.parametrize("wrong", [*READINGS, "another scale", "another width of heads"])
def test_a_wrong_reading_is_seen(wrong):
    config = shrunk("llama")
    config = type(config)(**{**config.to_dict(), "head_dim": 16})
    encs = ec.encodings(config)
    still, real, times, factors = runs(model_of(config, compared.MOST), encs)
    right = encs["full_attention"]
    assert difference(right, None, still[1], real[1], times, factors) < TOLERANCE
    width = 8 if wrong == "another width of heads" else 16
    text = READINGS.get(wrong, "rope(pairing='half')")
    other = ec.encoding(text, head_dim=width, heads=right.heads, kv_heads=right.kv_heads)
    scale = 0.26 if wrong == "another scale" else None
    assert difference(other, scale, still[1], real[1], times, factors) > 5 * TOLERANCE


def test_a_model_keeps_its_rotation_after_a_run_without_it():
    config = shrunk("llama")
    model, encs = model_of(config, compared.MOST), ec.encodings(config)
    first, again = runs(model, encs), runs(model, encs)
    assert torch.equal(first[1][0].logits, again[1][0].logits)
    assert not torch.equal(first[0][0].logits, first[1][0].logits)


@pytest.mark.slow
def test_every_type_of_transformers_is_read_as_it_acts_or_something_is_said():
    found = {kind: of(kind) for kind in kinds()}
    silent = {kind: laws for kind, laws in found.items() if any(outcome.what == "differs" for outcome in laws.values())}
    assert not silent, silent
    assert len(found) > 700
    text = PAGE.read_text()
    if f"transformers {version('transformers')} has" in text:
        assert rows_of(page(found)) == rows_of(text)
