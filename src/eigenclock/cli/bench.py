"""``eigenclock bench``: options, progress on stderr, the table on stdout."""

import json
import sys
from pathlib import Path

from eigenclock.bench.run import Settings, chosen, listing
from eigenclock.bench.run import run as measure

WIDTH = 140


class Options:
    """Measure ours against what a user would otherwise call, and judge each ratio by its target.

    Exit status 1 where a target is missed in every run, or a case fails.

    Args:
        names: What to run (default: everything): a family, a case, the beginning of cases such as damped/4096, or a pattern such
            as "*/bf16/*".
        list: Show the cases and measure nothing.
        quick: One run of 5 repeats without the long cases: a look, not a judgement; --repeats and --runs still count.
        repeats: Repeats of each side in a run (default: 15).
        runs: Runs of each case (default: 3).
        threads: Threads of the arithmetic (default: OMP_NUM_THREADS, else at most 2).
        size: Fraction of the sequence lengths, for a trial; below 1 no target applies.
        json: Print the result as JSON, and nothing else, on stdout.
        out: Also write the result as JSON to this file, after each case.
    """

    # A class of its own rather than a dataclass, because names are positional.
    def __init__(
        self,
        names: tuple[str, ...] = (),
        /,
        *,
        list: bool = False,
        quick: bool = False,
        repeats: int | None = None,
        runs: int | None = None,
        threads: int | None = None,
        size: float = 1.0,
        json: bool = False,
        out: Path | None = None,
    ) -> None:
        defaults = Settings(repeats=5, runs=1) if quick else Settings()
        self.names, self.list, self.json, self.out = names, list, json, out
        self.settings = Settings(
            repeats=defaults.repeats if repeats is None else repeats,
            runs=defaults.runs if runs is None else runs,
            threads=defaults.threads if threads is None else threads,
            size=size,
            quick=quick,
        )


def run(options: Options) -> int:
    """Measures what was chosen and shows it."""
    from rich.console import Console

    # Names of cases are long: a file or a pipe, which has no width of its own, gets lines that hold them.
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    cases = chosen(options.names, options.settings.check())
    if options.list:
        if options.json:
            print(json.dumps([case.describe() for case in cases], indent=1))
        else:
            console.print(listing(cases).rich())
        return 0
    report = measure(cases, options.settings, lambda line: print(line, file=sys.stderr, flush=True), options.out)
    if options.json:
        print(json.dumps(report.to_dict(), indent=1))
    elif report.outcomes:
        console.print(report.table().rich())
    if report.interrupted:
        raise KeyboardInterrupt(f"interrupted after {len(report.outcomes)} of {len(cases)} cases; what was measured is above")
    return 0 if report.ok else 1
