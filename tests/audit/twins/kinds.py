"""A pair of stand-ins, and a row of the confusion table."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from eigenclock.audit.probe import Probe

D, H, LENGTH = 8, 2, 640
Side = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Twin:
    """A fault, the rule that has to find it, and the two stand-ins."""

    fault: str
    rule: str
    faulty: Callable[[], Probe]
    sound: Callable[[], Probe]


@dataclass(frozen=True)
class Row:
    """A row of the confusion table: which rules found the fault, and which reported anything as a fault on the sound twin."""

    fault: str
    rule: str
    found_by: tuple[str, ...]
    false_alarms: tuple[str, ...]

    @property
    def found(self) -> bool:
        return self.rule in self.found_by

    @property
    def clean(self) -> bool:
        return not self.false_alarms
