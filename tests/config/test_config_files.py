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
