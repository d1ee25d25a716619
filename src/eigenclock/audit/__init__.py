"""The auditor: which group an encoding is, where it breaks its own law, and whether it survives its dtype, length and cache."""

from eigenclock.audit.judge import audit
from eigenclock.audit.probe import Probe, RotaryTable
from eigenclock.audit.report import SEVERITIES, Block, Finding, Measured, Report
from eigenclock.audit.rules import RULES
from eigenclock.audit.rules.rule import Rule
from eigenclock.audit.subjects import SUBJECTS

__all__ = [
    "RULES",
    "SEVERITIES",
    "SUBJECTS",
    "Block",
    "Finding",
    "Measured",
    "Probe",
    "Report",
    "RotaryTable",
    "Rule",
    "audit",
]
