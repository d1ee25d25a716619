"""``eigenclock show``: an encoding by its blocks, what it can tell apart, and its lag kernels."""

import copy
import inspect
import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from eigenclock.clocks import CLOCKS, duration
from eigenclock.encodings import ENCODINGS, Encoding, encoding
from eigenclock.encodings.cite import spec_tree
from eigenclock.encodings.describe import Description, describe, read_dtype
from eigenclock.encodings.describe.description import clock_text
from eigenclock.encodings.spec import from_text
from eigenclock.errors import ConfigError, UnsupportedError
from eigenclock.present import Figure, write_whole
from eigenclock.registry import lookup

WIDTH = 140
HEAD_DIM, HEADS = 64, 8  # where neither the spec nor the options say


class Options:
    """Show what an encoding is made of, what it can tell apart over a context and in a dtype, and its lag kernels.

    Args:
        spec: A spec such as "rope(theta=500000) * alibi", or a JSON file of one.
        head_dim: Width of a head (default: 64 where the spec names none).
        heads: Query heads (default: 8 where the spec names none).
        kv_heads: Key heads, where they are fewer.
        context: How far back keys are looked at: a number in the unit of the clock, or a duration such as 8h where it has one.
        dtype: bfloat16, float16, float32 or float64: what is told apart in it.
        clock: A clock for every recipe that names none, such as 'timestamps(per="min")'.
        all: Show every row of the table.
        figure: Draw the lag kernels to this file, SVG or PNG by its ending.
        out: Draw them to kernels.svg and kernels.png in this folder.
        json: Print everything as JSON, and nothing else, on stdout.
    """

    # A class of its own rather than a dataclass, because the spec is positional.
    def __init__(
        self,
        spec: str,
        /,
        *,
        head_dim: int | None = None,
        heads: int | None = None,
        kv_heads: int | None = None,
        context: str = "4096",
        dtype: str = "bfloat16",
        clock: str | None = None,
        all: bool = False,
        figure: Path | None = None,
        out: Path | None = None,
        json: bool = False,
    ) -> None:
        self.spec, self.head_dim, self.heads, self.kv_heads = spec, head_dim, heads, kv_heads
        self.context, self.dtype, self.clock, self.all = context, dtype, clock, all
        self.figure, self.out, self.json = figure, out, json


def run(options: Options) -> int:
    """Describes the encoding, draws what was asked for, and shows it."""
    places = _places(options)
    dtype = read_dtype(options.dtype)
    built = build(options)
    found = describe(built, context=_context(options.context, built), dtype=dtype)
    figure = found.figure()
    files = [str(write_whole(path, _drawn(figure, path))) for path in places]
    if options.json:
        print(json.dumps(found.to_dict() | {"files": files}, indent=1, allow_nan=False))
        return 0
    _print(found, options.all, files)
    return 0


def _print(found: Description, every_row: bool, files: list[str]) -> None:
    from rich.console import Console

    # A file or a pipe has no width of its own: lines there may be long.
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    say(found.text)
    say(f"form     {found.form}" + (f", and a part outside the group, which breaks {found.breaks}" if found.breaks else ""))
    if found.reads_in:
        say(f"A(0)     not the identity: {found.reads_in}")
    say(f"acts on  {found.acts_on}: {found.meaning}")
    say(f"clock    {clock_text(found)}")
    say(f"over     {found.setting.span}, in {found.setting.precision}")
    console.print()
    console.print(found.table(rows=None).rich() if every_row else found.table().rich())
    for finding in found.findings:
        say(f"- {finding.text}")
    for file in files:
        say(f"Lag kernels: {file}")


def build(options: Options) -> Encoding:
    """The encoding of a spec; sizes that are named nowhere are filled in, and so is the clock of the options.

    >>> print(build(Options("rope", clock="timestamps('ms')")))
    rope(head_dim=64, heads=8, clock=timestamps(unit='ms', per='s'))
    """
    tree = copy.deepcopy(spec_tree(options.spec))
    nodes = list(_recipes(tree))
    if options.clock is not None:
        chosen = from_text(options.clock)
        if not isinstance(chosen, dict) or "name" not in chosen:
            raise ConfigError(f"got --clock {options.clock}; expected a clock such as 'timestamps(per=\"min\")'")
        lookup(CLOCKS, str(chosen["name"]), "clock")
        for node in nodes:
            if "clock" in _options(node):
                node.setdefault("clock", chosen)
    # The parts of a sum have widths of their own, and a width in the spec stands for itself.
    named = any("head_dim" in node or (node.get("args") and "head_dim" in _options(node)) for node in nodes)
    head_dim = HEAD_DIM if options.head_dim is None and not named and not _has_sum(tree) else options.head_dim
    heads = HEADS if options.heads is None and not any("heads" in node for node in nodes) else options.heads
    return encoding(tree, head_dim=head_dim, heads=heads, kv_heads=options.kv_heads)


def _recipes(node: Any) -> Iterator[dict[str, Any]]:
    """The calls of recipes in a spec, not those of clocks and schedules."""
    if isinstance(node, dict):
        if node.get("name") in ENCODINGS:
            yield node
        for inner in [*node.get("parts", []), *node.get("args", []), node.get("encoding")]:
            yield from _recipes(inner)


def _has_sum(node: Any) -> bool:
    return isinstance(node, dict) and (
        node.get("op") == "+" or any(_has_sum(inner) for inner in [*node.get("parts", []), *node.get("args", []), node.get("encoding")])
    )


def _options(node: dict[str, Any]) -> list[str]:
    return list(inspect.signature(ENCODINGS[node["name"]]).parameters)


def _context(text: str, built: Encoding) -> float:
    try:
        return float(text)
    except ValueError:
        return duration(text, built.clock.unit)


def _places(options: Options) -> list[Path]:
    """Where pictures go; refused before anything is computed where they cannot be drawn."""
    places = [] if options.figure is None else [options.figure]
    if options.figure is not None and options.figure.suffix.lower() not in (".svg", ".png"):
        raise ConfigError(f"got --figure {options.figure}; expected a file that ends in .svg or .png")
    if options.out is not None:
        places += [options.out / "kernels.svg", options.out / "kernels.png"]
    if places and find_spec("matplotlib") is None:
        raise UnsupportedError("drawing needs matplotlib, which is not installed; install it with: pip install 'eigenclock[lab]'")
    return places


def _drawn(figure: Figure, path: Path) -> bytes:
    return figure.svg() if path.suffix.lower() == ".svg" else figure.png()
