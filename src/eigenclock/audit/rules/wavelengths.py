"""Wavelengths against the length: pairs that never turn, and pairs too fast for whole positions. Advice only."""

import math

from eigenclock.audit.measure.frequencies import frequencies
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule

SOURCE = "a pair turns once in 2 pi / frequency positions; above pi per position it is seen as a slower turn"


def _applies(probe: Probe) -> str | None:
    return None if frequencies(probe) else "nothing says which frequencies it turns with"


def _check(probe: Probe) -> list[Finding]:
    found = []
    unit = None if probe.encoding is None else probe.encoding.clock.unit
    for layer, freq in frequencies(probe).items():
        where = {"layer": layer} if layer else {}
        n = freq.numel()
        idle = int((freq * probe.length < 2 * math.pi).sum())
        if idle:
            still = int((freq == 0).sum())
            message = f"{idle} of {n} pairs never complete a turn within {probe.length} positions" + (
                f", {still} of them do not turn" if still else ""
            )
            advice = "nothing, if they are meant to carry content; a smaller base or fewer rotary channels would use them for position"
            found.append(Finding("wavelengths", "advice", message, idle, 0, where, advice, SOURCE))
        fast = int((freq > math.pi * (1 + 1e-9)).sum())
        if fast and unit is None:
            message = f"{fast} of {n} pairs turn by more than half a turn per position: at whole positions that is a slower turn (aliasing)"
            first = int((freq > math.pi * (1 + 1e-9)).int().argmax())
            found.append(
                Finding(
                    "wavelengths",
                    "advice",
                    message,
                    float(freq.max()),
                    math.pi,
                    where | {"pair": first},
                    "use frequencies up to pi",
                    SOURCE,
                )
            )
    return found


RULE = Rule("wavelengths", "do its pairs turn within the length, and slowly enough for whole positions", _applies, _check)
