"""``eigenclock audit``: a subject is measured, the report is shown, and the exit status says whether it is clean."""

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any, Literal

from eigenclock.audit import Report, audit
from eigenclock.errors import ConfigError
from eigenclock.present import write_whole

WIDTH = 160


class Options:
    """Measure a positional encoding: its group, where it breaks its own law, whether it survives its dtype, length and cache.

    Exit status 0 clean, 1 findings of the level of --fail-on or worse (or a rule that failed), 2 bad input.

    Args:
        subject: A spec such as "rope(theta=500000)", a config.json or a folder with one, a .gguf or .safetensors file, or
            package.module:name or path/file.py:name of a function, module, model or config (this runs that code).
        head_dim: Width of a head, where the subject names none.
        heads: Query heads, where the subject names none.
        length: The positions it is used with: faults break among them, risks beyond.
        dtype: bfloat16, float16, float32 or float64: the dtype it is used in.
        json: Print the report as JSON, and nothing else, on stdout.
        html: Also write it as one page, with pictures, to this file.
        fail_on: The least severity that makes the exit status 1.
        table: Show every finding in a table as well.
    """

    # A class of its own rather than a dataclass, because the subject is positional.
    def __init__(
        self,
        subject: str,
        /,
        *,
        head_dim: int | None = None,
        heads: int | None = None,
        length: int = 4096,
        dtype: str | None = None,
        json: bool = False,
        html: Path | None = None,
        fail_on: Literal["fault", "risk", "advice"] = "fault",
        table: bool = False,
    ) -> None:
        self.subject, self.head_dim, self.heads, self.length, self.dtype = subject, head_dim, heads, length, dtype
        self.json, self.html, self.fail_on, self.table = json, html, fail_on, table


def run(options: Options) -> int:
    """Audits the subject and shows what was found."""
    subject = subject_of(options.subject)
    report = audit(subject, head_dim=options.head_dim, heads=options.heads, length=options.length, dtype=options.dtype)
    if options.html is not None:
        write_whole(options.html, report.html())
    if options.json:
        print(json.dumps(report.to_dict(), indent=1, allow_nan=False))
    else:
        _print(report, options)
    return 1 if report.at_least(options.fail_on) or report.failed else 0


def _print(report: Report, options: Options) -> None:
    from rich.console import Console

    # A file or a pipe has no width of its own: lines there may be long.
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    console.print(str(report), highlight=False, markup=False, soft_wrap=True)
    if options.table and report.findings:
        console.print(report.table().rich())
    if options.html is not None:
        console.print(f"Page: {options.html}", highlight=False, markup=False, soft_wrap=True)


def subject_of(text: str) -> Any:
    """What a word on the command line names: ``module:name`` and ``file.py:name`` are imported, other text is read as it is.

    Raises: ConfigError where there is no such module, file or name.

    >>> subject_of("rope(theta=500000)")
    'rope(theta=500000)'
    """
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
    print(f"eigenclock audit: running the code of {place}", file=sys.stderr)
    try:
        if path.suffix == ".py":
            spec = importlib.util.spec_from_file_location(path.stem, path)
            if not path.is_file() or spec is None or spec.loader is None:
                raise ConfigError(f"got the file {place}, which is not there; expected a Python file")
            module = importlib.util.module_from_spec(spec)
            sys.modules[path.stem] = module
            spec.loader.exec_module(module)
            return module
        sys.path.insert(0, "")
        try:
            return importlib.import_module(place)
        finally:
            sys.path.remove("")
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"got {place}, which cannot be imported ({type(error).__name__}: {error}); expected a module or a .py file whose code runs"
        ) from error
