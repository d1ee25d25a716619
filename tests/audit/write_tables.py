"""The tables of docs/auditing.md that come from the code: ``scripts/write-audit-tables`` writes them, tests compare them.

What a rule can report and where its limits come from is read from the functions that its check reaches.
"""

import ast
import contextlib
import inspect
import io
import re
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from audit import twins
from eigenclock.audit import RULES, SEVERITIES, Probe, Rule
from eigenclock.cli import main
from eigenclock.present import Table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "auditing.md"


MEASURE = "eigenclock.audit.measure."
"""What several rules measure with; some of it makes their findings."""


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _reached(function: Any) -> list[FunctionType]:
    """The functions that a function may call, itself among them: those of its own file, and of what rules share."""
    found, open_ = [], [function]
    while open_:
        one = open_.pop()
        if not isinstance(one, FunctionType) or one in found:
            continue
        if one.__module__ != function.__module__ and not one.__module__.startswith(MEASURE):
            continue
        found.append(one)
        open_ += [one.__globals__.get(name) for code in _codes(one.__code__) for name in code.co_names]
    return found


def severities(rule: Rule) -> list[str]:
    """What a rule can report, the worst first: the severities among the constants of its check."""
    constants = {c for one in _reached(rule.check) for code in _codes(one.__code__) for c in code.co_consts}
    return [level for level in SEVERITIES if level in constants]


def sources(rule: Rule) -> list[str]:
    """Where its limits come from: the names given to its findings as their source."""
    found: dict[str, None] = {}
    for one in _reached(rule.check):
        for call in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(one)))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Finding":
                given = [*call.args[7:8], *(keyword.value for keyword in call.keywords if keyword.arg == "source")]
                names = [node.id for node in given if isinstance(node, ast.Name)]
                found |= dict.fromkeys(one.__globals__[name] for name in names if name in one.__globals__)
    return list(found)


def rules_table() -> str:
    """Every rule: what it asks, when it is not asked, what it can report, where its limit comes from."""
    bare = Probe("nothing but a name", "callable", 8)
    rows = []
    for name, rule in RULES.items():
        rows.append((f"`{name}`", rule.title, rule.applies(bare) or "-", ", ".join(severities(rule)), "; ".join(sources(rule))))
    return Table("", ("rule", "what it asks", "not asked where", "can report", "source"), rows).markdown()


def confusion_table() -> str:
    """Every pair of twins: which rules find the fault, and what is reported on the sound one."""
    rows = []
    for row in twins.confusion():
        others = [name for name in row.found_by if name != row.rule]
        found = f"**{row.rule}**" if row.found else "**not found**"
        rows.append(
            (row.fault, ", ".join([found, *others]), "right" if row.named else "**wrong**", ", ".join(row.false_alarms) or "nothing")
        )
    return Table(
        "", ("fault", "found by (the rule that has to, then others)", "cause and place", "reported on its sound twin"), rows
    ).markdown()


def files(text: str) -> dict[str, str]:
    """Name -> content of the files that a page shows."""
    return dict(re.findall(r"^<!-- file: (\S+) -->\n```\w+\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


def report() -> str:
    """What the command line prints of the function that the page explains."""
    heard = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, content in files(PAGE.read_text(encoding="utf-8")).items():
            Path(name).write_text(content, encoding="utf-8")
        with contextlib.redirect_stdout(heard), contextlib.redirect_stderr(io.StringIO()):
            main(["audit", "rotary.py:damped", "--length", "2048"])
    return f"```text\n{heard.getvalue()}```"


TABLES: dict[str, Callable[[], str]] = {"report": report, "rules": rules_table, "confusion": confusion_table}


def _frame(name: str) -> re.Pattern[str]:
    return re.compile(f"(<!-- {name}: written by scripts/write-audit-tables -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def held(text: str, name: str) -> str:
    """The table of a name as the page has it."""
    match = _frame(name).search(text)
    assert match is not None, f"the page has no place for the table {name}"
    return match[2].strip()


def written(text: str, name: str, table: str) -> str:
    """The page with another table in the place of a name."""
    held(text, name)
    return _frame(name).sub(lambda match: f"{match[1]}\n{table}\n\n{match[3]}", text)


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    for name, make in TABLES.items():
        page = written(page, name, make())
    PAGE.write_text(page, encoding="utf-8")
