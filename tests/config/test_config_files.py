"""Config files as they lie on disk: keys given twice, and configs of other libraries."""

import warnings
from typing import Any

import pytest

import eigenclock as ec


def read(config: Any) -> ec.Encodings:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ec.encodings(config)


def test_a_key_given_twice_in_one_file_is_refused(tmp_path):
    twice = '{"model_type": "llama", "head_dim": 8, "rope_theta": 10000.0, "rope_theta": 500000.0}'
    (tmp_path / "config.json").write_text(twice)
    with pytest.raises(ec.ConfigError, match="'rope_theta' twice"):
        ec.encodings(tmp_path)
    inner = '{"model_type": "llama", "head_dim": 8, "rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0, "factor": 4.0}}'
    (tmp_path / "config.json").write_text(inner)
    with pytest.raises(ec.ConfigError, match="'factor' twice"):
        ec.encodings(tmp_path)
    (tmp_path / "config.json").write_text(twice.replace("500000.0", "10000.0"))
    assert str(read(tmp_path).only) == "rope(head_dim=8, heads=1, theta=10000.0, pairing='half')"


@pytest.mark.parametrize("name", ["FluxTransformer2DModel", "WanTransformer3DModel"])
def test_configs_of_diffusers_are_refused_as_such(name):
    config = {
        "_class_name": name,
        "attention_head_dim": 128,
        "num_attention_heads": 24,
        "axes_dims_rope": [16, 56, 56],
        "dim": 64,
        "n_heads": 4,
    }
    for extra in ({}, {"model_type": "t2v"}):
        with pytest.raises(ec.UnsupportedError, match=name):
            ec.encodings(config | extra)


DBRX = {
    "model_type": "dbrx",
    "d_model": 64,
    "n_heads": 4,
    "n_layers": 2,
    "attn_config": {"kv_n_heads": 2, "rope_theta": 500000, "clip_qkv": 8},
}


def test_the_object_that_dbrx_keeps_its_base_in():
    """Its released files have it there; transformers 5 does not carry it over to rope_parameters, by which it turns."""
    found = read(DBRX)
    assert str(found.only) == "rope(head_dim=16, heads=4, kv_heads=2, theta=500000, pairing='half')"
    assert any("attn_config.rope_theta=500000" in text for text in found.warnings)
    found = read({**DBRX, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}})
    assert "theta=10000.0" in str(found.only)
    assert any("attn_config.rope_theta=500000" in text for text in found.warnings)
    with pytest.raises(ec.ConfigError, match="rope_theta"):
        read({**DBRX, "attn_config": {"rope_theta": "5e5"}})


@pytest.mark.peer("transformers")
def test_transformers_turns_dbrx_by_rope_parameters():
    from transformers import DbrxConfig

    config = DbrxConfig(attn_config=dict(DBRX["attn_config"]), d_model=64, n_heads=4, n_layers=2)
    found = read(config)
    assert found.only.kv_heads == 2
    assert f"theta={config.rope_parameters['rope_theta']}" in str(found.only)


@pytest.mark.parametrize(
    ("name", "key", "value"), [("attn_config", "rope", True), ("attn_cfg", "rotary_emb_dim", 64), ("attention", "xpos", 512)]
)
def test_what_bears_on_positions_in_an_object_of_its_own_is_named(name, key, value):
    config = {"model_type": "llama", "head_dim": 16, "rope_theta": 1e4, name: {key: value}}
    assert any(f"{name}.{key}" in text for text in read(config).warnings)
    assert not read(config | {name: {key: None, "dropout": 0.1}}).warnings


@pytest.mark.parametrize("kind", ["gated_deltanet", "delta_net", "gla"])
def test_hybrids_of_a_recurrence_and_attention_are_not_called_recurrent_alone(kind):
    config = {"model_type": kind, "hidden_size": 64, "num_heads": 4}
    with pytest.raises(ec.UnsupportedError, match=r"attention in the layers \[1, 3\]"):
        read(config | {"attn": {"layers": [1, 3], "num_heads": 4, "rope_theta": 10000.0}})
    with pytest.raises(ec.UnsupportedError, match="in place of attention"):
        read(config | {"attn": None})
