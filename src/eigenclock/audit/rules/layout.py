"""Layout: which channels turn together, found by measurement, against what the subject claims."""

from eigenclock.audit.measure.claims import trusted, turn_of
from eigenclock.audit.measure.pairs import Pairs, read_pairs
from eigenclock.audit.measure.samples import best, needs_scores, unlike_heads
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule

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


def _applies(probe: Probe) -> str | None:
    return needs_scores(probe) or (None if claimed_layouts(probe) else "nothing says which layout it should have")


def _check(probe: Probe) -> list[Finding]:
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


RULE = Rule("layout", "do the channels that turn together match the claimed layout", _applies, _check)
