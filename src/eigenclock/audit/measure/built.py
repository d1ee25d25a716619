"""The table a model builds against the one its config asks for: findings for the rules ``scaling`` and ``layer_types``."""

from collections.abc import Iterable

import torch
from torch import Tensor

from eigenclock.audit.measure.claims import at_lengths, matched, near_misses, off, trusted, turn_of
from eigenclock.audit.measure.frequencies import rounded_to, uninitialised
from eigenclock.audit.measure.samples import SINGLE, name_of
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.encodings import Encoding

SOURCE = "the formulas of the schedules (PI 2306.15595, YaRN 2309.00071, LongRoPE 2402.13753, Llama 3), in float64"
LIMIT = 64 * SINGLE
"""Relative error of a frequency: theta^(-2i/d) in float32 errs by ln(theta) / 2 and some steps more of rounding, below 16 of them."""
CLEAR, RADIANS = 5e-4, 0.1
"""What makes an error a fault: more than float16 rounds a frequency by, or an angle at the last position that scores show."""


def applies(probe: Probe) -> str | None:
    """Why its tables can't be held against a config."""
    if not probe.tables:
        return "it builds no rotary table that can be read"
    return None if any(True for _ in matched(probe)) else "no config says what the table should be"


def built(probe: Probe) -> list[Finding]:
    """A finding for each layer type whose table is another one than its config asks for."""
    found = []
    for layer, table, enc in matched(probe):
        turn = turn_of(enc)
        if turn is None or uninitialised(table.inv_freq):
            continue
        claimed = min(
            (turn.freq, *(freq for _, freq in at_lengths(probe, layer, float(probe.length)))),
            key=lambda freq: float(off(table.inv_freq, freq).max()),
        )
        gaps = off(table.inv_freq, claimed)
        value = float(gaps.max())
        if value <= LIMIT:
            continue
        pair = int((gaps > LIMIT).int().argmax())
        why = _rounded(table.inv_freq, claimed) or explained(table.inv_freq, near_misses(probe, layer))
        mixed = why.startswith("it is the table of")
        asks = "the config asks for" if probe.config is not None else "its own parameters ask for"
        numbers = [float(x[pair]) if pair < x.numel() else 0.0 for x in (table.inv_freq, claimed)]
        message = f"pair {pair} turns by {numbers[0]:.6g} per position, {asks} {abs(numbers[1]):.6g}" + (f": {why}" if why else "")
        if not why and not trusted(probe):
            message += ", as far as such configs are understood here"
        where = {"pair": pair, "pairs off": int((gaps > LIMIT).sum())} | ({"layer": layer} if layer else {})
        advice = "give each layer type the parameters of its own" if mixed else "check which dict the code reads the rotary keys from"
        late = (
            float((table.inv_freq.detach().double().cpu().abs() - claimed.abs()).abs().max())
            if table.inv_freq.shape == claimed.shape
            else 1e9
        )
        clear = value > CLEAR or late * (probe.length - 1) > RADIANS
        severity = "advice" if not (why or trusted(probe)) else "fault" if clear else "risk"
        found.append(Finding("layer_types" if mixed else "scaling", severity, message, float(gaps.max()), LIMIT, where, advice, SOURCE))
    return found


def _rounded(inv_freq: Tensor, claimed: Tensor) -> str:
    """That a table is the one claimed, rounded to 16 bits, in words; empty where it is not."""
    narrow = rounded_to(inv_freq.detach().double().cpu().flatten())
    if narrow is None or float(off(inv_freq, claimed).max()) > torch.finfo(narrow).eps:
        return ""
    return f"every frequency was rounded to {name_of(narrow)}"


def explained(inv_freq: Tensor, misses: Iterable[tuple[str, Encoding]]) -> str:
    """The near miss that the table follows, in words; empty where it follows none."""
    for words, enc in misses:
        turn = turn_of(enc)
        if turn is not None and float(off(inv_freq, turn.freq).max()) <= 1e-5:
            return words
    return ""
