"""Frequencies, rates and slopes of an encoding before and after training, and the range of whatever else it learns."""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn

from eigenclock.encodings import Encoding, Parameter

PICTURED = ("freq", "rate", "slope")  # numbers whose meaning is known; a report shows others by their range


def spectrum(blocks: Sequence[Encoding]) -> list[dict[str, Any]]:
    """The numbers of an encoding, one entry for each set of them, from the same encoding in every block of a model.

    Frequencies, rates and slopes: ``recipe`` and ``name`` (such as "rope", "freq"), whether it is ``learned``, the ``axis`` it runs
    along ("pair" or "channel" of the head, "head" for the bias of each head, "term" for the terms of one bias), and ``initial`` (rows)
    and ``final`` (blocks, rows). Whatever else is learned: ``recipe``, ``name``, ``learned``, ``count`` and ``range``, the least and
    the largest number in each block; ``start`` where it is known.

    Units: per position; frequencies in radians, slopes and the rates of a bias in logits.

    >>> from eigenclock.encodings import rope
    >>> [(entry["recipe"], entry["name"], entry["axis"], entry["learned"]) for entry in spectrum([rope(4), rope(4)])]
    [('rope', 'freq', 'pair', False)]
    """
    entries, seen = [], set()
    for path, first in blocks[0].named_modules():
        if not isinstance(first, Parameter):
            continue
        seen.add(f"{path}.raw")
        owner, name = _owner(blocks[0], path), path.rsplit(".", 1)[-1]
        if name in PICTURED and 1 <= first.initial.dim() <= 2:
            entries.append(_pictured(blocks, path, first, owner))
        elif first.learned:
            values = [cast(Parameter, block.get_submodule(path)).value() for block in blocks]
            entries.append(_ranges(_called(owner), name, values) | {"start": _range(first.initial)})
    for path, weight in blocks[0].named_parameters():
        if path not in seen and weight.numel():
            values = [block.get_parameter(path) for block in blocks]
            entries.append(_ranges(_called(blocks[0]), path, values))
    return entries


def _pictured(blocks: Sequence[Encoding], path: str, first: Parameter, owner: nn.Module) -> dict[str, Any]:
    return {
        "recipe": _called(owner),
        "name": path.rsplit(".", 1)[-1],
        "learned": first.learned,
        "axis": _axis(owner, first.initial.shape[-1], blocks[0]),
        "initial": _rows(first.initial.tolist()),
        "final": [_rows(cast(Parameter, block.get_submodule(path)).value().tolist()) for block in blocks],
    }


def _axis(owner: nn.Module, columns: int, whole: Encoding) -> str:
    if isinstance(owner, Encoding) and owner.lifts():  # a bias: what is not one number per head is summed over
        return "head" if columns == owner.heads else "term"
    return "pair" if 2 * columns <= whole.head_dim else "channel"


def _owner(encoding: Encoding, path: str) -> nn.Module:
    """The recipe that holds the set of numbers at ``path``."""
    return encoding.get_submodule(path.rpartition(".")[0].removesuffix("values").rstrip("."))


def _called(owner: nn.Module) -> str:
    return str(getattr(owner, "name", type(owner).__name__))


def _ranges(recipe: str, name: str, values: Sequence[torch.Tensor]) -> dict[str, Any]:
    ranges = [_range(value) for value in values]
    return {"recipe": recipe, "name": name, "learned": True, "count": values[0].numel(), "range": ranges}


def _range(values: torch.Tensor) -> list[float | None]:
    """The least and the largest number; None where a run that diverged left no number."""
    return [_number(end.item()) for end in values.detach().double().aminmax()]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no infinity


def _rows(values: list[Any]) -> list[list[float | None]]:
    """One row for each head (None where a run that diverged left no number), or a single row where the heads share the numbers."""
    rows = values if values and isinstance(values[0], list) else [values]
    rows = [[_number(value) for value in row] for row in rows]
    return rows[:1] if all(row == rows[0] for row in rows) else rows
