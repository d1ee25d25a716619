"""Runs chosen benchmarks under the protocol and gathers what they measured."""

import dataclasses
import fnmatch
import gc
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from eigenclock.bench import BENCHES, protocol
from eigenclock.bench.case import Case
from eigenclock.errors import ConfigError, UnknownNameError
from eigenclock.lab.settings import default_threads
from eigenclock.present import Table, write_whole
from eigenclock.registry import nearest

Say = Callable[[str], None]
SOUND_REPEATS, SOUND_RUNS = 15, 3  # below these, the protocol does not hold


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How to measure. ``size`` other than 1 shortens every sequence: the targets then say nothing and are left out."""

    repeats: int = SOUND_REPEATS
    runs: int = SOUND_RUNS
    threads: int = dataclasses.field(default_factory=default_threads)
    size: float = 1.0
    quick: bool = False

    def check(self) -> "Settings":
        """Itself.

        Raises:
            ConfigError: a number is out of range.
        """
        for name in ("repeats", "runs", "threads"):
            if (got := getattr(self, name)) < 1:
                raise ConfigError(f"--{name} is {got}; it must be at least 1; the protocol asks for 15 repeats and 3 runs")
        if not 0 < self.size <= 1:
            raise ConfigError(f"--size is {self.size}; it must be above 0 and at most 1, the size that the targets are about")
        return self

    @property
    def sound(self) -> bool:
        """Whether these settings are those of the protocol, or more."""
        return self.repeats >= SOUND_REPEATS and self.runs >= SOUND_RUNS


@dataclasses.dataclass
class Outcome:
    """A case and its runs so far; ``error`` is one line where it could not be measured."""

    case: Case
    runs: list[protocol.Run] = dataclasses.field(default_factory=list)
    error: str | None = None

    @property
    def ratios(self) -> list[float]:
        return [run.ratio for run in self.runs]

    @property
    def verdict(self) -> str:
        """One of :data:`protocol.Verdict`, or "failed"."""
        return "failed" if self.error else protocol.verdict(self.ratios, self.case.target)

    def to_dict(self) -> dict[str, Any]:
        """The case, the verdict and each run as plain data."""
        return self.case.describe() | {
            "verdict": self.verdict,
            "error": self.error,
            "ratios": self.ratios,
            "runs": [run.to_dict() for run in self.runs],
        }


@dataclasses.dataclass
class Report:
    """What was measured, on which machine, how."""

    settings: Settings
    machine: dict[str, Any]
    outcomes: list[Outcome] = dataclasses.field(default_factory=list)
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """Whether no target is missed and nothing failed."""
        return all(outcome.verdict not in ("missed", "failed") for outcome in self.outcomes)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data for JSON."""
        how = dataclasses.asdict(self.settings) | {"statistic": "ratio of lower quartiles", "sound": self.settings.sound}
        return {
            "protocol": how,
            "machine": self.machine,
            "interrupted": self.interrupted,
            "ok": self.ok,
            "cases": [outcome.to_dict() for outcome in self.outcomes],
        }

    def table(self) -> Table:
        """One row for each case: what ours and the other needed, every run's ratio, the target, the verdict, the load."""
        rows = []
        for o in self.outcomes:
            middle = sorted(o.runs, key=lambda run: run.ratio)[(len(o.runs) - 1) // 2] if o.runs else None
            ours, other = (_amount(x, o.case.measure) for x in middle.quantile(0.25)) if middle else (None, None)
            target = None if o.case.target is None else f"<= {o.case.target:g}"
            loads = " ".join("?" if run.load_after is None else f"{run.load_after[0]:.1f}" for run in o.runs)
            ratios = " ".join(f"{ratio:.2f}" for ratio in o.ratios)
            rows.append((o.case.name, ours, other, ratios or None, target, o.error or o.verdict, loads or None))
        m = self.machine
        title = f"Ours over the other ({self.settings.threads} threads, torch {m['torch']}, {m['cpu']})"
        return Table(title, ("case", "ours", "other", "ratio of each run", "target", "verdict", "load"), rows, self._note())

    def _note(self) -> str:
        s = self.settings
        note = (
            f"Ratio of the lower quartiles of {s.repeats} interleaved repeats, in {s.runs} run{'s' if s.runs > 1 else ''}; "
            "bytes are measured once per run. "
            "Missed = by every run. Load: 1-minute average after each run."
        )
        if not s.sound:
            note += f" Shortened: a target is judged by {SOUND_RUNS} runs of {SOUND_REPEATS} repeats or more."
        if s.size != 1:
            note += f" Sequences are {s.size:g} of their length, so no target applies."
        return note + (" Interrupted: the last case may lack runs." if self.interrupted else "")


def chosen(names: Sequence[str], settings: Settings) -> list[Case]:
    """The cases of these names: a family, a case, the first words of cases ("damped/4096"), or a pattern ("*/bf16/*"); all for none.

    Quick settings leave the long ones out, unless one is named in full.

    Raises:
        UnknownNameError: nothing has that name.
    """
    cases = [case for family in BENCHES.values() for case in family(settings.size)]
    if settings.size != 1:
        cases = [dataclasses.replace(case, target=None) for case in cases]
    named = set(names)
    for name in names:
        if not any(_matches(case.name, name) for case in cases):
            families = nearest(name.split("/")[0], list(BENCHES))
            raise UnknownNameError(f"there is no benchmark called {name!r}; {families} eigenclock bench --list shows every case")
    found = [case for case in cases if not names or any(_matches(case.name, name) for name in names)]
    return [case for case in found if not (settings.quick and case.long and case.name not in named)]


def _matches(case: str, name: str) -> bool:
    return case == name or case.startswith(name.rstrip("/") + "/") or fnmatch.fnmatchcase(case, name)


def listing(cases: Sequence[Case]) -> Table:
    """The cases as a table, nothing measured."""
    rows = [(c.name, c.what, c.other, " ".join(map(str, c.shape)) or None, None if c.target is None else f"<= {c.target:g}") for c in cases]
    return Table("Benchmarks", ("case", "what", "against", "shape", "target"), rows)


def run(cases: Sequence[Case], settings: Settings, say: Say, out: Path | None = None) -> Report:
    """Measures the cases one after another; Ctrl-C ends it and keeps what was measured.

    ``say`` gets a line for each case and run; ``out`` is rewritten as JSON after each case.

    Raises:
        EigenclockError: ``out`` cannot be written.
    """
    settings.check()
    report = Report(settings, machine())
    _write(report, out)  # a path that cannot be written is noticed now
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        for i, case in enumerate(cases):
            outcome = Outcome(case)
            report.outcomes.append(outcome)
            say(f"{i + 1}/{len(cases)} {case.name}")
            _measure(outcome, settings, say)
            _write(report, out)
    except KeyboardInterrupt:
        report.interrupted = True
        if report.outcomes and not report.outcomes[-1].runs:
            report.outcomes.pop()
        _write(report, out)
    finally:
        torch.set_num_threads(threads)
    return report


def _measure(outcome: Outcome, settings: Settings, say: Say) -> None:
    case = outcome.case
    bytes_only = case.measure == "bytes"
    by = protocol.timed if case.measure == "time" else protocol.reported
    try:
        work = case.build()
        for i in range(settings.runs):
            start = time.perf_counter()
            watch = _Watch(say, f"    run {i + 1}/{settings.runs}, {{}} of {settings.repeats} repeats")
            one = protocol.measure(
                work.ours,
                work.other,
                by=by,
                before=watch,
                repeats=1 if bytes_only else settings.repeats,
                # The first run finds everything cold; a process of its own stays cold but for the files on disk.
                warmup=0 if bytes_only else 2 if case.measure == "time" and i == 0 else 1,
            )
            outcome.runs.append(one)
            ours, other = (_amount(x, case.measure) for x in one.quantile(0.25))
            took = time.perf_counter() - start
            say(f"    run {i + 1}/{settings.runs}: {one.ratio:.3f} ({ours} / {other}), load {_load(one)}, {took:.0f} s")
    except Exception as error:  # one case must not cost the others their results
        outcome.error = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
        say(f"    failed: {outcome.error}")
    finally:
        gc.collect()


class _Watch:
    """Says how far a run is when it has been silent for a while."""

    SILENCE = 30.0  # seconds

    def __init__(self, say: Say, line: str) -> None:
        self.say, self.line, self.last = say, line, time.perf_counter()

    def __call__(self, done: int) -> None:
        if time.perf_counter() - self.last > self.SILENCE:
            self.last = time.perf_counter()
            self.say(self.line.format(done))


def _load(one: protocol.Run) -> str:
    return "unknown" if one.load_after is None else f"{one.load_after[0]:.2f}"


def _amount(value: float, measure: str) -> str:
    """Seconds or bytes in a unit that reads well.

    >>> _amount(0.0123, "time"), _amount(2.5, "seconds"), _amount(3 << 20, "bytes")
    ('12.3 ms', '2.50 s', '3.0 MiB')
    """
    if measure == "bytes":
        return f"{value / 2**20:.1f} MiB"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def _write(report: Report, out: Path | None) -> None:
    if out is not None:
        write_whole(out, json.dumps(report.to_dict(), indent=1) + "\n")


def machine() -> dict[str, Any]:
    """What the numbers depend on beside the code."""
    cpu = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    except OSError:
        pass
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": cpu,
        "cores": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }
