"""The rotary table as numbers: whether it was ever initialised, and whether a narrow dtype rounded it."""

import torch
from torch import Tensor

from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule
from eigenclock.audit.rules.samples import name_of

SOURCE = "frequencies of a rotary table are finite, and its fastest pair turns by a part of a radian per position"
SLOWEST = 1e-6
"""A table whose fastest pair turns more slowly than this tells no positions of any context apart."""


def _applies(probe: Probe) -> str | None:
    return None if probe.tables else "it builds no rotary table that can be read"


def _check(probe: Probe) -> list[Finding]:
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
            worst = float(freq.max()) * torch.finfo(narrow).eps / 2 * (probe.length - 1)
            message = f"every frequency is a {name_of(narrow)} number: the table passed through that dtype"
            severity = "fault" if worst > 0.1 else "risk"
            advice = "keep inv_freq in float32 whatever the weights are in: a later upcast can't bring the digits back"
            found.append(Finding("table", severity, message, worst, 0.1, where | {"radians at": probe.length - 1}, advice, SOURCE))
    return found


def uninitialised(freq: Tensor) -> str:
    """What shows that a table holds no frequencies, in words; empty where nothing does. All 0 is a table that does not turn.

    >>> uninitialised(torch.tensor([6.93e-18, 0.0, 0.0]))
    'its largest frequency is 6.93e-18'
    >>> uninitialised(torch.tensor([1.0, 0.01, 0.0]))
    ''
    """
    if not bool(torch.isfinite(freq).all()):
        return "it holds numbers that are not finite"
    top = float(freq.abs().max()) if freq.numel() else 0.0
    if 0 < top < SLOWEST:
        return f"its largest frequency is {top:.3g}"
    if top > 1e6:
        return f"its largest frequency is {top:.3g}"
    return ""


def rounded_to(freq: Tensor) -> torch.dtype | None:
    """The 16-bit dtype that holds all of at least three different frequencies that are no powers of two, which no formula gives.

    >>> rounded_to(torch.tensor([0.7, 0.3, 0.1, 0.05]).bfloat16()), rounded_to(torch.tensor([0.7, 0.3, 0.1, 0.05]))
    (torch.bfloat16, None)
    """
    values = freq.detach().double()
    mantissa = torch.frexp(values).mantissa
    telling = values[(values != 0) & (mantissa.abs() != 0.5)].unique()
    if telling.numel() < 3:
        return None
    eighths = telling * 256  # steps of a grid on purpose, such as linspace, have short digits too
    if bool((eighths == eighths.round()).all()):
        return None
    for dtype in (torch.bfloat16, torch.float16):
        if bool((telling.to(dtype).double() == telling).all()):
            return dtype
    return None


RULE = Rule("table", "was the rotary table initialised and kept in a wide dtype", _applies, _check)
