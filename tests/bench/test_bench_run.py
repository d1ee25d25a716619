"""Choosing and running cases, and the command: verdicts, exit status, JSON, partial results."""

import gc
import json
import os

import pytest
import torch

from eigenclock.bench import BENCHES
from eigenclock.bench import run as bench_run
from eigenclock.bench.case import Case, Work
from eigenclock.bench.run import Settings, chosen, run
from eigenclock.cli import main
from eigenclock.errors import UnknownNameError


def fake(name, ours, other=1.0, target=1.1, measure="seconds", long=False):
    """A case that reports numbers: one for each call, or the next of a list."""

    def call(numbers):
        if not isinstance(numbers, list):
            return lambda: numbers
        rest = iter(numbers)

        def step():
            value = next(rest)
            if isinstance(value, BaseException):
                raise value
            return value

        return step

    return Case(name, "a fake", "ours", "the other", (1,), "fp32", target, lambda: Work(call(ours), call(other)), measure, long)


@pytest.fixture(autouse=True)
def _no_collecting(monkeypatch):
    """A full collection of what all tests have loaded takes longer than a fake case."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


@pytest.fixture
def fakes(monkeypatch):
    """Registers families of fake cases in place of the real ones."""

    def put(*cases):
        families = {}
        for case in cases:
            families.setdefault(case.name.split("/")[0], []).append(case)
        monkeypatch.setattr(bench_run, "BENCHES", {name: lambda size, found=tuple(found): found for name, found in families.items()})

    return put


def names(*words, **settings):
    return [case.name for case in chosen(words, Settings(**settings))]


def test_every_name_reaches_its_cases():
    everything = names()
    assert {name.split("/")[0] for name in everything} == set(BENCHES)
    assert names("damped") == [name for name in everything if name.startswith("damped/")]
    assert names("damped/4096/fp32") == [f"damped/4096/fp32/{way}" for way in ("forward", "train", "train-rates")]
    assert names("import", "bias/fp32/forward/plain") == ["bias/fp32/forward/plain", "import"]
    assert all("bf16" in name for name in names("*/bf16/*")) and len(names("*/bf16/*")) >= 16


def test_quick_leaves_the_long_cases_out_unless_named_in_full():
    assert not any("16384" in name for name in names(quick=True))
    assert names("damped/16384/fp32/train", quick=True) == ["damped/16384/fp32/train"]


@pytest.mark.parametrize("word", ["rotaton", "damped/17", "", "damped/4096/fp32/forward/x"])
def test_unknown_names_are_refused(word):
    with pytest.raises(UnknownNameError, match="--list"):
        names(word)


def test_no_target_applies_at_another_size():
    assert all(case.target is None for case in chosen([], Settings(size=0.5)))
    assert all(case.target is not None for case in chosen([], Settings()))


def test_runs_and_verdicts(capsys):
    slow_then_fast = [2.0] * 4 + [1.0] * 4  # 2 runs of 3 repeats with one call before each
    cases = [fake("a/met", 1.0), fake("a/some", slow_then_fast), fake("a/missed", 2.0), fake("a/none", 2.0, target=None)]
    said = []
    report = run(cases, Settings(repeats=3, runs=2, threads=1), said.append)
    assert [o.verdict for o in report.outcomes] == ["met", "missed in some", "missed", "no target"]
    assert [o.ratios for o in report.outcomes] == [[1.0, 1.0], [2.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
    assert not report.ok and all(len(r.ours) == 3 for o in report.outcomes for r in o.runs)
    assert [line for line in said if not line.startswith(" ")] == ["1/4 a/met", "2/4 a/some", "3/4 a/missed", "4/4 a/none"]
    assert sum("run 2/2" in line for line in said) == 4
    assert run(cases[:2], Settings(repeats=3, runs=1, threads=1), said.append).outcomes[0].verdict == "met"


def test_bytes_are_measured_once_in_each_run():
    numbers = [3 << 20, 2 << 20]
    report = run([fake("m/x", list(numbers), 2 << 20, measure="bytes")], Settings(repeats=9, runs=2, threads=1), print)
    assert report.outcomes[0].ratios == [1.5, 1.0] and [len(r.ours) for r in report.outcomes[0].runs] == [1, 1]


def test_a_case_that_fails_is_reported_and_the_rest_goes_on():
    report = run([fake("a/x", [RuntimeError("out of\nmemory")]), fake("a/y", 1.0)], Settings(repeats=1, runs=1, threads=1), print)
    assert [o.verdict for o in report.outcomes] == ["failed", "met"] and not report.ok
    assert report.outcomes[0].error == "RuntimeError: out of memory"


def test_threads_are_set_for_the_run_only():
    seen = []
    work = Work(lambda: seen.append(torch.get_num_threads()) or 1.0, lambda: 1.0)
    case = Case("a/x", "", "", "", (), "fp32", None, lambda: work, "seconds")
    before = torch.get_num_threads()
    run([case], Settings(repeats=1, runs=1, threads=before + 1), print)
    assert set(seen) == {before + 1} and torch.get_num_threads() == before


def test_the_table_shows_every_ratio_target_verdict_and_load(fakes, capsys):
    fakes(fake("a/some", [2.0] * 2 + [1.0] * 4, target=1.25))
    assert main(["bench", "--runs", "3", "--repeats", "1"]) == 0
    out = capsys.readouterr().out
    for word in ("a/some", "2.00 1.00 1.00", "<= 1.25", "missed in some", "Shortened", f"{os.getloadavg()[0]:.1f}"[:1]):
        assert word in out


@pytest.mark.parametrize(("ours", "status"), [(1.0, 0), (2.0, 1)])
def test_exit_status_says_whether_a_target_is_missed(ours, status, fakes, capsys):
    fakes(fake("a/x", ours))
    assert main(["bench", "--repeats", "2", "--runs", "2", "--json"]) == status
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] is (status == 0) and result["cases"][0]["ratios"] == [ours, ours]
    assert result["protocol"]["repeats"] == 2 and result["protocol"]["sound"] is False and result["machine"]["torch"] == torch.__version__


def test_ctrl_c_keeps_what_was_measured(fakes, tmp_path, capsys):
    fakes(fake("a/x", 1.0), fake("a/y", [1.0, 1.0, KeyboardInterrupt()]), fake("a/z", [KeyboardInterrupt()]))
    out = tmp_path / "deep" / "bench.json"
    assert main(["bench", "a/x", "a/z", "--repeats", "1", "--runs", "2", "--out", str(out)]) == 130
    heard = capsys.readouterr()
    assert "a/x" in heard.out and "a/z" not in heard.out and "interrupted after 1 of 2" in heard.err
    saved = json.loads(out.read_text())
    assert saved["interrupted"] and [case["name"] for case in saved["cases"]] == ["a/x"]
    assert main(["bench", "a/y", "--repeats", "1", "--runs", "2", "--json"]) == 130
    saved = json.loads(capsys.readouterr().out)
    assert saved["cases"][0]["ratios"] == [1.0]  # the run that was done stays


def test_list_measures_nothing(fakes, capsys):
    fakes(fake("a/x", [RuntimeError("measured")]), fake("b/y", [RuntimeError("measured")], target=None))
    assert main(["bench", "--list"]) == 0
    out = capsys.readouterr().out
    assert "a/x" in out and "<= 1.1" in out and "b/y" in out
    assert main(["bench", "b", "--list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["name"] == "b/y" and row["target"] is None and row["shape"] == [1]


def test_real_cases_from_the_command_line(capsys, tmp_path):
    out = tmp_path / "bench.json"
    words = ["rotation/half/fp32", "damped/4096/fp32/forward", "--size", "0.01", "--quick", "--repeats", "1", "--threads", "1"]
    assert main(["bench", *words, "--json", "--out", str(out)]) == 0
    heard = capsys.readouterr()
    result = json.loads(heard.out)
    assert result == json.loads(out.read_text())
    assert len(result["cases"]) == 3 and all(c["verdict"] == "no target" and c["ratios"][0] > 0 for c in result["cases"])
    assert heard.err.splitlines()[0] == "1/3 rotation/half/fp32/copy"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["rotaton"], "did you mean 'rotation'"),
        (["--repeats", "0"], "--repeats is 0"),
        (["--runs", "0"], "--runs is 0"),
        (["--threads", "0"], "--threads is 0"),
        (["--size", "2"], "--size is 2"),
        (["--size", "0"], "--size is 0"),
        (["--repeets", "3"], "--repeets"),
        (["import", "--out", "{folder}"], "cannot write"),
    ],
)
def test_bad_input_is_one_line(words, says, tmp_path, capsys):
    assert main(["bench", *(word.format(folder=tmp_path) for word in words)]) == 2
    err = capsys.readouterr().err
    assert says in err and len(err.splitlines()) == 1
