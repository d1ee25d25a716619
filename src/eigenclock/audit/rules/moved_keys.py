"""Moved keys: stored keys can be moved to other positions by a difference of times only where one group in one time turned them."""

from collections.abc import Mapping

from eigenclock.audit.measure.claims import claims, length_schedule
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule
from eigenclock.encodings import Encoding

SOURCE = "the group law: A(new) = A(new - old) A(old), for one L and one time; StreamingLLM and context shifts move keys by it"


def _asked(probe: Probe) -> Mapping[str, Encoding]:
    """What its config asks for in each layer type, or the encoding it is."""
    return claims(probe) or ({} if probe.encoding is None else {"": probe.encoding})


def _applies(probe: Probe) -> str | None:
    return None if _asked(probe) else "nothing says by which schedule and clock its keys were turned"


def _check(probe: Probe) -> list[Finding]:
    found = []
    for layer, enc in _asked(probe).items():
        where = {"layer": layer} if layer else {}
        schedule = length_schedule(enc)
        if schedule is not None:
            message = (
                f"moving stored keys by a difference of positions (re-rotation) is not valid: {type(schedule).__name__} turns them by "
                "frequencies that follow the length, which is no group in the position"
            )
            advice = "store keys that are not turned and turn them when they are read, or freeze the schedule at one length"
            found.append(Finding("moved_keys", "advice", message, None, None, where, advice, SOURCE))
        elif enc.clock.width > 1 and not enc.clock.sums:
            message = (
                f"moving stored keys by one difference of positions (re-rotation) is not valid: {enc.clock.width} times stand for "
                "each token, and each moves by its own"
            )
            advice = "keep the times of every key, and move it by the difference on each axis; one difference is right for plain text alone"
            found.append(Finding("moved_keys", "advice", message, enc.clock.width, 1, where, advice, SOURCE))
    return found


RULE = Rule("moved_keys", "can stored keys be moved by a difference of positions", _applies, _check)
