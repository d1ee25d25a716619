"""The group law: moving by s and then by t is moving by s + t."""

from dataclasses import replace

import torch
from torch import Tensor

from eigenclock.audit.measure.matrices import action_matrices
from eigenclock.audit.measure.samples import basis_scores, best, needs_scores, rounding, said, sampling
from eigenclock.audit.measure.shifts import exact_law
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.linearity import RULE as LINEARITY
from eigenclock.audit.rules.rule import Rule
from eigenclock.theory.axioms.group_law import law_of
from eigenclock.theory.axioms.sampling import Residual

SOURCE = "axiom 3 of the derivation: A(s) A(t) = A(s + t)"
WIDE = 33
"""Singular A(0) of this width and above are not measured: blocks of many lags take longer than the rest of the audit together."""


def _applies(probe: Probe) -> str | None:
    if probe.action is None:
        return needs_scores(probe)
    return None


def _check(probe: Probe) -> list[Finding]:
    if probe.action is not None:
        found = _by_action(probe)
        if found is not None:
            return found
    if probe.scores is None or LINEARITY.check(probe) or not exact_law(probe):
        return []  # those rules say so: there is no A(u)
    return _by_lags(probe)


def _by_action(probe: Probe) -> list[Finding] | None:
    """On the matrices of the action themselves, in the dtype used; None where they are not square or not linear."""
    last = probe.length - 1
    pairs = sorted(
        {(1.0, 2.0 if last > 2 else 1.0)}
        | {(float(s), 1.0) for s in (3, 7, 64, 256, 2048, last // 2) if s + 1 <= last}
        | {(2.0, 2.0), (float(last // 2), float(last // 2))}
    )
    pairs = [(s, t) for s, t in pairs if s + t <= last]
    times = sorted({0.0, *(x for s, t in pairs for x in (s, t, s + t))})
    found = action_matrices(probe, times)
    if found is None:
        return None
    if not all(bool(torch.isfinite(m).all()) for m in found):
        return []  # other rules say where numbers are lost
    worst: tuple[float, float, float, float, str] | None = None
    entries = 0.0
    for side, moved in zip(("queries", "keys"), found, strict=True):
        zero = moved[times.index(0.0)]
        condition = float(torch.linalg.cond(zero)) if moved.shape[-1] == moved.shape[-2] else torch.inf
        if not condition <= 1e3:
            return None
        inverse = torch.linalg.inv(zero)
        at = {t: inverse @ m for t, m in zip(times, moved, strict=True)}
        for s, t in pairs:
            off = at[t] @ at[s] - at[s + t]  # rows are images: in columns that is A(s) A(t)
            gap = float(torch.linalg.matrix_norm(off, 2)) / max(float(torch.linalg.matrix_norm(at[s + t], 2)), 1e-300)
            limit = rounding(probe, s + t) * condition
            if not gap <= limit and (worst is None or s + t < worst[2] + worst[3]):
                worst, entries = (gap, limit, s, t, side), float(torch.linalg.matrix_norm(off))
    if worst is None:
        return []
    gap, limit, s, t, side = worst
    severity = "advice" if said(probe, "translation invariance") else "fault"
    message = f"{side}: moving by {t:g} and then by {s:g} is not moving by {s + t:g}; the two differ by {gap:.6g} of their size"
    advice = "moving stored keys by a difference of times is wrong here; look for rounded positions or two layouts mixed in one table"
    return [Finding("group_law", severity, message, gap, limit, {"s": s, "t": t, "side": side, "frobenius": entries}, advice, SOURCE)]


def _by_lags(probe: Probe) -> list[Finding]:
    """On the matrices A(u) of the scores; the bias beside them by itself, where the two don't mix.

    Lags from 0 on: keys after the query may be masked, or follow the mirrored law, and exp(uL) of either is asked for no more than that.
    """
    if probe.encoding is not None or probe.outside or (probe.encodings and not probe.tables and probe.action is None):
        return []  # it says by itself what it is
    if probe.exact is None and probe.unit_roundoff > 1e-4:
        return []  # rounding hides what the blocks of lags would show
    at, fn, known = replace(sampling(probe), causal=True), best(probe), {}

    def whole(u: float) -> Tensor:
        if u not in known:
            known[u] = basis_scores(fn, probe, [u], [0.0])[0, 0]
        return known[u]

    seen = torch.stack([whole(u) for u in at.grid()]).abs()
    if not bool(torch.isfinite(seen).all()):
        return []  # other rules say where numbers are lost
    mixed = bool((torch.maximum(seen[:, 0, 1:], seen[:, 1:, 0]) > at.limit * seen.max()).any())
    laws: list[Residual] = []
    if mixed and probe.head_dim < WIDE:
        laws.append(law_of(whole, at).residual)
    elif not mixed:
        content = whole(0.0)[1:, 1:]
        if float(torch.linalg.cond(content)) <= 1e3:
            laws.append(law_of(lambda u: whole(u)[1:, 1:], at, inner=probe.head_dim).residual)
        elif probe.head_dim < WIDE:
            laws.append(law_of(lambda u: whole(u)[1:, 1:], at).residual)
        if bool((seen[:, 0, 0] > at.limit * seen.max()).any()):
            far = float(max(at.span, (probe.length - 1) // 2))
            while far > at.span and not bool(torch.isfinite(whole(2 * far)[0, 0])):
                far = max(at.span, far // 2)  # a weight that is 0 is a bias of -inf
            laws.append(law_of(lambda u: whole(u)[:1, :1], replace(at, span=far)).residual)
    law = next((law for law in laws if law.holds is False), None)
    if law is None or _known(probe):
        return []
    message = f"scores depend on the lag, but no exp(uL) of a size that can be seen gives them: {law.witness or law.note}"
    advice = "it works as a relative encoding; what needs a generator (conversion, a recurrent form, moved keys) does not apply"
    where = {} if law.witness is None else {"u": law.witness.times[0], "v": law.witness.times[-1]}
    return [Finding("group_law", "advice", message, law.value, law.limit, where, advice, SOURCE)]


def _known(probe: Probe) -> bool:
    """Whether a recipe gives the scores after all: slow turns continue no further than rounding lets a few lags tell them apart."""
    from eigenclock.audit.recovery.recover import recover  # which reads its samples from here

    return recover(probe).spec is not None


RULE = Rule("group_law", "is moving twice moving by the sum", _applies, _check)
