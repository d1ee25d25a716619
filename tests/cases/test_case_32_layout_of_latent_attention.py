"""Case 32: which channels of latent attention turn together follows ``rope_interleave``, and the reading says what the layers do."""

from typing import Any

import pytest
import torch

import eigenclock as ec
from cases.reading import read

F64 = torch.float64
FLAGGED = ["deepseek_v3", "mistral4", "axk1", "youtu", "glm4_moe_lite", "sarvam_mla"]  # their attention asks for the flag
UNASKED = ["axk2", "deepseek_v32", "glm_moe_dsa"]  # it does not, whatever stands there


def config(case: Any, kind: str, **extra: Any) -> dict[str, Any]:
    sizes = {key: value for key, value in case["given"]["sizes"].items() if key != "v_head_dim"}
    return {"model_type": kind, "num_hidden_layers": 2, "rope_theta": 1e4, "hidden_size": 64, **sizes, **extra}


def score(case: Any, encs: ec.Encodings) -> float:
    """The rotary parts of the case behind fixed channels of zeros, as the reading says that they meet."""
    given = case["given"]
    fixed = torch.zeros(given["sizes"]["qk_nope_head_dim"], dtype=F64)
    sides = [torch.cat([fixed, torch.tensor(given[f"{side}_rotary_part_as_projected"], dtype=F64)]) for side in "qk"]
    q, k = (side.expand(1, encs.only.heads, 1, -1) for side in sides)
    at = {"times": torch.tensor([given["t"]]), "key_times": torch.tensor([given["s"]])}
    return float(ec.scores(q, k[:, : encs.only.kv_heads or encs.only.heads], encs.only, **at, scale=1.0, causal=False)[0, 0, 0, 0])


@pytest.mark.parametrize(("flag", "layout"), [(True, "interleaved"), (False, "half")])
@pytest.mark.parametrize("kind", FLAGGED)
def test_the_flag_names_the_layout_and_gives_the_score_of_the_case(case, kind, flag, layout):
    expect = case["expect"]
    found = read(config(case, kind, rope_interleave=flag))
    assert found.conventions.pairing == layout
    assert score(case, found) == pytest.approx(expect["score_by_layout"][layout], abs=expect["abs_tol"])


@pytest.mark.parametrize("kind", [*FLAGGED, *UNASKED, "deepseek_v2", "longcat_flash"])
def test_without_the_flag_neighbours_turn_together(case, kind):
    found = read(config(case, kind))
    assert found.conventions.pairing == "interleaved"
    assert score(case, found) == pytest.approx(case["expect"]["score_by_layout"]["interleaved"], abs=case["expect"]["abs_tol"])


@pytest.mark.parametrize("kind", UNASKED)
def test_a_flag_that_is_not_asked_for_changes_nothing_and_is_named(case, kind):
    found = read(config(case, kind, rope_interleave=False))
    assert found.conventions.pairing == "interleaved"
    assert any("rope_interleave" in text for text in found.warnings)


@pytest.mark.parametrize(("kind", "layout"), [("llama", "half"), ("deepseek_v2", "interleaved"), ("cohere", "interleaved")])
def test_a_flag_that_a_known_class_has_not_leaves_its_layout(kind, layout):
    plain = {"model_type": kind, "head_dim": 16, "num_attention_heads": 4, "rope_theta": 1e4}
    for flag in (True, False):
        found = read({**plain, "rope_interleaved": flag})
        assert found.conventions.pairing == layout
        assert any("rope_interleaved" in text for text in found.warnings) == (flag != (layout == "interleaved"))


@pytest.mark.parametrize("key", ["rope_interleave", "rope_interleaved", "rotary_emb_interleaved"])
def test_a_flag_settles_the_layout_of_models_that_are_not_known(key):
    for flag in (True, False):
        found = read({"model_type": "ours", "head_dim": 16, "num_attention_heads": 4, "rope_theta": 1e4, key: flag})
        assert found.conventions.pairing == ("interleaved" if flag else "half")


@pytest.mark.peer("transformers")
@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("kind", [*FLAGGED, *UNASKED])
def test_the_layers_of_the_real_models_agree(kind, flag):
    from config.compared import MOST, judged, runs
    from config.shrunk import model_of, shrunk

    given = shrunk(kind)
    given.rope_interleave = flag
    encs = read(given)
    found = judged(encs, *runs(model_of(given, MOST), encs))
    assert (found.what, found.layers > 1) == ("agrees", True), found
