"""Frequencies that follow the length: keys turned at one length do not match queries of another."""

import torch

from eigenclock.audit.measure.claims import claims, length_schedule, turn_of
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule

SOURCE = "a cached key is right if its action is a fixed group of its own time: frequencies that follow the length are none"
ADVICE = "freeze the frequencies at the final length, or cache keys that are not turned; moving stored keys is wrong too"


def _applies(probe: Probe) -> str | None:
    if probe.follows is not None or (probe.config is not None and claims(probe)):
        return None
    return "it has no config that could name such a schedule, and its scores follow the lag whatever else is in the call"


def said(probe: Probe) -> list[Finding]:
    """What its config says: a schedule whose frequencies follow the length of the sequence."""
    found = []
    for layer, enc in claims(probe).items():
        schedule = length_schedule(enc)
        turn = turn_of(enc)
        if schedule is None or turn is None:
            continue
        original, n = float(schedule.original_length), turn.freq.shape[-1]
        short, long = (schedule.at(length)(n).values for length in (original, 2 * max(original, probe.length)))
        if torch.equal(short, long):
            continue
        inside = probe.length > original
        message = (
            f"{type(schedule).__name__} chooses its frequencies by the length of the sequence: keys cached before {original:g} do not "
            "match queries after it"
        )
        where = {"position": original} | ({"layer": layer} if layer else {})
        severity = "fault" if inside else "risk"
        found.append(Finding("cache_length", severity, message, float(probe.length), original, where, ADVICE, SOURCE))
    return found


def _check(probe: Probe) -> list[Finding]:
    """What its config says, else what was measured."""
    found = said(probe) if probe.config is not None else []
    if found or probe.follows is None:
        return found
    message = (
        f"scores follow the longest position of a call: one at {probe.follows:g} or beyond changes those of all others, and keys cached "
        "before it do not match queries after it"
    )
    return [Finding("cache_length", "fault", message, probe.follows, float(probe.length), {"position": probe.follows}, ADVICE, SOURCE)]


RULE = Rule("cache_length", "do its frequencies follow the length of the sequence", _applies, _check)
