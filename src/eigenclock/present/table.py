"""One table, shown in a terminal, in Markdown, in HTML or as plain data."""

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eigenclock.errors import ShapeError

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Cell = str | int | float | bool | None
# "2.19 ± 0.03", "<= 4", "~12 k" count as numbers, "-" and "" as gaps between numbers
_NUMBER = re.compile(r"\s*[<>~=≤≥≈]*\s*[-+−]?(\d|\.\d|inf\b|nan\b)", re.IGNORECASE)
_GAPS = ("", "-")


def _plain(cell: object) -> Cell:
    """A number of NumPy or a tensor of one element as a Python number, so that it prints and goes into JSON."""
    if cell is not None and not isinstance(cell, str | int | float):
        item = getattr(cell, "item", None)
        cell = item() if callable(item) else cell
    return cell if cell is None or isinstance(cell, str | int | float) else str(cell)


def cell_text(cell: Cell) -> str:
    """The text of one cell: numbers short enough to compare, gaps for what is missing.

    >>> [cell_text(c) for c in (2.19443, 1.5e-7, 123456.0, 12, True, None, "rope")]
    ['2.194', '1.5e-07', '1.23e+05', '12', 'yes', '-', 'rope']
    """
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        short = cell == 0 or not math.isfinite(cell) or 1e-3 <= abs(cell) < 1e5
        return f"{cell:.3f}" if short else f"{cell:.3g}"
    return str(cell)


@dataclass(frozen=True)
class Table:
    """A titled table with a note under it; rows hold text, numbers, truth values or None for a gap.

    Cells stay as given, so that ``to_dict`` carries full precision; text is made when the table is shown.
    Format a number yourself where three decimals are not what you want.

    Raises:
        ShapeError: a row has more or fewer cells than there are columns.

    Example:
        >>> table = Table("Loss", ("encoding", "1x"), (("rope", 2.19443), ("nope", None)), note="One seed.")
        >>> print(table.markdown())
        **Loss**
        <BLANKLINE>
        | encoding | 1x |
        | --- | ---: |
        | rope | 2.194 |
        | nope | - |
        <BLANKLINE>
        One seed.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "rows", tuple(tuple(_plain(cell) for cell in row) for row in self.rows))
        for i, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ShapeError(
                    f"table {self.title!r}: row {i} has {len(row)} cells; expected {len(self.columns)}, one for each of "
                    f"{', '.join(self.columns)}; use None for a gap"
                )

    def texts(self) -> tuple[tuple[str, ...], ...]:
        """The rows as they are shown."""
        return tuple(tuple(cell_text(cell) for cell in row) for row in self.rows)

    def numeric(self) -> tuple[bool, ...]:
        """For each column, whether it holds numbers (and gaps) only; such a column is aligned to the right."""
        columns = [[row[j] for row in self.texts()] for j in range(len(self.columns))]
        filled = [[text for text in column if text.strip() not in _GAPS] for column in columns]
        return tuple(bool(column) and all(_NUMBER.match(text) for text in column) for column in filled)

    def rich(self) -> "RichTable":
        """The table for a terminal; print it with ``rich.console.Console().print``."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        # Text, not str: a cell such as "[B, H, T]" is no markup.
        out = RichTable(
            title=Text(self.title, style="bold") if self.title else None,
            caption=Text(self.note, style="dim") if self.note else None,
            title_justify="left",
            caption_justify="left",
            box=SIMPLE_HEAD,
            pad_edge=False,
        )
        for name, right in zip(self.columns, self.numeric(), strict=True):
            out.add_column(Text(name), justify="right" if right else "left", overflow="fold")
        for row in self.texts():
            out.add_row(*(Text(text) for text in row))
        return out

    def markdown(self) -> str:
        """The table for a README or a pull request."""

        def line(cells: Sequence[str]) -> str:
            safe = (c.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>") for c in cells)
            return "| " + " | ".join(safe) + " |"

        head = [f"**{self.title}**", ""] if self.title else []
        rule = "| " + " | ".join("---:" if right else "---" for right in self.numeric()) + " |"
        foot = ["", self.note] if self.note else []
        return "\n".join([*head, line(self.columns), rule, *map(line, self.texts()), *foot])

    def html(self) -> str:
        """The table as one HTML element, in a frame that scrolls when the window is narrow."""
        numeric = self.numeric()

        def cells(tag: str, row: Sequence[str]) -> str:
            classes = (' class="number"' if right else "" for right in numeric)
            return "".join(f"<{tag}{c}>{html.escape(text)}</{tag}>" for c, text in zip(classes, row, strict=True))

        caption = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        body = "".join(f"<tr>{cells('td', row)}</tr>" for row in self.texts())
        note = f'<p class="note">{html.escape(self.note)}</p>' if self.note else ""
        table = f"<table>{caption}<thead><tr>{cells('th', self.columns)}</tr></thead><tbody>{body}</tbody></table>"
        return f'<div class="table">{table}{note}</div>'

    def to_dict(self) -> dict[str, object]:
        """Plain data that JSON can hold: infinities and NaN, which it cannot, become their names."""

        def plain(cell: Cell) -> Cell:
            return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell

        rows = [[plain(cell) for cell in row] for row in self.rows]
        return {"title": self.title, "columns": list(self.columns), "rows": rows, "note": self.note}
