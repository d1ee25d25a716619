"""What comes out of an audit: JSON by its schema, several subjects, a page that cannot be written, and nothing run or fetched unasked."""

import importlib
import json
import math
import os
import pickle
import re
import socket
import subprocess
import sys
from typing import Any

import pytest
import torch
from test_readme import ROOT, read

import eigenclock as ec
from eigenclock.audit import SEVERITIES, SUBJECTS, Block, Finding, Measured, Report
from eigenclock.audit.report import UNITS, VERDICTS, page

SCHEMA = json.loads(read("docs/audit_report.schema.json"))
REPORT = SCHEMA["$defs"]["report"]
SIZES = {"head_dim": 8, "heads": 2, "length": 64}
LLAMA = {
    "model_type": "llama", "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 8, "intermediate_size": 16,
    "rope_theta": 1e4, "max_position_embeddings": 64,
}  # fmt: skip


def angles(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    n = x.shape[-1] // 2
    return positions[:, None].double() * 100.0 ** (-torch.arange(n).double() / n)


def turn(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    c, s = (f(angles(x, positions)).to(x.dtype) for f in (torch.cos, torch.sin))
    return torch.cat([a * c - b * s, a * s + b * c], -1)


def growing(q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    factor = torch.exp(0.02 * positions)[:, None].to(q.dtype)
    return turn(q, positions) * factor, turn(k, positions) * factor


class Rotary(torch.nn.Module):
    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return turn(x, positions)


def on_cos_and_sin(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    q, k = (torch.cat([a * cos - b * sin, a * sin + b * cos], -1) for a, b in (x.chunk(2, -1) for x in (q, k)))
    return q, k


def tables(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a = angles(torch.zeros(8), positions)
    return a.cos(), a.sin()


SUBJECTS_HERE: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "encoding": (ec.damped_rope(8, heads=2, half_life=16), "encoding", {}),
    "outside": (ec.t5_bias(8, heads=2), "encoding", {}),
    "spec": ("rope(theta=100) * alibi", "spec", {"head_dim": 8, "heads": 2}),
    "config": (LLAMA, "config", {}),
    "no relative encoding": ({"model_type": "bert", "hidden_size": 16, "num_attention_heads": 2}, "config", {}),
    "refused config": ({**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": -1.0}}, "config", {}),
    "table": ((on_cos_and_sin, tables), "table", {}),
    "module": (Rotary(), "module", {}),
    "callable": (turn, "callable", {}),
    "faulty": (growing, "callable", {"dtype": "float16"}),
}  # fmt: skip


# --- the schema --------------------------------------------------------------------------------------------------------------------


def complaints(data: Any) -> list[str]:
    from jsonschema import Draft202012Validator

    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(SCHEMA).iter_errors(data)]


@pytest.mark.peer("jsonschema")
@pytest.mark.parametrize("name", SUBJECTS_HERE)
def test_reports_keep_to_the_schema(name):
    subject, kind, options = SUBJECTS_HERE[name]
    report = ec.audit(subject, **({"length": 64} | options))
    assert report.kind == kind
    assert complaints(json.loads(json.dumps(report.to_dict(), allow_nan=False))) == []


@pytest.mark.peer("jsonschema")
def test_the_schema_is_one_and_refuses_what_is_no_report():
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(SCHEMA)
    block = Block("S", 1, 2, 0, Measured(0.5, float("inf")), Measured(float("nan"), 1e-9))
    finding = Finding("r", "fault", "x", float("inf"), "half", {"at": (1, 2.0), "layer": "full"})
    good = Report("m", "spec", 2, "float64", (finding,), ("r",), {"s": "it has none"}, blocks=(block,)).to_dict()
    assert complaints(good) == complaints([good, good]) == []
    spoilt = (
        {"more": 1},
        {"schema": 1},
        {"kind": "guess"},
        {"ok": "yes"},
        {"verdict": "FINE"},
        {"unjudged": [""]},
        {"length": "4096"},
        {"findings": [{"rule": "r"}]},
        {"units": {}},
    )
    assert [bool(complaints(good | one)) for one in spoilt] == [True] * len(spoilt)
    assert complaints({key: value for key, value in good.items() if key != "notes"})
    assert complaints(good | {"blocks": [good["blocks"][0] | {"rate": [0.5]}]})


def test_the_schema_names_what_reports_have():
    """Without a validator too: every key is described, and every word that a report can hold is allowed."""
    finding, block = Finding("r", "fault", "x"), Block("R", 1, 1, 0, Measured(0.0, 0.0), Measured(1.0, 0.0))
    data = Report("m", "spec", 2, "float64", (finding,), blocks=(block,)).to_dict()
    for name, value in {"report": data, "finding": data["findings"][0], "block": data["blocks"][0], "units": data["units"]}.items():
        part = SCHEMA["$defs"][name]
        assert set(value) == set(part["properties"]) == set(part["required"]) and part["additionalProperties"] is False, name
    assert REPORT["properties"]["verdict"]["enum"] == [VERDICTS[ok] for ok in (True, False, None)]
    assert REPORT["properties"]["kind"]["enum"] == list(SUBJECTS) and REPORT["properties"]["schema"]["const"] == data["schema"]
    assert SCHEMA["$defs"]["finding"]["properties"]["severity"]["enum"] == list(SEVERITIES)
    assert {key: part["const"] for key, part in SCHEMA["$defs"]["units"]["properties"].items()} == UNITS


# --- several subjects --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "json.py"  # a name that python knows already
    path.write_text(
        "import sys\nimport beside\nprint('printed when it is loaded')\n"
        "def loud(x, positions):\n    print('printed when it is called')\n    return beside.turn(x, positions)\n"
        "def leaves(x, positions):\n    sys.exit(0)\n"
        "def damped(q, k, positions):\n    factor = (0.9 ** positions)[:, None]\n"
        "    return beside.turn(q, positions) * factor, beside.turn(k, positions) * factor\n"
    )
    (tmp_path / "beside.py").write_text("from audit.test_outputs import turn\n")
    yield path
    sys.modules.pop("beside", None)


def test_several_subjects_come_one_after_the_other_and_the_worst_decides(run, code):
    sound, bad, faulty = f"{code}:loud", "roep", f"{code}:damped"
    status, out, err = run(sound, faulty, "--length", 64, "--head-dim", 8)
    assert status == 1 and [line.split()[2] for line in out.splitlines() if line.startswith("eigenclock")] == [sound, faulty]
    status, out, err = run(bad, sound, "--length", 64, "--head-dim", 8)
    assert status == 2 and "OK" in out and "eigenclock audit: roep: there is no encoding called 'roep'" in err
    assert run(bad, faulty, "--length", 64, "--head-dim", 8)[0] == run(faulty, bad, "--length", 64, "--head-dim", 8)[0] == 1
    assert run()[0] == 2


def test_json_is_an_object_for_one_subject_and_a_list_for_several(run, code):
    words = (f"{code}:loud", "rope(theta=100)", "--length", 64, "--head-dim", 8, "--json")
    status, out, err = run(*words)
    assert status == 0 and [one["subject"] for one in json.loads(out)] == [words[0], "rope(head_dim=8, heads=1, theta=100)"]
    assert "printed when it is loaded" in err and "printed when it is called" in err and "printed" not in out
    assert json.loads(run(words[0], *words[2:])[1])["kind"] == "callable"
    assert (json.loads(run("roep", *words[1:])[1])[0]["subject"], run("roep", *words[1:])[0]) == ("rope(head_dim=8, heads=1, theta=100)", 2)
    assert run("roep", "roop", "--json")[1] == "[]\n"


def test_code_of_a_file_takes_no_place_of_another_module_and_leaves_the_path_alone(run, code):
    before, loaded = list(sys.path), sys.modules["json"]
    assert run(f"{code}:loud", "--length", 64, "--head-dim", 8)[0] == 0
    assert sys.path == before and sys.modules["json"] is loaded


def test_one_page_holds_all_reports():
    some = [ec.audit(SUBJECTS_HERE[name][0], length=64) for name in ("callable", "outside")]
    whole = page(some)
    assert whole.count("<h1>") == 1 and whole.count("<svg") == 2 and all(f"eigenclock audit: {one.subject}" in whole for one in some)
    assert "Audit: turn" in page(some[:1]) and page(some[:1]) == some[0].html()


def test_pictures_show_the_law_and_neither_rounding_nor_what_is_not_finite():
    def kept(x, positions):
        return x * 1.0

    def one_origin(q, k, positions):
        factor = torch.exp(0.05 * positions)[:, None].to(q.dtype)
        return turn(q, positions) / factor, turn(k, positions) * factor

    def nothing(x, positions):
        return x * math.nan

    def spread(y):
        return max(y) - min(y)

    lines = {f.__name__: ec.audit(f, head_dim=8, length=4096).curves for f in (kept, turn, growing, one_origin)}
    assert all(spread(y) < 1e-4 for _, y in lines["kept"].values())
    assert all(spread(y) < 1e-4 for name, (_, y) in lines["turn"].items() if name.startswith("lag"))
    assert spread(lines["turn"]["score against the lag"][1]) > 1
    assert spread(lines["growing"]["lag 1"][1]) > 1
    x, y = lines["one_origin"]["lag 1"]
    assert x[-1] < 2000 and math.isfinite(y[-1])  # from there on float32 has no such scores
    dark = ec.audit(nothing, head_dim=8, length=64)
    assert dark.curves == {} and "<svg" not in dark.html()


def test_a_long_name_fits_into_a_heading():
    report = Report("x" * 3000, "spec", 2, "float64", curves={"lag 1": ((1.0, 2.0), (1.0, 1.0))})
    assert len(str(report)) < 400 and max(map(len, re.findall(r"<h1>(.*?)</h1>", report.html()))) < 250


# --- what goes wrong ---------------------------------------------------------------------------------------------------------------


def test_a_page_that_cannot_be_written_costs_no_report(run, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    status, out, err = run("rope", "--head-dim", 8, "--length", 64, "--html", tmp_path / "file" / "page.html")
    assert status == 2 and "rules ran" in out and err.startswith("eigenclock audit: cannot write") and len(err.splitlines()) == 1
    report = importlib.import_module("eigenclock.audit.report")
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    status, out, err = run("rope", "--head-dim", 8, "--length", 64, "--json", "--html", tmp_path / "page.html")
    assert status == 2 and json.loads(out)["ok"] and "jinja2 and matplotlib" in err and not (tmp_path / "page.html").exists()


def test_a_page_that_breaks_off_leaves_the_old_one(run, tmp_path, monkeypatch):
    old = tmp_path / "page.html"
    old.write_text("old")

    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module("eigenclock.present.files").os, "replace", interrupted)
    status, out, _ = run("rope", "--head-dim", 8, "--length", 64, "--html", old)
    assert status == 130 and "rules ran" in out and [path.name for path in tmp_path.iterdir()] == ["page.html"] and old.read_text() == "old"


def test_a_list_that_is_interrupted_is_still_json(run, monkeypatch):
    command = importlib.import_module("eigenclock.cli.audit")
    once = command.audit

    def audit(subject, **options):
        if subject == "nope":
            raise KeyboardInterrupt
        return once(subject, **options)

    monkeypatch.setattr(command, "audit", audit)
    status, out, err = run("rope", "nope", "alibi", "--head-dim", 8, "--length", 64, "--json")
    assert status == 130 and len(json.loads(out)) == 1 and "interrupted" in err


def test_output_that_nobody_reads_to_its_end_is_no_traceback():
    words = [sys.executable, "-m", "eigenclock", "audit", "nope", "nope", "--head-dim", "8", "--length", "64", "--json"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT / "src")})
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    assert (child.stderr.read(), child.wait()) == (b"", 141)
    child.stderr.close()


def test_an_error_of_ours_is_neither_findings_nor_the_end_of_the_others(run, monkeypatch):
    command = importlib.import_module("eigenclock.cli.audit")
    once = command.audit
    monkeypatch.setattr(command, "audit", lambda subject, **options: once(subject, **options) if subject == "rope" else 1 / 0)
    status, out, err = run("nope", "rope", "--head-dim", 8, "--length", 64)
    assert status == 2 and "OK" in out and "broke off with ZeroDivisionError" in err


def test_code_that_leaves_python_is_bad_input(run, code, tmp_path):
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)\n")
    for word in (f"{code}:leaves", f"{tmp_path / 'leaves.py'}:f"):
        status, out, err = run(word, "--length", 64, "--head-dim", 8)
        assert (status, out) == (2, "") and "SystemExit" in err


# --- what is never done ------------------------------------------------------------------------------------------------------------

TRAP = "from pathlib import Path\nPath(__file__).with_name('run').write_text('run')\nclass Config: pass\nclass Model: pass\n"


class Trap:
    """What a pickle can do."""

    def __init__(self, place: str):
        self.place = place

    def __reduce__(self):
        return open, (self.place, "w")


@pytest.fixture
def sealed(monkeypatch):
    """No socket can be opened; what tries is written down."""
    tried = []

    def refuse(*given, **options):
        tried.append(given)
        raise OSError("no network in this test")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    return tried


@pytest.mark.parametrize("kind", ["llama", "a_model_of_theirs"])
def test_nothing_is_fetched_and_no_code_of_a_config_is_run(run, tmp_path, monkeypatch, sealed, kind):
    named = {name: f"modeling_theirs.{part}" for name, part in {"AutoConfig": "Config", "AutoModel": "Model"}.items()}
    config = LLAMA | {"model_type": kind, "auto_map": named, "trust_remote_code": True, "_name_or_path": "their/model"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "modeling_theirs.py").write_text(TRAP)
    with open(tmp_path / "pytorch_model.bin", "wb") as file:
        pickle.dump(Trap(str(tmp_path / "run")), file)
    monkeypatch.chdir(tmp_path)
    for place in (".", "config.json", tmp_path):
        assert run(place, "--length", 64)[0] == (0 if kind == "llama" else 2)  # how theirs turns is not known
    assert run("pytorch_model.bin")[0] == 2 and run("their/model")[0] == 2
    assert sealed == [] and not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "last.ckpt", "x.pkl"])
def test_pickles_are_refused_by_name(run, name):
    status, out, err = run(name)
    assert (status, out) == (2, "") and "pickle" in err and "safetensors" in err


@pytest.mark.parametrize("word, said", [("", "empty"), ("rotary.py", "rotary.py:name"), ("there.gguf", "not downloaded")])
def test_words_that_name_nothing_say_what_to_give(run, word, said):
    status, out, err = run(word)
    assert (status, out) == (2, "") and said in err and len(err.splitlines()) == 1


def test_the_table_of_a_terminal_holds_every_finding(run, code):
    status, out, _ = run(f"{code}:damped", "--length", 64, "--head-dim", 8, "--table")
    _, data, _ = run(f"{code}:damped", "--length", 64, "--head-dim", 8, "--json")
    text = " ".join(out.split("what, where and what to do")[1].split())
    found = json.loads(data)["findings"]
    assert status == 1 and found and all(f["rule"] in text and f["severity"] in text for f in found)


def test_the_description_of_the_schema_stands_beside_the_page():
    assert (ROOT / "docs" / "audit_report.schema.json").is_file() and "audit_report.schema.json" in read("docs/auditing.md")
