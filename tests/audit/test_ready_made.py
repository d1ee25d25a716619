"""The faults known in released packages, reproduced: each is found in its stand-in as it is called, and its sound twin has no fault."""

import pytest

import eigenclock as ec
from audit.ready_made import EXAMPLES, Example


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.package}: {e.fault}")
def test_the_fault_is_found_and_its_sound_twin_has_none(example: Example):
    report = ec.audit(example.faulty(), **example.options)
    found = [f for f in report.findings if f.rule == example.rule]
    assert found and found[0].severity == example.severity, report
    assert (report.ok is False) == (example.severity == "fault") and not report.failed, report
    sound = ec.audit(example.sound(), **example.options)
    assert sound.ok is (None if example.sealed else True) and not sound.failed and example.rule not in {f.rule for f in sound.findings}, (
        sound
    )
