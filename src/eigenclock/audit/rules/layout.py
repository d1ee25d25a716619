"""Layout: which channels turn together, found by measurement, against what the subject claims, and how many of them turn."""

from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.claims import claims, trusted, turn_of
from eigenclock.audit.rules.pairs import Pairs, read_pairs
from eigenclock.audit.rules.rule import Rule
from eigenclock.audit.rules.samples import best, needs_scores, step_of, unlike_heads

SOURCE = "interleaved (2i, 2i + 1): Su et al. 2104.09864, GPT-J; half (i, i + n): GPT-NeoX, transformers"


def claimed_layouts(probe: Probe) -> set[str]:
    """The layouts that the tables and the config of the subject, or the encoding it is, name."""
    named = {table.pairing for table in probe.tables.values()}
    assumed = probe.kind in ("config", "checkpoint") or (probe.kind == "model" and probe.full is None)  # the function that turns is
    if probe.encodings is not None and trusted(probe) and not assumed:
        named.add(probe.encodings.conventions.pairing)
    if probe.encoding is not None:
        turn = turn_of(probe.encoding)
        named.add(None if turn is None else turn.pairing)
    return {name for name in named if name is not None}


def claimed_widths(probe: Probe) -> set[int]:
    """How many channels turn, as the config of the subject or the encoding it is says: those of frequency 0 do not."""
    asked = list(claims(probe).values()) if trusted(probe) else []
    asked += [] if probe.encoding is None else [probe.encoding]
    turns = [turn for enc in asked for turn in (turn_of(enc),) if turn is not None]
    return {2 * int((turn.freq != 0).sum()) for turn in turns}


def _layout_applies(probe: Probe) -> str | None:
    return needs_scores(probe) or (None if claimed_layouts(probe) else "nothing says which layout it should have")


def _layout(probe: Probe) -> list[Finding]:
    claimed = claimed_layouts(probe)
    if len(claimed) > 1:
        message = f"its parts name different layouts: {' and '.join(sorted(claimed))}"
        return [Finding("layout", "fault", message, None, None, {}, "make the weights, the table and the rotation agree", SOURCE)]
    name = next(iter(claimed))
    for head in unlike_heads(probe):
        pairs = read_pairs(best(probe), probe, head)
        if pairs is not None and pairs.layout is not None and pairs.layout != name:
            return [_other(pairs, name, head)]
    return []


def _other(pairs: Pairs, name: str, head: int) -> Finding:
    a, b = int(pairs.first[0]), int(pairs.second[0])
    message = f"channels {a} and {b} turn together, which is the {pairs.layout} layout; the subject claims {name}"
    advice = f"permute the rows of the query and key weights (ec.convert(weight, heads=.., to={pairs.layout!r})), or rotate the other pairs"
    return Finding("layout", "fault", message, pairs.layout, name, {"channels": [a, b], "head": head}, advice, SOURCE)


def _width_applies(probe: Probe) -> str | None:
    return needs_scores(probe) or (None if claimed_widths(probe) else "nothing says how many channels should turn")


def _width(probe: Probe) -> list[Finding]:
    claimed = claimed_widths(probe)
    for head in unlike_heads(probe):
        pairs = read_pairs(best(probe), probe, head)
        found = [] if pairs is None else _of_head(probe, pairs, claimed, head)
        if found:
            return found
    return []


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


RULE = Rule("layout", "do the channels that turn together match the claimed layout", _layout_applies, _layout)
WIDTH = Rule("width", "do as many channels turn as should", _width_applies, _width)
