"""The tutorial is true: its python runs in order, its commands exist, its links lead somewhere, and the numbers it prints are those."""

import contextlib
import io
import re

import pytest
from test_readme import ROOT, commands, fences, make_targets, problem_with, read, run_blocks

NAME = "docs/tutorial.md"


@pytest.fixture(scope="module")
def printed() -> str:
    """What the snippets print, run once in the order of the page."""
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard):
        run_blocks(read(NAME), NAME)
    return heard.getvalue()


def test_snippets_run(printed):
    assert len(fences(read(NAME), "python")) >= 15 and printed


def test_every_section_shows_its_point_in_code():
    sections = re.split(r"^## ", read(NAME), flags=re.MULTILINE)[1:]
    assert [section.split(".")[0] for section in sections] == [str(n) for n in range(1, 9)]
    assert [s.split("\n")[0] for s in sections if not any("assert" in block for _, block in fences(s, "python"))] == []


def test_output_that_is_quoted_is_what_is_printed(printed):
    blocks = [block for _, block in fences(read(NAME), "python")]
    quoted = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("# ") and "[" not in line]
    assert len(quoted) >= 8
    # Residuals and random numbers differ in their digits; what is said does not.
    for line in quoted:
        pattern = ".*".join(re.escape(part) for part in re.split(r"\d\.\de-\d\d|\.\.\.", line))
        assert re.search(pattern, printed), line


def test_it_is_quarter_of_an_hour():
    prose = re.sub(r"^```.*?^```", "", read(NAME), flags=re.MULTILINE | re.DOTALL)
    code = sum(len([line for line in block.splitlines() if line.strip()]) for _, block in fences(read(NAME), "python"))
    minutes = len(prose.split()) / 200 + code / 40  # a stranger reads 200 words, or 40 lines of code, in a minute
    assert 8 < minutes < 16, minutes


def test_commands_exist():
    found = commands(read(NAME))
    assert len(found) >= 2
    assert [(c, p) for c in found if (p := problem_with(c, make_targets()))] == []


def test_links_and_prose():
    text = read(NAME)
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links and all((ROOT / NAME).parent.joinpath(link).exists() for link in links)
    assert "\u2014" not in text and not re.search(r"\b(TODO|FIXME|XXX)\b", text)
