"""The one table, figure, page and file writer that every report of the project uses.

Nothing here knows about attention. The optional packages (rich, matplotlib, jinja2) are imported when something is rendered.
"""

from eigenclock.present.figure import Figure, Line, Panel
from eigenclock.present.files import append_line, file_error, write_whole
from eigenclock.present.page import Code, Heading, Part, render_page
from eigenclock.present.table import Cell, Table

__all__ = [
    "Cell",
    "Code",
    "Figure",
    "Heading",
    "Line",
    "Panel",
    "Part",
    "Table",
    "append_line",
    "file_error",
    "render_page",
    "write_whole",
]
