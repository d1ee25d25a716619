"""L from scores alone: blocks with rates, frequencies and orders, the nearest recipe, and the spec that gives the same scores here."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eigenclock.attention import scores
from eigenclock.audit.measure.samples import best, name_of
from eigenclock.audit.measure.shifts import keeps_rows
from eigenclock.audit.probe import Probe
from eigenclock.audit.recovery.bias import Bias, bias_of
from eigenclock.audit.recovery.content import stretches
from eigenclock.audit.recovery.frame import unscaled, within_window, without_constants
from eigenclock.audit.recovery.lags import Lags, Stretch, components, lags_of
from eigenclock.audit.recovery.match import known, partial, short
from eigenclock.audit.recovery.outside import Broken, outside
from eigenclock.audit.recovery.polar import polar
from eigenclock.audit.report import Block
from eigenclock.encodings import Encoding, two_sided
from eigenclock.errors import EigenclockError

EXACT = 1e-6
"""How far, relative to the largest score, the recovered spec may be from a subject in float64."""

COARSE = 1e-4
"""Rounding steps above it (those of 16 bits) hide what the scores of basis vectors would show."""


@dataclass(frozen=True)
class Recovery:
    """What was recovered of one probe; the fields are those of the report."""

    form: str | None = None
    spec: str | None = None
    blocks: tuple[Block, ...] = ()
    nearest: str | None = None
    witness: str | None = None
    notes: tuple[str, ...] = ()


def recover(probe: Probe) -> Recovery:
    """The blocks of L and a spec where the probe is in the group, the axiom that breaks and the smallest counterexample where not.

    Everything is read from scores of basis vectors at chosen lags: which channels see each other, then the mode of each block, with the
    phase unwrapped from short lags to the longest ones. The spec is tried on random vectors and times before it is given.
    """
    if probe.scores is None:
        return Recovery(witness=f"no relative encoding found: {probe.outside}" if probe.outside else None)
    if probe.exact is None and probe.unit_roundoff > COARSE:
        return Recovery(notes=(f"it takes {name_of(probe.dtype)} alone, whose rounding hides L: no spec is given",))
    frame = within_window(probe)
    found, notes = _framed(frame.probe), frame.notes
    return replace(found, notes=(*notes, *found.notes)) if notes else found


def _framed(probe: Probe) -> Recovery:
    """The same, with what stands around the law taken away where that leaves a law."""
    lags = lags_of(probe)
    broken, notes = outside(lags), ()
    if broken is not None and broken.axiom == "translation invariance" and keeps_rows(best(probe), probe):
        free = without_constants(probe)
        others = lags_of(free.probe)
        if outside(others) is None:
            lags, broken, notes = others, None, free.notes
    for frame in () if broken is not None else unscaled(lags):
        found = _recovered(lags_of(frame.probe), None)
        if found.spec is not None:
            return replace(found, notes=(*notes, *frame.notes, *found.notes))
    found = _recovered(lags, broken)
    return replace(found, notes=(*notes, *found.notes)) if notes else found


def _recovered(lags: Lags, broken: Broken | None) -> Recovery:
    probe = lags.probe
    if broken is not None:
        turned = polar(lags) if broken.axiom == "linearity" else None
        if turned is not None and verified(probe, turned, lags) <= limit_of(lags):
            return _said(probe, turned, (), short(turned), lags)
        return Recovery(witness=_outside(probe, broken))
    parts = stretches(lags, components(lags))
    bias = bias_of(lags)
    blocks = (*(block for part in parts for block in part.blocks), *bias.blocks)
    content, name = _content(lags, parts)
    if content is not None and (bias.absent or bias.encoding is not None):
        whole, name = _whole(content, name, bias)
        whole, name, both = _directed(lags, whole, name)
        if verified(probe, whole, lags, causal=not both) <= limit_of(lags):
            return _said(probe, whole, blocks, name, lags, both)
    broken = outside(lags, law=True)
    if broken is not None:
        return Recovery(witness=_outside(probe, broken), blocks=blocks)
    return Recovery(blocks=blocks, notes=("in the group as far as it was measured; no recipe of ours gives exactly these blocks",))


def _outside(probe: Probe, broken: Broken) -> str:
    said = f" ({probe.outside})" if probe.outside else ""
    return f"{broken.axiom} breaks{said}: {broken.text}"


def _said(probe: Probe, enc: Encoding, blocks: tuple[Block, ...], name: str, lags: Lags, both: bool = False) -> Recovery:
    where = "" if probe.causal or both else "; keys after the query are another matter (there its law grows, or is another one)"
    note = f"{gives_back(verified(probe, enc, lags, causal=not both))}, at lags up to {probe.length - 1}{where}"
    said = (f"it is said that {probe.outside}; at its present numbers that does not show",) if probe.outside else ()
    return Recovery(str(enc.form), str(enc), blocks, name, notes=(*said, note))


def gives_back(gap: float) -> str:
    """How well a spec gives back what was measured, in words."""
    return "the spec gives back its scores " + (f"to {gap:.0e} of the largest one" if gap else "exactly")


def _content(lags: Lags, parts: list[Stretch]) -> tuple[Encoding | None, str]:
    """The stretches side by side, each as a published recipe where its numbers are one's."""
    whole, names = None, []
    head = partial(lags, parts)
    if head is not None:
        return head
    for part in parts:
        if part.encoding is None:
            return None, ""
        published, exactly = known(lags, part.encoding, part.start)
        enc = published if published is not None and exactly else part.encoding
        names.append(short(published or enc))
        whole = enc if whole is None else whole + enc
    return whole, " + ".join(names)


def _whole(content: Encoding, name: str, bias: Bias) -> tuple[Encoding, str]:
    enc = bias.encoding
    if enc is None:
        return content, name
    added = short(bias.nearest or enc)
    if content.form.kinds == {"Z"} and content.form.order == 1:
        return enc, added
    return content * enc, f"({name}) * {added}" if " + " in name else f"{name} * {added}"


def _directed(lags: Lags, enc: Encoding, name: str) -> tuple[Encoding, str, bool]:
    """The law for keys after the query, the group's own or its mirror image, and whether it was found."""
    if lags.probe.causal:
        return enc, name, False
    measure = lags.probe.exact or lags.probe.scores
    assert measure is not None
    q, k = (x.double() if lags.probe.exact is not None else x for x in lags.probe.content(1, 4, seed=5))
    at, of = torch.zeros(1, dtype=torch.float64), torch.tensor([0.0, 1.0, 2.0, 16.0], dtype=torch.float64).clamp(max=lags.probe.length - 1)
    got = measure(q, k, at, of).double()
    for candidate, text in ((lambda: enc, name), (lambda: two_sided(enc), f"two_sided({name})")):
        try:
            one = candidate()
            wanted = scores(q[None], k[None], one, times=at, key_times=of, causal=False, scale=1.0)[0]
        except EigenclockError:
            continue
        if _gap(got, wanted) <= 1e-9 + 64 * lags.noise(float(of.max())):
            return one, text, True
    return enc, name, False


def verified(probe: Probe, enc: Encoding, lags: Lags, causal: bool = True) -> float:
    """The largest difference between the scores of a probe and those of an encoding on random vectors and times, over the largest score."""
    measure = probe.exact or probe.scores
    assert measure is not None
    q, k = probe.content(8, 24, seed=7)
    if probe.exact is not None:
        q, k = q.double(), k.double()
    random = torch.Generator().manual_seed(7)
    places = torch.rand(32, dtype=torch.float64, generator=random) * (probe.length - 1)
    if not probe.fractional:
        places = places.round()
    places = places.sort().values
    of, at = places[:24], places[24:]
    if not causal:
        of = places[torch.randperm(32, generator=random)][:24]
    got = measure(q, k, at, of).double()
    if enc.clock.width > 1:  # a subject with one time for each token gives it to every axis
        at, of = (t[:, None].expand(-1, enc.clock.width) for t in (at, of))
        causal = False  # its axes may have no order, and every key is before every query here
    wanted = scores(q[None], k[None], enc, times=at, key_times=of, causal=causal, scale=1.0)[0]
    return _gap(got, wanted)


def _gap(got: Tensor, wanted: Tensor) -> float:
    seen = torch.isfinite(wanted)
    size = float(wanted[seen].abs().max()) if bool(seen.any()) else 1.0
    return float((got[seen] - wanted[seen]).abs().nan_to_num(nan=torch.inf).max()) / max(size, 1e-300)


def limit_of(lags: Lags) -> float:
    """EXACT for subjects in float64; for others what rounding of angles at the largest position does to a score."""
    return EXACT if lags.eps < 1e-12 else max(EXACT, 16 * lags.eps * lags.probe.length)


__all__ = ["Recovery", "gives_back", "limit_of", "recover", "verified"]
