"""Case 41: interleaved sections are bounds of strided writes; what the table cannot hold is cut, and nothing is refused."""

import itertools
from typing import Any

import pytest
import torch

import eigenclock as ec

F64 = torch.float64


def built(given: dict[str, Any], how: str) -> ec.Encoding:
    if how == "m_rope":
        return ec.m_rope(
            given["width"], sections=given["sections"], assignment="interleaved", theta=given["theta"], pairing=given["layout"]
        )
    section = {"rope_type": "default", "mrope_section": given["sections"], "mrope_interleaved": given["interleaved"]}
    sizes = {"head_dim": given["width"], "num_attention_heads": 1, "num_hidden_layers": 1}
    return ec.encodings({"model_type": "qwen3_vl_text", **sizes, "rope_theta": given["theta"], "rope_scaling": section}).only


def axes(enc: ec.Encoding) -> list[int]:
    return (enc.generator().split().turns[0].freq.reshape(3, -1) != 0).long().argmax(0).tolist()


@pytest.mark.parametrize("how", ["config", "m_rope"])
def test_the_numbers_of_the_case(case, how):
    given, expect = case["given"], case["expect"]
    enc = built(given, how)
    assert axes(enc) == expect["axis_of_pair"]
    assert [axes(enc).count(axis) for axis in range(3)] == expect["counts"]
    q, k = (torch.tensor(given[side], dtype=F64)[None, None] for side in "qk")
    found = ec.scores(q, k, enc, times=torch.tensor(given["positions"]), scale=1.0, causal=False)[0, 0]
    assert torch.allclose(found, torch.tensor(expect["scores"], dtype=F64), rtol=0, atol=expect["abs_tol"])


SECTIONS = [s for s in itertools.product((1, 2, 4, 6, 7), repeat=3) if sum(s) == 12][:12]


@pytest.mark.parametrize("sections", SECTIONS, ids=str)
def test_other_sections_follow_the_writes(case, sections):
    """Pair i turns by axis i mod 3 where i lies below three times the section of that axis, and by time elsewhere."""
    given = {**case["given"], "sections": list(sections), "width": 24}
    expected = [i % 3 if i < 3 * sections[i % 3] else 0 for i in range(12)]
    assert axes(built(given, "config")) == expected
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 24, dtype=F64)
    lag = torch.tensor([5, -3, 2])
    angles = lag[expected].double() * given["theta"] ** (-torch.arange(12, dtype=F64) / 12)
    a, b, c, d = *q[0, 0, 0].chunk(2), *k[0, 0, 0].chunk(2)
    by_hand = (torch.cos(angles) * (a * c + b * d) + torch.sin(angles) * (a * d - b * c)).sum()
    at = {"times": lag[None], "key_times": torch.zeros(1, 3, dtype=torch.long)}
    assert torch.allclose(ec.scores(q, k, built(given, "config"), **at, scale=1.0, causal=False).squeeze(), by_hand)
