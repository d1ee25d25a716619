"""Conversion between layouts: round trips, and attention that does not change."""

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import eigenclock as ec
from eigenclock.cli import main
from eigenclock.integrations.layout import LAYOUTS

F64 = torch.float64


def encoding_of(layout: str, head_dim: int, heads: int, kv_heads: int, rotary_dim: int) -> ec.Encoding:
    """RoPE as a model of that layout turns."""
    f = 100.0 ** (-torch.arange(rotary_dim // 2, dtype=F64) / (rotary_dim // 2))
    pairing, minus = layout.removesuffix("_minus"), layout.endswith("_minus")
    return ec.rope(head_dim, heads=heads, kv_heads=kv_heads, pairing=pairing, rotary_dim=rotary_dim, freq=(-f if minus else f).tolist())


@given(
    pairs=st.integers(1, 4),
    rest=st.integers(0, 3),
    heads=st.sampled_from([(1, 1), (2, 2), (4, 2), (6, 3), (4, 1)]),
    layouts=st.permutations(LAYOUTS),
    biased=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_attention_of_converted_weights_is_the_same_in_the_other_layout(pairs, rest, heads, layouts, biased, seed):
    """The claim itself: x goes through both pairs of projections, and every score agrees."""
    torch.manual_seed(seed)
    source, to = layouts[:2]
    queries, keys = heads
    head_dim = 2 * pairs + rest
    x = torch.randn(1, 7, 5, dtype=F64)
    sizes = {"head_dim": head_dim, "rotary_dim": 2 * pairs, "to": to, "source": source}
    projections = []
    for count in (queries, keys):
        weight, bias = torch.randn(count * head_dim, 5, dtype=F64), torch.randn(count * head_dim, dtype=F64) * biased
        projections.append(((weight, bias), tuple(ec.convert(w, heads=count, **sizes) for w in (weight, bias))))

    def project(which: int) -> list[torch.Tensor]:
        pair = [torch.nn.functional.linear(x, *projection[which]) for projection in projections]
        return [y.unflatten(-1, (-1, head_dim)).transpose(1, 2) for y in pair]

    before = ec.scores(*project(0), encoding_of(source, head_dim, queries, keys, 2 * pairs))
    after = ec.scores(*project(1), encoding_of(to, head_dim, queries, keys, 2 * pairs))
    assert torch.allclose(before, after, rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
@pytest.mark.parametrize("source", LAYOUTS)
@pytest.mark.parametrize("to", LAYOUTS)
def test_round_trip_is_exact(source, to, dtype):
    weight = torch.randint(-100, 100, (48, 3)).to(dtype)
    keywords = {"heads": 4, "head_dim": 12, "rotary_dim": 6, "start": 2}
    there = ec.convert(weight, to=to, source=source, **keywords)
    assert torch.equal(ec.convert(there, to=source, source=to, **keywords), weight)
    assert torch.equal(there, weight) == (to == source)
    untouched = [c for c in range(12) if not 2 <= c < 8]
    assert torch.equal(there.unflatten(0, (4, 12))[:, untouched], weight.unflatten(0, (4, 12))[:, untouched])


@pytest.mark.parametrize(("rows", "heads", "width"), [(48, 4, 12), (8, 1, 8), (6, 3, 2)])
def test_the_formula_of_the_permutation(rows, heads, width):
    """Against a plain loop: row 2i + r of a head goes to row i + r n."""
    weight = torch.randn(rows, 3)
    expected = torch.empty_like(weight)
    for head in range(heads):
        for i in range(width // 2):
            for r in (0, 1):
                expected[head * width + i + r * (width // 2)] = weight[head * width + 2 * i + r]
    assert torch.equal(ec.convert(weight, heads=heads, to="half"), expected)


def test_gradients_flow_through():
    weight = torch.randn(8, 3, requires_grad=True)
    ec.convert(weight, heads=2, to="half")[0].sum().backward()
    assert weight.grad is not None
    assert weight.grad.sum() == 3


@pytest.mark.parametrize(
    ("error", "keywords", "word"),
    [
        (ec.ShapeError, {"heads": 3}, "8 rows"),
        (ec.ShapeError, {"heads": 0}, "0 heads"),
        (ec.ShapeError, {"heads": 2, "head_dim": 8}, "16"),
        (ec.ShapeError, {"heads": 8}, "head_dim"),
        (ec.ShapeError, {"heads": 1, "rotary_dim": 3}, "rotary_dim"),
        (ec.ShapeError, {"heads": 1, "rotary_dim": 10}, "rotary_dim"),
        (ec.ShapeError, {"heads": 1, "rotary_dim": 0}, "rotary_dim"),
        (ec.ShapeError, {"heads": 1, "rotary_dim": 8, "start": 2}, "rotary_dim"),
        (ec.ConfigError, {"heads": 1, "to": "halves"}, "half"),
        (ec.ConfigError, {"heads": 1, "source": "neox"}, "neox"),
    ],
)
def test_what_does_not_fit_is_refused(error, keywords, word):
    with pytest.raises(error, match=word):
        ec.convert(torch.zeros(8, 3), **{"to": "half", **keywords})


# Files.

CONFIG = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 1e4}


def tensors(dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    out = {"model.embed_tokens.weight": torch.randn(11, 32), "model.norm.weight": torch.randn(32, dtype=torch.float64)}
    for layer in range(2):
        prefix = f"model.layers.{layer}.self_attn."
        for name, rows in (("q_proj", 32), ("k_proj", 16), ("v_proj", 16), ("o_proj", 32)):
            out[f"{prefix}{name}.weight"] = torch.randn(rows, 32).to(dtype)
        out[f"{prefix}k_proj.bias"], out[f"{prefix}q_norm.weight"] = torch.randn(16), torch.randn(8)
        out[f"{prefix}q_proj.lora_A.weight"], out[f"{prefix}q_proj.lora_B.weight"] = torch.randn(2, 32), torch.randn(32, 2)
    out["vision_tower.layers.0.self_attn.q_proj.weight"] = torch.randn(5, 5)
    out["scalar"], out["empty"] = torch.tensor(3.0), torch.zeros(0, 4)
    return out


@pytest.fixture
def checkpoint(tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A file as transformers writes it, with its config beside it."""
    save = pytest.importorskip("safetensors.torch", reason="missing: package safetensors").save_file
    content = tensors()
    save(content, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path / "model.safetensors", content


def load(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def test_a_file_is_converted_tensor_by_tensor(checkpoint, capsys):
    path, content = checkpoint
    out = path.parent / "new" / "half.safetensors"
    assert main(["convert", str(path), str(out), "--to", "half", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    found = load(out)
    assert found.keys() == content.keys()
    changed = set()
    for name, tensor in content.items():
        heads = {"q_proj.weight": 4, "q_proj.lora_B.weight": 4, "k_proj.weight": 2, "k_proj.bias": 2, "q_norm.weight": 1}
        count = next((n for end, n in heads.items() if name.endswith(end) and "vision" not in name), None)
        expected = tensor if count is None else ec.convert(tensor, heads=count, to="half", head_dim=8)
        assert torch.equal(found[name], expected), name
        assert found[name].dtype == tensor.dtype
        changed |= {name} if count else set()
    assert set(said["converted"]) == changed
    assert said["left"] == ["vision_tower.layers.0.self_attn.q_proj.weight"]
    assert said["tensors"] == len(content)
    from safetensors import safe_open

    with safe_open(out, "pt") as file:
        assert file.metadata() == {"format": "pt", "eigenclock.layout": "half"}


def test_there_and_back_is_the_same_content(checkpoint, capsys):
    path, content = checkpoint
    assert main(["convert", str(path), str(path), "--to", "half"]) == 0  # in place
    heard = capsys.readouterr().out
    assert "model.layers.*.self_attn.q_proj.weight (2)" in heard
    assert "vision_tower" in heard
    assert main(["convert", str(path), str(path), "--to", "half"]) == 2  # it is in that layout already
    assert "converted to 'half' before" in capsys.readouterr().err
    assert main(["convert", str(path), str(path), "--to", "interleaved"]) == 0
    assert all(torch.equal(tensor, content[name]) for name, tensor in load(path).items())


def test_sizes_come_from_options_where_there_is_no_config(checkpoint, tmp_path, capsys):
    path, content = checkpoint
    (tmp_path / "config.json").unlink()
    out = tmp_path / "out.safetensors"
    assert main(["convert", str(path), str(out), "--to", "half"]) == 2
    assert "--heads" in capsys.readouterr().err
    words = ["--heads", "4", "--kv-heads", "2", "--head-dim", "8", "--rotary-dim", "4"]
    assert main(["convert", str(path), str(out), "--to", "half", *words]) == 0
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(load(out)[name], ec.convert(content[name], heads=4, to="half", rotary_dim=4))


@pytest.mark.parametrize("model_type", ["gpt_neox", "llama"])
def test_the_share_that_turns_comes_from_the_config(checkpoint, tmp_path, model_type):
    path, content = checkpoint
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"model_type": model_type, "partial_rotary_factor": 0.5}))
    assert main(["convert", str(path), str(tmp_path / "out.safetensors"), "--to", "half"]) == 0
    name = "model.layers.1.self_attn.k_proj.weight"
    assert torch.equal(load(tmp_path / "out.safetensors")[name], ec.convert(content[name], heads=2, to="half", rotary_dim=4))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def text(path: Path) -> None:
    path.write_text("no checkpoint at all, but long enough to hold a header")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def header_of_nothing(path: Path) -> None:
    path.write_bytes((2).to_bytes(8, "little") + b"[]")


def strangers(path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"conv.weight": torch.zeros(3, 3)}, path)


def fused(path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"h.0.attn.c_attn.weight": torch.zeros(96, 32)}, path)


def quantised(path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"layers.0.q_proj.weight_scale_inv": torch.zeros(2, 2)}, path)


def other_heads(path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"layers.0.q_proj.weight": torch.zeros(24, 32)}, path)


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (cut, "cut short"),
        (text, "no safetensors file"),
        (empty, "no safetensors file"),
        (header_of_nothing, "no safetensors file"),
        (strangers, "q_proj"),
        (fused, "c_attn"),
        (quantised, "weight_scale_inv"),
        (other_heads, "24"),
        (Path.unlink, "no such file"),
    ],
)
def test_what_is_no_checkpoint_is_refused_and_nothing_is_written(checkpoint, capsys, spoil, word):
    path, _ = checkpoint
    spoil(path)
    out = path.parent / "out.safetensors"
    out.write_bytes(b"as it was")
    assert main(["convert", str(path), str(out), "--to", "half"]) == 2
    heard = capsys.readouterr()
    assert word in heard.err
    assert heard.err.count("\n") == 1
    assert heard.out == ""
    assert out.read_bytes() == b"as it was"
    assert not list(path.parent.glob(".eigenclock-*"))


def test_a_file_that_shrinks_under_way_leaves_the_old_one(checkpoint, monkeypatch, capsys):
    """Half of the pieces are written when reading fails: the target keeps its content and no temporary file stays."""
    path, _ = checkpoint
    out = path.parent / "out.safetensors"
    out.write_bytes(b"as it was")
    write, pieces = os.write, []

    def shrink(descriptor, data):
        pieces.append(len(data))
        if len(pieces) == 3:
            os.truncate(path, 200)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", shrink)
    assert main(["convert", str(path), str(out), "--to", "half"]) == 2
    assert len(pieces) >= 3
    assert "shorter" in capsys.readouterr().err
    assert out.read_bytes() == b"as it was"
    assert not list(path.parent.glob(".eigenclock-*"))


def test_one_tensor_at_a_time_is_in_memory(checkpoint, monkeypatch):
    """No piece that is written is larger than the largest tensor or the header."""
    path, content = checkpoint
    write, pieces = os.write, []
    monkeypatch.setattr(os, "write", lambda descriptor, data: (pieces.append(len(data)), write(descriptor, data))[1])
    assert main(["convert", str(path), str(path.parent / "out.safetensors"), "--to", "half"]) == 0
    header = int.from_bytes(path.read_bytes()[:8], "little")
    assert len(pieces) > len(content) / 2
    assert max(pieces) <= max(header + 200, max(t.numel() * t.element_size() for t in content.values()))
