"""Every registered encoding in a comparison: it runs to the report, or is refused by name before any training."""

import dataclasses
import json
import math

import pytest
import torch

from eigenclock.cli import main
from eigenclock.encodings import ENCODINGS
from eigenclock.encodings.nope import nope
from eigenclock.errors import ConfigError
from eigenclock.lab.compare import compare
from eigenclock.lab.data import load
from eigenclock.lab.model import SmallGPT
from eigenclock.lab.report import failures, page, table
from eigenclock.lab.settings import Settings
from eigenclock.lab.train import train
from eigenclock.lab.trial import refuse_what_cannot_run

NEEDS = {  # what a recipe cannot guess
    "decay": "decay(half_life=64)",
    "decay_bias": "decay_bias(half_life=8)",
    "gaussian_bias": "gaussian_bias(sigma=4)",
    "two_sided": "two_sided(encoding=alibi)",
    "mamba1": "mamba1(features=16)",  # its gate reads the inner channels of its own layer where nothing is said
}
REFUSED = {  # models of text have one time per token and softmax attention
    "axial_rope": "2",
    "m_rope": "3",
    "mixed_rope": "2",
    "string": "2",
    "mamba3": "only linear attention does",
    "rwkv6": "only linear attention does",
}
LEARNED_CLOCKS = ("fox", "wall", "gla", "hgrn2", "carope", "grape_ctx", "selective_rope", "mamba1", "mamba2")


def spec_of(name: str) -> str:
    """The shortest spec of a recipe."""
    return NEEDS.get(name, name)


@pytest.fixture
def least(tiny) -> Settings:
    return dataclasses.replace(tiny, steps=2, batch=2, eval_tokens=64)


@pytest.fixture(scope="module")
def everything(tmp_path_factory, text):
    """One comparison of all that can run."""
    from conftest import TINY

    names = [name for name in ENCODINGS if name not in REFUSED]
    specs = tuple(spec_of(name) for name in names)
    settings = dataclasses.replace(TINY, text=text, encodings=specs, steps=2, batch=2, eval_tokens=64)
    out = tmp_path_factory.mktemp("all") / "run"
    result = compare(settings, out=out)
    return dict(zip(names, result["encodings"], strict=True)), result["failed"], (out / "report.html").read_text()


@pytest.mark.parametrize("name", [name for name in ENCODINGS if name not in REFUSED])
def test_every_encoding_that_can_run_is_trained_evaluated_and_reported(name, everything):
    rows, failed, report = everything
    row = rows[name]
    assert failed == []
    assert all(math.isfinite(bits) for bits in row["bits"]) and row["speed"] > 0
    entries = row["runs"][0]["spectrum"]
    assert row["parameters"] > 0 or not any(entry["learned"] for entry in entries)
    assert json.loads(json.dumps(entries, allow_nan=False)) == entries
    assert row["label"] in report


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_is_named_with_its_reason_before_training(name, least, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(ConfigError, match=name) as caught:
        compare(dataclasses.replace(least, encodings=("rope", name)), out=out)
    assert REFUSED[name] in str(caught.value) and not out.exists()


def test_the_message_names_every_encoding_that_cannot_run(least):
    with pytest.raises(ConfigError) as caught:
        refuse_what_cannot_run(("rope", "learned_absolute(length=63)", "axial_rope", "alibi"), least)
    message = str(caught.value)
    assert "learned_absolute(length=63)" in message and "axial_rope" in message and "alibi" not in message
    refuse_what_cannot_run(("learned_absolute(length=64)",), least)  # 8 x --length 8
    with pytest.raises(ConfigError, match="mamba1: .*try features=16"):
        refuse_what_cannot_run(("mamba1",), least)


@pytest.mark.parametrize("name", LEARNED_CLOCKS)
def test_learned_clocks_read_the_activations(name):
    """With q and k the same for every token, only the clock can tell tokens apart: the scores move with the activations."""
    model = SmallGPT(spec_of(name), vocabulary=7, layers=1, width=16, heads=2, seed=0)
    model(torch.tensor([[1, 2, 3, 4, 5]])).square().sum().backward()
    weights = [weight for key, weight in model.named_parameters() if ".clock." in key and "weight" in key]
    assert weights and all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in weights)


def test_other_learned_numbers_are_given_by_their_range(everything):
    rows, _, report = everything
    entries = {entry["name"]: entry for entry in rows["t5_bias"]["runs"][0]["spectrum"]}
    assert entries["table"]["count"] == 2 * 32 and len(entries["table"]["range"]) == 1
    low, high = entries["table"]["range"][0]
    assert low < high
    assert "t5_bias table" in report


def fails_for(broken: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Training of the encodings in ``broken`` raises, as one from outside may."""

    def failing(spec, *given):
        if spec in broken:
            raise IndexError("no number\nthere")
        return train(spec, *given)

    monkeypatch.setattr("eigenclock.lab.compare.train", failing)


def test_one_that_fails_does_not_take_the_others_along_and_is_tried_again(least, tmp_path, monkeypatch):
    settings = dataclasses.replace(least, encodings=("nope", "alibi", "rope"), seeds=2)
    with monkeypatch.context() as patch:
        fails_for(["alibi"], patch)
        result = compare(settings, out=tmp_path / "run")
    assert [row["encoding"] for row in result["encodings"]] == ["nope", "rope"]
    assert result["failed"] == [{"encoding": "alibi", "label": "alibi", "seed": 0, "error": "IndexError: no number there"}]
    assert [row[1] for row in table(result).rows if row[0] == "alibi"] == ["failed"]
    assert "IndexError: no number there" in page(result, []) and "--resume" in failures(result)[-1]
    again = compare(Settings(), resume=tmp_path / "run")
    assert again["failed"] == [] and failures(again) == []
    assert [len(row["runs"]) for row in again["encodings"]] == [2, 2, 2]
    unbroken = compare(settings, out=tmp_path / "unbroken")
    assert [row["bits"] for row in again["encodings"]] == [row["bits"] for row in unbroken["encodings"]]


def test_the_speed_of_one_that_fails_is_left_out(least, monkeypatch):
    from eigenclock.lab import speed

    def failing(model, *given):
        if "slope" in dict(model.positions()[0].named_children()).get("values", {}):
            raise IndexError("no number there")
        return one_step(model, *given)

    one_step = speed.one_step
    monkeypatch.setattr(speed, "one_step", failing)
    found = speed.seconds_per_step(dataclasses.replace(least, encodings=("nope", "alibi")), load(least))
    assert list(found) == ["nope"] and found["nope"] > 0


def test_the_command_ends_with_1_where_a_run_failed_and_2_where_all_did(options, tmp_path, monkeypatch, capsys):
    broken = ["rope"]
    fails_for(broken, monkeypatch)
    assert main([*options, "--out", str(tmp_path / "one")]) == 1
    heard = capsys.readouterr()
    assert "failed: rope, seed 0: IndexError: no number there" in heard.out and "nope" in heard.out
    broken.append("nope")
    assert main([*options, "--out", str(tmp_path / "all")]) == 2
    assert "every encoding failed" in capsys.readouterr().err


def test_encodings_that_draw_from_torch_depend_on_the_seed_alone(monkeypatch):
    def make(head_dim: int, *, heads: int = 1, kv_heads=None, clock=None):
        made = nope(head_dim, heads=heads)
        made.register_parameter("drawn", torch.nn.Parameter(torch.randn(3)))
        return made

    monkeypatch.setitem(ENCODINGS, "drawn", make)
    sizes = dict(vocabulary=7, layers=1, width=16, heads=2)
    torch.manual_seed(5)
    first = SmallGPT("drawn", seed=0, **sizes).positions()[0].drawn
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))
    assert torch.equal(first, SmallGPT("drawn", seed=0, **sizes).positions()[0].drawn)
    assert not torch.equal(first, SmallGPT("drawn", seed=1, **sizes).positions()[0].drawn)


def test_a_number_of_its_own_that_is_lost_counts_as_diverged():
    model = SmallGPT("fox", vocabulary=7, layers=1, width=16, heads=2, seed=0)
    assert model.is_finite()
    with torch.no_grad():
        model.positions()[0].clock.bias.fill_(math.nan)
    assert not model.is_finite()
