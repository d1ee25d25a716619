"""The rotary table as numbers: whether it was ever initialised, and whether a narrow dtype rounded it."""

from typing import Any

import torch
from torch import Tensor

from eigenclock.audit.measure.frequencies import SLOWEST, rounded_to, rounds_to, uninitialised, unrounded
from eigenclock.audit.measure.pairs import read_pairs
from eigenclock.audit.measure.samples import best, name_of, needs_scores
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule

SOURCE = "frequencies of a rotary table are finite, and its fastest pair turns by a part of a radian per position"
RADIANS = 0.1
"""An angle that scores show: what a rounded table may be off by at the last position."""
CERTAIN = 128
"""How much finer than a narrow dtype a measured frequency must be known, for its digits not to be that dtype's by chance."""


def _applies(probe: Probe) -> str | None:
    if probe.tables:
        return None
    own = probe.encoding is not None or probe.as_read
    return needs_scores(probe) or ("its numbers are its own options" if own else None)


def _check(probe: Probe) -> list[Finding]:
    if not probe.tables:
        return _measured(probe)
    found = []
    for layer, table in probe.tables.items():
        freq = table.inv_freq.detach().double().cpu().flatten()
        where = {"layer": layer} if layer else {}
        broken = uninitialised(freq)
        if broken:
            message = f"the table was never filled, or overwritten: {broken}"
            advice = "build it where the model is initialised, after the weights are on their device, and keep it out of the state dict"
            found.append(Finding("table", "fault", message, float(freq.abs().max()), SLOWEST, where, advice, SOURCE))
            continue
        narrow = rounded_to(freq)
        if narrow is not None:
            found.append(_rounded(probe, freq, narrow, where))
        odd = "" if probe.encodings else unusual(freq)
        if odd and narrow is None:
            advice = "nothing, if it is meant: then say so in its config; memory that was never written looks so too"
            found.append(Finding("table", "advice", f"the table is no falling row from 1: {odd}", None, None, where, advice, SOURCE))
    return found


def _rounded(probe: Probe, freq: Tensor, narrow: torch.dtype, where: dict[str, Any]) -> Finding:
    """A table of numbers of a narrow dtype, and by how much the angle of its worst pair is off at the last position."""
    last, found = probe.length - 1, unrounded(freq, narrow)
    message = f"every frequency is a {name_of(narrow)} number: the table passed through that dtype"
    if found is None:  # of what row is not known: what is rounded is off by half a step at most
        rounded = torch.frexp(freq.abs()).mantissa != 0.5
        worst = float(torch.where(rounded, freq.abs(), 0.0).max()) * torch.finfo(narrow).eps / 2 * last
        message += f"; by what each is off is not known, since they are of no one base: by up to {worst:.3g} rad"
    else:
        row, theta = found
        off = (freq - row).abs() * last
        odd = ~rounds_to(row, freq, narrow)
        pair, worst = int(off.argmax()), float(off.max())
        message += (
            f"; scores still follow the lag, by another generator than the base {theta:g} declares: pair {pair} is off by {worst:.6g} rad"
        )
        if bool(odd.any()):
            rest = torch.where(odd, 0.0, off)
            pair = int(torch.where(odd, off, 0.0).argmax())
            worst = max(float(off[pair]), float(rest.max()))
            fits = f"{int((~odd).sum())} of {odd.numel()}"
            message = f"pair {pair} is of no table of the base {theta:g}, which gives {fits}: {float(freq[pair]):.6g} in place of "
            message += f"{float(row[pair]):.6g}, {float(off[pair]):.6g} rad at the last position; every frequency is a "
            message += f"{name_of(narrow)} number, by which pair {int(rest.argmax())} is off by {float(rest.max()):.6g} rad"
        where = where | {"pair": pair}
    severity = "fault" if worst > RADIANS else "risk"
    advice = "keep inv_freq in float32 whatever the weights are in: a later upcast can't bring the digits back"
    where = where | {"radians at": last}
    return Finding("table", severity, message, worst, RADIANS, where, advice, SOURCE)


def _measured(probe: Probe) -> list[Finding]:
    """The same of frequencies read from scores, those known far better than a narrow dtype tells numbers apart."""
    pairs = read_pairs(best(probe), probe)
    if pairs is None:
        return []
    freq, order = pairs.freq.abs(), pairs.freq.abs().argsort(descending=True)
    for dtype in (torch.bfloat16, torch.float16):
        near = freq.to(dtype).double()
        clear = pairs.error <= torch.finfo(dtype).eps / CERTAIN * freq
        off = (near - freq).abs() > 4 * pairs.error + 1e-12 * freq
        if not bool((clear & off).any()) and rounded_to(near[clear]) is dtype:
            whole = torch.where(clear, near, freq)[order]
            return [_rounded(probe, whole if bool(clear.all()) else near[clear], dtype, {})]
    return []


def unusual(freq: Tensor) -> str:
    """What keeps a table from being a falling row of numbers above 0 that begins with 1, in words; empty where nothing does.

    >>> unusual(torch.tensor([1.0, 0.1, -0.01])), unusual(torch.tensor([1.0, 0.1, 0.01]))
    ('pair 2 has the frequency -0.01', '')
    """
    if bool((freq < 0).any()):
        pair = int((freq < 0).int().argmax())
        return f"pair {pair} has the frequency {float(freq[pair]):.3g}"
    if freq.numel() and not bool(freq.any()):
        return "all its frequencies are 0, so that nothing turns"
    if bool((freq.diff() > 0).any()):
        pair = int((freq.diff() > 0).int().argmax())
        return f"pair {pair + 1} is faster than pair {pair}"
    return f"its first frequency is {float(freq[0]):.4g}" if freq.numel() and abs(float(freq[0]) - 1) > 1e-3 else ""


RULE = Rule("table", "was the rotary table initialised and kept in a wide dtype", _applies, _check)
