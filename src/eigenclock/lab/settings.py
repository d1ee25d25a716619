"""What one comparison is made of: every number that could change its result. Needs no torch, so that ``--help`` is quick."""

import dataclasses
import os
from pathlib import Path
from typing import Any

from eigenclock.errors import ConfigError

MULTIPLES = (1, 2, 4, 8)  # held-out windows, in training lengths

DEFAULT_ENCODINGS = (
    "nope",
    "rope",
    "damped_rope(half_life=(16, 4096), learn='rate')",
    "alibi",
    "rope * alibi",
    "decay_bias(half_life=(4, 512), learn='rate')",
)


def default_threads() -> int:
    """OMP_NUM_THREADS where it is set, else two where there are two cores: the model is too small for more."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return max(1, min(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a comparison; equal settings on the same machine give equal numbers.

    Raises:
        ConfigError: from :meth:`check`, when a number is impossible.

    >>> Settings(width=96, heads=4).head_dim
    24
    """

    encodings: tuple[str, ...] = DEFAULT_ENCODINGS
    """Spec strings to compare, each one argument, such as rope or "rope(theta=500) * alibi"."""
    text: Path | None = None
    """A file to train on, as bytes (default: the English text that every CPython carries)."""
    bin: tuple[Path, ...] = ()
    """Two files of uint16 tokens to train and to evaluate on, as nanoGPT writes them: --bin train.bin val.bin."""
    steps: int = 750
    """Optimiser steps of every run."""
    batch: int = 16
    """Sequences in a step."""
    length: int = 128
    """Length of a training sequence; held-out text is read at 1, 2, 4 and 8 times this length."""
    layers: int = 2
    """Transformer blocks."""
    width: int = 96
    """Width of the model; the hidden layer of each block has four times as much."""
    heads: int = 4
    """Attention heads; the head width is width / heads."""
    lr: float = 3e-3
    """Peak learning rate; a warm-up leads to it and half a cosine leads from it to zero."""
    seed: int = 0
    """First seed; it sets the initial weights and the order of the data, the same for every encoding."""
    seeds: int = 1
    """How many seeds, counted up from --seed; the table then shows mean and spread."""
    eval_tokens: int = 65536
    """At most so many held-out bytes (tokens with --bin) are evaluated, the same at every length."""
    save_every: int = 100
    """Steps between two checkpoints; a killed run loses no more than these."""
    threads: int = dataclasses.field(default_factory=default_threads)
    """Threads of the arithmetic; numbers are equal bit for bit only on the same count."""

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.width // self.heads

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the held-out windows."""
        return tuple(self.length * multiple for multiple in MULTIPLES)

    @property
    def all_seeds(self) -> range:
        """The seeds, in the order they are run."""
        return range(self.seed, self.seed + self.seeds)

    def check(self) -> "Settings":
        """Itself, when every number is possible.

        Raises:
            ConfigError: a number is out of range, the width is no multiple of the heads, or an encoding is named twice.
        """
        least = dict(steps=1, batch=1, length=2, layers=1, width=1, heads=1, seed=0, seeds=1, save_every=1, threads=1)
        for name, bound in least.items():
            if (got := getattr(self, name)) < bound:
                raise ConfigError(f"--{name.replace('_', '-')} is {got}; it must be at least {bound}; choose a larger number")
        if not 0 < self.lr < float("inf"):
            raise ConfigError(f"--lr is {self.lr}; it must be a positive number; try 3e-3")
        if self.width % self.heads:
            raise ConfigError(
                f"--width {self.width} is not divisible by --heads {self.heads}; every head gets the same width; "
                f"try --width {max(1, round(self.width / self.heads)) * self.heads}"
            )
        if self.eval_tokens < self.lengths[-1]:
            raise ConfigError(
                f"--eval-tokens is {self.eval_tokens}; one window of 8 x --length needs {self.lengths[-1]}; raise it or shorten --length"
            )
        if len(self.bin) not in (0, 2):
            raise ConfigError(f"--bin got {len(self.bin)} file(s); it takes two, to train and to evaluate on: --bin train.bin val.bin")
        if self.text is not None and self.bin:
            raise ConfigError("got both --text and --bin; a comparison reads one corpus; leave one of them out")
        if not self.encodings:
            raise ConfigError("--encodings is empty; name at least one encoding, for example: --encodings nope rope")
        twice = sorted({name for name in self.encodings if self.encodings.count(name) > 1})
        if twice:
            raise ConfigError(f"--encodings names {', '.join(map(repr, twice))} twice; each is trained once per seed; name it once")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with absolute paths so that a run continues from any directory.

        >>> Settings.from_dict(Settings(steps=7).to_dict()).steps
        7
        """
        values = dataclasses.asdict(self)
        values["encodings"] = list(self.encodings)
        values["text"] = None if self.text is None else str(self.text.absolute())
        values["bin"] = [str(path.absolute()) for path in self.bin]
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Settings":
        """The settings that :meth:`to_dict` wrote.

        Raises:
            ConfigError: a key is unknown, missing, or holds something of another kind.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, dict) or set(values) != known:
            odd = sorted(set(values) ^ known) if isinstance(values, dict) else [type(values).__name__]
            raise ConfigError(f"these settings are of another version (keys that differ: {', '.join(odd)}); start a new run folder")
        values = dict(values)
        values["encodings"] = tuple(values["encodings"])
        values["text"] = None if values["text"] is None else Path(values["text"])
        values["bin"] = tuple(map(Path, values["bin"]))
        return cls(**values)

    def differences(self, other: "Settings") -> list[str]:
        """Names of the settings in which ``other`` differs.

        >>> Settings(steps=3).differences(Settings(steps=4, seed=1))
        ['steps', 'seed']
        """
        mine, others = self.to_dict(), other.to_dict()
        return [name for name in mine if mine[name] != others[name]]
