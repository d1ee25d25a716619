"""The page on learned clocks is true: its python runs in order, its links lead somewhere, and its numbers are those of the example."""

import re

import pytest
from test_examples import load
from test_readme import ROOT, fences, read, run_blocks

NAME = "docs/learned_clocks.md"


def test_snippets_run(capsys):
    run_blocks(read(NAME), NAME)
    printed = capsys.readouterr().out
    assert "half_turn" in printed and "either sign" in printed


def test_every_section_shows_its_point_in_code():
    sections = re.split(r"^## ", read(NAME), flags=re.MULTILINE)[1:]
    assert [section.split(".")[0] for section in sections] == [str(n) for n in range(1, 7)]
    assert [s.split("\n")[0] for s in sections if not any("assert" in block for _, block in fences(s, "python"))] == []


def test_the_table_is_that_of_the_example():
    """The sizes of both models, the lengths and the steps; what they reach takes minutes, and is printed by the script."""
    parity, text = load("parity"), " ".join(read(NAME).split())
    for name, encoding in parity.encodings(0).items():
        size = sum(p.numel() for p in parity.OneLayer(encoding, 0).parameters())
        assert re.search(rf"`{name}` \({size}(?: parameters)?\)", text), (name, size)
    assert f"| | {' | '.join(map(str, parity.LENGTHS))} |" in text
    assert f"1 to {parity.TRAINED} bits" in text and f"last {parity.LAST} of so many bits" in text


def test_it_is_one_page():
    assert 400 < len(re.sub(r"^```.*?^```", "", read(NAME), flags=re.MULTILINE | re.DOTALL).split()) < 1300


@pytest.mark.parametrize("pattern", ["\u2014", r"\b(TODO|FIXME|XXX)\b"])
def test_prose_is_plain(pattern):
    assert not re.search(pattern, read(NAME))


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)]+)\)", read(NAME))
    assert links and all((ROOT / NAME).parent.joinpath(link).exists() for link in links)
