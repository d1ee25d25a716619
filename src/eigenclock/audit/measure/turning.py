"""How fast the scores themselves turn, and which way, against what the config asks for or the table of the subject holds."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from eigenclock.audit.measure.claims import at_lengths, claims, frozen, matched, read_again, trusted, turn_of
from eigenclock.audit.measure.pairs import Pairs, read_pairs
from eigenclock.audit.measure.samples import SINGLE, best, unlike_heads
from eigenclock.audit.measure.shifts import exact_law
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.encodings import Encoding

TABLE = "its table holds"
SOURCE = "rotation by position times frequency, both sides alike: the lag turns each pair by its frequency"


def applies(probe: Probe) -> str | None:
    """Why the turn of its scores can't be held against anything."""
    return None if any(True for _ in asked(probe)) else "nothing says how fast its scores should turn"


def asked(probe: Probe) -> Iterator[tuple[str, Probe, Tensor, str]]:
    """Layer type, what is measured there, the frequencies (n,) it should turn with, and who says so."""
    told = {name: turn.freq for name, enc in _in_use(probe).items() for turn in (turn_of(enc),) if turn is not None}
    told = told if trusted(probe) else {}
    for layer, part in {"": probe, **probe.layers}.items():
        kind = layer.rpartition(", layer ")[0] or ("" if layer.startswith("layer ") else layer)
        if part.scores is None or (part.encodings is not None and part.tables == {} and part.action is None):
            continue  # what is measured is the encoding that the config was read as
        if kind in told or len(told) == 1:
            yield layer, part, told.get(kind, next(iter(told.values()))), "the config asks for"
        elif kind in probe.tables or len(probe.tables) == 1:
            table = probe.tables.get(kind, next(iter(probe.tables.values())))
            yield layer, part, table.inv_freq.detach().double().cpu(), TABLE


def _in_use(probe: Probe) -> Mapping[str, Encoding]:
    """What the config asks for at the length in use, where its frequencies follow that."""
    if probe.config is None or not frozen(probe):
        return claims(probe)
    return read_again(probe.config, probe, float(probe.length))


def _of_another_length(probe: Probe, layer: str, pairs: Pairs) -> str:
    """The length whose frequencies these are, in words, where they follow it."""
    for length, freq in at_lengths(probe, layer):
        if _turn_by(pairs, freq):
            of = "the one its config is read for" if length is None else f"{length:g}"
            return f": its table is that of another length, {of}, and {probe.length} positions are in use"
    return ""


def turning(probe: Probe, clear: float, radians: float) -> list[Finding]:
    """A finding for the first pair of each layer type that turns at another speed, or the other way."""
    found = []
    off = {layer for layer, table, enc in matched(probe) if (turn := turn_of(enc)) is not None and _apart(table.inv_freq, turn.freq)}
    for layer, part, freq, whose in asked(probe):
        if off & {layer, *probe.tables} and (layer in off or not layer):
            continue  # the table is off, and said to be
        if not exact_law(part):
            continue  # that is said, and leaves no frequencies
        for head in unlike_heads(part):
            pairs = read_pairs(best(part), part, head)
            if pairs is not None and whose == TABLE and _by_sections(probe) and _same_set(pairs, freq):
                break  # each axis has its pairs, in an order that its forward makes of the table
            finding = None if pairs is None else _of_head(part, pairs, freq.double(), whose, head, clear, radians)
            if finding is not None and pairs is not None:
                mixed = _of_others(probe, layer, pairs)
                length = "" if mixed else _of_another_length(probe, layer, pairs)
                finding = replace(finding, message=finding.message + mixed + length, rule="layer_types" if mixed else finding.rule)
                where = {**finding.where, **({"layer": layer} if layer else {})}
                found.append(
                    Finding(finding.rule, finding.severity, finding.message, finding.measured, finding.limit, where, finding.advice, SOURCE)
                )
                break
    return found


def _by_sections(probe: Probe) -> bool:
    return any(turn.axes > 1 for enc in claims(probe).values() for turn in enc.generator().split().turns)


def _same_set(pairs: Pairs, freq: Tensor) -> bool:
    """Whether the pairs turn by the frequencies of a table in another order."""
    if pairs.freq.numel() != freq.numel():
        return False
    (has, order), wanted = pairs.freq.abs().sort(), freq.double().abs().sort().values
    return bool(((has - wanted).abs() <= 64 * SINGLE * wanted + 2 * pairs.error[order]).all())


def _of_others(probe: Probe, layer: str, pairs: Pairs) -> str:
    """The other layer type whose frequencies these are, in words."""
    own = layer.rpartition(", layer ")[0] or layer
    for name, enc in claims(probe).items() if len(claims(probe)) > 1 else ():
        turn = None if name == own else turn_of(enc)
        if turn is not None and _turn_by(pairs, turn.freq):
            return f": it is the turn of the {name} layers"
    return ""


def _turn_by(pairs: Pairs, freq: Tensor) -> bool:
    """Whether every pair turns by its own of the frequencies."""
    place = _places(pairs, freq.numel())
    if place is None:
        return False
    wanted = freq.double().abs()[place]
    return bool(((pairs.freq.abs() - wanted).abs() <= 64 * SINGLE * wanted + 2 * pairs.error).all())


def _apart(table: Tensor, claimed: Tensor) -> bool:
    if table.shape != claimed.shape:
        return True
    a, b = table.detach().double().cpu().abs(), claimed.double().abs()
    return bool(((a - b).abs() > 64 * SINGLE * b).any())


def _of_head(part: Probe, pairs: Pairs, freq: Tensor, whose: str, head: int, clear: float, radians: float) -> Finding | None:
    place = _places(pairs, freq.numel())
    if place is None or pairs.first.numel() < 2:
        return None
    wanted, last = freq[place], float(part.length - 1)
    gap = (pairs.freq.abs() - wanted.abs()).abs()
    doubt = 64 * SINGLE * wanted.abs() + 2 * pairs.error
    bad = gap > doubt
    if bool(bad.any()):
        pair = int(place[bad.int().argmax()])
        has, want = float(pairs.freq[bad.int().argmax()].abs()), float(freq[pair].abs())
        ratio = pairs.freq.abs() / wanted.abs().clamp_min(1e-300)
        alike = bool((ratio[bad] / ratio[bad][0] - 1).abs().max() < 1e-3) and bool(bad[wanted.abs() * last > 1].all())
        why = f": all pairs turn {float(ratio[bad][0]):.6g} times as fast" if alike and int(bad.sum()) > 1 else ""
        why = why or _exponent(part, pairs, wanted)
        message = f"the scores turn pair {pair} by {has:.6g} per position, {whose} {want:.6g}{why}"
        value = float((gap / wanted.abs().clamp_min(1e-300))[bad].max())
        severity = "fault" if value > clear or float(gap[bad].max()) * last > radians else "risk"
        where = {"pair": pair, "pairs off": int(bad.sum()), "head": head}
        advice = "look at what stands between the table and the scores: positions that are scaled, a table made anew, another base"
        return Finding("scaling", severity, message, value, 64 * SINGLE, where, advice, SOURCE)
    sure = pairs.freq.abs() > 4 * pairs.error + doubt
    wrong = sure & (pairs.freq.sign() != wanted.sign()) & (wanted != 0)
    if bool(wrong.any()):
        pair = int(place[wrong.int().argmax()])
        all_of_them = bool(wrong[sure & (wanted != 0)].all())
        message = (
            f"{'every pair turns' if all_of_them else f'pair {pair} turns'} backwards: cos and sin are exchanged, or sin has the other sign"
        )
        where = {"pair": pair, "pairs off": int(wrong.sum()), "head": head}
        advice = "weights trained with the other direction do not fit; (x, y) -> (x cos - y sin, x sin + y cos) is the usual one"
        return Finding("scaling", "fault", message, float(pairs.freq[wrong][0]), float(wanted[wrong][0]), where, advice, SOURCE)
    return None


def _exponent(part: Probe, pairs: Pairs, wanted: Tensor) -> str:
    """Whether exponents run over the whole head in place of the channels that turn, in words."""
    share = 2 * wanted.numel() / part.head_dim
    slow = wanted.abs() < 0.99
    if share >= 1 or not bool(slow.any()) or bool((wanted <= 0).any()) or bool((pairs.freq == 0).any()):
        return ""
    ratio = pairs.freq.abs()[slow].log() / wanted[slow].log()
    if not bool(((ratio - share).abs() <= 1e-4).all()):
        return ""
    return f": its exponents 2i/d run over the {part.head_dim} channels of the head in place of the {2 * wanted.numel()} that turn"


def _places(pairs: Pairs, n: int) -> Tensor | None:
    """Which frequency of n belongs to each measured pair; None where the layout does not tell."""
    if pairs.layout == "half" and int(pairs.second[0] - pairs.first[0]) == n and int(pairs.first.max()) < n:
        return pairs.first
    if pairs.layout == "interleaved" and int(pairs.first.max()) // 2 < n and bool((pairs.first % 2 == 0).all()):
        return torch.div(pairs.first, 2, rounding_mode="floor")
    return None
