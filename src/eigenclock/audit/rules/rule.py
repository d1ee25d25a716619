"""A rule: one question to a probe, and the findings that answer it."""

from collections.abc import Callable
from dataclasses import dataclass

from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding


@dataclass(frozen=True)
class Rule:
    """One rule of the auditor.

    Args:
        id: its key in ``RULES``, and the ``rule`` of its findings.
        title: what it asks, in a few words.
        applies: None where it can be asked of a probe, else why not, in words.
        check: the findings; empty where the probe is sound.

    >>> Rule("nothing", "asks nothing", lambda probe: "it asks nothing", lambda probe: []).id
    'nothing'
    """

    id: str
    title: str
    applies: Callable[[Probe], str | None]
    check: Callable[[Probe], list[Finding]]
