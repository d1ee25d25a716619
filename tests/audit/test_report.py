"""The report: severities, order, twenty lines, a stable plain form, a page that needs nothing else, and rules that fail."""

import importlib
import json
import math

import pytest
import torch

import eigenclock as ec
from eigenclock.audit import RULES, Block, Finding, Measured, Probe, Report, Rule
from eigenclock.audit.judge import judge
from eigenclock.audit.report import page as report_page

KEYS = {
    "schema", "subject", "kind", "length", "dtype", "ok", "findings", "checked", "skipped", "form", "spec", "blocks", "nearest", "witness",
    "notes", "units", "verdict", "unjudged",
}  # fmt: skip


def many(n: int) -> Report:
    found = tuple(Finding("law", "risk", f"finding {i}", float(i), 1.0, {"t": i, "s": 0}, "do something") for i in range(n))
    return Report("mine", "callable", 64, "float32", found, checked=("law",), skipped={"cache": "it has no cache"}, form="4R", spec="rope")


@pytest.mark.parametrize("n", [0, 1, 7, 8, 40])
def test_the_text_has_twenty_lines_at_most_and_says_how_many_findings_it_leaves_out(n):
    lines = str(many(n)).splitlines()
    shown = sum("RISK law: finding" in line for line in lines)
    assert len(lines) <= 20 and "1 rule ran, 1 skipped" in lines[-1]
    assert shown == n or f"and {n - shown} more" in "\n".join(lines)
    assert shown >= min(n, 6)


def test_only_a_fault_makes_a_report_bad_and_levels_include_worse_ones():
    one = {level: Report("m", "spec", 2, "float64", (Finding("r", level, "x"),)) for level in ("fault", "risk", "advice")}
    assert [one[level].ok for level in one] == [False, True, True]
    assert [bool(one["risk"].at_least(level)) for level in one] == [False, True, True]
    with pytest.raises(ec.ConfigError, match="fault, risk, advice"):
        Finding("r", "error", "x")
    with pytest.raises(ec.ConfigError, match="fault, risk, advice"):
        one["risk"].at_least("warning")


def test_plain_data_keeps_its_keys_and_holds_no_number_that_json_cannot():
    block = Block("S", 1, 2, 0, Measured(0.5, math.inf), Measured(1.0, 1e-9))
    report = Report("m", "spec", 2, "float64", (Finding("r", "fault", "x", math.inf, math.nan, {"at": (1, 2.0)}),), blocks=(block,))
    text = json.dumps(report.to_dict(), allow_nan=False)
    plain = json.loads(text)
    assert set(plain) == KEYS and plain["schema"] == 2 and plain["ok"] is False and plain["verdict"] == "FAULT"
    assert plain["findings"][0]["measured"] == "inf" and plain["findings"][0]["where"] == {"at": [1, 2.0]}
    assert plain["blocks"][0]["rate"] == [0.5, "inf"]


def test_the_page_needs_nothing_else_and_escapes_what_it_shows():
    report = ec.audit(ec.rope(8, heads=2), length=64)
    page = report.html()
    assert page.count("<svg") >= 1 and "<script" not in page and 'src="http' not in page and "rope(" in page
    assert "<b>" not in Report("<b>", "spec", 2, "float64").html()


def test_a_rule_that_raises_is_named_and_never_passes_for_a_sound_subject(monkeypatch):
    def broken(probe: Probe) -> list[Finding]:
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setitem(RULES, "broken", Rule("broken", "fails", lambda probe: None, broken))
    report = ec.audit(ec.rope(8), length=64)
    assert report.failed == ("broken",) and "broken" not in report.checked
    assert "ZeroDivisionError: nothing to divide by" in report.skipped["broken"]
    assert report.ok is None and str(report).splitlines()[0].endswith("NOT JUDGED (broken failed)")
    assert report.unjudged == ("broken: it failed with ZeroDivisionError: nothing to divide by",) and "ZeroDivisionError" in str(report)


@pytest.mark.parametrize("law", ["linearity", "shift_invariance"])
def test_without_a_rule_of_the_law_nothing_is_ok(monkeypatch, law):
    monkeypatch.setitem(RULES, law, Rule(law, "is not asked", lambda probe: "not today", lambda probe: []))
    report = ec.audit(ec.rope(8), length=64)
    assert report.ok is None and report.verdict == "NOT JUDGED" and report.unjudged == (f"{law} could not be measured",)
    assert f"why      {law} could not be measured" in str(report)


def test_a_fault_is_a_fault_whatever_else_is_not_known():
    fault, unknown = (Finding("r", "fault", "x"),), ("no scores can be read from it",)
    reports = [Report("m", "spec", 2, "float64", some, unjudged=why) for some in ((), fault) for why in ((), unknown)]
    assert [report.ok for report in reports] == [True, None, False, False]
    failed = Report("m", "spec", 2, "float64", fault, skipped={"cache": "it failed with ValueError"})
    assert str(failed).splitlines()[0].endswith("FAULT (cache failed)")
    assert "1 of them with faults, 1 not judged" in report_page((failed, Report("n", "spec", 2, "float64", unjudged=unknown)))


def test_a_rule_sees_each_layer_type_and_its_findings_name_it(monkeypatch):
    module = importlib.import_module("eigenclock.audit.judge")
    monkeypatch.setattr(module, "RULES", {})

    def seen(probe: Probe) -> list[Finding]:
        return [Finding("see", "advice", "seen", where={"t": 1})]

    module.RULES["see"] = Rule("see", "", lambda probe: None if probe.head_dim == 4 else "another width", seen)
    inner = Probe("inner", "config", 4)
    report = judge(Probe("outer", "config", 8, layers={"full": inner, "sliding": inner}))
    assert [f.where["layer"] for f in report.findings] == ["full", "sliding"] and report.checked == ("see",)
    module.RULES["see"] = Rule("see", "", lambda probe: "never", seen)
    assert judge(Probe("outer", "config", 8)).skipped == {"see": "never"}


SETTINGS = [{"length": 1}, {"length": 2.5}, {"head_dim": 0}, {"heads": -1}, {"head_dim": 1.5}, {"dtype": torch.int64}, {"dtype": "bf61"}]


@pytest.mark.parametrize("bad", SETTINGS)
def test_bad_settings_are_refused_in_one_line(bad):
    with pytest.raises(ec.EigenclockError) as refused:
        ec.audit(ec.rope(8), **bad)
    assert "\n" not in str(refused.value)
