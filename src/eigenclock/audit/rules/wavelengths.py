"""Wavelengths against the length: pairs that never turn, pairs too fast for whole positions, and the base. Advice only."""

import math

import torch
from torch import Tensor

from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.claims import claims, turn_of
from eigenclock.audit.rules.rule import Rule
from eigenclock.audit.rules.samples import step_of

SOURCE = "a pair turns once in 2 pi / frequency positions; above pi per position it is seen as a slower turn"
BOUND = "Men et al. 2405.14591: base of at least 0.0424 L^1.628 for a context of L"
PUBLISHED_FROM = 1000
"""The context from which the bound is read: it was fitted to lengths of thousands."""


def frequencies(probe: Probe) -> dict[str, Tensor]:
    """Layer type -> frequencies of what turns there: of the table it builds, else of its config, else of the encoding it is."""
    if probe.tables:
        return {layer: table.inv_freq.detach().double().cpu().flatten().abs() for layer, table in probe.tables.items()}
    asked = claims(probe) or ({"": probe.encoding} if probe.encoding is not None else {})
    turns = {layer: turn_of(enc) for layer, enc in asked.items()}
    step = step_of(probe)
    return {layer: turn.freq.detach().double().cpu().abs() * step for layer, turn in turns.items() if turn is not None}


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


def base_of(freq: Tensor) -> float | None:
    """The base of a geometric table theta^(-i/n), None where the table is none.

    >>> round(base_of(10000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)))
    10000
    """
    n = freq.numel()
    if n < 3 or not bool((freq > 0).all()) or abs(float(freq[0]) - 1) > 1e-4:
        return None
    base = float(freq[1] ** -n)
    if not base > 1 + 1e-3:
        return None
    fits = torch.allclose(freq, base ** (-torch.arange(n, dtype=torch.float64) / n), rtol=1e-2, atol=0)
    return base if fits else None


def _base(probe: Probe) -> list[Finding]:
    found, least = [], 0.0424 * probe.length**1.628
    for layer, freq in frequencies(probe).items():
        base = base_of(freq)
        if base is not None and base < 0.999 * least:
            message = f"the base {base:.4g} lies below the published bound {least:.4g} for a context of {probe.length}"
            advice = "legal and common; for long contexts a larger base, or scaling, keeps near keys above far ones"
            where = {"layer": layer} if layer else {}
            found.append(Finding("base", "advice", message, base, least, where, advice, BOUND))
    return found


def _base_applies(probe: Probe) -> str | None:
    if probe.encoding is not None and probe.encoding.clock.unit is not None:
        return "its clock counts time, the published bound tokens"
    if probe.length < PUBLISHED_FROM:
        return f"the published bound is for contexts of {PUBLISHED_FROM} and more"
    if not any(base_of(freq) for freq in frequencies(probe).values()):
        return "it has no plain base"
    return None


RULE = Rule("wavelengths", "do its pairs turn within the length, and slowly enough for whole positions", _applies, _check)
BASE = Rule("base", "is the base large enough for the length", _base_applies, _base)
