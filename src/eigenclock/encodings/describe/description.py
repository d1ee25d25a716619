"""An encoding described: form, blocks, findings and kernels in one value that prints, draws and goes into JSON."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from eigenclock.encodings.base import Encoding
from eigenclock.encodings.describe.blocks import Blocks, Group, groups, read_blocks
from eigenclock.encodings.describe.findings import Finding, Setting, between, findings
from eigenclock.encodings.describe.kernels import block_name, kernels
from eigenclock.encodings.outside import Outside
from eigenclock.encodings.rotary import Rotary
from eigenclock.encodings.spec import to_text
from eigenclock.errors import ConfigError
from eigenclock.present import Figure, Table
from eigenclock.present.table import Cell
from eigenclock.registry import lookup
from eigenclock.theory import JordanForm, Lift

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64}
_SHORT = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "fp64": "float64",
    "double": "float64",
}
HEAD, TAIL = 5, 5  # rows that are shown of a long table

_TURNS = "turns the inner product q . k with the lag; nothing fades"
_GAIN = "multiplies the inner product q . k (a gain): in softmax a logit that has faded to 0 is neutral, not suppressed"
_MIXED = "changes the inner product q . k with the lag (a gain)"
_PLACED = "adds a vector of its time to each query and key, so q . k depends on where they stand and not on the lag alone"
_BIAS = "adds to the logit, so it multiplies the softmax weight (a bias): in linear attention it has no use"


@dataclass(frozen=True)
class Description:
    """What :func:`describe` found: ``groups`` of equal blocks, ``findings`` in sentences, and the numbers behind the kernels.

    Units: rates, half-lives and wavelengths in the unit of the clock (``setting.units``).
    """

    text: str
    form: JordanForm
    acts_on: str
    sides: int
    clock: dict[str, Any]
    setting: Setting
    head_dim: int
    heads: int
    groups: tuple[Group, ...]
    findings: tuple[Finding, ...]
    content: Blocks
    lifts: tuple[Lift, ...]
    outside: tuple[Outside, ...] = ()
    breaks: str = ""
    reads_in: str = ""

    @property
    def meaning(self) -> str:
        """One sentence on what is acted on."""
        kinds = self.form.kinds if not self.lifts else {block.kind for block in self.content.jordan}
        fades, grows = bool({"D", "S"} & kinds), any(block.order > 1 for block in self.content.jordan)
        score = _GAIN if fades else _MIXED if grows else _TURNS
        if any(part.query_vectors is not None for part in self.outside):
            turns = f"; and {score}" if kinds - {"Z"} or grows else ""
            score = f"{_PLACED}{turns}"
        return {"nothing": "no position enters the logit", "score": score, "weight": _BIAS, "both": f"{score}; and {_BIAS}"}[self.acts_on]

    def table(self, rows: int | None = HEAD + TAIL + 2) -> Table:
        """One row per group of equal blocks; the middle of a table longer than ``rows`` is left out (None: all of it)."""
        units, step = self.setting.units, self.setting.step
        names = ["acts in", "block", "channels", f"rate per {step}", f"half-life ({units})"]
        axes = self.setting.axes if self.content.axes > 1 else ("",)
        names += [f"wavelength{' ' + axis if axis else ''} ({units})" for axis in axes]
        names += [f"largest within {self.setting.span}"]
        lines = [self._row(group, len(axes)) for group in self.groups]
        if rows is not None and len(lines) > rows:
            left = len(lines) - HEAD - TAIL
            lines = [*lines[:HEAD], ["..", f"{left} more", *[".."] * (len(names) - 2)], *lines[-TAIL:]]
        # A column in which nothing happens says less than its absence.
        kept = [j for j in range(len(names)) if j < 3 or any(line[j] not in (None, "..") for line in lines)]
        return Table("Blocks", [names[j] for j in kept], [[line[j] for j in kept] for line in lines], note=self._note())

    def _row(self, group: Group, axes: int) -> list[Cell]:
        fades = group.rate if group.slope is None else group.slope
        wavelengths = [_unless(math.inf, row) for row in group.wavelength]
        return [
            group.part,
            f"{group.count} x {block_name(group.block)}" if group.count > 1 else block_name(group.block),
            _ranges(group.channels),
            _unless(0.0, fades),
            _unless(math.inf, group.half_life),
            *wavelengths,
            *[None] * (axes - len(wavelengths)),
            None if group.block.order == 1 or group.part == "bias" else between(group.peak),
        ]

    def _note(self) -> str:
        notes = []
        if any(len(group.rate) > 1 or len(group.slope or ()) > 1 or any(len(row) > 1 for row in group.freq) for group in self.groups):
            notes.append("Ranges run over the heads.")
        if any(group.slope is not None for group in self.groups):
            notes.append("The rate of a linear bias is its slope in logits, its half-life that of the softmax weight.")
        if any(group.block.order > 1 and group.part == "content" for group in self.groups):
            notes.append("Largest: of the entries of exp(uL).")
        if self.content.rebased:
            notes.append("Channels are counted in the basis in which L is block diagonal.")
        return " ".join(notes)

    def figure(self) -> Figure:
        """The lag kernels."""
        return kernels(self.text, self.content, self.lifts, self.setting, self.outside)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that JSON can hold, every block and every number; what is infinite (no decay, no turn) is None."""
        return {
            "spec": self.text,
            "form": str(self.form),
            "breaks": self.breaks,
            "reads_in": self.reads_in,
            "acts_on": self.acts_on,
            "meaning": self.meaning,
            "directions": self.sides,
            "clock": self.clock,
            "unit": self.setting.units,
            "head_dim": self.head_dim,
            "heads": self.heads,
            "context": self.setting.context,
            "dtype": self.setting.precision,
            "axes": list(self.setting.axes),
            "groups": [_plain(group) for group in self.groups],
            "findings": [finding.to_dict() for finding in self.findings],
            "kernels": self.figure().to_dict()["panels"],
        }


def describe(encoding: Encoding, *, context: float = 4096.0, dtype: torch.dtype = torch.bfloat16) -> Description:
    """Block table, findings and lag kernels of an encoding over a context (in the unit of its clock) and in a dtype.

    Raises: ConfigError where the context is not a finite number above 1 (steps) or 0, or the dtype has no rounding.

    >>> import eigenclock as ec
    >>> found = describe(ec.rope(64), context=4096)
    >>> print(found.findings[0].text)
    23 of 32 pairs turn fully within 4096 steps: one of them alone repeats itself, several together tell lags apart.
    """
    clock = encoding.clock
    least = 1.0 if clock.unit is None else 0.0
    if not (math.isfinite(context) and context > least):
        raise ConfigError(f"got a context of {context:g}; expected a finite one above {least:g} {clock.unit or 'steps'}")
    if not dtype.is_floating_point:
        raise ConfigError(f"got the dtype {dtype}; expected one of {', '.join(DTYPES)}")
    content = read_blocks(encoding.generator())
    lifts, outside = encoding.lifts(), encoding.outside()
    names = tuple(getattr(clock, "names", ())) or tuple(f"axis {a}" for a in range(content.axes))
    setting = Setting(float(context), clock.unit, dtype, names if content.axes > 1 else (), learned=clock.sums)
    parts = groups(content, "content", setting.context)
    for lift in lifts:
        parts += groups(read_blocks(lift.generator), "bias", setting.context, lift.slope)
    return Description(
        str(encoding),
        encoding.form,
        encoding.acts_on,
        encoding.sides,
        clock.spec(),
        setting,
        encoding.head_dim,
        encoding.heads,
        tuple(parts),
        (*findings(content, lifts, setting, encoding.sides, outside, encoding.reads_in), *_scheduled(encoding)),
        content,
        lifts,
        outside,
        encoding.breaks,
        encoding.reads_in,
    )


def _scheduled(encoding: Encoding) -> Iterator[Finding]:
    """What a schedule puts beside the generator: an amplitude, and frequencies that belong to one length."""
    for part in encoding.modules():
        if isinstance(part, Rotary) and part.amplitude != 1:
            a, n = part.amplitude, part.turned
            text = (
                f"The {n} channels that turn carry an amplitude of {a:.6g} on queries and on keys: {a * a:.6g} on their part of the logit."
            )
            yield Finding("amplitude", text, value=(a, a))
    if encoding.length_dependent:
        text = "The frequencies belong to one length of the sequence: keys that were turned for another length do not match its queries."
        yield Finding("length", text)


def read_dtype(name: str) -> torch.dtype:
    """A dtype by its name, short ones included.

    >>> read_dtype("bf16")
    torch.bfloat16
    """
    return lookup(DTYPES, _SHORT.get(name, name), "floating dtype")


def clock_text(description: Description) -> str:
    """The clock as it is written in a spec, and what it counts."""
    counts = "learned from the activations" if description.setting.learned else f"in {description.setting.units}"
    return f"{to_text(description.clock)}, time {counts}"


def _unless(nothing: float, values: tuple[float, ...]) -> str | None:
    """The range of some numbers; None where all of them say that nothing happens."""
    return None if all(value == nothing for value in values) else between(values)


def _ranges(channels: tuple[int, ...]) -> str:
    """Channels in short: runs as first-last.

    >>> _ranges((0, 1, 2, 8, 9, 12))
    '0-2, 8-9, 12'
    """
    runs: list[list[int]] = []
    for channel in channels:
        if runs and channel == runs[-1][1] + 1:
            runs[-1][1] = channel
        else:
            runs.append([channel, channel])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return ", ".join(texts if len(texts) <= 6 else [*texts[:3], "..", *texts[-2:]])


def _plain(group: Group) -> dict[str, Any]:
    def finite(values: tuple[float, ...]) -> list[float | None]:
        return [value if math.isfinite(value) else None for value in values]

    return {
        "part": group.part,
        "block": str(group.block),
        "order": group.block.order,
        "count": group.count,
        "channels": list(group.channels),
        "rate": list(group.rate),
        "freq": [list(row) for row in group.freq],
        "slope": None if group.slope is None else list(group.slope),
        "half_life": finite(group.half_life),
        "wavelength": [finite(row) for row in group.wavelength],
        "largest": list(group.peak),
    }


__all__ = ["DTYPES", "Description", "clock_text", "describe", "read_dtype"]
