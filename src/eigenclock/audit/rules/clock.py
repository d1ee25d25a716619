"""The clock: ticks that grow with the times given, a shift of all times that changes nothing, and numbers that survive a cast."""

import torch

from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule
from eigenclock.clocks import Clock
from eigenclock.errors import EigenclockError

SOURCE = "the law needs a clock whose differences are exact, and that does not go back under a decay"


def _applies(probe: Probe) -> str | None:
    if probe.encoding is None:
        return "it has no clock of its own that can be read"
    clock = probe.encoding.clock
    if clock.sums or clock.width > 1:
        return "its clock is learned, or has several times for each token: it is measured in use"
    return None


def _check(probe: Probe) -> list[Finding]:
    assert probe.encoding is not None
    clock, found = probe.encoding.clock, []
    times = torch.tensor([0, 1, 2, 5, 9, 14])
    big = times + 1_700_000_000
    ticks = clock(times).ticks.double()
    if bool((ticks.diff(dim=-1) < 0).any()) and not clock.signed:
        where = {"times": times.tolist(), "ticks": ticks.tolist()}
        found.append(
            Finding("clock", "fault", "increasing times give ticks that go back", None, None, where, "let the clock grow with time", SOURCE)
        )
    gap = float((clock(big).ticks.diff(dim=-1) - ticks.diff(dim=-1)).abs().max())
    size = float(ticks.abs().max()) or 1.0
    if gap > 1e-6 * size:
        message = "differences of ticks change when all times move by 1.7e9"
        advice = "subtract the origin in the type the times arrive in, then convert"
        found.append(Finding("clock", "fault", message, gap, 1e-6 * size, {"shift": 1_700_000_000}, advice, SOURCE))
    if _takes_coarse(clock, big):
        message = "float32 times near 1.7e9 are taken, which are 128 apart: their differences are already lost"
        found.append(
            Finding("clock", "risk", message, 128.0, 1.0, {"t": 1_700_000_000}, "refuse float dtypes that lost the differences", SOURCE)
        )
    return found


def _takes_coarse(clock: Clock, big: torch.Tensor) -> bool:
    try:
        ticks = clock(big.float()).ticks
    except EigenclockError:
        return False
    return bool((ticks.diff(dim=-1) == 0).all())


RULE = Rule("clock", "does its clock grow, and forget the origin", _applies, _check)
