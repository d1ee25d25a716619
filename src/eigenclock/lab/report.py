"""The comparison as a table for the terminal and as one HTML page with pictures."""

import json
import math
import shlex
from typing import Any

from eigenclock.present import Code, Figure, Heading, Line, Panel, Part, Table, render_page
from eigenclock.present.table import Cell

FIRST_SHOWN = 4  # the first few positions have next to no context: their loss is alike for all and would flatten the picture
SHOWN = {"freq": "wavelength (positions)", "rate": "half-life (positions)", "slope": "slope (logit per position)"}


def table(result: dict[str, Any]) -> Table:
    """Rows: encodings. Columns: loss at each held-out length, training speed relative to the first, learned parameters.

    Units: as ``result["unit"]`` says; mean and sample standard deviation where there are several seeds.
    """
    lengths = [f"{length // result['train_length']}x ({length})" for length in result["lengths"]]
    rows: list[list[Cell]] = []
    for row in result["encodings"]:
        losses = [_loss(mean, spread) for mean, spread in zip(row["bits"], row["spread"], strict=True)]
        rows.append([row["label"], *losses, _speed(row["speed"]), row["parameters"]])
    for label in dict.fromkeys(failure["label"] for failure in result.get("failed", ())):
        rows.append([label, *["failed"] * len(lengths), "", ""])
    title = f"{result['unit'].capitalize()} on held-out text (lower is better)"
    return Table(title, ["encoding", *lengths, "speed", "params"], rows, note=note(result))


def note(result: dict[str, Any]) -> str:
    """What the columns are."""
    steps, unit = result["config"]["settings"]["steps"], result["config"]["corpus"]["unit"]
    return (
        f"Trained at {result['train_length']} {unit}s for {steps} steps; each column reads the same {result['targets']} held-out {unit}s "
        f"in windows of its length, every position counted. speed: training tokens/s relative to {result['speed_against']}. "
        "params: what the encoding learns."
    )


def failures(result: dict[str, Any]) -> list[str]:
    """A line for each run that failed, and how to try them again; empty where none did."""
    lines = [f"failed: {one['label']}, seed {one['seed']}: {one['error']}" for one in result.get("failed", ())]
    again = f"eigenclock compare --resume {shlex.quote(result['folder'])}"
    return [*lines, f"The other runs are kept. To try those that failed again: {again}"] if lines else []


def evidence(result: dict[str, Any]) -> str:
    """What the table is evidence of, and how to get more."""
    seeds = len(result["seeds"])
    more = f"eigenclock compare --resume {shlex.quote(result['folder'])} --seeds {max(3, seeds + 2)}"
    if seeds == 1:
        return f"One seed is not evidence. For mean and spread over more seeds: {more}"
    return f"Mean ± standard deviation over {seeds} seeds. For more seeds: {more}"


def page(result: dict[str, Any], metrics: list[dict[str, Any]]) -> str:
    """A self-contained page: table, curves, spectra, settings."""
    config = result["config"]
    corpus, settings = config["corpus"], config["settings"]
    parts: list[Part] = [
        table(result),
        *failures(result),
        evidence(result),
        Heading("Loss by position"),
        f"The longest windows ({result['lengths'][-1]} {corpus['unit']}s), by distance from their start. Left of the mark the model "
        "sees as much context as in training; right of it, an encoding that extrapolates stays flat or falls.",
        curves(result),
        Heading("Training"),
        training(result, metrics),
        Heading("Spectra"),
        "What each encoding was given and what it learned: the wavelength of each rotation, the half-life of each decay, "
        "the slope of each bias. A half-life h halves a logit (gain) or the odds of a key (bias) every h positions.",
        *spectra(result),
        Heading("Settings"),
        Table("", ("setting", "value"), [(name, _text(value)) for name, value in settings.items()]),
        Table("Corpus", ("", "value"), [(name, _text(value)) for name, value in corpus.items()]),
        Table("Encodings in full", ("encoding", "spec"), [(row["encoding"], row["spec"]) for row in result["encodings"]]),
        Code("  ".join(f"{name} {version}" for name, version in config["versions"].items())),
    ]
    runs, took = sum(len(row["runs"]) for row in result["encodings"]), f"{result['seconds']:.0f} s on {settings['threads']} threads"
    subtitle = f"{len(result['encodings'])} encodings, {runs} runs, {took}: {corpus['name']}"
    return render_page("Positional encodings compared", parts, subtitle=subtitle)


def curves(result: dict[str, Any]) -> Figure:
    """Loss against position in the longest window, and against the length of the window."""
    position, length = [], []
    for row in result["encodings"]:
        edges = row["runs"][0]["edges"]
        bins = [i for i in range(len(edges) - 1) if edges[i] >= FIRST_SHOWN]
        middle = [math.sqrt((edges[i] + 1) * edges[i + 1]) for i in bins]
        values = [[_number(run["curve"][i]) for run in row["runs"]] for i in bins]
        position.append(_line(row["label"], middle, values))
        values = [[_number(run["bits"][i]) for run in row["runs"]] for i in range(len(result["lengths"]))]
        length.append(_line(row["label"], result["lengths"], values, style="both"))
    mark = ((result["train_length"], "training length"),)
    return Figure(
        "Held-out loss",
        (
            Panel(position, "position in the window", result["unit"], "by position", log_x=True, marks=mark),
            Panel(length, "length of the window", result["unit"], "mean over windows", log_x=True, marks=mark),
        ),
        alt="Loss of each encoding by position in the longest window, and by length of the window",
        note="Bands span the seeds." if len(result["seeds"]) > 1 else f"One seed. Positions before {FIRST_SHOWN} are left out on the left.",
        panel_size=_size(result),
    )


def training(result: dict[str, Any], metrics: list[dict[str, Any]]) -> Figure:
    """Training loss of the first seed by step."""
    lines = []
    for row in result["encodings"]:
        mine = [m for m in metrics if m["encoding"] == row["encoding"] and m["seed"] == result["seeds"][0] and "train_bits" in m]
        lines.append(Line(row["label"], [m["step"] for m in mine], [_number(m["train_bits"]) for m in mine]))
    panel = Panel(lines, "step", result["unit"])
    return Figure("Training loss", (panel,), alt="Training loss of each encoding by step", note="First seed.", panel_size=_size(result))


def _size(result: dict[str, Any]) -> tuple[float, float]:
    """Width and height in inches of a panel with a line for each encoding: high enough for their names beside it."""
    return (6.0, max(3.5, 0.22 * len(result["encodings"])))


def spectra(result: dict[str, Any]) -> list[Part]:
    """A figure for each encoding that has frequencies, rates or slopes, a table of what else it learned; those of the first seed."""
    parts: list[Part] = []
    for row in result["encodings"]:
        entries = row["runs"][0]["spectrum"]
        pictured = [entry for entry in entries if "initial" in entry]
        others = [entry for entry in entries if "range" in entry]
        panels = [panel for entry in pictured for panel in _panels(entry)]
        if panels:
            text = "; ".join(f"{entry['recipe']} {entry['name']}: {'learned' if entry['learned'] else 'fixed'}" for entry in pictured)
            parts.append(Figure(row["encoding"], panels, alt=f"Spectrum of {row['encoding']}", note=text, panel_size=(5.0, 2.9)))
        if others:
            parts.append(_ranges(row["encoding"], others))
        if not entries:
            parts.append(f"{row['encoding']}: no frequency, rate or slope, and nothing is learned.")
    return parts


def _ranges(encoding: str, entries: list[dict[str, Any]]) -> Table:
    """Least and largest of each set of learned numbers that has no picture of its own."""
    rows: list[list[Cell]] = [
        [f"{entry['recipe']} {entry['name']}", entry["count"], _span(entry.get("start")), " | ".join(map(_span, entry["range"]))]
        for entry in entries
    ]
    return Table(f"{encoding}: other learned numbers", ("numbers", "count", "start", "learned, block by block"), rows)


def _span(ends: list[float | None] | None) -> str:
    if ends is None:
        return ""
    return " to ".join("not finite" if end is None else f"{end:.4g}" for end in ends)


def _speed(speed: float | None) -> str:
    return "" if speed is None else f"{speed:.2f}x"


def _panels(entry: dict[str, Any]) -> list[Panel]:
    """One picture of fixed or shared numbers, or one for each block where every head has learned its own."""

    def line(label: str, row: list[float]) -> Line:
        shown = [_shown(entry["name"], value) for value in row]
        return Line(label, range(1, len(row) + 1), shown, style="both" if len(row) > 1 else "points")

    def panel(title: str, lines: list[Line]) -> Panel:
        return Panel(lines, entry["axis"], SHOWN[entry["name"]], title, log_y=True)

    def heads(rows: list[list[float]], alone: str) -> list[Line]:
        return [line(alone if len(rows) == 1 else f"head {h + 1}", row) for h, row in enumerate(rows)]

    title = f"{entry['recipe']} {entry['name']}"
    if not entry["learned"]:
        return [panel(f"{title}, fixed", heads(entry["initial"], "all heads" if entry["axis"] != "head" else "fixed"))]
    if all(len(block) == 1 for block in entry["final"]) and len(entry["initial"]) == 1:
        learned = [line(f"block {k + 1}, learned", block[0]) for k, block in enumerate(entry["final"])]
        return [panel(title, [line("initial", entry["initial"][0]), *learned])]
    # The values span decades and move by some percent: what was learned shows beside the start, as a ratio.
    ratio = SHOWN[entry["name"]].split(" (")[0] + ", learned / initial"
    panels = [panel(f"{title}, initial", heads(entry["initial"], "all heads"))]
    for k, block in enumerate(entry["final"]):
        lines = []
        for h, row in enumerate(block):
            before = entry["initial"][h % len(entry["initial"])]
            moved = [_shown(entry["name"], b) / _shown(entry["name"], a) for a, b in zip(before, row, strict=True)]
            lines.append(Line(f"head {h + 1}", range(1, len(row) + 1), moved, style="both"))
        panels.append(Panel(lines, entry["axis"], ratio, f"{title}, block {k + 1}"))
    return panels


def _shown(name: str, value: float | None) -> float:
    """The value in the unit of its picture: a wavelength, a half-life, a slope; nothing for what is zero or lost."""
    if not value:
        return math.nan
    return {"freq": 2 * math.pi / abs(value), "rate": math.log(2) / value}.get(name, value)


def _line(label: str, x: list[float], values: list[list[float]], style: str = "line") -> Line:
    mean = [sum(v) / len(v) for v in values]
    if len(values[0]) == 1:
        return Line(label, x, mean, style=style)
    return Line(label, x, mean, [min(v) for v in values], [max(v) for v in values], style=style)


def _loss(mean: float | None, spread: float | None) -> str:
    if mean is None:
        return "diverged"
    return f"{mean:.3f}" if spread is None else f"{mean:.2f}±{spread:.2f}"


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
