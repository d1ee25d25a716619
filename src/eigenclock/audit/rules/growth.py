"""Growth: the first position at which the dtype loses a score, within the length (a fault) or beyond it (the horizon)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.causes import powers_of
from eigenclock.audit.rules.rule import Rule
from eigenclock.audit.rules.samples import coarse, floor_of, many, name_of, needs_scores, said
from eigenclock.errors import EigenclockError

SOURCE = "exp overflows at 88.7 in float32 and bfloat16, 11.1 in float16; only differences of times may be exponents"
LAGS = (0.0, 1.0, 8.0)
BEYOND = 6  # doublings of the length that are tried
LOST = 0.1  # the part of a score by which it may change beyond the length


def _check(probe: Probe) -> list[Finding]:
    assert probe.scores is not None
    q, k = (x.to(probe.dtype) for x in coarse(probe))
    lags = [u for u in LAGS if u < probe.length]
    fn = probe.scores
    base = many(fn, probe, q, k, lags, 0.0)
    if not bool(torch.isfinite(base).all()):
        return [_fault(probe, 0.0, base, base)] if bool(base.isnan().any() | (base == torch.inf).any()) else []
    full = many(fn, probe, q, k, [float(probe.length - 1)], 0.0)
    if bool((full.isnan() | (full == torch.inf)).any()):
        message = f"the score of position {probe.length - 1} and position 0 is {_odd(full)} in {name_of(probe.dtype)}"
        where = {"t": float(probe.length - 1), "s": 0.0}
        return [Finding("growth", "fault", message, _odd(full), None, where, _ADVICE, SOURCE)]

    def lost(p: float) -> Tensor | None:
        z = many(fn, probe, q, k, lags, p)
        return z if bool(gone(z, base, probe).any()) else None

    for p in (t for t in powers_of(probe.length) if t + lags[-1] < probe.length):
        z = lost(p)
        if z is not None:
            return [_fault(probe, p, z, base)]
    if said(probe, "translation invariance"):
        return []
    return _horizon(probe, lambda p: many(fn, probe, q, k, lags, p), base)


def gone(z: Tensor, base: Tensor, probe: Probe) -> Tensor:
    """Where a score is not finite, or where all contents of a head and lag score 0 that did not at the origin (one may by chance)."""
    clear = (base.abs() > 1e3 * floor_of(probe.dtype) * base.abs().max()).all(-1, keepdim=True)
    return ~torch.isfinite(z) | ((z == 0).all(-1, keepdim=True) & clear)


_ADVICE = "give both factors a reference time between key and query, so that neither grows; never exp(+a s) on keys from one origin"


def _odd(z: Tensor) -> str:
    bad = z[~torch.isfinite(z)]
    return str(float(bad[0])) if bad.numel() else "0"


def _fault(probe: Probe, p: float, z: Tensor, base: Tensor) -> Finding:
    bad = gone(z, base, probe)
    h, n, c = torch.unravel_index(bad.int().argmax(), bad.shape)
    lag = LAGS[int(n)]
    now, was = float(z[h, n, c]), float(base[h, n, c])
    message = f"from position {p:g} on {name_of(probe.dtype)} loses scores: at lag {lag:g} {now}, {was:.6g} at the start"
    return Finding("growth", "fault", message, str(now), None, {"s": p, "lag": lag, "head": int(h)}, _ADVICE, SOURCE)


def _horizon(probe: Probe, at: Callable[[float], Tensor], base: Tensor) -> list[Finding]:
    """A risk where scores are lost or changed at positions beyond the length, up to some doublings of it."""

    def changed(p: float) -> str:
        try:
            z = at(p)
        except (EigenclockError, ValueError, IndexError, RuntimeError, AssertionError):
            return "end"
        if bool(gone(z, base, probe).any()):
            return "lost"
        size = base.abs().amax((0, 2), keepdim=True).clamp_min(1e-300)
        gap = z - base
        gap = gap - gap.mean((1, 2), keepdim=True)  # a constant for each query is nothing that softmax sees
        return "changed" if float((gap.abs() / size).max()) > max(LOST, 32 * probe.unit_roundoff) else ""

    low = float(probe.length - 1)
    if changed(max(low - 8, 0.0)):
        return []  # within the length other rules judge it
    for j in range(1, BEYOND + 1):
        high = float(probe.length * 2**j)
        kind = changed(high)
        if kind == "end":
            return []
        if kind:
            while high - low > max(1.0, 0.01 * low):
                middle = math.floor((low + high) / 2)
                if changed(middle):
                    high = middle
                else:
                    low = middle
            verb = "loses scores" if kind == "lost" else f"changes scores by more than {LOST:.0%}"
            message = f"{name_of(probe.dtype)} {verb} from about position {high:g} on: {high / probe.length:.3g} times the length"
            advice = _ADVICE if kind == "lost" else "take differences of positions before they are rounded"
            return [Finding("growth", "risk", message, high, float(probe.length), {"position": high}, advice, SOURCE)]
        low = high
    return []


RULE = Rule("growth", "where does the dtype lose a score", needs_scores, _check)
