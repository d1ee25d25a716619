"""A pair of stand-ins, and a row of the confusion table."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding

D, H, LENGTH = 8, 2, 640
Side = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Twin:
    """A fault, the rule that has to find it, and the two stand-ins; the cause in words and the place that have to be named with it."""

    fault: str
    rule: str
    faulty: Callable[[], Probe]
    sound: Callable[[], Probe]
    says: str = ""
    where: Mapping[str, float | int | str | list[float]] = field(default_factory=dict)

    def named(self, findings: Iterable[Finding]) -> bool:
        """Whether a finding of the rule names the cause and the place."""
        own = [f for f in findings if f.rule == self.rule]
        return any(self.says in f.message and all(f.where.get(key) == value for key, value in self.where.items()) for f in own)


@dataclass(frozen=True)
class Row:
    """A row of the confusion table: which rules found the fault, whether its cause and place are named, and which reported anything as a
    fault on the sound twin."""

    fault: str
    rule: str
    found_by: tuple[str, ...]
    named: bool
    false_alarms: tuple[str, ...]

    @property
    def found(self) -> bool:
        return self.rule in self.found_by

    @property
    def clean(self) -> bool:
        return not self.false_alarms
