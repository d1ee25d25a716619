"""Configs and folders of models with an encoding installed go through every door that takes a config."""

import json
import math
from pathlib import Path

import pytest
import torch
from integrations.conftest import tiny
from torch import Tensor

import eigenclock as ec
from eigenclock.cli import main
from eigenclock.errors import ConfigError
from eigenclock.integrations.huggingface import extend, install, load
from eigenclock.integrations.huggingface.evaluate import block_losses

pytestmark = pytest.mark.peer("transformers")

WRITTEN = [  # model type, and what was done to it: a method of extend, or an encoding installed
    ("llama", "damped"), ("llama", "removed"), ("llama", "fox"), ("gemma3_text", "rope * alibi"), ("smollm3", "damped"),
    ("gpt_neox", "recency"),
]  # fmt: skip


def written(kind: str, how: str, folder: Path) -> tuple[str, ...]:
    """Writes a model; the encodings that its layers have."""
    model = tiny(kind)
    done = extend(model, to=1024, method=how).installed if how in ("damped", "recency", "removed") else install(model, how)
    assert done is not None
    model.save_pretrained(folder)
    return tuple(str(one) for one in done.encodings)


@pytest.mark.parametrize(("kind", "how"), WRITTEN)
def test_every_door_reads_the_encodings_that_were_installed(
    kind: str, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = written(kind, how, tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    for given in (tmp_path / "a", tmp_path / "a" / "config.json", config, load(tmp_path / "a").config):
        found = ec.encodings(given)
        assert tuple(str(found.layer(i)) for i in range(len(found.layers))) == wanted
        assert "installed" in " ".join(found.notes)
    assert main(["audit", str(tmp_path / "a")]) == 0
    assert ": OK" in capsys.readouterr().out
    assert main(["extend", str(tmp_path / "a"), "--out", str(tmp_path / "b")]) == 2
    said = capsys.readouterr().err
    assert "eigenclock extend: got a model with an encoding installed already" in said and "Traceback" not in said
    assert not (tmp_path / "b").exists()


def test_the_scores_of_what_was_read_are_those_of_damped_rotation(tmp_path: Path) -> None:
    """Pair i of q and k at the lag u: 2^(-u / h) (q k) cos(u theta^(-2i/d)), h four times the old length."""
    written("llama", "damped", tmp_path)
    enc = ec.encodings(tmp_path)["full_attention"]
    q = k = torch.ones(1, 4, 9, 16, dtype=torch.float64)
    got = ec.scores(q, k[:, :2], enc, times=torch.arange(9) * 100)
    lag = 100.0 * (torch.arange(9)[:, None] - torch.arange(9)[None]).double()
    angles = lag[..., None] * 10000.0 ** (-torch.arange(0, 16, 2).double() / 16)
    wanted = 2 * angles.cos().sum(-1) * 0.5 ** (lag / 2048) / math.sqrt(16)
    causal = lag >= 0
    assert torch.allclose(got[0, 0][causal], wanted[causal], atol=1e-9)


def test_a_written_model_is_measured_with_its_encoding(tokens: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from eigenclock.integrations.huggingface import files

    written("llama", "damped", tmp_path)
    source = files.Source(str(tmp_path))
    assert source.length == 1024
    assert block_losses(source.load(), tokens[0], block=10) == pytest.approx(block_losses(load(tmp_path), tokens[0], block=10))
    assert block_losses(source.load(), tokens[0], block=10) != pytest.approx(block_losses(tiny(), tokens[0], block=10), abs=1e-6)


def test_the_original_goes_on_after_uninstall() -> None:
    model = tiny()
    done = install(model, "rope * alibi")
    with pytest.raises(ConfigError, match="uninstall"):
        extend(model, to=1024)
    done.uninstall()
    assert extend(model, to=1024).rope_parameters is not None


@pytest.mark.parametrize(("changed", "match"), [
    ({"eigenclock": 3}, "install wrote"), ({"eigenclock": {"specs": ["rope"]}}, "install wrote"),
    ({"eigenclock": {"specs": ["rope(head_dim=16)"], "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}}, "got 1 encodings"),
])  # fmt: skip
def test_what_no_install_wrote_is_refused(changed: dict[str, object], match: str, tmp_path: Path) -> None:
    written("llama", "damped", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | changed
    with pytest.raises(ConfigError, match=match):
        ec.encodings(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=match):
        load(tmp_path)
