"""Amplitude: the factor of a schedule stands on cos and sin once for each side, so squared in a score and on turned channels alone."""

import math

from eigenclock.audit.measure.claims import amplitude_of, claims, matched, trusted, turn_of
from eigenclock.audit.measure.pairs import read_pairs
from eigenclock.audit.measure.samples import best, rounding, unlike_heads
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule

SOURCE = "YaRN 2309.00071 section 3.4, LongRoPE 2402.13753: the factor is on cos and sin"


def _claimed(probe: Probe) -> float | None:
    """The amplitude asked for, where there is one answer."""
    asked = {round(amplitude_of(enc), 9) for enc in claims(probe).values() if turn_of(enc) is not None}
    if len(asked) == 1:
        return asked.pop()
    tables = {round(float(table.amplitude), 9) for table in probe.tables.values() if math.isfinite(table.amplitude)}
    return tables.pop() if not asked and len(tables) == 1 else None


def _applies(probe: Probe) -> str | None:
    if probe.config is not None and not trusted(probe) and not probe.tables:
        return "how such configs are read is not known here"
    if probe.tables and claims(probe):
        return None
    if probe.scores is None or _claimed(probe) is None:
        return "nothing says what its amplitude should be"
    return None


def _check(probe: Probe) -> list[Finding]:
    found = []
    for layer, table, enc in matched(probe):
        asked, has = amplitude_of(enc), float(table.amplitude)
        if abs(has / asked - 1) > 1e-4:  # not a number where the table does not say
            message = f"the table is multiplied by {has:.6g}, the config asks for {asked:.6g}" + _power(has, asked)
            where = {"layer": layer} if layer else {}
            advice = (
                "scores of turned channels are off by the square of the ratio: read attention_factor, mscale and factor of this section"
            )
            severity = "fault" if trusted(probe) else "advice"
            found.append(Finding("amplitude", severity, message, has, asked, where, advice, SOURCE))
    asked = _claimed(probe)
    if found or asked is None or probe.scores is None or not trusted(probe):
        return found
    for head in unlike_heads(probe):
        pairs = read_pairs(best(probe), probe, head)
        if pairs is None:
            continue
        gap = (pairs.size / asked**2 - 1).abs()
        bad = gap > max(8 * rounding(probe, 0, exact=True), 1e-4)
        if not bool(bad.any()):
            continue
        has, n = float(pairs.size[gap.argmax()]), int(bad.sum())
        message = (
            f"{'turned channels' if n == bad.numel() else f'{n} of {bad.numel()} pairs'} score {has:.6g} q.k at lag 0, an amplitude of "
        )
        message += f"{asked:.6g} on each side gives {asked**2:.6g}" + _times(has, asked)
        advice = "put the factor on cos and sin once for each side, and nowhere else"
        where = {"lag": 0, "channels": [int(pairs.first[gap.argmax()]), int(pairs.second[gap.argmax()])], "head": head}
        return [Finding("amplitude", "fault", message, has, asked**2, where, advice, SOURCE)]
    return []


def _power(has: float, asked: float) -> str:
    return ": it is left out" if abs(has - 1) < 1e-6 else ": it is applied twice" if abs(has / asked**2 - 1) < 1e-4 else ""


def _times(has: float, asked: float) -> str:
    if abs(asked - 1) < 1e-6 or has <= 0:
        return ""
    power = math.log(has) / math.log(asked)
    words = {0: "it is left out", 1: "it stands on one side only", 4: "it is applied twice"}
    return f": {words[round(power)]}" if abs(power - round(power)) < 0.01 and round(power) in words else ""


RULE = Rule("amplitude", "is the amplitude applied once", _applies, _check)
