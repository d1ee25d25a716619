"""The command line: ``eigenclock COMMAND [options]``. To add a command write one file and one line in ``COMMANDS``.

A command's module holds ``Options``, a frozen dataclass that becomes its options, and ``run(options) -> int``. It is imported
only when it is asked for. Exit status: 0 done, 1 findings, 2 bad input (one line on stderr), 130 interrupted, 141 nobody reads.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from eigenclock.errors import EigenclockError
from eigenclock.registry import lookup
from eigenclock.version import __version__

COMMANDS = {  # name: (module, what it does)
    "compare": ("eigenclock.cli.compare", "train a small GPT once per positional encoding and compare them on held-out text"),
    "show": ("eigenclock.cli.show", "show the blocks of an encoding, what it can tell apart, and its lag kernels"),
    "audit": ("eigenclock.cli.audit", "measure an encoding, config, model or function: its group, its faults, its spec"),
    "convert": ("eigenclock.cli.convert", "convert the query and key projections of a checkpoint between rotary layouts"),
    "cite": ("eigenclock.cli.cite", "print BibTeX for the recipes, schedules and clock of an encoding"),
    "extend": ("eigenclock.cli.extend", "extend the context of a pretrained model, or measure what each way of doing it costs"),
    "bench": ("eigenclock.cli.bench", "measure speed and memory beside plain attention and judge them by their targets"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status.

    >>> main(["--version"])  # doctest: +ELLIPSIS
    eigenclock ...
    0
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return 0 if words else 2
    if words[0] == "--version":
        print("eigenclock", __version__)
        return 0
    try:
        module = import_module(lookup(COMMANDS, words[0], "command")[0])
        return module.run(_parse(module.Options, words))
    except EigenclockError as error:
        return complain(words[0], error)
    except BrokenPipeError:  # who reads the output has seen enough (| head): no traceback, and nothing more is written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt as stop:
        print(f"eigenclock {words[0]}: {str(stop) or 'interrupted'}", file=sys.stderr)
        return 130


def complain(command: str, error: EigenclockError) -> int:
    """Prints an error as one line on stderr and returns the exit status of bad input."""
    print(f"eigenclock {command}: {' '.join(str(error).split())}", file=sys.stderr)
    return 2


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        (
            "usage: eigenclock COMMAND [options]",
            "",
            "Every positional encoding of attention is a generator and a clock.",
            "",
            "commands:",
            *lines,
            "",
            "eigenclock COMMAND --help lists the options of a command; eigenclock --version prints the version.",
        )
    )


def _parse(options: type, words: list[str]) -> object:
    """The options of a command; what the parser has against them becomes one line."""
    import contextlib
    import io

    import tyro

    from eigenclock.errors import ConfigError

    heard, config = io.StringIO(), (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes)
    try:
        with contextlib.redirect_stderr(heard):
            return tyro.cli(options, args=words[1:], prog=f"eigenclock {words[0]}", config=config)
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        raise ConfigError(f"{_one_line(heard.getvalue())}; see eigenclock {words[0]} --help") from None


def _one_line(box: str) -> str:
    """What a boxed message says, up to its first rule, without the frame.

    >>> bar, rule = "\\u2502", "\\u2500" * 4
    >>> _one_line(f"{bar} Unrecognized options: --stps {bar}\\n{bar} {rule} {bar}\\n{bar} Perhaps you meant {bar}")
    'Unrecognized options: --stps'
    """
    words = []
    for line in box.splitlines():
        inner = line.strip().strip("\u2502").strip()
        if inner.startswith(("\u256d", "\u2570")):
            continue
        if inner and set(inner) == {"\u2500"}:
            break
        words.append(inner)
    return " ".join(" ".join(words).split()) or "the options cannot be read"
