"""What time is: one file per clock."""

from eigenclock.clocks.clock import Clock, Reading
from eigenclock.clocks.documents import Documents
from eigenclock.clocks.index import Index
from eigenclock.clocks.timestamps import Timestamps
from eigenclock.clocks.units import duration

CLOCKS: dict[str, type[Clock]] = {
    "index": Index,
    "timestamps": Timestamps,
    "documents": Documents,
}

__all__ = ["CLOCKS", "Clock", "Documents", "Index", "Reading", "Timestamps", "duration"]
