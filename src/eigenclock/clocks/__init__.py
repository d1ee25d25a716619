"""What time is: one file per clock."""

from eigenclock.clocks.axes import Axes
from eigenclock.clocks.clock import Clock, Reading
from eigenclock.clocks.column import Column
from eigenclock.clocks.cumulative import Cumulative
from eigenclock.clocks.documents import Documents
from eigenclock.clocks.index import Index
from eigenclock.clocks.selective import Selective
from eigenclock.clocks.sessions import Sessions
from eigenclock.clocks.timestamps import Timestamps
from eigenclock.clocks.units import duration, duration_text, exact_duration, is_duration

CLOCKS: dict[str, type[Clock]] = {
    "index": Index,
    "axes": Axes,
    "timestamps": Timestamps,
    "sessions": Sessions,
    "column": Column,
    "documents": Documents,
    "cumulative": Cumulative,
    "selective": Selective,
}

__all__ = [
    "CLOCKS", "Axes", "Clock", "Column", "Cumulative", "Documents", "Index", "Reading", "Sessions", "Timestamps", "duration",
    "duration_text", "exact_duration", "is_duration",
]  # fmt: skip
