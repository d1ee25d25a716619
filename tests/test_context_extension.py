"""The page on longer contexts is true: its python runs, its table of methods is the registry, its numbers are whole."""

import inspect
import re

import pytest
from test_readme import ROOT, fences, read, run_blocks

from eigenclock.integrations.huggingface import METHODS, extend
from eigenclock.integrations.huggingface.answers import QUESTIONS

NAME = "docs/context_extension.md"


@pytest.mark.peer("transformers")
def test_snippets_run():
    run_blocks(read(NAME), NAME)


def test_every_method_is_explained():
    rows = re.findall(r"^\| `(\w+)`", read(NAME), re.MULTILINE)
    assert rows[: len(METHODS)] == list(METHODS)


def test_the_numbers_are_there_for_three_texts():
    tables = re.findall(r"^\*\*Loss in nats per token: (\w+)\*\*\n\n((?:\|.*\n)+)", read(NAME), re.MULTILINE)
    assert len(tables) == 3
    for text, table in tables:
        rows = [line.strip("|\n ").split("|") for line in table.splitlines()[2:]]
        more = ["ntk", "llama3", "yarn"] if text == "english" else []
        assert [row[0].strip() for row in rows] == ["plain", "linear", *more, "yarn 1.069", "damped", "recency"]
        assert all(0 < float(x) < 10 for row in rows for x in row[1:]) and {len(row) for row in rows} == {7}


def test_the_command_exists():
    from test_readme import commands, make_targets, problem_with

    found = commands(read(NAME))
    assert found and not [problem for command in found if (problem := problem_with(command, make_targets()))]


def test_files_it_names_exist():
    assert all((ROOT / name).exists() for name in re.findall(r"`((?:examples|docs)/[\w./]+)`", read(NAME)))
    assert fences(read(NAME), "python")


def test_the_default_is_what_answers_right_and_has_a_low_loss():
    said = dict(re.findall(r"^\| ([\w. ]+) \| (\d+) \| [^|]+ \|$", read(NAME), re.MULTILINE))
    default = inspect.signature(extend).parameters["method"].default
    assert {"plain", "linear", "yarn 1.069"} < said.keys() and said[default] == said["plain"] == str(len(QUESTIONS))
    assert int(said["yarn 1.069"]) < len(QUESTIONS)
