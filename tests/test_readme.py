"""The documents are true: their python runs, their commands exist, and the tree in the README is the tree."""

import contextlib
import io
import re
from pathlib import Path

import pytest

import eigenclock as ec
from eigenclock import cli

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "src/eigenclock/theory/README.md", "docs/tutorial.md"]
REGISTRIES = (ec.GENERATORS, ec.SCHEDULES, ec.CLOCKS, ec.ENCODINGS, ec.BACKENDS)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def fences(text: str, language: str) -> list[tuple[int, str]]:
    """The blocks of one language, each with the number of its first line."""
    return [(text[: m.start(2)].count("\n") + 1, m[2]) for m in _FENCE.finditer(text) if m[1] == language]


def run_blocks(text: str, name: str) -> dict:
    """Runs every python block in order, in one namespace; tracebacks carry the line numbers of the document."""
    namespace: dict = {"__name__": "document"}
    for line, block in fences(text, "python"):
        exec(compile("\n" * (line - 1) + block, name, "exec"), namespace)
    return namespace


def commands(text: str) -> list[str]:
    """Calls of make and eigenclock in unlabelled blocks and in inline code."""
    lines = [line.split("#")[0] for _, block in fences(text, "") for line in block.splitlines()]
    lines += _INLINE.findall(_FENCE.sub("", text))
    # A tree or a sentence names the package, too: a command is what starts with make, eigenclock or variables in front of make.
    return [line.strip() for line in lines if re.match(r"\s*((\w+=\S+\s+)*make|eigenclock)\s+[a-z-]", line)]


def problem_with(command: str, targets: set[str]) -> str | None:
    """What is wrong with a command, None where nothing is."""
    words = [w for w in command.split() if not re.match(r"^[A-Z]+=", w)]
    if words[0] == "make":
        missing = [w for w in words[1:] if re.fullmatch(r"[a-z-]+", w) and w not in targets]
        return f"no target {missing[0]}" if missing else None
    if words[1] in ("--version", "--help"):
        return None
    if words[1] not in cli.COMMANDS:
        return f"no command {words[1]}"
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard), contextlib.suppress(SystemExit):
        cli.main([words[1], "--help"])
    known = set(re.findall(r"--[a-z][a-z-]*", heard.getvalue()))
    missing = [w for w in words[2:] if w.startswith("--") and w not in known]
    return f"no option {missing[0]}" if missing else None


def make_targets() -> set[str]:
    return {name for line in re.findall(r"^([a-z-]+(?: [a-z-]+)*):(?!=)", read("Makefile"), re.MULTILINE) for name in line.split()}


def tree_paths(text: str) -> list[str]:
    """The paths of the annotated tree, and every entry has a comment."""
    block = next(block for _, block in fences(text, "") if "src/eigenclock/" in block)
    out, stack = [], []
    for line in block.splitlines():
        depth, entry = (len(line) - len(line.lstrip())) // 2, line.split()
        if not entry[1:] and not entry[0].endswith(("examples/", "eigenclock/")):
            raise AssertionError(f"{entry[0]} has no comment in the tree")
        stack = [*stack[:depth], entry[0]]
        out.append("".join(stack))
    return out


@pytest.fixture
def registries():
    """Whatever a document registers is taken out again."""
    before = [dict(registry) for registry in REGISTRIES]
    yield
    for registry, entries in zip(REGISTRIES, before, strict=True):
        registry.clear()
        registry.update(entries)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_python_blocks_run(name, registries):
    text = read(name)
    assert fences(text, "python"), "no python block: the pattern or the document is broken"
    run_blocks(text, name)


def test_example_of_contributing_adds_one_of_each(registries):
    before = [set(registry) for registry in REGISTRIES]
    run_blocks(read("CONTRIBUTING.md"), "CONTRIBUTING.md")
    added = [len(set(registry) - names) for registry, names in zip(REGISTRIES, before, strict=True)]
    assert added == [2 if registry is ec.CLOCKS else 1 for registry in REGISTRIES]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_exist(name):
    targets = make_targets()
    assert {"compare", "test", "bench", "lint", "slow"} <= targets
    found = commands(read(name))
    assert found or name.startswith("src")
    assert [(c, p) for c in found if (p := problem_with(c, targets))] == []


def test_the_tree_is_the_tree():
    paths = tree_paths(read("README.md"))
    assert [p for p in paths if not (ROOT / p).exists()] == []
    package = ROOT / "src" / "eigenclock"
    folders = {f"src/eigenclock/{p.name}/" for p in package.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert folders <= set(paths), folders - set(paths)
    # Where a file is an entry of a registry, the tree names it.
    for folder in ("theory/generators", "schedules", "clocks", "encodings", "attention/backends", "testing"):
        files = {f"src/eigenclock/{folder}/{p.name}" for p in (package / folder).glob("*.py") if p.name[0] != "_"}
        assert files <= set(paths), files - set(paths)


def test_links_point_somewhere():
    for name in DOCUMENTS:
        text = read(name)
        anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
        for target in re.findall(r"\]\(([^)]+)\)", text):
            if target.startswith("#"):
                assert target[1:] in anchors, f"{name}: {target}"
            elif "://" not in target:
                assert ((ROOT / name).parent / target).exists(), f"{name}: {target}"


@pytest.mark.parametrize("name", [*DOCUMENTS, "CHANGELOG.md"])
def test_prose_is_plain(name):
    text = read(name)
    assert "\u2014" not in text  # em dash
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", text)


def test_recipes_and_registries_are_in_the_readme():
    text = read("README.md")
    assert [name for name in ec.ENCODINGS if name not in text] == []
    assert [name for name in ec.BACKENDS if f"`{name}`" not in text] == []


# --- that the checkers can fail ----------------------------------------------------------------------------------------------------


def test_checkers_can_fail(registries):
    with pytest.raises(ZeroDivisionError):
        run_blocks("```python\n1 / 0\n```\n", "made up")
    with pytest.raises(NameError):
        run_blocks("```python\nx = 1\n```\n```\ny = 2\n```\n```python\nx + y\n```\n", "made up")
    assert run_blocks("```python\nx = 1\n```\ntext\n```python\nx += 1\n```\n", "made up")["x"] == 2
    text = "Run `make nothing`, `PYTHON=/x make test TESTS=a`, or `eigenclock compare --sedes 3`.\n"
    text += "```\nmake test   # eigenclock nothing\neigenclock audits x\n```\n"
    found = commands(text)
    assert found == ["make test", "eigenclock audits x", "make nothing", "PYTHON=/x make test TESTS=a", "eigenclock compare --sedes 3"]
    wrong = [problem_with(c, {"test"}) for c in found]
    assert wrong == [None, "no command audits", "no target nothing", None, "no option --sedes"]
    with pytest.raises(AssertionError, match="no comment"):
        tree_paths("```\nsrc/eigenclock/\n  errors.py\n```\n")
