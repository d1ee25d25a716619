"""Sections of several axes in a config: how model types share their pairs out, measured on the attention layers of transformers 5."""

import warnings
from typing import Any

import pytest
import torch

import eigenclock as ec

HEAD = {"head_dim": 64, "num_attention_heads": 4}


def read(model_type: str, sections: list[int], **section: Any) -> ec.Encodings:
    parameters = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections, **section}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ec.encodings({**HEAD, "model_type": model_type, "rope_parameters": parameters})


def axis_of_pair(encoding: ec.Encoding) -> list[int]:
    """Which coordinate turns each pair, in the order of the spectrum."""
    return (encoding.generator().split().turns[0].freq != 0).int().reshape(3, -1).argmax(0).tolist()


def test_ernie_alternates_height_and_width_and_keeps_the_last_pairs_for_time():
    found = read("ernie4_5_vl_moe_text", [12, 12, 8])
    assert axis_of_pair(found.only) == [1, 2] * 12 + [0] * 8
    assert found.conventions.pairing == "interleaved"
    freq = found.only.generator().split().turns[0].freq.reshape(3, -1).sum(0)
    assert torch.allclose(freq, 1e4 ** (-torch.arange(32, dtype=torch.float64) / 32), rtol=1e-7)


@pytest.mark.parametrize(
    "kind", ["glm4v_text", "glm_ocr_text", "glm_image_text", "paddleocr_vl_text", "qwen2_5_omni_text", "qwen2_vl_text"]
)
def test_contiguous_sections(kind):
    assert axis_of_pair(read(kind, [8, 12, 12]).only) == [0] * 8 + [1] * 12 + [2] * 12


@pytest.mark.parametrize("kind", ["qwen3_omni_moe_text", "qwen3_vl_text", "cosmos3_edge_text", "cohere_compass_text"])
def test_interleaved_sections_whether_or_not_the_section_says_so(kind):
    for keys in ({}, {"mrope_interleaved": True}):
        assert axis_of_pair(read(kind, [12, 10, 10], **keys).only) == [0, 1, 2] * 10 + [0, 0]


def test_a_switch_that_the_class_does_not_read_is_named():
    found = read("qwen3_vl_text", [12, 10, 10], mrope_interleaved=False)
    assert axis_of_pair(found.only) == [0, 1, 2] * 10 + [0, 0]
    assert any("mrope_interleaved" in text for text in found.warnings)


@pytest.mark.parametrize("key", ["mrope_section", "xdrope_section"])
def test_two_axes_for_one_pair_are_refused(key):
    section = {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0, "rope_theta": 1e4, key: [8, 8, 8, 8]}
    config = {**HEAD, "model_type": "hunyuan_vl_text", "max_position_embeddings": 64, "rope_parameters": section}
    with pytest.raises(ec.UnsupportedError, match="different axes"):
        ec.encodings(config)


@pytest.mark.parametrize("sections", [[16, 16], [8, 8, 8, 8]])
def test_other_numbers_of_axes_are_refused(sections):
    with pytest.raises(ec.UnsupportedError, match="mrope_section"):
        read("qwen2_vl_text", sections)


@pytest.mark.parametrize(("declared", "counts"), [([24, 20, 20], [11, 11, 10]), ([4, 3, 5], [24, 3, 5]), ([1, 1, 1], [30, 1, 1])])
def test_interleaved_sections_are_bounds_of_writes(declared, counts):
    found = read("qwen3_vl_text", declared)
    pairs, expected = 32, [0] * 32
    for axis in (1, 2):  # strided writes into the table of the first axis
        for i in range(pairs)[axis : 3 * declared[axis] : 3]:
            expected[i] = axis
    assert axis_of_pair(found.only) == expected
    assert [expected.count(axis) for axis in range(3)] == counts


def test_contiguous_sections_that_do_not_fit_are_refused():
    with pytest.raises(ec.ConfigError, match="mrope_section"):
        read("qwen2_vl_text", [24, 20, 20])


def test_alternating_sections_are_written_for_the_model_that_reads_them():
    found = read("ernie4_5_vl_moe_text", [12, 12, 8])
    keys = ec.to_config(found)
    assert keys["rope_parameters"]["mrope_section"] == [12, 12, 8]
    assert str(ec.encodings(keys).only) == str(found.only)
    with pytest.raises(ec.UnsupportedError, match="alternating"):
        ec.to_config(ec.m_rope(64, sections=(8, 12, 12), assignment="alternating", pairing="half"))
