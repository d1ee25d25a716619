"""Width: how many channels turn, against what the subject claims."""

from eigenclock.audit.measure.claims import claims, trusted, turn_of
from eigenclock.audit.measure.pairs import Pairs, read_pairs
from eigenclock.audit.measure.samples import best, needs_scores, step_of, unlike_heads
from eigenclock.audit.probe import Probe
from eigenclock.audit.recovery.match import USUAL, base_of
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule

SOURCE = "partial rotary: rotary_dim = partial_rotary_factor head_dim channels turn, the exponent 2i over rotary_dim (GPT-NeoX, GPT-J)"


def claimed_widths(probe: Probe) -> set[int]:
    """How many channels turn, as the config of the subject or the encoding it is says: those of frequency 0 do not."""
    asked = list(claims(probe).values()) if trusted(probe) else []
    asked += [] if probe.encoding is None else [probe.encoding]
    turns = [turn for enc in asked for turn in (turn_of(enc),) if turn is not None]
    return {2 * int((turn.freq != 0).sum()) for turn in turns}


def _applies(probe: Probe) -> str | None:
    return needs_scores(probe) or (None if claimed_widths(probe) or _bare(probe) else "nothing says how many channels should turn")


def _bare(probe: Probe) -> bool:
    """Whether it is code alone, about which nothing is said."""
    return probe.axes == 1 and not claims(probe) and not probe.tables and probe.encoding is None and probe.config is None


def _check(probe: Probe) -> list[Finding]:
    claimed = claimed_widths(probe)
    if not claimed:
        return _exponents(probe)
    for head in unlike_heads(probe):
        pairs = read_pairs(best(probe), probe, head)
        found = [] if pairs is None else _of_head(probe, pairs, claimed, head)
        if found:
            return found
    return []


def _exponents(probe: Probe) -> list[Finding]:
    """Frequencies of a usual base where exponents run over the whole head, though a part of its channels turns."""
    pairs = read_pairs(best(probe), probe)
    if pairs is None or not pairs.still.numel() or not pairs.freq.numel() or pairs.layout is None:
        return []
    turning, d = 2 * pairs.freq.numel(), probe.head_dim
    row = pairs.freq.abs().tolist()
    own, whole = base_of(row), base_of(row, d // 2)
    together = pairs.layout == "interleaved" or int(pairs.second[0] - pairs.first[0]) == turning // 2  # p-RoPE pairs over the whole head
    if not together or own in USUAL or whole not in USUAL:
        return []
    message = (
        f"{turning} of {d} channels turn, by frequencies of the base {whole:g} with exponents 2i/{d}: over the {turning} that turn it "
    )
    message += f"would be 2i/{turning}" + (f", as it is their base is {own:g}" if own else "")
    advice = "take the exponent over the channels that turn, as GPT-NeoX and GPT-J do; nothing, if a slow turn is meant"
    return [Finding("width", "advice", message, d, turning, {"channels": turning}, advice, SOURCE)]


def _of_head(probe: Probe, pairs: Pairs, claimed: set[int], head: int) -> list[Finding]:
    turning = 2 * pairs.first.numel()
    if any(turning <= width and not _slow(probe, width - turning, pairs) for width in claimed) and turning not in claimed:
        wanted = max(claimed)
        message = f"{turning} of {probe.head_dim} channels turn, {wanted} should"
        advice = "check partial_rotary_factor or rotary_dim, and over which width the exponent 2i/d runs"
        return [Finding("width", "fault", message, turning, wanted, {"first still channel": _first(pairs), "head": head}, advice, SOURCE)]
    if turning > max(claimed):
        message = f"{turning} of {probe.head_dim} channels turn, {max(claimed)} should"
        advice = "check partial_rotary_factor or rotary_dim: channels beyond it carry no position"
        return [Finding("width", "fault", message, turning, max(claimed), {"channels": turning, "head": head}, advice, SOURCE)]
    return []


def _slow(probe: Probe, missing: int, pairs: Pairs) -> bool:
    """Whether the channels that seem to be still belong to pairs too slow to be seen within the length."""
    asked = list(claims(probe).values()) + ([] if probe.encoding is None else [probe.encoding])
    for turn in (turn_of(enc) for enc in asked):
        if turn is not None:
            moving = turn.freq[turn.freq != 0].abs() * step_of(probe)
            if 2 * int((moving * (probe.length - 1) < 1e-2).sum()) >= missing:
                return True
    return False


def _first(pairs: Pairs) -> int:
    return int(pairs.still[0]) if pairs.still.numel() else -1


RULE = Rule("width", "do as many channels turn as should", _applies, _check)
