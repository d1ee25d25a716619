"""Case 28: the params.json of one vendor shares names with another's and says more: every key is used, or named, or refused."""

import json
import math
import warnings

import pytest
import torch

import eigenclock as ec
from cases.reading import frequencies, read

F64 = torch.float64


def amplitude(encoding: ec.Encoding) -> float:
    """What queries and keys are multiplied by: a score at lag 0 has its square."""
    x = torch.ones(1, encoding.heads, 1, encoding.head_dim, dtype=F64)
    keys = x[:, : encoding.kv_heads or encoding.heads]
    return math.sqrt(float(ec.scores(x, keys, encoding, scale=1.0)[0, 0, 0, 0]) / encoding.head_dim)


@pytest.mark.parametrize("apply", [True, False])
def test_yarn_of_the_case(case, apply):
    given, expect = case["given"]["params_json"], case["expect"]
    found = read({**given, "yarn": {**given["yarn"], "apply_scale": apply}})
    wanted = torch.tensor(expect["frequencies"], dtype=F64)
    assert torch.allclose(frequencies(found.only), wanted, rtol=expect["rel_tol"], atol=0)
    assert not torch.allclose(wanted, torch.tensor(expect["plain_frequencies_that_are_wrong"], dtype=F64), rtol=expect["rel_tol"], atol=0)
    assert amplitude(found.only) == pytest.approx(expect["amplitude"][f"apply_scale {str(apply).lower()}"], rel=expect["rel_tol"])
    assert found.conventions.pairing == expect["layout"]


def test_the_temperature_of_the_case_is_named_in_a_note(case):
    found = read(case["given"]["params_json"])
    assert any("llama_4_scaling" in text for text in found.notes)
    assert found.conventions.temperature == "queries times 1 + 0.1 ln(1 + floor(t / 16384))"


def test_the_file_of_the_case_is_read_and_audited(case, tmp_path):
    (tmp_path / "params.json").write_text(json.dumps(case["given"]["params_json"]))
    assert str(read(tmp_path).only) == str(read(case["given"]["params_json"]).only)
    report = ec.audit(tmp_path / "params.json")
    assert report.ok
    assert "yarn(factor=16" in str(report.spec)


def test_the_second_file_of_the_case_has_its_own_widths(case):
    expect = case["expect"]["second_file"]
    found = read(case["given"]["second_file"])
    still, turned = expect["fixed_width"], expect["rotary_width"]
    assert found.only.head_dim == still + turned
    assert 2 * len(frequencies(found.only)) == turned
    assert frequencies(found.only)[-1] == pytest.approx(expect["last_frequency"], rel=1e-9)
    assert found.conventions.pairing == expect["layout"]
    x = torch.randn(1, 128, 3, still + turned, dtype=F64)
    fixed = torch.cat([x[..., :still], torch.zeros(1, 128, 3, turned, dtype=F64)], -1)
    assert torch.allclose(ec.scores(fixed, fixed, found.only, scale=1.0, causal=False), fixed @ fixed.mT)


def test_the_scaling_that_the_second_file_leaves_to_its_code_is_named(case):
    plain = read(case["given"]["second_file"])
    assert any("rope_factor" in text and "max_seq_len" in text for text in plain.warnings)
    scaled = read({**case["given"]["second_file"], "max_seq_len": 16384})
    expected = ec.yarn(40.0, 4096, beta_fast=32, beta_slow=1, theta=1e4)
    assert torch.allclose(frequencies(scaled.only), expected(32).values, rtol=1e-12)
    assert amplitude(scaled.only) == pytest.approx(1.0)
    assert scaled.conventions.scale == pytest.approx((0.1 * math.log(40) + 1) ** 2 / math.sqrt(192))
    assert "yarn" not in str(read({**case["given"]["second_file"], "max_seq_len": 4096}).only)


# The kind: other sizes, other keys, other vendors.


@pytest.mark.parametrize("width", [8, 64, 128])
@pytest.mark.parametrize("factor", [2.0, 16.0, 64.0])
@pytest.mark.parametrize(("beta", "alpha"), [(32, 1), (8.0, 2.0)])
def test_the_names_of_yarn_mean_its_bounds(width, factor, beta, alpha):
    yarn = {"original_max_position_embeddings": 4096, "factor": factor, "apply_scale": True, "beta": beta, "alpha": alpha}
    found = read({"dim": 4 * width, "n_heads": 4, "n_layers": 1, "hidden_dim": 9, "rope_theta": 1e5, "yarn": yarn})
    expected = ec.yarn(factor, 4096, beta_fast=beta, beta_slow=alpha, theta=1e5)
    assert torch.allclose(frequencies(found.only), expected(width // 2).values, rtol=1e-12)


MISTRAL = {"dim": 64, "n_heads": 4, "n_layers": 1, "hidden_dim": 9, "rope_theta": 1e6}


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ({"yarn": {"factor": 2.0, "original_max_position_embeddings": 64, "apply_scale": True, "betta": 32}}, "betta"),
        ({"yarn": {"factor": 2.0, "original_max_position_embeddings": 64, "apply_scale": 1}}, "apply_scale"),
        ({"yarn": {"factor": 2.0, "apply_scale": True}}, "original_max_position_embeddings"),
        ({"yarn": 16}, "yarn"),
        ({"llama_4_scaling": 0.1}, "llama_4_scaling"),
        ({"llama_4_scaling": {"beta": 0.1}}, "original_max_position_embeddings"),
        ({"rope_scaling_factr": 2.0}, "rope_scaling_factr"),
        ({"qk_rope_head_dim": 8, "hidden_dim": None, "rope_theta": 1e4}, "qk_nope_head_dim"),
    ],
)
def test_what_means_nothing_there_is_refused_by_name(keys, word):
    with pytest.raises(ec.ConfigError, match=word):
        read({key: value for key, value in {**MISTRAL, **keys}.items() if value is not None})


def test_what_is_left_out_is_said():
    yarn = {"factor": 2.0, "original_max_position_embeddings": 64}
    found = read({key: value for key, value in {**MISTRAL, "yarn": yarn}.items() if key != "rope_theta"})
    said = " / ".join(found.warnings)
    assert "rope_theta" in said
    assert "apply_scale" in said


def test_keys_of_no_such_file_are_named():
    found = read({"dim": 2304, "n_heads": 24, "n_layers": 2, "rope_theta": 1e4, "cap_feat_dim": 2048, "use_dynamic_ntk": True})
    assert any("cap_feat_dim" in text and "use_dynamic_ntk" in text and "params.json of Llama" in text for text in found.warnings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ec.encodings({"dim": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 9, "multiple_of": 4, "norm_eps": 1e-5, "rope_theta": 5e5})


def test_layers_without_position_of_llama_4():
    config = {"dim": 64, "n_heads": 4, "n_layers": 8, "rope_theta": 5e5, "nope_layer_interval": 4, "use_qk_norm": True}
    found = read(config)
    assert list(found.rotates) == [True, True, True, False] * 2
    assert found.conventions.temperature is None
    tuned = read({**config, "attn_temperature_tuning": True})
    assert tuned.conventions.temperature == "queries of layers without position times 1 + 0.1 ln(1 + floor((t + 1) / 8192))"


@pytest.mark.parametrize("latent", [False, True])
def test_latent_attention_of_mistral(latent):
    keys = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "q_lora_rank": 4, "kv_lora_rank": 4, "v_head_dim": 16} if latent else {}
    expected = "nope(head_dim=16, heads=4) + rope(head_dim=8" if latent else "rope(head_dim=16"
    assert str(read({**MISTRAL, **keys}).only).startswith(expected)


def test_sizes_alone_are_read_as_llama_and_that_is_said():
    sizes = {"dim": 64, "n_heads": 4, "n_layers": 2}
    assert any("no key names the model" in text for text in read(sizes).notes)
    assert not any("no key names the model" in text for text in read({**sizes, "multiple_of": 256, "norm_eps": 1e-5}).notes)
