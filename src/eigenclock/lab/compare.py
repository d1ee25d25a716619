"""The comparison: trains one model per encoding and seed on the same data, evaluates all alike, keeps everything in a run folder."""

import dataclasses
import datetime
import importlib.util
import math
import platform
import re
import shlex
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from eigenclock.encodings import encoding
from eigenclock.errors import ConfigError, EigenclockError
from eigenclock.lab import data
from eigenclock.lab.data import Corpus
from eigenclock.lab.evaluate import evaluate, shared_part, unknown
from eigenclock.lab.folder import RunFolder, run_name
from eigenclock.lab.report import page
from eigenclock.lab.settings import Settings
from eigenclock.lab.spectrum import spectrum
from eigenclock.lab.speed import seconds_per_step
from eigenclock.lab.train import threads, train
from eigenclock.lab.trial import refuse_what_cannot_run, what_failed


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with a sentence that says what was kept and how to continue."""


class Watch(Protocol):
    """Someone who follows a comparison: a progress bar, a log, a test."""

    def start(self, total: float) -> None:
        """``total`` units of work are ahead; one is about one training step."""

    def advance(self, amount: float, doing: str) -> None:
        """``amount`` more units are done, of the run named ``doing``."""

    def say(self, line: str) -> None:
        """One line of news."""


class Silent:
    """Follows nothing."""

    def start(self, total: float) -> None:
        """Ignored."""

    def advance(self, amount: float, doing: str) -> None:
        """Ignored."""

    def say(self, line: str) -> None:
        """Ignored."""


def default_folder() -> Path:
    """A new name under runs/, from the time of day."""
    return Path("runs") / f"compare-{datetime.datetime.now():%Y%m%d-%H%M%S}"


def compare(settings: Settings, *, out: Path | None = None, resume: Path | None = None, watch: Watch | None = None) -> dict[str, Any]:
    """Runs a comparison, or what is left of one, and returns what result.json holds.

    Every encoding makes one pass before any is trained. A run that fails later is named in ``result["failed"]``, the others are kept,
    and ``resume`` tries it again.

    ``out`` is the run folder; with ``resume`` the settings are those of that folder, and only ``seeds`` may be raised.

    Raises:
        ConfigError: a setting is impossible, an encoding cannot run, a file cannot be used, or the folder belongs to another comparison.
        EigenclockError: every run failed, or the folder cannot be written; what was done is kept, and the message says how to continue.
        Interrupted: Ctrl-C; the state is saved first.
    """
    watch = watch or Silent()
    _need_extras()
    if resume is not None and out is not None:
        raise ConfigError("got both --out and --resume; a comparison continues in its own folder; leave --out away")
    folder = None
    if resume is not None:
        folder = RunFolder.resume(resume)
        settings = _continued(settings, Settings.from_dict(folder.config()["settings"]), resume)
    settings.check()
    config, corpus = _prepare(settings)
    with threads(settings.threads):
        refuse_what_cannot_run(_left(settings, folder), settings)
    if folder is None:
        folder = RunFolder.start(out or default_folder(), config)
    else:
        if changed := [name for name in folder.differences(config) if name != "seeds"]:
            raise ConfigError(f"{', '.join(changed)} changed since {resume} was begun; put it back, or start anew with --out")
        stored = folder.config()
        if stored["settings"] != config["settings"]:
            folder.write_json("config.json", {**stored, "settings": config["settings"]})
        if stored["versions"] != config["versions"]:
            watch.say(f"note: begun with {stored['versions']}, continued with {config['versions']}; numbers may differ in the last digits")
    try:
        with _patient_interrupt() as check, threads(settings.threads):
            failed = _run_all(settings, corpus, folder, watch, check)
            result = collect(settings, config, folder, failed)
            folder.write_json("result.json", result)
            folder.write_text("report.html", page(result, folder.metrics()))
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {_kept(settings, folder)}") from None
    except EigenclockError as error:
        if isinstance(error.__cause__, OSError):  # a file could not be written: no space, a quota, a folder taken away
            raise EigenclockError(f"{error}; {_kept(settings, folder)}") from error.__cause__
        raise
    return result


def collect(settings: Settings, config: dict[str, Any], folder: RunFolder, failed: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """The result of a finished comparison, from the records of its runs; encodings with a run in ``failed`` have no row.

    Units: bits per byte (or token); ``spread`` is the sample standard deviation over seeds, absent for one seed;
    ``speed`` is the rate of training relative to ``speed_against``, measured in turns before the first run; None where it could not be.

    Raises:
        EigenclockError: every encoding has a run that failed.
    """
    without = {failure["encoding"] for failure in failed}
    specs = [spec for spec in settings.encodings if spec not in without]
    if not specs:
        each = "; ".join(f"{one['label']}, seed {one['seed']}: {one['error']}" for one in failed)
        raise EigenclockError(f"every encoding failed: {each}; {_kept(settings, folder)}")
    records = {(spec, seed): folder.read_json(_record(spec, seed)) for spec in specs for seed in settings.all_seeds}
    pace = folder.read_json("speed.json")
    against = "nope" if "nope" in specs else specs[0]
    labels, full = short_names(settings.encodings), dict(zip(settings.encodings, config["specs"], strict=True))
    rows = []
    for spec in specs:
        runs = [records[spec, seed] for seed in settings.all_seeds]
        columns = list(zip(*(run["bits"] for run in runs), strict=True))
        rows.append(
            {
                "encoding": spec,
                "label": labels[spec],
                "spec": full[spec],
                "parameters": runs[0]["parameters"],
                "bits": [_mean(column) for column in columns],
                "spread": [_spread(column) for column in columns],
                "per_second": round(settings.batch * settings.length / pace[spec], 1) if spec in pace else None,
                "speed": pace[against] / pace[spec] if spec in pace and against in pace else None,
                "runs": runs,
            }
        )
    return {
        "unit": f"bits per {config['corpus']['unit']}",
        "lengths": list(settings.lengths),
        "train_length": settings.length,
        "seeds": list(settings.all_seeds),
        "targets": rows[0]["runs"][0]["targets"],
        "speed_against": labels[against],
        "encodings": rows,
        "failed": list(failed),
        "seconds": round(sum(record["seconds"] for record in records.values()), 1),
        "folder": str(folder.path),
        "config": config,
    }


def short_names(specs: tuple[str, ...]) -> dict[str, str]:
    """Each spec without the options of its recipes, where that still tells it from the others.

    >>> short_names(("rope * alibi", "decay_bias(half_life=(4, 512))", "rope(theta=5)", "rope"))
    {'rope * alibi': 'rope * alibi', 'decay_bias(half_life=(4, 512))': 'decay_bias', 'rope(theta=5)': 'rope(theta=5)', 'rope': 'rope'}
    """
    short = {}
    for spec in specs:
        bare = spec
        while (inner := re.sub(r"\([^()]*\)", "", bare)) != bare:
            bare = inner
        short[spec] = bare.strip() or spec
    return {spec: name if spec == name or list(short.values()).count(name) == 1 else spec for spec, name in short.items()}


def _prepare(settings: Settings) -> tuple[dict[str, Any], Corpus]:
    """The corpus, and the configuration that a run folder records; every encoding is built once, to refuse it before any work."""
    specs = []
    for spec in settings.encodings:
        try:
            built = encoding(spec, head_dim=settings.head_dim, heads=settings.heads)
        except EigenclockError as error:
            raise ConfigError(f"--encodings {shlex.quote(spec)}: {error}") from None
        if built.weighs:
            raise ConfigError(
                f"--encodings {shlex.quote(spec)}: it weighs {built.weighs}, which only linear attention does, and the models compared "
                "here have softmax attention; leave it out"
            )
        specs.append(str(built))
    corpus = data.load(settings)
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return {"settings": settings.to_dict(), "specs": specs, "corpus": corpus.describe(), "versions": versions}, corpus


def _continued(asked: Settings, stored: Settings, folder: Path) -> Settings:
    """The stored settings, with more seeds where asked; anything else given beside --resume must agree."""
    given = Settings().differences(asked)
    clash = [f"--{name.replace('_', '-')}" for name in stored.differences(asked) if name in given and name != "seeds"]
    if clash:
        raise ConfigError(f"--resume {folder} keeps its own settings, got other {', '.join(clash)}; leave them away or start anew")
    return dataclasses.replace(stored, seeds=max(asked.seeds, stored.seeds))


def _left(settings: Settings, folder: RunFolder | None) -> list[str]:
    """The encodings that have a run to do."""
    if folder is None:
        return list(settings.encodings)
    return [spec for spec in settings.encodings if any(not folder.file(_record(spec, seed)).exists() for seed in settings.all_seeds)]


def _run_all(settings: Settings, corpus: Corpus, folder: RunFolder, watch: Watch, check: Callable[[], None]) -> list[dict[str, Any]]:
    """Does the runs that have no record yet; returns those that failed, with the reason."""
    share = 1 / (3 * settings.batch * settings.length)  # evaluating a token costs about a third of training on it
    targets = len(shared_part(corpus.held_out, settings.lengths[-1], settings.eval_tokens)) - 1
    whole = settings.steps + share * targets * len(settings.lengths)
    watch.start(whole * len(settings.encodings) * settings.seeds)
    if not set(settings.encodings) <= set(folder.read_json("speed.json") or ()):
        folder.write_json("speed.json", seconds_per_step(settings, corpus, check))
    failed: dict[str, dict[str, Any]] = {}
    for seed in settings.all_seeds:  # all encodings of one seed first: an interrupted comparison then has whole columns
        for spec in settings.encodings:
            if folder.read_json(_record(spec, seed)) is not None or spec in failed:
                watch.advance(whole, spec)
                continue
            try:
                _run_one(spec, seed, settings, corpus, folder, watch, check, share)
            except Exception as error:  # an encoding from outside may raise anything
                if isinstance(error, ConfigError) or isinstance(error.__cause__, OSError):  # the folder's trouble, not the encoding's
                    raise
                label = short_names(settings.encodings)[spec]
                failed[spec] = {"encoding": spec, "label": label, "seed": seed, "error": what_failed(error)}
                watch.say(f"{label}, seed {seed}: failed: {failed[spec]['error']}")
    return list(failed.values())


def _run_one(
    spec: str, seed: int, settings: Settings, corpus: Corpus, folder: RunFolder, watch: Watch, check: Callable[[], None], share: float
) -> None:
    name = short_names(settings.encodings)[spec]
    doing = name if settings.seeds == 1 else f"{name}, seed {seed}"
    done = 0

    def on_step(step: int, bits: float) -> None:
        nonlocal done
        watch.advance(step - done, f"{doing} {bits:.2f}")
        done = step
        check()

    def on_targets(count: int) -> None:
        watch.advance(count * share, f"{doing} evaluating")
        check()

    trained = train(spec, seed, settings, corpus, folder, on_step)
    watch.advance(settings.steps - done, doing)
    begun = time.perf_counter()
    if trained.diverged_at is None:
        found = evaluate(trained.model, corpus.held_out, settings.lengths, most=settings.eval_tokens, tick=on_targets)
    else:
        found = unknown(corpus.held_out, settings.lengths, most=settings.eval_tokens)
        on_targets(found.targets * len(settings.lengths))
    for length, bits in zip(settings.lengths, found.bits, strict=True):
        folder.append({"encoding": spec, "seed": seed, "step": settings.steps, "length": length, "held_out_bits": _finite(bits)})
    record = {
        "encoding": spec,
        "seed": seed,
        "bits": [_finite(x) for x in found.bits],
        "edges": list(found.edges),
        "curve": [_finite(x) for x in found.curve],
        "targets": found.targets,
        "train_bits": trained.train_bits,
        "diverged_at": trained.diverged_at,
        "parameters": sum(weight.numel() for weight in trained.model.position_parameters()),
        "model_parameters": sum(weight.numel() for weight in trained.model.parameters()),
        "seconds": trained.seconds + time.perf_counter() - begun,
        "spectrum": spectrum(trained.model.positions()),
    }
    folder.write_json(_record(spec, seed), record)
    ends = " / ".join("diverged" if x is None else f"{x:.3f}" for x in record["bits"])
    watch.say(f"{doing}: {ends} bits per {corpus.unit} in {record['seconds']:.0f} s")


def _record(spec: str, seed: int) -> str:
    return f"runs/{run_name(spec, seed)}.json"


def _kept(settings: Settings, folder: RunFolder) -> str:
    total = len(settings.encodings) * settings.seeds
    done = sum(folder.file(_record(spec, seed)).exists() for seed in settings.all_seeds for spec in settings.encodings)
    parts = len(list(folder.file("checkpoints").glob("*.pt"))) - done
    begun = " and a checkpoint of the next" if parts > 0 else ""
    return f"kept {done} of {total} runs{begun}; continue with: eigenclock compare --resume {shlex.quote(str(folder.path))}"


def _need_extras() -> None:
    """Refuses before any work when the report could not be written at the end."""
    missing = [name for name in ("jinja2", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"the report needs {' and '.join(missing)}, not installed here; install them with: pip install 'eigenclock[lab]'")


@contextmanager
def _patient_interrupt() -> Iterator[Callable[[], None]]:
    """Lets the step in progress finish on Ctrl-C: yields a check that raises KeyboardInterrupt; a second Ctrl-C does so at once."""
    asked = threading.Event()

    def note(number: int, frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    def check() -> None:
        if asked.is_set():
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's business
        yield check
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _mean(values: tuple[float | None, ...]) -> float | None:
    finite = [value for value in values if value is not None]
    return statistics.fmean(finite) if len(finite) == len(values) else None


def _spread(values: tuple[float | None, ...]) -> float | None:
    finite = [value for value in values if value is not None]
    return statistics.stdev(finite) if len(finite) == len(values) > 1 else None
