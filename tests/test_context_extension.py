"""The page on longer contexts is true: its python runs, its table of methods is the registry, its numbers are whole."""

import re

import pytest
from test_readme import ROOT, fences, read, run_blocks

from eigenclock.integrations.huggingface import METHODS

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
    for _, table in tables:
        rows = [line.strip("|\n ").split("|") for line in table.splitlines()[2:]]
        assert [row[0].strip() for row in rows] == ["plain", "linear", "yarn", "damped", "recency"]
        assert all(0 < float(x) < 10 for row in rows for x in row[1:]) and {len(row) for row in rows} == {7}


def test_the_command_exists():
    from test_readme import commands, make_targets, problem_with

    found = commands(read(NAME))
    assert found and not [problem for command in found if (problem := problem_with(command, make_targets()))]


def test_files_it_names_exist():
    assert all((ROOT / name).exists() for name in re.findall(r"`((?:examples|docs)/[\w./]+)`", read(NAME)))
    assert fences(read(NAME), "python")
