"""The whole comparison in one process: what it records, how it stops and goes on, what it refuses."""

import dataclasses
import json
import math
import statistics

import pytest

from eigenclock.errors import ConfigError, EigenclockError
from eigenclock.lab.compare import Interrupted, Silent, compare
from eigenclock.lab.folder import RunFolder
from eigenclock.lab.report import evidence, page, table
from eigenclock.lab.settings import DEFAULT_ENCODINGS, Settings


class Stops(Silent):
    """Presses Ctrl-C once so many calls of ``advance`` were made."""

    def __init__(self, after: int) -> None:
        self.left = after

    def advance(self, amount: float, doing: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


class Counts(Silent):
    """Adds up what was announced and what was done."""

    def __init__(self) -> None:
        self.total, self.done, self.lines = 0.0, 0.0, []

    def start(self, total: float) -> None:
        self.total = total

    def advance(self, amount: float, doing: str) -> None:
        self.done += amount

    def say(self, line: str) -> None:
        self.lines.append(line)


def numbers(result: dict) -> list:
    """All of a result but its times."""
    return [{key: value for key, value in run.items() if key != "seconds"} for row in result["encodings"] for run in row["runs"]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, text):
    """Two seeds of the tiny comparison in one go: (settings, folder, result)."""
    from conftest import TINY

    settings = dataclasses.replace(TINY, text=text, seeds=2)
    out = tmp_path_factory.mktemp("finished") / "run"
    watch = Counts()
    result = compare(settings, out=out, watch=watch)
    assert watch.done == pytest.approx(watch.total)
    return settings, out, result


def test_the_run_folder_is_complete_and_result_json_is_the_result(finished):
    settings, out, result = finished
    assert json.loads((out / "result.json").read_text()) == result
    config = json.loads((out / "config.json").read_text())
    assert Settings.from_dict(config["settings"]) == settings
    assert {"python", "torch"} <= set(config["versions"]) and len(config["corpus"]["sha256"]) == 64
    assert all("head_dim=8" in spec and "heads=2" in spec for spec in config["specs"])
    runs = len(settings.encodings) * settings.seeds
    assert len(list((out / "checkpoints").glob("*.pt"))) == len(list((out / "runs").glob("*.json"))) == runs
    evaluations = [line for line in RunFolder(out).metrics() if "length" in line]
    assert len(evaluations) == 4 * runs


def test_mean_and_spread_are_those_of_the_seeds(finished):
    _, _, result = finished
    for row in result["encodings"]:
        assert [run["seed"] for run in row["runs"]] == [0, 1]
        for i, (mean, spread) in enumerate(zip(row["bits"], row["spread"], strict=True)):
            values = [run["bits"][i] for run in row["runs"]]
            assert mean == pytest.approx(statistics.mean(values)) and spread == pytest.approx(statistics.stdev(values))
    assert "2 seeds" in evidence(result)


def test_speed_is_relative_to_nope_and_parameters_are_the_learned_ones(finished):
    _, out, result = finished
    by_name = {row["label"]: row for row in result["encodings"]}
    assert list(by_name) == ["nope", "rope", "decay_bias"]
    assert by_name["nope"]["speed"] == 1.0
    step = json.loads((out / "speed.json").read_text())
    assert by_name["rope"]["speed"] == pytest.approx(step["nope"] / step["rope"])
    assert by_name["rope"]["speed"] == pytest.approx(by_name["rope"]["per_second"] / by_name["nope"]["per_second"], rel=0.02)
    assert [row["parameters"] for row in result["encodings"]] == [0, 0, 2]


def test_the_spectrum_holds_start_and_learned_values(finished):
    _, _, result = finished
    nope, rope, bias = (row["runs"][0]["spectrum"] for row in result["encodings"])
    assert nope == []
    assert rope[0]["initial"] == [pytest.approx([10_000 ** (-i / 4) for i in range(4)])] and rope[0]["final"][0] == rope[0]["initial"]
    assert bias[0]["initial"] == [pytest.approx([math.log(2) / 2, math.log(2) / 8])]
    assert bias[0]["learned"] and bias[0]["axis"] == "head" and bias[0]["final"][0] != bias[0]["initial"]


@pytest.mark.parametrize("after", [1, 8, 12, 15, 30])
def test_an_interrupted_comparison_continues_with_the_same_numbers(finished, tmp_path, after):
    settings, _, result = finished
    settings, out = dataclasses.replace(settings, seeds=1), tmp_path / "run"
    with pytest.raises(Interrupted, match=r"^interrupted; kept \d of 3 runs.*continue with: eigenclock compare --resume \S+$"):
        compare(settings, out=out, watch=Stops(after))
    assert not (out / "result.json").exists()
    again = compare(Settings(), resume=out)
    assert numbers(again) == [run for run in numbers(result) if run["seed"] == 0]


def test_more_seeds_can_be_asked_for_later(finished, tmp_path):
    settings, _, result = finished
    out = tmp_path / "run"
    compare(dataclasses.replace(settings, seeds=1), out=out)
    before = {path: path.stat().st_mtime_ns for path in (out / "checkpoints").iterdir()}
    more = compare(Settings(seeds=2), resume=out)
    assert numbers(more) == numbers(result)
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


def test_a_finished_comparison_is_not_run_again(finished):
    _, out, result = finished
    watch = Counts()
    assert numbers(compare(Settings(), resume=out, watch=watch)) == numbers(result)
    assert watch.lines == [] and watch.done == pytest.approx(watch.total)


def test_the_same_settings_continue_in_the_same_folder_and_others_do_not(finished):
    settings, out, result = finished
    assert numbers(compare(settings, out=out)) == numbers(result)
    with pytest.raises(ConfigError, match="differs in steps; choose another folder"):
        compare(dataclasses.replace(settings, steps=13), out=out)
    with pytest.raises(ConfigError, match="keeps its own settings, got other --steps, --width"):
        compare(Settings(steps=13, width=32), resume=out)
    with pytest.raises(ConfigError, match="both --out and --resume"):
        compare(Settings(), out=out, resume=out)


def test_a_text_that_changed_is_noticed(tiny, tmp_path):
    path = tmp_path / "text"
    path.write_bytes(tiny.text.read_bytes())
    settings = dataclasses.replace(tiny, text=path, encodings=("nope",))
    with pytest.raises(Interrupted):
        compare(settings, out=tmp_path / "run", watch=Stops(6))
    path.write_bytes(path.read_bytes().replace(b"clock", b"clack"))
    with pytest.raises(ConfigError, match="corpus sha256 changed since"):
        compare(Settings(), resume=tmp_path / "run")


def test_a_run_that_diverges_is_shown_as_such(tiny, tmp_path):
    learned = "damped_rope(half_life=(2, 8), learn=('freq', 'rate'))"
    watch = Counts()
    result = compare(dataclasses.replace(tiny, encodings=("nope", learned), lr=1e30), out=tmp_path / "run", watch=watch)
    for row, shown in zip(result["encodings"], table(result).rows, strict=True):
        assert row["bits"] == [None] * 4 and row["runs"][0]["diverged_at"] is not None
        assert shown[1:5] == ("diverged",) * 4
    assert all("diverged" in line for line in watch.lines)
    assert "diverged" in page(result, [])


def test_tokens_are_reported_per_token(tmp_path, tiny):
    import numpy as np

    paths = tmp_path / "train.bin", tmp_path / "val.bin"
    for path in paths:
        np.random.default_rng(0).integers(0, 300, 500).astype(np.uint16).tofile(path)
    result = compare(dataclasses.replace(tiny, text=None, bin=paths, encodings=("rope",)), out=tmp_path / "run")
    assert result["unit"] == "bits per token" and result["speed_against"] == "rope"
    assert result["encodings"][0]["runs"][0]["model_parameters"] == 300 * 16 + 12 * 16 * 16 + 3 * 16
    assert "Bits per token" in table(result).title


def test_a_write_that_fails_says_what_was_kept(tiny, tmp_path, monkeypatch):
    """As when the disk fills up after the first run: the error names the file, what is kept and how to go on."""
    settings, out = dataclasses.replace(tiny, encodings=("nope", "rope")), tmp_path / "run"
    save = RunFolder.save

    def full(self: RunFolder, run: str, state: dict) -> None:
        if run.startswith("rope") and state["step"] > 5:
            self.file("checkpoints").rename(self.file("gone"))
            self.file("checkpoints").write_text("in the way")
        save(self, run, state)

    monkeypatch.setattr(RunFolder, "save", full)
    with pytest.raises(EigenclockError, match=r"cannot write .*; kept 1 of 2 runs.*; continue with: eigenclock compare --resume"):
        compare(settings, out=out)
    monkeypatch.setattr(RunFolder, "save", save)
    (out / "checkpoints").unlink()
    (out / "gone").rename(out / "checkpoints")
    again = compare(Settings(), resume=out)
    assert numbers(again) == numbers(compare(settings, out=tmp_path / "unbroken"))


def test_the_default_encodings_are_the_promised_ones():
    names = ["nope", "rope", "damped_rope", "alibi", "rope * alibi", "decay_bias"]
    assert [spec.split("(")[0] for spec in DEFAULT_ENCODINGS] == names
