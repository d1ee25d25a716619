"""What model types do that their configs do not say: which layers turn, which channels turn together, the scale.

The values were measured on the attention layers of transformers 5: queries and keys at positions 0 predict the scores at other positions.
"""

import warnings
from typing import Any

import pytest
import torch

import eigenclock as ec

SIZES = {"head_dim": 16, "num_attention_heads": 4, "rope_theta": 1e4}
KINDS = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
LATENT = {"num_attention_heads": 4, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "rope_theta": 1e4, "num_hidden_layers": 2}


def read(config: Any, **keywords: Any) -> ec.Encodings:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ec.encodings(config, **keywords)


def silent(config: Any, **keywords: Any) -> ec.Encodings:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return ec.encodings(config, **keywords)


def turns(encs: ec.Encodings) -> list[bool]:
    return list(encs.rotates)


@pytest.mark.parametrize("kind", ["afmoe", "cohere2", "cohere2_moe", "exaone4", "exaone_moe", "flint", "kolibri1", "lara_mini"])
def test_layers_that_attend_to_everything_have_no_position(kind):
    found = silent({**SIZES, "model_type": kind, "num_hidden_layers": 4, "layer_types": KINDS, "sliding_window": 8})
    assert turns(found) == [True, True, False, True]
    assert str(found["full_attention"]) == "nope(head_dim=16, heads=4)"
    assert any("full_attention have no position" in text for text in found.notes)


@pytest.mark.parametrize("kind", ["afmoe", "cohere2", "exaone4", "exaone_moe", "kolibri1", "flint"])
def test_without_a_number_of_layers_both_kinds_are_given(kind):
    found = read({**SIZES, "model_type": kind})
    assert {name: bool(one.generator().form.kinds & {"R"}) for name, one in found.items()} == {
        "sliding_attention": True,
        "full_attention": False,
    }


@pytest.mark.parametrize("kind", ["afmoe", "cohere2", "exaone4", "exaone_moe", "lara_mini"])
def test_full_layers_alone_do_not_turn_either(kind):
    config = {**SIZES, "model_type": kind, "num_hidden_layers": 2, "layer_types": ["full_attention"] * 2, "sliding_window": 8}
    assert turns(read(config)) == [False, False]


@pytest.mark.parametrize(("kind", "expected"), [("exaone4", True), ("exaone_moe", True), ("kolibri1", True), ("afmoe", False)])
def test_without_a_window_some_turn_every_layer(kind, expected):
    config = {**SIZES, "model_type": kind, "num_hidden_layers": 2, "layer_types": ["full_attention"] * 2, "sliding_window": None}
    assert turns(read(config)) == [expected] * 2


def test_dense_layers_of_cohere2_moe_turn_whatever_their_type():
    config = {**SIZES, "model_type": "cohere2_moe", "num_hidden_layers": 4, "layer_types": ["full_attention", *KINDS[1:]]}
    config |= {"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "prefix_dense_sliding_window_pattern": 1, "sliding_window": 8}
    assert turns(read(config)) == [True, True, False, True]
    assert turns(read(config | {"prefix_dense_sliding_window_pattern": 2})) == [False, True, False, True]


@pytest.mark.parametrize(("kind", "key"), [("afmoe", "global_attn_every_n_layers"), ("exaone_moe", "sliding_window_pattern")])
def test_the_last_of_every_n_layers_attends_to_everything(kind, key):
    config = {**SIZES, "model_type": kind, "num_hidden_layers": 8, "sliding_window": 8}
    expected = [bool((i + 1) % 4) for i in range(8)]
    assert turns(read(config | {key: 4})) == turns(read(config)) == expected
    assert turns(read(config | {key: 2})) == [True, False] * 4


def test_the_first_of_every_n_layers_of_modernbert_attends_to_everything():
    config = {"head_dim": 16, "num_attention_heads": 4, "model_type": "modernbert-decoder", "num_hidden_layers": 6}
    config |= {"global_rope_theta": 1.6e5, "local_rope_theta": 1e4}
    for given in (config, config | {"global_attn_every_n_layers": 3}):
        assert [name == "full_attention" for name in read(given).layers] == [i % 3 == 0 for i in range(6)]


@pytest.mark.parametrize("kind", ["cohere2_moe", "flint", "lara_mini", "beam", "lfm3"])
def test_types_whose_layers_follow_no_pattern_need_their_list(kind):
    with pytest.raises(ec.ConfigError, match="layer_types"):
        ec.encodings({**SIZES, "model_type": kind, "num_hidden_layers": 4})


INTERLEAVED = ("deepseek_v32", "glm_moe_dsa", "axk2", "axk1", "mistral4", "sarvam_mla", "deepseek_v3")


@pytest.mark.parametrize("kind", INTERLEAVED)
def test_latent_attention_turns_neighbouring_channels(kind):
    found = silent({**LATENT, "model_type": kind})
    assert found.conventions.pairing == "interleaved"
    assert str(found.only) == "nope(head_dim=16, heads=4) + rope(head_dim=8, heads=4, theta=10000.0)"


@pytest.mark.parametrize("kind", ["cohere2_moe", "glm4v_text", "glm_ocr_text"])
def test_other_models_that_turn_neighbouring_channels(kind):
    config = {**SIZES, "head_dim": 64, "model_type": kind, "num_hidden_layers": 4, "layer_types": KINDS}
    assert silent(config).conventions.pairing == "interleaved"


@pytest.mark.parametrize("flag", [True, False])
def test_the_switch_of_the_layout_counts_where_the_class_reads_it(flag):
    for kind in ("deepseek_v3", "axk1", "mistral4", "sarvam_mla", "youtu", "glm4_moe_lite"):
        found = read({**LATENT, "model_type": kind, "rope_interleave": flag})
        assert found.conventions.pairing == ("interleaved" if flag else "half")
    for kind in ("deepseek_v32", "glm_moe_dsa", "axk2"):
        found = read({**LATENT, "model_type": kind, "rope_interleave": flag})
        assert found.conventions.pairing == "interleaved"
        assert any("rope_interleave" in text for text in found.warnings)


def test_the_share_of_mistral4_counts_its_whole_head():
    section = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 8 / 24}
    found = read({**LATENT, "model_type": "mistral4", "rope_parameters": section})
    assert str(found.only) == "nope(head_dim=16, heads=4) + rope(head_dim=8, heads=4, theta=10000.0)"


def test_a_width_that_the_class_does_not_read_is_named():
    found = read({**SIZES, "model_type": "minimax_m3_vl_text", "rotary_dim": 8})
    assert str(found.only) == "rope(head_dim=16, heads=4, theta=10000.0, pairing='half')"
    assert any("rotary_dim" in text for text in found.warnings)


def test_a_base_that_the_class_does_not_read_is_named():
    config = {"model_type": "mimo_v2_flash", "head_dim": 192, "num_attention_heads": 4, "num_hidden_layers": 3}
    config |= {"hybrid_layer_pattern": [0, 1, 1], "rope_theta": 1e6, "swa_rope_theta": 5e5, "partial_rotary_factor": 0.5}
    found = read(config)
    assert found.layers == ("full_attention", "sliding_attention", "sliding_attention")
    assert "theta=5000000.0, rotary_dim=64" in str(found["full_attention"])
    assert "theta=10000.0, rotary_dim=64" in str(found["sliding_attention"])
    said = " / ".join(found.warnings)
    assert all(key in said for key in ("rope_theta=1000000.0", "swa_rope_theta=500000.0", "partial_rotary_factor=0.5"))


@pytest.mark.parametrize("kind", ["gemma3n_text", "gemma4_text", "gemma4_unified_text"])
def test_models_that_scale_by_their_norms_alone(kind):
    config = {"model_type": kind, "head_dim": 16, "num_attention_heads": 4, "num_hidden_layers": 2}
    section = {"rope_type": "default", "rope_theta": 1e4}
    found = read({**config, "layer_types": KINDS[1:3], "rope_parameters": {"sliding_attention": section, "full_attention": section}})
    assert found.conventions.scale == 1.0


@pytest.mark.parametrize("kind", ["granite", "granitemoe", "granitemoeshared", "hyperclovax"])
def test_attention_multiplier_is_the_scale(kind):
    config = {**SIZES, "model_type": kind}
    assert read(config | {"attention_multiplier": 0.0078125}).conventions.scale == 0.0078125
    assert read(config).conventions.scale == (None if kind == "hyperclovax" else 1.0)


def test_sections_that_a_class_has_by_default_are_said_aloud():
    config = {"model_type": "gemma4_text", "head_dim": 16, "num_attention_heads": 4, "num_hidden_layers": 6, "global_head_dim": 32}
    found = read(config)
    assert "theta=10000.0" in str(found["sliding_attention"])
    assert "proportional(share=0.25, theta=1000000.0)" in str(found["full_attention"])
    assert any("rope_parameters" in text for text in found.warnings)


@pytest.mark.parametrize(("kind", "width"), [("gptj", 64), ("codegen", 64), ("recurrent_gemma", 128)])
def test_the_width_that_a_class_turns_by_default(kind, width):
    found = read({"model_type": kind, "head_dim": 256, "num_attention_heads": 2, "num_hidden_layers": 1})
    assert int((found.only.generator().split().turns[0].freq != 0).sum()) == width // 2
    assert torch.isfinite(found.only.generator().matrix()).all()


def test_types_that_turn_only_by_a_switch():
    config = {**SIZES, "model_type": "granitemoehybrid", "num_hidden_layers": 2}
    assert turns(read(config)) == turns(read(config | {"position_embedding_type": "nope"})) == [False, False]
    assert turns(read(config | {"position_embedding_type": "rope"})) == [True, True]
    unnumbered = {key: value for key, value in config.items() if key != "num_hidden_layers"}
    assert str(read(unnumbered).only) == "nope(head_dim=16, heads=4)"


def test_key_heads_as_a_class_has_them():
    config = {**SIZES, "num_key_value_heads": 2, "num_hidden_layers": 2}
    assert read({**config, "model_type": "jetmoe"}).only.kv_heads is None
    window = {"layer_types": ["full_attention", "sliding_attention"], "head_dim": 192, "rope_theta": None}
    found = read({**config, **window, "model_type": "mimo_v2_flash"})
    assert (found["full_attention"].kv_heads, found["sliding_attention"].kv_heads or 4) == (2, 4)


@pytest.mark.parametrize(("kind", "pairing"), [("roformer", "interleaved"), ("esm", "half"), ("openai_privacy_filter", "interleaved")])
def test_encoders_that_turn(kind, pairing):
    config = {**SIZES, "model_type": kind, "num_hidden_layers": 1}
    found = silent(config | ({"position_embedding_type": "rotary"} if kind == "esm" else {}))
    assert found.conventions.pairing == pairing


@pytest.mark.parametrize("given", [None, "half", "interleaved"])
def test_an_unknown_type_gets_no_confident_answer(given):
    found = read({**SIZES, "model_type": "of_tomorrow", "num_hidden_layers": 1}, pairing=given)
    said = " / ".join(found.warnings)
    assert "'of_tomorrow' is not known here" in said
    assert all(words in said for words in ("every layer turns", "scale")), said
    assert ("half pairing" in said) == (given is None)


def test_without_a_type_the_layout_that_is_assumed_is_noted():
    assert any("half pairing" in text for text in silent(SIZES).notes)
    assert not any("half pairing" in text for text in silent(SIZES, pairing="interleaved").notes)


@pytest.mark.parametrize("kind", ["laguna", "diffusion_gemma_text", "openai_privacy_filter"])
def test_types_with_a_schedule_of_their_own_need_their_section(kind):
    with pytest.raises(ec.ConfigError, match="rope_parameters"):
        ec.encodings({"model_type": kind, "head_dim": 16, "num_attention_heads": 4, "num_hidden_layers": 2})


def test_mpt_that_turns_is_no_model_with_learned_positions():
    inner = {"alibi": False, "rope": True, "rope_theta": 5e5, "rope_impl": "hf", "kv_n_heads": 2, "softmax_scale": 0.1}
    config = {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2}
    found = read({**config, "attn_config": inner})
    assert str(found.only) == "rope(head_dim=16, heads=4, kv_heads=2, theta=500000.0, pairing='half')"
    assert found.conventions.scale == 0.1
    assert any("attn_config.rope" in text for text in found.warnings)
    scaled = {**inner, "rope_hf_config": {"type": "linear", "factor": 4.0}}
    assert "linear(factor=4.0" in str(read({**config, "attn_config": scaled}).only)
    for wrong, word in (
        ({"rope_impl": "dail", "rope_dail_config": {"type": "xpos"}}, "rope_dail_config"),
        ({"rope_impl": "mine"}, "rope_impl"),
        ({"rope_hf_config": 3}, "rope_hf_config"),
    ):
        with pytest.raises((ec.ConfigError, ec.UnsupportedError), match=word):
            read({**config, "attn_config": {**inner, **wrong}})


@pytest.mark.parametrize("extra", [{"alibi_starting_size": 512}, {"position_embedding_type": "alibi"}])
def test_bert_with_alibi_is_no_model_with_learned_positions(extra):
    config = {"model_type": "bert", "hidden_size": 96, "num_attention_heads": 6}
    found = read({**config, **extra}).only
    q, k = torch.randn(2, 1, 6, 5, 16, dtype=torch.float64)
    slopes = torch.tensor([2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3], dtype=torch.float64)  # of 4 heads, then every other one of 8
    t = torch.arange(5)
    expected = q @ k.mT / 4 - slopes[:, None, None] * (t[:, None] - t).abs()
    assert torch.allclose(ec.scores(q, k, found, causal=False), expected)
    with pytest.raises(ec.UnsupportedError, match="learned absolute"):
        read(config)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_positions_of_another_kind_are_not_called_learned_absolute(kind):
    config = {"model_type": kind, "hidden_size": 64, "num_attention_heads": 4, "position_embedding_type": "rotary"}
    with pytest.raises(ec.UnsupportedError, match="'rotary'") as refusal:
        read(config)
    assert "learned absolute" not in str(refusal.value)


@pytest.mark.parametrize("kind", ["jamba", "nemotron_h", "zamba"])
def test_attention_between_recurrences_has_no_position(kind):
    config = {"model_type": kind, "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 8}
    assert set(map(str, read(config).values())) == {"nope(head_dim=16, heads=4)"}
    assert any("no layer has a position" in text for text in read(config).notes)


def test_the_layers_of_hybrids_follow_their_own_keys():
    config = {"model_type": "jamba", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 8}
    found = read({**config, "attn_layer_period": 4, "attn_layer_offset": 1})
    assert [name == "full_attention" for name in found.layers] == [False, True, False, False] * 2
    found = read({**config, "model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-M*-"})
    assert [i for i, name in enumerate(found.layers) if name == "full_attention"] == [3, 6]


@pytest.mark.parametrize("flag", [True, False])
def test_the_switch_of_zamba2(flag):
    config = {"model_type": "zamba2", "hidden_size": 64, "num_attention_heads": 4, "attention_head_dim": 32, "kv_channels": 16}
    found = read({**config, "num_hidden_layers": 1, "use_mem_rope": flag, "rope_theta": 1e4})
    assert turns(found) == [flag]
    assert (found.only.head_dim, found.conventions.scale) == (32, 0.25)


@pytest.mark.parametrize("kind", ["rwkv6", "delta_net", "gated_deltanet", "xlstm", "falcon_mamba"])
def test_recurrences_are_refused_as_what_they_are(kind):
    with pytest.raises(ec.UnsupportedError, match="recurrence"):
        ec.encodings({"model_type": kind, "hidden_size": 64, "num_attention_heads": 4, "rope_theta": 1e4})


def test_other_kinds_of_positions_are_refused_without_a_hint_that_leads_astray():
    with pytest.raises(ec.UnsupportedError, match="'relative'") as refusal:
        ec.encodings(
            {"model_type": "wav2vec2-conformer", "hidden_size": 64, "num_attention_heads": 4, "position_embeddings_type": "relative"}
        )
    assert "did you mean" not in str(refusal.value)


NOT_READ = {  # what a model does in place of turning its queries and keys, and a word of it
    "learned tables of ESM-1": ({"model_type": "esm", "position_embedding_type": "absolute"}, "learned absolute"),
    "rotary Conformer": (
        {"model_type": "wav2vec2-conformer", "position_embeddings_type": "rotary"},
        "before queries and keys are projected",
    ),
    "Conformer with w2v-BERT's rotary": ({"model_type": "wav2vec2-bert", "position_embeddings_type": "rotary"}, "before queries and keys"),
    "relative Conformer": ({"model_type": "wav2vec2-conformer", "position_embeddings_type": "relative"}, "ec.transformer_xl"),
    "Conformer without": ({"model_type": "wav2vec2-conformer", "position_embeddings_type": None}, "no position"),
    "Jais": ({"model_type": "jais", "position_embedding_type": "alibi"}, "ALiBi"),
    "ViT": ({"model_type": "vit"}, "positions of another kind are not read"),
}


@pytest.mark.parametrize(("extra", "word"), NOT_READ.values(), ids=list(NOT_READ))
def test_what_is_not_read_is_said_in_words(extra, word):
    config = {"hidden_size": 64, "num_attention_heads": 4, **extra}
    if "conformer" in config["model_type"]:
        config["rotary_embedding_base"] = 10000
    with pytest.raises((ec.UnsupportedError, ec.ConfigError), match=word) as refusal:
        read(config)
    assert "did you mean" not in str(refusal.value)


@pytest.mark.parametrize("kind", ["esm", "nv_esm"])
def test_protein_models_turn_halves_by_the_base_in_their_code(kind):
    found = read({"model_type": kind, "hidden_size": 64, "num_attention_heads": 4, "position_embedding_type": "rotary"})
    assert str(found.only) == "rope(head_dim=16, heads=4, theta=10000.0, pairing='half')"


@pytest.mark.parametrize("flag", [False, True])
def test_values_that_turn_too_are_named(flag):
    found = read({"model_type": "roformer", "hidden_size": 64, "num_attention_heads": 4, "rotary_value": flag})
    assert any("rotary_value" in text for text in found.warnings) == flag
    assert found.conventions.pairing == "interleaved"


@pytest.mark.parametrize("kind", ["hunyuan_v1_dense", "hunyuan_v1_moe", "llama4_text"])
@pytest.mark.parametrize("law", ["yarn", "longrope"])
def test_a_norm_after_the_turn_takes_the_amplitude_away(kind, law):
    section = {"rope_type": law, "factor": 4.0, "original_max_position_embeddings": 64}
    if law == "longrope":
        section |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    config = {**SIZES, "model_type": kind, "num_hidden_layers": 1, "max_position_embeddings": 256, "rope_scaling": section}
    found = read(config)
    x = torch.ones(1, 4, 1, 16, dtype=torch.float64)
    assert torch.allclose(ec.scores(x, x, found.only, scale=1.0), torch.full((1, 4, 1, 1), 16.0, dtype=torch.float64))
    assert any("norms after they turn" in text for text in found.notes)
    if kind == "llama4_text":
        plain = read({**config, "use_qk_norm": False})
        assert float(ec.scores(x, x, plain.only, scale=1.0)[0, 0, 0, 0]) > 17


def test_the_layers_of_zamba_that_attend():
    config = {"model_type": "zamba", "hidden_size": 64, "num_attention_heads": 4, "attention_head_dim": 32, "num_hidden_layers": 22}
    found = read({**config, "attn_layer_period": 6, "attn_layer_offset": 4})
    assert [i for i, name in enumerate(found.layers) if name == "full_attention"] == [2, 7, 13, 19]


def test_without_a_type_all_that_is_assumed_is_noted():
    note = next(text for text in read({"head_dim": 16, "rope_theta": 1e4}).notes if "no model_type" in text)
    assert all(word in note for word in ("half pairing", "every layer turns", "scale"))


def test_a_kind_of_position_that_the_class_does_not_ask_for_changes_nothing():
    """Released configs of ModernBERT say "absolute" of a model that turns."""
    config = {**SIZES, "model_type": "modernbert", "num_hidden_layers": 3, "global_rope_theta": 1.6e5, "local_rope_theta": 1e4}
    config = {key: value for key, value in config.items() if key != "rope_theta"} | {"global_attn_every_n_layers": 3}
    found = silent(config | {"position_embedding_type": "absolute"})
    assert dict(zip(found, map(str, found.values()), strict=True)) == dict(zip(found, map(str, silent(config).values()), strict=True))
    assert turns(found) == [True, True, True]
    assert any("position_embedding_type='absolute'" in text for text in found.notes)


ATTENDING = {  # keys of released configs, and the layers of eight that attend to their own tokens
    "bamba": ({"attn_layer_indices": [1, 5]}, [1, 5]),
    "lfm2": ({"full_attn_idxs": [2, 5, 7]}, [2, 5, 7]),
    "kimi_linear": ({"linear_attn_config": {"full_attn_layers": [4, 8], "kda_layers": [1, 2, 3, 5, 6, 7]}}, [3, 7]),
    "recurrent_gemma": ({"block_types": ["recurrent", "recurrent", "attention"]}, [2, 5]),
    "mllama_text_model": ({"cross_attention_layers": [3]}, [0, 1, 2, 4, 5, 6, 7]),
    "stripedhyena": ({"attn_layer_idxs": [0, 6]}, [0, 6]),
}


@pytest.mark.parametrize("kind", ATTENDING)
def test_lists_of_layers_that_attend(kind):
    extra, expected = ATTENDING[kind]
    found = read({"model_type": kind, **SIZES, "num_hidden_layers": 8, **extra})
    assert [i for i, name in enumerate(found.layers) if name in found] == expected
    assert any("have no encoding here" in text for text in found.notes)
    for wrong in ("1", [1.5], [-1], 3, [None]):
        key = next(iter(extra))
        with pytest.raises(ec.ConfigError):
            read(
                {
                    "model_type": kind,
                    **SIZES,
                    "num_hidden_layers": 8,
                    key: {"full_attn_layers": wrong} if isinstance(extra[key], dict) else wrong,
                }
            )
