"""``eigenclock cite`` and ``ec.cite``: everything that is registered has a source or a reason, and the entries are BibTeX."""

import inspect
import json
import re
from pathlib import Path

import pytest

import eigenclock as ec
from eigenclock.encodings.cite import CLOCK_SOURCES, ENCODING_SOURCES, PAPERS, SCHEDULE_SOURCES, THEOREM, references
from eigenclock.errors import ConfigError, UnknownNameError
from eigenclock.registry import register

TABLES = ((ENCODING_SOURCES, ec.ENCODINGS), (SCHEDULE_SOURCES, ec.SCHEDULES), (CLOCK_SOURCES, ec.CLOCKS))
ARXIV = re.compile(r"\b(\d{4}\.\d{5})\b")
THEORY = Path(__file__).resolve().parents[2] / "src" / "eigenclock" / "theory" / "README.md"


def entries(text):
    """BibTeX read strictly: key -> fields. What is outside entries must be comments."""
    out, rest = {}, text
    while match := re.match(r"(?:%[^@\n]*\n|\s)*@misc\{([\w-]+),\n", rest):
        body, depth, end = rest[match.end() :], 1, 0
        while depth:
            depth += {"{": 1, "}": -1}.get(body[end], 0)
            end += 1
        fields = dict(re.findall(r"^  (\w+) *= \{(.*)\},$", body[: end - 1], re.MULTILINE))
        assert match[1] not in out and len(fields) == len(body[: end - 1].strip().splitlines())
        assert all(value.count("{") == value.count("}") for value in fields.values())
        out[match[1]], rest = fields, body[end:]
    assert re.fullmatch(r"(?:\s|%[^@\n]*(\n|$))*", rest), rest
    return out


def cited(spec):
    return [reference.paper.arxiv for reference in references(spec) if reference.paper]


@pytest.mark.parametrize(("table", "registry"), TABLES, ids=["encodings", "schedules", "clocks"])
def test_everything_registered_has_a_source_or_says_why_not(table, registry):
    assert [name for name in registry if name not in table] == []
    for name, source in table.items():
        assert bool(source.papers) != bool(source.note), name
        assert set(source.papers) <= set(PAPERS)
        assert {schedule for schedule, _ in source.schedules} <= set(SCHEDULE_SOURCES), name
    for name, source in ENCODING_SOURCES.items():
        if name in ec.ENCODINGS:
            accepted = inspect.signature(ec.ENCODINGS[name]).parameters
            assert {option for _, instead in source.schedules for option in instead} - set(accepted) <= {"freq"}, name


@pytest.mark.parametrize(("table", "registry"), TABLES, ids=["encodings", "schedules", "clocks"])
def test_the_source_of_a_docstring_is_the_one_that_is_cited(table, registry):
    checked = 0
    for name, thing in registry.items():
        source = (inspect.getdoc(thing) or "").partition("Source:")[2]
        if named := ARXIV.findall(source):
            assert named[0] in table[name].papers, name
            checked += 1
    assert checked >= len(registry) // 2 or registry is ec.CLOCKS


def test_papers_are_whole_and_used():
    keys = [paper.key for paper in (*PAPERS.values(), THEOREM)]
    assert len(set(keys)) == len(keys)
    for arxiv, paper in PAPERS.items():
        assert ARXIV.fullmatch(arxiv) and paper.arxiv == arxiv
        assert paper.year == 2000 + int(arxiv[:2]), arxiv  # an arXiv id begins with the year
        first = paper.authors.split(" and ")[0]
        assert re.fullmatch(r"[^,]+, [^,]+", first) and first.split(",")[0].lower() in paper.key, arxiv
        assert str(paper.year) in paper.key and len(paper.title) > 15
    used = {arxiv for table, _ in TABLES for source in table.values() for arxiv in source.papers}
    assert used == set(PAPERS)


def test_every_encoding_is_cited_with_the_theorem(any_spec, run):
    status, out, err = run("cite", any_spec)
    assert (status, err) == (0, "")
    found = entries(out)
    assert next(iter(found)) == THEOREM.key
    for fields in found.values():
        assert {"title", "author", "year"} <= set(fields)
        assert ("eprint" in fields) == (fields["author"] != THEOREM.authors)
    name = re.match(r"\w+", any_spec)[0]
    assert {PAPERS[arxiv].key for arxiv in ENCODING_SOURCES[name].papers} <= set(found)
    data = json.loads(run("cite", any_spec, "--json")[1])
    assert [entry["key"] for entry in data["references"] if "key" in entry] == list(found)
    assert all(entry["bibtex"] in out for entry in data["references"] if "key" in entry)


def test_the_theorem_is_the_one_of_the_derivation():
    sources = THEORY.read_text(encoding="utf-8").partition("## Sources")[2]
    statement = sources[sources.index("The statement in this generality") :]
    surname, given = THEOREM.authors.split(", ")
    assert f"{given[0]}. {surname}" in statement and str(THEOREM.year) in statement and dict(THEOREM.other)["howpublished"] in statement


def test_schedules_and_clocks_are_cited_as_they_are_used():
    assert cited("rope") == ["", "2104.09864"]
    assert "schedule geometric" in ec.cite("rope") and "schedule geometric" not in ec.cite("rope(freq=(1.0, 0.5))")
    assert "2410.06205" in cited("rope(freq=proportional(0.25))") and "geometric" not in ec.cite("rope(freq=proportional(0.25))")
    assert "schedule alibi" in ec.cite("alibi") and "schedule alibi" not in ec.cite("alibi(slopes=0.5)")
    assert "schedule retnet" in ec.cite("damped_rope") and "schedule retnet" not in ec.cite("damped_rope(half_life=3)")
    assert "schedule half_lives: no paper" in ec.cite("damped_rope(half_life=(3, 30))")
    assert "clock index: no paper" in ec.cite("rope") and "clock timestamps: no paper" in ec.cite("rope(clock=timestamps('ns')) * alibi")
    assert "clock index" not in ec.cite("rope(clock=timestamps('ns')) * alibi")
    assert "2502.02562" in cited("axial_rope(clock=axes(names=('x', 'y')))")


def test_each_paper_is_cited_once_with_all_it_stands_for():
    text = ec.cite("two_sided(rope * alibi)")
    assert text.count("press2021alibi") == 1
    assert "% encoding two_sided, encoding alibi, schedule alibi\n@misc{press2021alibi" in text


def test_an_encoding_its_text_its_data_and_its_file_are_cited_alike(tmp_path):
    enc = ec.rope(32, freq=ec.geometric(500.0)) + ec.damped_rope(32, half_life=(3.0, 90.0))
    path = tmp_path / "enc.json"
    path.write_text(json.dumps(enc.spec))
    assert ec.cite(enc) == ec.cite(str(enc)) == ec.cite(enc.spec) == ec.cite(path) == ec.cite(str(path))


def test_what_comes_from_outside_says_so():
    def mine(head_dim: int, *, heads: int = 1, clock: ec.Index | None = None) -> ec.Encoding:
        return ec.nope(head_dim, heads=heads, clock=clock)

    register(ec.ENCODINGS, "mine", mine)
    try:
        assert "% encoding mine: no paper: not in the table of sources" in ec.cite("mine")
    finally:
        del ec.ENCODINGS["mine"]


def test_entries_go_to_a_file(run, tmp_path):
    status, out, _ = run("cite", "rope", "--out", str(tmp_path / "refs.bib"))
    assert (status, out) == (0, "") and (tmp_path / "refs.bib").read_text() == ec.cite("rope") + "\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["roep"], "did you mean 'rope'"),
        (["rope(thta=3)"], "did you mean 'theta'"),
        (["rope +"], "rope +"),
        (["3"], "expected an encoding"),
        (["rope(freq=geometrc(3))"], "did you mean 'geometric'"),
        (["rope(clock=indx)"], "did you mean 'index'"),
        (["two_sided(3)"], "expected an encoding"),
        (["nowhere.json"], "cannot be read"),
        ([], "see eigenclock cite --help"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_clear_line(words, message, run):
    status, out, err = run("cite", *words)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1 and err.startswith("eigenclock cite: ") and message in err, err


def test_errors_are_those_of_specs():
    with pytest.raises(UnknownNameError, match="rope"):
        ec.cite("roep")
    with pytest.raises(ConfigError, match="expected an encoding"):
        ec.cite({"op": "+", "parts": [3]})


def test_the_reader_of_this_file_can_fail():
    good = ec.cite("rope")
    assert len(entries(good)) == 2
    for broken in (good.replace("},", "}", 1), good.replace("@misc{", "@misc", 1), good + "\nstray"):
        with pytest.raises((AssertionError, IndexError)):
            entries(broken)
