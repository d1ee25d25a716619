"""Case 30: a rotation over rows and columns of patches is not one over tokens."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from eigenclock.encodings.config.patches import TOWERS

F64 = torch.float64
SMALL = {"num_attention_heads": 4, "num_heads": 4, "num_hidden_layers": 2, "patch_size": 14}


def read(config: Any, **keywords: Any) -> ec.Encodings:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return ec.encodings(config, **keywords)


def grid(rows: int, columns: int) -> Tensor:
    """The row and the column of every patch, (N, 2)."""
    return torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"), -1).flatten(0, 1).to(F64)


def scores(case: dict[str, Any], enc: ec.Encoding, times: Tensor) -> Tensor:
    q, k = (torch.tensor(case["given"][name], dtype=F64).expand(1, enc.heads, -1, -1) for name in "qk")
    return ec.scores(q, k, enc, times=times, scale=1.0, causal=False)[0]


def test_the_numbers_of_the_case(case):
    rows, columns = case["given"]["grid"]
    found = read(case["given"]["config"])
    times = (grid(rows, columns) + 0.5) / torch.tensor([rows, columns]) * 2 - 1
    wanted = torch.tensor(case["expect"]["scores"], dtype=F64)
    assert torch.allclose(scores(case, found.only, times), wanted.expand(2, -1, -1), rtol=0, atol=case["expect"]["abs_tol"])
    assert "2 axes (height, width)" in found.notes[0] and "(i + 1/2) / n * 2 - 1" in found.notes[0]


def test_the_wrong_scores_are_those_of_one_axis(case):
    """What the case calls wrong is what a base and a width of heads look like; nothing of ours gives it."""
    one = ec.rope(16, heads=2, theta=100.0, pairing="half")
    wrong = torch.tensor(case["expect"]["wrong_scores"], dtype=F64)
    assert torch.allclose(scores(case, one, torch.arange(6)), wrong.expand(2, -1, -1), rtol=0, atol=1e-5)
    with pytest.raises(ec.ShapeError, match="height, width"):
        scores(case, read(case["given"]["config"]).only, torch.arange(6))


def test_an_audit_names_the_axes(case):
    report = ec.audit(case["given"]["config"])
    assert not report.failed and report.form == "8R"
    assert any("2 axes (height, width)" in note for note in report.notes)


def formula(theta: float, width: int, place: Tensor) -> Tensor:
    """Angles (N, width / 4) of one axis whose block has width / 4 pairs."""
    return place[:, None] * theta ** (-torch.arange(width // 4, dtype=F64) / (width // 4))


def turned(x: Tensor, angle: Tensor, halves: bool) -> Tensor:
    """x (.., N, D) turned by angles (N, D/2), in half or neighbouring pairs."""
    pairs = x.unflatten(-1, (2, -1)).movedim(-2, -1) if halves else x.unflatten(-1, (-1, 2))
    z = torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angle), angle)
    out = torch.view_as_real(z)
    return out.movedim(-1, -2).flatten(-2) if halves else out.flatten(-2)


def wanted(name: str, theta: float, width: int, at: Tensor, x: Tensor) -> Tensor:
    """x as the tower turns it, from its published code; ``at`` is (row, column)."""
    row, column = at.unbind(-1)
    if name == "pixtral":
        freq = theta ** (-torch.arange(width // 2, dtype=F64) / (width // 2))
        return turned(x, torch.cat([row[:, None] * freq[::2], column[:, None] * freq[1::2]], -1), True)
    if name == "kimi_k25_vision":
        angle = torch.stack([formula(theta, width, column), formula(theta, width, row)], -1).flatten(-2)
        return turned(x, angle, True)
    if name == "gemma4_vision":
        first, second = x.chunk(2, -1)
        return torch.cat([turned(first, formula(theta, width, column), True), turned(second, formula(theta, width, row), True)], -1)
    if name == "llama4_vision_model":
        return turned(x, torch.cat([formula(theta, width, column), formula(theta, width, row)], -1), False)
    assert name in ("qwen2_vl_vision", "qwen2_5_vl_vision")
    return turned(x, torch.cat([formula(theta, width, row), formula(theta, width, column)], -1), True)


@pytest.mark.parametrize("theta", [100.0, 10000.0])
@pytest.mark.parametrize(
    "name", ["qwen2_vl_vision", "qwen2_5_vl_vision", "pixtral", "kimi_k25_vision", "gemma4_vision", "llama4_vision_model"]
)
def test_towers_turn_as_their_published_code(name, theta):
    sizes = {"hidden_size": 64, "embed_dim": 64} if name != "qwen2_vl_vision" else {"hidden_size": 999, "embed_dim": 64}
    found = read(SMALL | sizes | {"model_type": name, "rope_theta": theta})
    at = grid(3, 4)
    times = at.flip(-1) if found.only.clock.names[0] == "width" else at
    q, k = torch.randn(2, 1, 4, 12, 16, dtype=F64)
    z = ec.scores(q, k, found.only, times=times, scale=1.0, causal=False)
    assert torch.allclose(z, wanted(name, theta, 16, at, q) @ wanted(name, theta, 16, at, k).mT, rtol=0, atol=1e-10)
    assert found.layers == ("full_attention",) * 2


@pytest.mark.parametrize("name", TOWERS)
def test_every_tower_has_an_encoding_that_depends_on_differences_alone(name):
    keys = SMALL | {"hidden_size": 64 * 3, "embed_dim": 64 * 3, "model_type": name}
    found = read(keys)
    enc = found.only
    at = torch.randint(0, 9, (7, enc.clock.width)).to(F64)
    q, k = torch.randn(2, 1, 4, 7, enc.head_dim, dtype=F64)
    z = ec.scores(q, k, enc, times=at, causal=False)
    assert torch.allclose(ec.scores(q, k, enc, times=at + torch.arange(enc.clock.width) * 3.5, causal=False), z, rtol=0, atol=1e-9)
    for axis in range(enc.clock.width):
        moved = at.clone()
        moved[:3, axis] += 1
        assert not torch.allclose(ec.scores(q, k, enc, times=moved, causal=False), z, rtol=0, atol=1e-3)
    assert any(f"{enc.clock.width} axes" in note for note in found.notes)


def test_older_configs_have_the_model_type_of_the_whole():
    """Released configs of Qwen-VL call their tower by the type of the model it is part of, and name no base."""
    part = {"model_type": "qwen2_vl", "depth": 3, "embed_dim": 64, "num_heads": 4, "hidden_size": 1536, "patch_size": 14}
    found = read(part)
    assert (found.only.head_dim, found.layers) == (16, ("full_attention",) * 3)
    assert str(found.only) == str(read(part | {"model_type": "qwen2_vl_vision", "rope_theta": 1e4}).only)
    assert any("rope_theta is named nowhere: 10000" in note for note in found.notes)


@pytest.mark.parametrize("where", ["at the top", "for a layer type"])
def test_axes_of_an_unknown_tower_are_refused_in_words(where):
    section = {"rope_type": "axial", "rope_theta": 1e4}
    nested = section if where == "at the top" else {"full_attention": section}
    config = {"model_type": "my_tower", "hidden_size": 64, "num_attention_heads": 4, "rope_parameters": nested}
    with pytest.raises(ec.UnsupportedError, match="several coordinates, such as its row and column"):
        ec.encodings(config)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"hidden_size": 60}, "head_dim=15 for 2 axes; expected a multiple of 4"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type='yarn' for the patches"),
        ({"rope_theta": -1.0}, "rope_theta=-1.0"),
        ({"hidden_size": None}, "without head_dim"),
    ],
)
def test_what_does_not_fit_is_refused(keys, text):
    config = SMALL | {"hidden_size": 64, "model_type": "qwen3_vl_vision"} | keys
    with pytest.raises(ec.ConfigError, match=text):
        ec.encodings({key: value for key, value in config.items() if value is not None})
