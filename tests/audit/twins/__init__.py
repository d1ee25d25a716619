"""Pairs of a faulty and a sound stand-in for each kind of fault, small and written out: the rules must find one and pass the other."""

from collections.abc import Callable
from typing import Any

import torch

import eigenclock as ec
from audit.twins.attending import (
    BLOOM,
    ONE_SEQUENCE,
    PUBLISHED,
    anchored,
    batched,
    biased,
    by_gates,
    centred,
    dynamic,
    guessed_documents,
    softmax,
    unmasked,
    with_cache,
)
from audit.twins.configs import (
    FACTOR,
    LLAMA,
    Single,
    by_dynamic,
    clocked,
    in_module,
    laid_out,
    layered,
    of_config,
    of_encoding,
    partly,
    remembered,
    rotary_table,
    scaled,
    table,
    turning_layers,
    with_rows,
    yarn_nested,
)
from audit.twins.kinds import LENGTH, D, Row, Side, Twin
from audit.twins.maps import (
    GAINS,
    ROUNDED,
    angles_in_the_dtype_of_x,
    base,
    by_bare,
    by_maps,
    clamped,
    coarse_tables,
    counted,
    decayed,
    followed,
    gained_after,
    gained_before,
    growing_table,
    in_place,
    in_single,
    kept_by,
    normed_after,
    one_off,
    packed,
    polar,
    positions_in_the_dtype_of_x,
    referenced,
    rotate,
    sheared,
    single,
    sinusoid,
    sound_rotary,
    tabled,
    turned_both,
    turner,
    two_layouts,
    unsigned,
    warped,
    whole_positions,
)
from audit.twins.one_place import MORE
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules import RULES

__all__ = [
    "LENGTH",
    "LLAMA",
    "ONE_SEQUENCE",
    "PUBLISHED",
    "TWINS",
    "D",
    "Row",
    "Twin",
    "base",
    "by_maps",
    "confusion",
    "findings",
    "of_config",
    "of_rule",
    "rotary_table",
    "rotate",
    "softmax",
    "table",
    "turner",
]


def findings(probe: Probe) -> list[Finding]:
    """What all rules say, layer types included."""
    with torch.no_grad():
        parts = (probe, *probe.layers.values())
        return [f for part in parts for rule in RULES.values() if rule.applies(part) is None for f in rule.check(part)]


def of_rule(probe: Probe, rule: str) -> list[Finding]:
    """What one rule says; it has to apply."""
    assert RULES[rule].applies(probe) is None, RULES[rule].applies(probe)
    with torch.no_grad():
        return RULES[rule].check(probe)


def confusion() -> list[Row]:
    """The confusion table: a sound twin is clean where no rule finds a fault and the rule in question finds nothing at all."""
    rows = []
    for twin in TWINS:
        said = findings(twin.faulty())
        found = dict.fromkeys(f.rule for f in said)
        alarms = dict.fromkeys(f.rule for f in findings(twin.sound()) if f.severity == "fault" or f.rule == twin.rule)
        rows.append(Row(twin.fault, twin.rule, tuple(found), twin.named(said), tuple(alarms)))
    return rows


def _bf16(side: Side) -> Callable[[], Probe]:
    return lambda: by_maps(side, side, dtype=torch.bfloat16)


def _single(side: Side) -> Callable[[], Probe]:
    return lambda: by_maps(side, side)


def _fixed(F: Side, G: Side, **more: Any) -> Callable[[], Probe]:
    return lambda: by_maps(F, G, **more)


SOUND = sound_rotary
LAW = "(the law itself: not by rounding)"

TWINS: list[Twin] = [
    Twin(
        "positions in the dtype of the queries",
        "shift_invariance",
        _bf16(positions_in_the_dtype_of_x),
        _bf16(turner()),
        says="(positions rounded to bfloat16 before use)",
    ),
    Twin(
        "positions that bfloat16 merges",
        "precision",
        _bf16(positions_in_the_dtype_of_x),
        _bf16(turner()),
        where={"positions": [256.0, 257.0]},
    ),
    Twin(
        "angles rounded before cos and sin",
        "shift_invariance",
        _bf16(angles_in_the_dtype_of_x),
        _bf16(turner()),
        says="(angles rounded to bfloat16 before cos and sin)",
    ),
    Twin("a warped clock", "shift_invariance", _single(warped), SOUND, says="a group on a warped clock: a step counts 1 at 0"),
    Twin("keys turned the other way by angles in float32", "shift_invariance", _fixed(single(1), single(-1)), _single(single(1)), says=LAW),
    Twin(
        "keys turned the other way", "contragredience", _fixed(single(1), single(-1)), _single(single(1)), says="the sum of both positions"
    ),
    Twin(
        "one pair of a rounded table off",
        "table",
        lambda: of_config(LLAMA, rotary_table(one_off())),
        lambda: of_config(LLAMA),
        says="is of no table of the base 9000, which gives 7 of 8",
        where={"pair": 5},
    ),
    Twin(
        "queries turned alone",
        "contragredience",
        _fixed(turner(), lambda x, t: x),
        SOUND,
        says="the keys do not move at all",
        where={"still": "keys"},
    ),
    Twin(
        "e^(at) in the table both sides share",
        "contragredience",
        _single(growing_table),
        lambda: referenced(0.004),
        says="as those of all pairs do",
    ),
    Twin("absolute sinusoids", "shift_invariance", _single(sinusoid), SOUND, says=LAW),
    Twin(
        "shear time bounded by a tanh",
        "shift_invariance",
        _fixed(sheared("q", 3.0), sheared("k", 3.0)),
        _fixed(sheared("q", None), sheared("k", None)),
        says=LAW,
    ),
    Twin(
        "exponents clamped",
        "shift_invariance",
        _fixed(clamped(-1, 30.0), clamped(1, 30.0), causal=True),
        _fixed(clamped(-1, 80.0), clamped(1, 80.0), causal=True),
        says=LAW,
    ),
    Twin("a norm with gains after the rotation", "norm_after", _single(normed_after(GAINS)), _single(normed_after(None))),
    Twin("gains after the rotation", "norm_after", _single(gained_after), _single(gained_before)),
    Twin("two layouts in one table", "group_law", _single(two_layouts), SOUND),
    Twin("magnitudes through a softplus", "linearity", _single(polar), SOUND),
    Twin("positions cut to whole ones", "continuity", _single(whole_positions), SOUND),
    Twin("the place in the call in place of the time", "order", _single(counted), SOUND),
    Twin("seconds since 1970 in float32", "timestamps", _single(in_single), SOUND),
    Twin("a base that follows the longest call so far", "history", lambda: followed(True), SOUND),
    Twin("a table that ends", "reach", _fixed(tabled(LENGTH), tabled(LENGTH), fractional=False), SOUND),
    Twin("e^(as) on keys from one origin", "growth", _fixed(decayed(-1, 0.2), decayed(1, 0.2), causal=True), lambda: referenced(0.2)),
    Twin(
        "a scale centred on the length, under a cache",
        "cache",
        lambda: with_cache(centred(1), centred(-1)),
        lambda: with_cache(anchored(1), anchored(-1)),
    ),
    Twin(
        "a base that follows the length, under a cache",
        "cache",
        lambda: with_cache(dynamic, dynamic),
        lambda: with_cache(anchored(1), anchored(-1)),
    ),
    Twin("gates summed over the slice alone", "cache", lambda: by_gates(False), lambda: by_gates(True)),
    Twin("documents guessed from positions", "cache", lambda: guessed_documents(True), lambda: guessed_documents(False)),
    Twin("steps of time taken for documents", "steps", lambda: unmasked(True), lambda: unmasked(False)),
    Twin("one counter for all rows", "rows", lambda: batched(rows=False), batched),
    Twin("padding counted", "rows", lambda: batched(padding=False), batched),
    Twin("documents joined", "rows", lambda: batched(documents=False), batched),
    Twin("slopes of one sequence for 12 heads", "slopes", lambda: biased(ONE_SEQUENCE, BLOOM), lambda: biased(PUBLISHED, BLOOM)),
    Twin("slopes of one sequence, nothing claimed", "slopes", lambda: biased(ONE_SEQUENCE), lambda: biased(PUBLISHED)),
    Twin(
        "truncate read from the wrong dict",
        "scaling",
        lambda: yarn_nested(True),
        lambda: yarn_nested(False),
        says="truncate is not read",
        where={"pair": 1, "pairs off": 1},
    ),
    Twin(
        "a table kept for another base", "scaling", lambda: remembered(True), lambda: remembered(False), where={"pair": 1, "pairs off": 3}
    ),
    Twin(
        "scaling left out",
        "scaling",
        lambda: of_config({**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}, rotary_table(base(1e4))),
        lambda: of_config(LLAMA),
        says="the scaling is left out",
        where={"pair": 0, "pairs off": 4},
    ),
    Twin("parameters of layer types exchanged", "layer_types", lambda: layered(True), lambda: layered(False)),
    Twin("a list of layers without a position read inverted", "layer_types", lambda: turning_layers(True), lambda: turning_layers(False)),
    Twin("an amplitude applied twice", "amplitude", lambda: scaled(FACTOR**2), lambda: scaled(FACTOR)),
    Twin("an amplitude left out", "amplitude", lambda: scaled(1.0), lambda: scaled(FACTOR)),
    Twin(
        "a table rounded to bfloat16",
        "table",
        lambda: of_config(LLAMA, rotary_table(base(9e3, 16).bfloat16().float())),
        lambda: of_config(LLAMA),
    ),
    Twin(
        "a table that was never filled",
        "table",
        lambda: of_config(LLAMA, rotary_table(torch.tensor([6.93e-18, 0.0, 0.0, 0.0]))),
        lambda: of_config(LLAMA),
        says="never filled",
    ),
    Twin(
        "interleaved channels under a half-layout claim",
        "layout",
        lambda: laid_out("interleaved", "half"),
        lambda: laid_out("half", "half"),
        says="the interleaved layout",
        where={"channels": [0, 1]},
    ),
    Twin("all channels turn where half should", "width", lambda: partly(4), lambda: partly(2)),
    Twin("rows of the weights in the other layout", "weights", lambda: with_rows("interleaved"), lambda: with_rows("half")),
    Twin("frequencies that follow the length", "cache_length", lambda: by_dynamic(1024), lambda: of_config(LLAMA)),
    Twin("a clock that rounds before it subtracts", "clock", lambda: clocked(Single()), lambda: clocked(None)),
    Twin("a fixed table that trains", "optimiser", lambda: in_module(True), lambda: in_module(False)),
    Twin("a distance without a sign", "even", unsigned, SOUND),
    Twin("a decay used in both directions", "direction", _fixed(decayed(-1, 0.02), decayed(1, 0.02), causal=False), SOUND),
    Twin(
        "a decay of the product under softmax",
        "decay_place",
        _fixed(decayed(-1, 0.05), decayed(1, 0.05), causal=True),
        lambda: biased(PUBLISHED),
    ),
    Twin("vectors turned in place", "inputs", lambda: by_bare(in_place), lambda: by_bare(turned_both)),
    Twin("memory taken as it lies", "inputs", lambda: by_bare(packed), lambda: by_bare(turned_both)),
    Twin("a table kept by the length of a call", "history", lambda: kept_by(True), lambda: kept_by(False)),
    Twin("keys moved under frequencies that follow the length", "moved_keys", lambda: by_dynamic(1024), lambda: of_config(LLAMA)),
    Twin("keys of several axes moved by one difference", "moved_keys", lambda: of_encoding(ec.axial_rope(D)), lambda: clocked(None)),
    Twin(
        "frequencies that a function rounds",
        "table",
        lambda: by_maps(turner(ROUNDED), turner(ROUNDED)),
        SOUND,
        says="the base 9000 declares",
        where={"pair": 1},
    ),
    Twin(
        "a table rounded more than its dtype",
        "contragredience",
        _single(coarse_tables),
        SOUND,
        says="both sides take one map",
        where={"pair": 0},
    ),
    Twin("queries and keys on a clock that slows down", "group_law", _single(warped), SOUND),
    Twin("empty rows that give nan", "rows", lambda: batched(zeros=False), batched),
    *MORE,
]
