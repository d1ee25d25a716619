"""One audit: the subject is read, every rule that applies is asked, L is recovered, and the report says so."""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from eigenclock.audit.measure.length import holding
from eigenclock.audit.measure.temperature import tempered
from eigenclock.audit.pictures import curves
from eigenclock.audit.probe import Probe
from eigenclock.audit.recovery.claim import in_words_of, unmeasured
from eigenclock.audit.recovery.recover import Recovery, recover
from eigenclock.audit.report import FAILED, SEVERITIES, Finding, Report
from eigenclock.audit.rules import RULES
from eigenclock.audit.rules.asked import in_words
from eigenclock.audit.rules.reach import within_reach
from eigenclock.audit.subjects import read
from eigenclock.audit.subjects.beside import Declared, asked_at, beside
from eigenclock.audit.subjects.options import LENGTH, Options
from eigenclock.audit.verdict import unjudged
from eigenclock.encodings import Encoding
from eigenclock.encodings.describe import read_dtype
from eigenclock.errors import ConfigError, ShapeError


def audit(
    subject: Any, *, head_dim: int | None = None, heads: int | None = None, length: int | None = None,
    dtype: torch.dtype | str | None = None, axes: int = 1, step: str | None = None,
    declared: Declared = None, at: Iterable[tuple[float, float]] = (),
) -> Report:  # fmt: skip
    """Measures a positional encoding: which group it is, where it breaks its own law, and whether it survives its dtype, length and cache.

    Every rule in ``RULES`` is asked of it; inside the group L is recovered from the scores alone, outside it the axiom that breaks is named
    with the smallest counterexample. Nothing is downloaded, and no code that a config names is run.

    Args:
        subject: an Encoding, its text, a Hugging Face config (dict, file, folder, object), a transformers model, a .gguf or .safetensors
            file with its config, a function f(q, k, positions) -> (q', k') or f(q, k, positions_q, positions_k) -> scores, f(x, positions),
            (f(q, k, cos, sin), the module that makes its table), f(q, k, v, positions) -> out, a score_mod, a rotary module of a known
            shape, or a stack of layers with a cache. docs/auditing.md has the list.
        head_dim, heads: sizes, where the subject does not name them.
        length: the positions it is used with, by default as many as its config names, else 4096. A fault breaks among them, a risk beyond.
        dtype: the dtype it is used in; by default float64 for encodings, that of the weights for models, else float32.
        axes: how many numbers a position is, for functions that take positions (T, axes): each axis is measured by itself, the others held
            still, and all of them moving together.
        step: what one position lasts ("1ms"), for an encoding whose clock reads stamps; by default one unit of its rates, since a context
            of nanoseconds would be one time to rates per second.
        declared: what the subject is meant to be, an encoding, its text, a config or a base, where it says nothing of that itself.
        at: pairs of times (t, s) at which the law is measured beside those that are sampled; a note gives both scores.
    Units: positions in the unit of the subject's clock, or in steps.
    Raises: ConfigError where the subject is of no known kind, with the kinds there are; ShapeError for sizes that are none.

    >>> import eigenclock as ec
    >>> report = ec.audit(ec.rope(8, theta=100.0), length=64)
    >>> report.ok, report.form, report.nearest
    (True, '4R', 'rope(theta=100)')
    """
    own = length is None
    length = LENGTH if length is None else length
    if length < 2 or int(length) != length:
        raise ShapeError(f"got length={length!r}; expected a whole number of positions of at least 2")
    for name, size in (("head_dim", head_dim), ("heads", heads)):
        if size is not None and (size < 1 or int(size) != size):
            raise ShapeError(f"got {name}={size!r}; expected a whole number of at least 1")
    if axes < 1 or int(axes) != axes:
        raise ShapeError(f"got axes={axes!r}; expected how many numbers a position is, at least 1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a reader warns of stands among the findings and notes
        chosen = read_dtype(dtype) if isinstance(dtype, str) else dtype
        if chosen is not None and not chosen.is_floating_point:
            raise ConfigError(f"got dtype={chosen}; expected a floating dtype such as torch.bfloat16")
        probe = read(subject, Options(head_dim, heads, int(length), chosen, own, axes, step))
        probe = asked_at(beside(probe, declared), at)
        with torch.no_grad():
            return judge(probe)


def judge(probe: Probe) -> Report:
    """The report of a probe: every rule that applies, and what is recovered."""
    probe = _within_reach(probe)
    findings: list[Finding] = []
    checked: list[str] = []
    skipped: dict[str, str] = {}
    ran: dict[str, list[str]] = {}
    for name, rule in RULES.items():
        why = None
        for layer, part in _parts(probe):
            try:
                reason = rule.applies(part)
                if reason is not None:
                    why = why or reason
                    continue
                found = rule.check(part)
            except Exception as error:  # a rule that breaks must not take the audit with it, and must not pass for a sound subject
                skipped[name] = _failed(error)
                continue
            ran.setdefault(layer, []).append(name)
            if name not in checked:
                checked.append(name)
            findings += [_in_layer(finding, layer) for finding in found]
        if name not in checked and name not in skipped:
            skipped[name] = why or "nothing to measure"
    measured = [(layer, part) for layer, part in _parts(probe) if part.scores is not None or part.outside]
    recovered = [(layer, _recovered(part, _claimed(probe, layer), skipped)) for layer, part in measured]
    pictures = next((part for _, part in _parts(probe) if part.scores is not None), None)
    seen = dict.fromkeys(_key(finding) for finding in findings)
    unique = [next(finding for finding in findings if _key(finding) == key) for key in seen]
    return Report(
        subject=probe.name,
        kind=probe.kind,
        length=probe.length,
        dtype=str(probe.dtype).removeprefix("torch."),
        findings=tuple(sorted(unique, key=lambda finding: SEVERITIES.index(finding.severity))),
        checked=tuple(checked),
        skipped=skipped,
        unjudged=_unjudged(probe, ran, unique, skipped),
        form=_joined(recovered, "form"),
        spec=_joined(recovered, "spec"),
        blocks=tuple(block for _, found in recovered for block in found.blocks),
        nearest=_joined(recovered, "nearest"),
        witness=_joined(recovered, "witness"),
        notes=tuple(dict.fromkeys([*probe.notes, *_asked(probe), *(note for _, found in recovered for note in found.notes)])),
        curves={} if pictures is None else curves(pictures),
    )


def _unjudged(probe: Probe, ran: dict[str, list[str]], findings: list[Finding], skipped: dict[str, str]) -> tuple[str, ...]:
    """Why the law is not known to hold; a rule that failed is a reason of its own."""
    failed = tuple(f"{rule}: {why}" for rule, why in skipped.items() if why.startswith(FAILED))
    try:
        return failed + unjudged(probe, ran, findings)
    except Exception as error:
        return (*failed, f"the law: {_failed(error)}")


def _parts(probe: Probe) -> Iterator[tuple[str, Probe]]:
    yield "", probe
    yield from probe.layers.items()


def _within_reach(probe: Probe) -> Probe:
    """The probe and its layers for as many positions as they take, with what stands beside the law held or taken off."""
    layers = {layer: _held(within_reach(part)) for layer, part in probe.layers.items()}
    return _held(within_reach(replace(probe, layers=layers)))


def _held(probe: Probe) -> Probe:
    """In calls of one length where that counts, without a factor of the query's own position."""
    for step in (holding, tempered):
        try:
            probe = step(probe)
        except Exception:  # what fails is said by the rules that meet it
            continue
    return probe


def _asked(probe: Probe) -> list[str]:
    """The scores at the places that were asked for; the rule says why where they can't be had."""
    try:
        return [f"{layer}: {note}" if layer else note for layer, part in _parts(probe) for note in in_words(part)]
    except Exception:
        return []


def _failed(error: Exception) -> str:
    return f"{FAILED} with {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _claimed(probe: Probe, layer: str) -> Encoding | None:
    """What the config says of a layer type, or of all layers where that is one thing."""
    asked = dict(probe.encodings or {})
    return asked.get(layer) or (next(iter(asked.values())) if not layer and len(set(map(str, asked.values()))) == 1 else None)


def _recovered(probe: Probe, claimed: Encoding | None, skipped: dict[str, str]) -> Recovery:
    try:
        return unmeasured(claimed, probe) or in_words_of(claimed, probe, recover(probe))
    except Exception as error:
        skipped["recovery"] = _failed(error)
        return Recovery()


def _in_layer(finding: Finding, layer: str) -> Finding:
    return replace(finding, where={**finding.where, "layer": layer}) if layer and "layer" not in finding.where else finding


def _key(finding: Finding) -> str:
    """Findings that differ by nothing that is shown are one."""
    return str(finding.to_dict())


def _joined(recovered: list[tuple[str, Recovery]], what: str) -> str | None:
    """What was recovered of the whole, or of each layer type where they differ."""
    found = {layer: getattr(one, what) for layer, one in recovered if getattr(one, what)}
    if len(set(found.values())) <= 1:
        return next(iter(found.values()), None)
    return "; ".join(f"{layer}: {value}" if layer else str(value) for layer, value in found.items())
