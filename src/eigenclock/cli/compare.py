"""``eigenclock compare``: options, progress on stderr, the table on stdout."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from eigenclock.lab.settings import Settings


@dataclass(frozen=True)
class Options:
    """Train a small GPT once per positional encoding, alike in everything else, and compare them on held-out text.

    The results go into a run folder: config.json, metrics.jsonl, checkpoints, result.json and report.html.
    """

    settings: Settings = field(default_factory=Settings)
    out: Path | None = None
    """The run folder (default: a new one under runs/)."""
    resume: Path | None = None
    """Continue in this run folder with its settings; --seeds may be raised."""
    json: bool = False
    """Print the result as JSON, and nothing else, on stdout."""


def run(options: Options) -> int:
    """Runs the comparison and shows it; exit status 1 where some runs failed and the others are there."""
    from rich.console import Console

    from eigenclock.lab.compare import compare
    from eigenclock.lab.report import evidence, failures, table

    with Progress() as watch:
        result = compare(options.settings, out=options.out, resume=options.resume, watch=watch)
    status = 1 if result["failed"] else 0
    if options.json:
        print(json.dumps(result, indent=1, allow_nan=False))
        return status
    # A file or a pipe has no width of its own: let lines be as long as they are.
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(table(result).rich())
    for line in (*failures(result), evidence(result)):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    report = Path(result["folder"]) / "report.html"
    console.print(f"{result['seconds']:.0f} s of training and evaluation. Report: {report}", highlight=False, soft_wrap=True)
    return status


class Progress:
    """Progress and time left on stderr: a bar in a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self.console = Console(stderr=True)
        self.bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:.0f} %"),
            TimeElapsedColumn(),
            TextColumn("gone,"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.task: Any = None

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def start(self, total: float) -> None:
        """Shows the bar."""
        self.task = self.bar.add_task("starting", total=total)

    def advance(self, amount: float, doing: str) -> None:
        """Moves the bar."""
        self.bar.update(self.task, advance=amount, description=doing, refresh=False)

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        if self.console.is_terminal:
            self.bar.print(line, highlight=False, markup=False)
        else:
            print(line, file=sys.stderr, flush=True)
