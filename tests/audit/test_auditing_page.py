"""docs/auditing.md is true: its code runs, its commands exit as it says, its workflow works, its tables are those of the code."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from test_readme import ROOT, fences, read, run_blocks

from audit import twins, write_tables
from eigenclock.audit import RULES, SUBJECTS
from eigenclock.audit.rules.rule import Rule
from eigenclock.cli import main

NAME = "docs/auditing.md"
_COMMAND = re.compile(r"^eigenclock (audit .*?)\s+# exit status (\d)", re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """The folder in which the snippets ran, once, in the order of the page."""
    place, before, rules = tmp_path_factory.mktemp("page"), Path.cwd(), dict(RULES)
    for name, content in write_tables.files(read(NAME)).items():
        (place / name).write_text(content)
    os.chdir(place)
    try:
        run_blocks(read(NAME), NAME)
    finally:
        os.chdir(before)
        RULES.clear()
        RULES.update(rules)
    return place


def test_the_snippets_run(folder, capsys):
    assert len(fences(read(NAME), "python")) >= 10 and (folder / "tiny" / "config.json").is_file()


def commands() -> list[tuple[str, str]]:
    return [found for _, block in fences(read(NAME), "") for found in _COMMAND.findall(block)]


def test_every_command_says_how_it_exits():
    lines = [line for _, block in fences(read(NAME), "") for line in block.splitlines() if line.startswith("eigenclock")]
    assert len(lines) == len(commands()) >= 5


@pytest.mark.parametrize("line, status", commands())
def test_the_commands_exit_as_the_page_says(folder, monkeypatch, capsys, line, status):
    import shlex

    monkeypatch.chdir(folder)
    assert main(shlex.split(line)) == int(status), capsys.readouterr()


@pytest.mark.parametrize("name", ["report", "rules"])
def test_what_the_page_has_from_the_code_is_what_the_code_gives(name):
    assert write_tables.held(read(NAME), name) == write_tables.TABLES[name](), "run: scripts/write-audit-tables"


def test_the_confusion_table_has_a_row_for_each_pair_of_twins():
    rows = [line.split("|")[1].strip() for line in write_tables.held(read(NAME), "confusion").splitlines()[2:]]
    assert rows == [twin.fault for twin in twins.TWINS], "run: scripts/write-audit-tables"


@pytest.mark.slow
def test_the_confusion_table_is_what_the_twins_give():
    assert write_tables.held(read(NAME), "confusion") == write_tables.confusion_table(), "run: scripts/write-audit-tables"


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_a_rule_reports_nothing_but_what_the_table_says(step):
    """What the table reads from the code covers what the rules report of the twins."""
    for twin in twins.TWINS[::step]:
        for finding in twins.findings(twin.faulty()):
            rule = RULES[finding.rule]
            assert finding.severity in write_tables.severities(rule) and finding.source in write_tables.sources(rule), finding


def test_severities_and_sources_are_read_from_the_functions_a_check_reaches():
    def check(probe):
        return []

    assert write_tables.severities(RULES["cache"]) == ["fault"] and write_tables.severities(RULES["base"]) == ["advice"]
    assert write_tables.severities(Rule("none", "", check, check)) == [] and write_tables.sources(Rule("none", "", check, check)) == []


def test_every_kind_of_subject_is_explained():
    section = read(NAME).split("## Subjects")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(SUBJECTS)


def workflow() -> dict:
    match = re.search(r"<!-- workflow -->\n```yaml\n(.*?)^```", read(NAME), re.MULTILINE | re.DOTALL)
    assert match is not None
    return yaml.safe_load(match[1])


def test_the_workflow_leaves_the_report_in_the_summary_and_the_page_as_a_file(folder, tmp_path):
    """All its shell commands but the installation, on a faulty function: the step fails, and the summary is written all the same."""
    steps = workflow()["jobs"]["audit"]["steps"]
    script = next(step["run"] for step in steps if step.get("name") == "audit")
    kept = next(step["with"]["path"] for step in steps if "upload-artifact" in step.get("uses", ""))
    assert "rotary.py:rotate" in script and "if: always()" in read(NAME)
    shell = 'eigenclock() { "$PYTHON" -m eigenclock "$@"; }\n' + script.replace("rotary.py:rotate", "rotary.py:damped")
    summary = tmp_path / "summary.md"
    environment = os.environ | {"GITHUB_STEP_SUMMARY": str(summary), "PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(["bash", "-e", "-c", shell], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    text = summary.read_text()
    assert text.startswith("~~~\neigenclock audit: config.json") and "damped" in text and text.endswith("~~~\n"), done.stderr
    assert "<svg" in (folder / kept).read_text()


def test_the_hook_takes_the_files_of_a_commit(folder, monkeypatch, capsys):
    hook = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())[0]
    used = yaml.safe_load(next(block for _, block in fences(read(NAME), "yaml") if "repos:" in block))["repos"][0]["hooks"][0]
    assert used["id"] == hook["id"]
    chosen = [name for name in ("config.json", "a/config.json", "tsconfig.json", "a/config.json.bak") if re.search(hook["files"], name)]
    assert chosen == ["config.json", "a/config.json"]
    assert re.search(used["files"], "models/a/config.json") and not re.search(used["files"], "web/config.json")
    monkeypatch.chdir(folder)
    entry = hook["entry"].split()[1:]
    for arguments in (hook["args"], used["args"]):  # files come after the arguments
        assert main([*entry, *arguments, "config.json", "tiny/config.json"]) == 0
        assert capsys.readouterr().out.count("eigenclock audit: ") == 2


@pytest.mark.peer("pre_commit")
def test_the_hook_is_valid():
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "validate-manifest", ".pre-commit-hooks.yaml"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_links_and_prose():
    text = read(NAME)
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert links and all((ROOT / NAME).parent.joinpath(link).exists() for link in links)
    assert "\u2014" not in text and not re.search(r"\b(TODO|FIXME|XXX)\b", text)
