"""``eigenclock compare`` as a user meets it: output, bad input, a kill, Ctrl-C, no space."""

import json
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from eigenclock.cli import COMMANDS, main


def run(options: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = main(options)
    heard = capsys.readouterr()
    return status, heard.out, heard.err


def test_table_evidence_and_place_of_the_report_are_printed(options, tmp_path, capsys):
    status, out, err = run([*options, "--out", str(tmp_path / "run")], capsys)
    assert status == 0
    for word in ("nope", "rope", "1x (8)", "8x (64)", "speed", "params", "One seed is not evidence", "--seeds 3", "report.html"):
        assert word in out
    assert [line.split(":")[0] for line in err.splitlines()] == ["nope", "rope"]


def test_json_is_all_there_is_on_stdout(options, tmp_path, capsys):
    status, out, _ = run([*options, "--json", "--out", str(tmp_path / "run")], capsys)
    result = json.loads(out)
    assert status == 0 and result == json.loads((tmp_path / "run" / "result.json").read_text())
    assert [row["encoding"] for row in result["encodings"]] == ["nope", "rope"]


def test_the_report_needs_nothing_from_elsewhere_and_shows_the_numbers(options, tmp_path, capsys):
    assert main([*options, "--out", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("<svg") >= 3 and "<script" not in page and "<link" not in page
    assert not re.search(r"""(?:src|href)\s*=\s*["']?[^#"'\s]|url\(\s*["']?[^#"'\s]|@import""", page)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    for row in result["encodings"]:
        assert all(f"{bits:.3f}" in page for bits in row["bits"])
    assert result["config"]["corpus"]["sha256"] in page


def test_the_default_folder_is_a_new_one_under_runs(options, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*options, "--steps", "2"]) == 0
    assert [path.name.split("-")[0] for path in (tmp_path / "runs").iterdir()] == ["compare"]


def bad(tmp_path: Path) -> dict[str, tuple[list[str], str]]:
    """Bad input: what is given, and what the line must say."""
    (tmp_path / "empty").touch()
    (tmp_path / "short").write_bytes(b"too short")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").touch()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text("[]")
    return {
        "missing file": (["--text", "nowhere.txt"], "nowhere.txt cannot be read"),
        "a folder as text": (["--text", str(tmp_path)], "cannot be read"),
        "empty file": (["--text", str(tmp_path / "empty")], "is empty"),
        "short file": (["--text", str(tmp_path / "short")], "has 9 bytes; --length 8 needs at least 130"),
        "length beyond the file": (["--length", "100000", "--eval-tokens", "1000000"], "needs at least 1600002"),
        "one token file": (["--bin", "train.bin"], "takes two"),
        "two corpora": (["--bin", "a", "b"], "both --text and --bin"),
        "unknown encoding": (["--encodings", "roep"], "did you mean 'rope'"),
        "unknown option of an encoding": (["--encodings", "rope(thta=3)"], "did you mean 'theta'"),
        "unreadable encoding": (["--encodings", "rope +"], "rope +"),
        "encoding twice": (["--encodings", "nope", "nope"], "twice"),
        "no encoding": (["--encodings"], "name at least one"),
        "width and heads": (["--width", "17"], "not divisible by --heads 2; every head gets the same width; try --width 16"),
        "odd head for a rotation": (["--width", "14", "--encodings", "rope"], "head_dim=7; expected an even width"),
        "length of one": (["--length", "1"], "--length is 1; it must be at least 2"),
        "no steps": (["--steps", "0"], "--steps is 0"),
        "no seeds": (["--seeds", "0"], "--seeds is 0"),
        "learning rate": (["--lr", "-1"], "--lr is -1"),
        "too little to evaluate": (["--eval-tokens", "10"], "--eval-tokens is 10"),
        "not a number": (["--steps", "many"], "--steps"),
        "unknown option": (["--stps", "3"], "--stps"),
        "a folder in use": (["--out", str(tmp_path / "used")], "is no run folder"),
        "a file as folder": (["--out", str(tmp_path / "empty")], "is no run folder"),
        "below a file": (["--out", str(tmp_path / "empty" / "run")], "cannot write"),
        "nothing to resume": (["--resume", str(tmp_path / "used")], "has no config.json"),
        "broken folder": (["--resume", str(tmp_path / "broken")], "cannot be read"),
        "odd folder": (["--resume", str(tmp_path / "odd")], "is damaged"),
    }


@pytest.mark.parametrize("name", [
    "missing file", "a folder as text", "empty file", "short file", "length beyond the file", "one token file", "two corpora",
    "unknown encoding", "unknown option of an encoding", "unreadable encoding", "encoding twice", "no encoding", "width and heads",
    "odd head for a rotation", "length of one", "no steps", "no seeds", "learning rate", "too little to evaluate", "not a number",
    "unknown option", "a folder in use", "a file as folder", "below a file", "nothing to resume", "broken folder", "odd folder",
])  # fmt: skip
def test_bad_input_is_one_clear_line_and_starts_nothing(name, options, tmp_path, monkeypatch, capsys):
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    given, message = bad(tmp_path)[name]
    status, out, err = run([*options, *given], capsys)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1 and err.startswith("eigenclock compare: ") and message in err, err
    assert list(place.iterdir()) == []


def test_unknown_commands_and_help(capsys):
    assert run(["compar"], capsys)[::2] == (2, "eigenclock compar: there is no command called 'compar'; did you mean 'compare'? "
                                            f"Known: {', '.join(sorted(COMMANDS))}.\n")  # fmt: skip
    status, out, _ = run(["--help"], capsys)
    assert status == 0 and all(name in out for name in COMMANDS)
    assert run([], capsys)[0] == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_its_options(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert not stop.value.code and "--json" in capsys.readouterr().out


def test_an_unexpected_error_keeps_its_traceback(options, monkeypatch):
    monkeypatch.setattr("eigenclock.lab.data.load", lambda settings: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(options)


def numbers(folder: Path) -> list[list[float]]:
    result = json.loads((folder / "result.json").read_text())
    return [run["bits"] + run["curve"] + [run["train_bits"]] for row in result["encodings"] for run in row["runs"]]


def stop_at_checkpoint(options: list[str], out: Path, how: signal.Signals) -> tuple[int, str]:
    """Starts the command in a process of its own and sends it a signal when the next checkpoint is there: status, stderr."""

    def state() -> list[int]:
        return [path.stat().st_mtime_ns for path in out.glob("checkpoints/*.pt")]

    before = state()
    process = subprocess.Popen([sys.executable, "-m", "eigenclock", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while state() == before and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(how)
    _, err = process.communicate(timeout=120)
    return process.returncode, err


def test_a_killed_and_interrupted_run_ends_with_the_numbers_of_an_unbroken_one(text, tmp_path, capsys):
    sizes = "--steps 300 --batch 4 --length 8 --layers 1 --width 16 --heads 2 --eval-tokens 256 --save-every 10 --threads 1"
    options = ["compare", "--text", str(text), *sizes.split(), "--encodings", "rope"]
    out = tmp_path / "run"
    status, _ = stop_at_checkpoint([*options, "--out", str(out)], out, signal.SIGKILL)
    assert status == -signal.SIGKILL
    status, err = stop_at_checkpoint(["compare", "--resume", str(out)], out, signal.SIGINT)
    assert status == 130
    assert err.count("\n") == 1 and err.startswith("eigenclock compare: interrupted; kept 0 of 1 runs and a checkpoint of the next"), err
    assert f"continue with: eigenclock compare --resume {out}" in err
    assert not (out / "result.json").exists()
    assert run(["compare", "--resume", str(out)], capsys)[0] == 0
    assert run([*options, "--out", str(tmp_path / "unbroken")], capsys)[0] == 0
    assert numbers(out) == numbers(tmp_path / "unbroken")


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """As on a full disk: no file may grow beyond ``size``."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_space_for_the_first_file_leaves_nothing_in_the_way(options, tmp_path, capsys):
    out = tmp_path / "run"
    with largest_file(100):
        status, _, err = run([*options, "--out", str(out)], capsys)
    assert status == 2 and err.count("\n") == 1 and "config.json" in err
    assert run([*options, "--steps", "1", "--out", str(out)], capsys)[0] == 0


@pytest.mark.parametrize("kept", [0, 2], ids=["no checkpoint fits", "the report does not fit"])
def test_no_space_left_is_one_line_and_loses_nothing(kept, options, tmp_path, capsys):
    out = tmp_path / "run"
    if kept:
        assert run([*options, "--out", str(out)], capsys)[0] == 0
        (out / "report.html").unlink()
    with largest_file(10_000):
        status, _, err = run(["compare", "--resume", str(out)] if kept else [*options, "--out", str(out)], capsys)
    assert status == 2 and err.count("\n") == 1
    assert re.match(r"eigenclock compare: cannot write \S+: the file would be larger than is allowed here", err), err
    assert f"kept {kept} of 2 runs" in err and f"continue with: eigenclock compare --resume {out}" in err
    assert not list(out.rglob("*.tmp")) and not (out / "report.html").exists()
    assert run(["compare", "--resume", str(out)], capsys)[0] == 0
    assert run([*options, "--out", str(tmp_path / "unbroken")], capsys)[0] == 0
    assert numbers(out) == numbers(tmp_path / "unbroken")
