"""Scaling: the table the model builds, and the turn of its scores, are those its config asks for, in each layer type."""

from eigenclock.audit.measure.built import CLEAR, RADIANS, applies, built
from eigenclock.audit.measure.turning import applies as turning_applies
from eigenclock.audit.measure.turning import turning
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule


def _check(probe: Probe) -> list[Finding]:
    found = [finding for finding in built(probe) if finding.rule == "scaling"] if applies(probe) is None else []
    return found + [finding for finding in turning(probe, CLEAR, RADIANS) if finding.rule == "scaling"]


RULE = Rule(
    "scaling",
    "is the scaling of the config in the table the model builds, and in its scores",
    lambda probe: applies(probe) if turning_applies(probe) is not None else None,
    _check,
)
