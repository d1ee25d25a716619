"""Frequencies, rates and slopes of an encoding before and after training."""

import math
from collections.abc import Sequence
from typing import Any, cast

from eigenclock.encodings import Encoding, Parameter
from eigenclock.encodings.base import Recipe


def spectrum(blocks: Sequence[Encoding]) -> list[dict[str, Any]]:
    """The numbers of an encoding, one entry for each set of them, from the same encoding in every block of a model.

    An entry holds ``recipe`` and ``name`` (such as "rope", "freq"), whether it is ``learned``, the ``axis`` it runs along
    ("pair" or "channel" of the head, or "head" for the bias of each head), and ``initial`` (rows) and ``final`` (blocks, rows).

    Units: per position; frequencies in radians, slopes and the rates of a bias in logits.

    >>> from eigenclock.encodings import rope
    >>> [(entry["recipe"], entry["name"], entry["axis"], entry["learned"]) for entry in spectrum([rope(4), rope(4)])]
    [('rope', 'freq', 'pair', False)]
    """
    entries = []
    for path, first in blocks[0].named_modules():
        if not isinstance(first, Parameter):
            continue
        owner = cast(Recipe, blocks[0].get_submodule(path.rpartition("values.")[0].rstrip(".")))
        columns = first.initial.shape[-1]
        per_head = bool(owner.lifts())  # a bias has one number per head; everything else acts on the channels of a head
        entries.append(
            {
                "recipe": owner.name,
                "name": path.rsplit(".", 1)[-1],
                "learned": first.learned,
                "axis": "head" if per_head else "pair" if 2 * columns <= blocks[0].head_dim else "channel",
                "initial": _rows(first.initial.tolist()),
                "final": [_rows(cast(Parameter, block.get_submodule(path)).value().tolist()) for block in blocks],
            }
        )
    return entries


def _rows(values: list[Any]) -> list[list[float | None]]:
    """One row for each head (None where a run that diverged left no number), or a single row where the heads share the numbers."""
    rows = values if values and isinstance(values[0], list) else [values]
    rows = [[value if math.isfinite(value) else None for value in row] for row in rows]  # JSON has no infinity
    return rows[:1] if all(row == rows[0] for row in rows) else rows
