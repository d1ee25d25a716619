"""What an audit found: findings with what was measured, and the report that holds them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from eigenclock.errors import ConfigError, UnsupportedError
from eigenclock.present import Code, Heading, Part, Table, render_page

SEVERITIES = ("fault", "risk", "advice")
SCHEMA = 2
"""The version of ``to_dict``; it changes when a key changes its meaning or goes."""
UNITS = {"time": "step of the times it takes", "rate": "1/step", "freq": "rad/step", "score": "before 1/sqrt(head_dim) and softmax"}
LINES, WIDTH = 20, 320
"""How many lines the text of a report has at most, and how many characters one of them."""
FAILED = "it failed"
"""How the reason begins for which a rule is skipped that raised an error."""
VERDICTS = {True: "OK", False: "FAULT", None: "NOT JUDGED"}
"""``ok`` -> the word for it."""
REASONS = 3
"""How many reasons for no verdict the text of a report has at most."""


@dataclass(frozen=True)
class Finding:
    """One thing that a rule found.

    Args:
        rule: the id of the rule.
        severity: "fault" (the law, dtype, cache or config measurably breaks within the length used), "risk" (beyond it), or "advice".
        message: what is wrong, in one line.
        measured, limit: the number found and the one it is judged by; None where nothing is a number.
        where: positions, pair, head, layer, ..: the smallest counterexample.
        advice: what to do.
        source: where the limit comes from.
    Raises: ConfigError for another severity.

    >>> print(Finding("layout", "fault", "pairs are halves, the weights interleaved", where={"pair": 1}, advice="convert them"))
    FAULT layout: pairs are halves, the weights interleaved [pair 1]
          do: convert them
    """

    rule: str
    severity: str
    message: str
    measured: float | str | None = None
    limit: float | str | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    advice: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ConfigError(f"got severity {self.severity!r}; expected one of {', '.join(SEVERITIES)}")

    @property
    def numbers(self) -> str:
        """What was measured, with the limit it was judged by."""
        if self.measured is None:
            return ""
        return f"measured {_text(self.measured)}" + ("" if self.limit is None else f", limit {_text(self.limit)}")

    @property
    def place(self) -> str:
        """Where, in words."""
        return ", ".join(f"{key} {_text(value)}" for key, value in self.where.items())

    def __str__(self) -> str:
        numbers = f" ({self.numbers})" if self.numbers else ""
        place = f" [{self.place}]" if self.where else ""
        do = f"\n      do: {self.advice}" if self.advice else ""
        return f"{self.severity.upper()} {self.rule}: {' '.join(self.message.split())}{numbers}{place}{do}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data that JSON can hold."""
        return {
            "rule": self.rule,
            "severity": self.severity,
            "message": self.message,
            "measured": _plain(self.measured),
            "limit": _plain(self.limit),
            "where": _plain(self.where),
            "advice": self.advice,
            "source": self.source,
        }


@dataclass(frozen=True)
class Measured:
    """A number recovered by measurement, with its error.

    >>> print(Measured(0.25, 1e-9))
    0.25 +- 1.0e-09
    """

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.9g} +- {self.error:.1e}"


@dataclass(frozen=True)
class Block:
    """A block of L as it was measured: its kind and order as in JordanForm, how many are alike, in which head, and its numbers.

    part is "content" for what multiplies the inner product, "bias" for what is added to the logit.

    Units: rate 1/step, freq rad/step, where a step is one of the times that the subject takes (a position; a nanosecond of int64 stamps).
    """

    kind: str
    order: int
    count: int
    head: int
    rate: Measured
    freq: Measured
    part: str = "content"

    def to_dict(self) -> dict[str, Any]:
        """Plain data that JSON can hold."""
        numbers = {"rate": [self.rate.value, self.rate.error], "freq": [self.freq.value, self.freq.error]}
        return {"kind": self.kind, "order": self.order, "count": self.count, "head": self.head, "part": self.part} | _plain(numbers)


@dataclass(frozen=True)
class Report:
    """What an audit found, about what, and what it looked at.

    Args:
        subject, kind: the name of the subject and how it was read, a key of ``SUBJECTS``.
        length, dtype: what it was judged for.
        findings: in the order of severity.
        checked: ids of the rules that ran. skipped: id -> why it did not, in words.
        unjudged: why its law is not known to hold, in words; empty where linearity and shift invariance were measured and hold.
        form: the Jordan form of L, where the subject is in the group and it could be measured.
        spec: text that gives the same encoding in eigenclock.
        blocks: the blocks of L with their numbers and errors.
        nearest: the nearest known recipe, in words.
        witness: for a subject outside the group, the axiom that breaks and the smallest counterexample.
        notes: how the subject was read.
        curves: pictures of score against lag and of score under a shift: name -> (x, y); drawn in the page.

    >>> print(Report("mine", "callable", 4096, "float32", form="32R", checked=("linearity",)))
    eigenclock audit: mine (callable, length 4096, float32): OK
      form     32R
      1 rule ran, 0 skipped: no findings
    """

    subject: str
    kind: str
    length: int
    dtype: str
    findings: tuple[Finding, ...] = ()
    checked: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    unjudged: tuple[str, ...] = ()
    form: str | None = None
    spec: str | None = None
    blocks: tuple[Block, ...] = ()
    nearest: str | None = None
    witness: str | None = None
    notes: tuple[str, ...] = ()
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict, repr=False)

    @property
    def title(self) -> str:
        """The name of the subject in one line that is not too long for a heading."""
        return _short(self.subject)

    @property
    def ok(self) -> bool | None:
        """True where the law was measured and holds, False where there is a fault, None where neither is known.

        >>> Report("m", "spec", 2, "float64", unjudged=("no scores can be read from it",)).ok is None
        True
        """
        if any(finding.severity == "fault" for finding in self.findings):
            return False
        return None if self.unjudged or self.failed else True

    @property
    def verdict(self) -> str:
        """OK, FAULT or NOT JUDGED."""
        return VERDICTS[self.ok]

    @property
    def failed(self) -> tuple[str, ...]:
        """The rules that raised an error: nothing is known of what they ask."""
        return tuple(rule for rule, why in self.skipped.items() if why.startswith(FAILED))

    def at_least(self, severity: str) -> tuple[Finding, ...]:
        """The findings of a severity and of worse ones.

        >>> Report("m", "spec", 1, "float64", findings=(Finding("a", "risk", "late"),)).at_least("fault")
        ()
        """
        if severity not in SEVERITIES:
            raise ConfigError(f"got severity {severity!r}; expected one of {', '.join(SEVERITIES)}")
        return tuple(finding for finding in self.findings if SEVERITIES.index(finding.severity) <= SEVERITIES.index(severity))

    def count(self) -> str:
        """How many findings of each severity, in words.

        >>> Report("m", "spec", 1, "float64", findings=(Finding("a", "risk", "late"), Finding("b", "risk", "later"))).count()
        '2 risks'
        """
        numbers = {name: sum(finding.severity == name for finding in self.findings) for name in SEVERITIES}
        plural = {"fault": "faults", "risk": "risks", "advice": "pieces of advice"}
        single = plural | {"fault": "fault", "risk": "risk", "advice": "piece of advice"}
        return ", ".join(f"{n} {(single if n == 1 else plural)[name]}" for name, n in numbers.items() if n) or "no findings"

    def __str__(self) -> str:
        lines = [f"eigenclock audit: {self.title} ({self.kind}, length {self.length}, {self.dtype}): {self._verdict()}"]
        lines += [f"  why      {_short(reason, WIDTH)}" for reason in self.unjudged[:REASONS] if self.ok is None]
        said = {"form": self.form, "nearest": self.nearest, "spec": self.spec, "outside": self.witness}
        lines += [f"  {name:<8} {_short(value, WIDTH)}" for name, value in said.items() if value]
        lines += [f"  note     {_short(note)}" for note in self.notes[:2]]
        ran = f"{len(self.checked)} rule{'' if len(self.checked) == 1 else 's'} ran"
        last = f"  {ran}, {len(self.skipped)} skipped: {self.count()}"
        lines += [f"  skipped  {rule}: {_short(self.skipped[rule])}" for rule in self.failed[:2]]
        room = LINES - len(lines) - 1
        shown: list[str] = []
        for i, finding in enumerate(self.findings):
            rows = ["  " + _short(row, WIDTH) for row in str(finding).splitlines()]
            rest = len(self.findings) - i - 1
            if len(shown) + len(rows) + (rest > 0) > room:
                shown.append(f"  and {rest + 1} more: --json or .table() lists them")
                break
            shown += rows
        return "\n".join([*lines, *shown, last])

    def _verdict(self) -> str:
        names = ", ".join(self.failed[:REASONS]) + (", .." if len(self.failed) > REASONS else "")
        return self.verdict + (f" ({names} failed)" if self.failed else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain data that JSON can hold; its keys stay."""
        return {
            "schema": SCHEMA,
            "subject": self.subject,
            "kind": self.kind,
            "length": self.length,
            "dtype": self.dtype,
            "units": dict(UNITS),
            "ok": self.ok,
            "verdict": self.verdict,
            "unjudged": list(self.unjudged),
            "findings": [finding.to_dict() for finding in self.findings],
            "checked": list(self.checked),
            "skipped": dict(self.skipped),
            "form": self.form,
            "spec": self.spec,
            "blocks": [block.to_dict() for block in self.blocks],
            "nearest": self.nearest,
            "witness": self.witness,
            "notes": list(self.notes),
        }

    def table(self) -> Table:
        """The findings as a table."""
        rows = [(f.severity, f.rule, f.message, _cell(f.measured), _cell(f.limit), f.place, f.advice) for f in self.findings]
        note = f"{len(self.checked)} rules ran, {len(self.skipped)} skipped."
        return Table(
            f"{self.title}: {self.count()}", ("severity", "rule", "what", "measured", "limit", "where", "what to do"), rows, note=note
        )

    def html(self) -> str:
        """The report as one page that needs nothing else, with pictures of score against lag and shift.

        Raises: UnsupportedError where matplotlib or jinja2 is missing.
        """
        return page((self,))

    def parts(self) -> list[Part]:
        """What stands in the page, part by part."""
        from eigenclock.audit.pictures import figure

        parts: list[Part] = [Code(str(self)), Heading("Findings"), self.table()]
        if self.curves:
            parts += [Heading("Scores"), figure(self)]
        if self.blocks:
            parts += [Heading("Blocks of L, measured"), self._blocks_table()]
        listed = [(rule, "ran") for rule in self.checked] + list(self.skipped.items())
        return [*parts, Heading("Rules"), Table("Which rules ran", ("rule", "ran, or why it was skipped"), listed)]

    def _blocks_table(self) -> Table:
        rows = [(b.part, b.head, f"{b.kind}{b.order if b.order > 1 else ''}", b.count, str(b.rate), str(b.freq)) for b in self.blocks]
        return Table(
            "Rates and frequencies (radians) per step of the times it takes", ("part", "head", "block", "count", "rate", "frequency"), rows
        )


def page(reports: Sequence[Report]) -> str:
    """One or several reports as one page that needs nothing else.

    Raises: UnsupportedError where matplotlib or jinja2 is missing.
    """
    missing = [name for name in ("jinja2", "matplotlib") if find_spec(name) is None]
    if missing:
        raise UnsupportedError(f"a page needs {' and '.join(missing)}, not installed here: pip install 'eigenclock[lab]'")
    if len(reports) == 1:
        one = reports[0]
        subtitle = f"{one.kind}, length {one.length}, {one.dtype}: {one.count()}"
        return render_page(f"Audit: {one.title}", one.parts(), subtitle=subtitle)
    parts = [part for one in reports for part in (Heading(one.title), *_below(one))]
    faulty, unknown = (sum(one.ok is value for one in reports) for value in (False, None))
    subtitle = f"{faulty} of them with faults" + (f", {unknown} not judged" if unknown else "")
    return render_page(f"Audit of {len(reports)} subjects", parts, subtitle=subtitle)


def _below(report: Report) -> list[Part]:
    """The parts of a report under a heading of its own: titles of tables take the place of headings."""
    return [part for part in report.parts() if not isinstance(part, Heading)]


def _short(text: str, width: int = 200) -> str:
    """One line, cut where it is longer than fits into a pull request."""
    line = " ".join(text.split()) if "\n" in text else text
    return line if len(line) <= width else line[: width - 2] + ".."


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, float):
        return "(" + ", ".join(_text(v) for v in value) + ")" if isinstance(value, tuple | list) else str(value)
    return f"{value:.4g}"


def _cell(value: Any) -> str | None:
    return None if value is None else _text(value)


def _plain(value: Any) -> Any:
    """What JSON can hold: numbers that are not finite by their names."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, str | int | bool) else str(value)
