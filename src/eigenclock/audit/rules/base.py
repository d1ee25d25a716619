"""The base against the published bound for the length. Advice only: most configs in use lie below it."""

from eigenclock.audit.measure.frequencies import base_of, frequencies
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule

SOURCE = "Men et al. 2405.14591: base of at least 0.0424 L^1.628 for a context of L"
PUBLISHED_FROM = 1000
"""The context from which the bound is read: it was fitted to lengths of thousands."""


def _check(probe: Probe) -> list[Finding]:
    found, least = [], 0.0424 * probe.length**1.628
    for layer, freq in frequencies(probe).items():
        base = base_of(freq)
        if base is not None and base < 0.999 * least:
            message = f"the base {base:.4g} lies below the published bound {least:.4g} for a context of {probe.length}"
            advice = "legal and common; for long contexts a larger base, or scaling, keeps near keys above far ones"
            where = {"layer": layer} if layer else {}
            found.append(Finding("base", "advice", message, base, least, where, advice, SOURCE))
    return found


def _applies(probe: Probe) -> str | None:
    if probe.encoding is not None and probe.encoding.clock.unit is not None:
        return "its clock counts time, the published bound tokens"
    if probe.length < PUBLISHED_FROM:
        return f"the published bound is for contexts of {PUBLISHED_FROM} and more"
    if not any(base_of(freq) for freq in frequencies(probe).values()):
        return "it has no plain base"
    return None


RULE = Rule("base", "is the base large enough for the length", _applies, _check)
