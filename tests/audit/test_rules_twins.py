"""The confusion table: each rule finds the fault of its faulty twin, and no rule finds a fault on the sound one."""

from dataclasses import replace

import pytest

from audit import twins
from audit.twins import TWINS, Twin
from eigenclock.audit.rules import RULES


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: f"{twin.rule}: {twin.fault}")
def test_the_rule_finds_the_fault_and_passes_the_sound_twin(twin: Twin):
    probe = twin.faulty()
    found = twins.of_rule(probe, twin.rule)
    assert found, f"{twin.fault} is not found by {twin.rule}"
    for finding in found:
        assert finding.rule == twin.rule and "\n" not in finding.message
        assert finding.severity == "advice" or finding.advice  # a fault comes with what to do
    assert twin.named(found), f"{twin.fault}: {[(f.message, f.where) for f in found]}"
    sound = twins.findings(twin.sound())
    assert not [str(f) for f in sound if f.severity == "fault" or f.rule == twin.rule]


def test_every_rule_has_a_twin():
    without = {"wavelengths", "base", "config"}  # advice on numbers, and refusals: tested in test_rules_config.py
    assert {twin.rule for twin in TWINS} == set(RULES) - without


def test_the_confusion_table_is_made_from_the_twins(monkeypatch):
    chosen = [twin for twin in TWINS if twin.rule in ("precision", "table")]
    monkeypatch.setattr(twins, "TWINS", chosen)
    rows = twins.confusion()
    assert [row.fault for row in rows] == [twin.fault for twin in chosen]
    assert all(row.found and row.named and row.clean for row in rows)
    broken = [Twin("nothing", "precision", chosen[0].sound, chosen[0].faulty)]  # the table can fail in every column
    monkeypatch.setattr(twins, "TWINS", broken)
    assert [(row.found, row.named, row.clean) for row in twins.confusion()] == [(False, False, False)]
    blamed = [replace(chosen[0], says="another cause"), replace(chosen[0], where={"positions": [0.0, 1.0]})]
    monkeypatch.setattr(twins, "TWINS", blamed)
    assert [(row.found, row.named) for row in twins.confusion()] == [(True, False), (True, False)]
