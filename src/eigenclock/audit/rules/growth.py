"""Growth: the first position at which the dtype loses a score, within the length (a fault) or beyond it (the horizon)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from eigenclock.audit.measure.causes import powers_of
from eigenclock.audit.measure.claims import claims, length_schedule
from eigenclock.audit.measure.length import held
from eigenclock.audit.measure.samples import coarse, floor_of, many, name_of, needs_scores, said
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule
from eigenclock.errors import EigenclockError

SOURCE = "exp overflows at 88.7 in float32 and bfloat16, 11.1 in float16; only differences of times may be exponents"
LAGS = (0.0, 1.0, 8.0)
BEYOND = 6  # doublings of the length that are tried
GROWS = 1e3  # the factor from which on scores that grow with the lag are no spread of contents
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
        t, odd = _first_lost(lambda t: many(fn, probe, q, k, [t], 0.0), float(probe.length - 1), full)
        message = f"the score of position {t:g} and position 0 is {odd} in {name_of(probe.dtype)}, the first that is lost"
        where = {"t": t, "s": 0.0}
        return [Finding("growth", "fault", message, odd, None, where, _ADVICE, SOURCE)]

    def lost(p: float) -> Tensor | None:
        z = many(fn, probe, q, k, lags, p)
        return z if bool(gone(z, base, probe).any()) else None

    kept = 0.0
    end = float(probe.length - 1) - lags[-1]
    for p in sorted({*(t for t in powers_of(probe.length) if t <= end), end} - {0.0}):
        z = lost(p)
        if z is not None:
            while p - kept > 1:  # the first position, where it is lost from one on
                middle = (p + kept) // 2
                earlier = lost(middle)
                p, z, kept = (middle, earlier, kept) if earlier is not None else (p, z, middle)
            return [_fault(probe, p, z, base)]
        kept = p
    grown = _with_the_lag(probe, lambda u: many(fn, probe, q, k, [u], 0.0)[:, 0])
    if grown or said(probe, "translation invariance"):
        return grown
    return _horizon(probe, lambda p: many(fn, probe, q, k, lags, p), lambda p, last: many(held(fn, last), probe, q, k, lags, p), lags[-1])


def _with_the_lag(probe: Probe, at: Callable[[float], Tensor]) -> list[Finding]:
    """A risk where scores (H, P) grow exponentially with the lag: by nearly as many powers over its second half as over its first.

    A polynomial, as of Jordan blocks, grows by a factor of 2 to its degree over the second half.
    """
    last = float(probe.length - 1)
    half = last // 2
    sizes = torch.stack([at(u).abs().amax(-1) for u in (0.0, half, last)]).clamp_min(1e-300).log()  # (3, H)
    first, second = sizes[1] - sizes[0], sizes[2] - sizes[1]
    bad = (first + second > math.log(GROWS)) & (second > 0.6 * first)
    if not bool(bad.any()):
        return []
    h = int(torch.where(bad, second, -torch.inf).argmax())
    rate = float(second[h]) / (last - half)
    end = last + (math.log(torch.finfo(probe.dtype).max) - float(sizes[2, h])) / rate
    factor = float((first + second)[h].exp())
    message = f"scores grow with the lag, by {factor:.3g} over {last:g} positions: {name_of(probe.dtype)} "
    message += f"loses them at lags of about {end:.3g}"
    advice = "a decay is exp(-rate (t - s)) with a rate of at least 0: look for the sign of the exponent"
    return [Finding("growth", "risk", message, factor, GROWS, {"lag": last, "head": h}, advice, SOURCE)]


def gone(z: Tensor, base: Tensor, probe: Probe) -> Tensor:
    """Where a score is not finite, or where all contents of a head and lag score 0 that did not at the origin (one may by chance)."""
    clear = (base.abs() > 1e3 * floor_of(probe.dtype) * base.abs().max()).all(-1, keepdim=True)
    return ~torch.isfinite(z) | ((z == 0).all(-1, keepdim=True) & clear)


def _first_lost(at: Callable[[float], Tensor], last: float, full: Tensor) -> tuple[float, str]:
    """The first lag from which on scores with position 0 are NaN or infinite, and which of them."""
    kept, lost, odd = 0.0, last, _odd(full)
    while lost - kept > 1:
        middle = (kept + lost) // 2
        z = at(middle)
        if bool((z.isnan() | (z == torch.inf)).any()):
            lost, odd = middle, _odd(z)
        else:
            kept = middle
    return lost, odd


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


def _horizon(probe: Probe, at: Callable[[float], Tensor], beside: Callable[[float, float], Tensor], reach: float) -> list[Finding]:
    """A risk where scores are lost or changed at positions beyond the length, up to some doublings of it.

    ``beside(p, last)`` gives those at p in calls that reach a last position: where they are those of the start in such a call, what changes
    follows the length, and is no rounding.
    """
    start = at(0.0)

    def changed(p: float, last: float | None = None) -> str:
        base = start if last is None else beside(0.0, last)
        try:
            z = at(p) if last is None else beside(p, last)
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
            while high - low > 1:
                middle = math.floor((low + high) / 2)
                if changed(middle):
                    high = middle
                else:
                    low = middle
            if kind == "changed" and not changed(high, high + reach):
                return _by_length(probe, high + reach)
            verb = "loses scores" if kind == "lost" else f"changes scores by more than {LOST:.0%}"
            message = f"{name_of(probe.dtype)} {verb} from position {high:.0f} on: {high / probe.length:.3g} times the length"
            advice = _ADVICE if kind == "lost" else "take differences of positions before they are rounded"
            return [Finding("growth", "risk", message, high, float(probe.length), {"position": high}, advice, SOURCE)]
        low = high
    return []


def _by_length(probe: Probe, position: float) -> list[Finding]:
    """A risk that the config does not name: scores follow the longest position of a call beyond the length."""
    if probe.follows is not None or any(length_schedule(enc) is not None for enc in claims(probe).values()):
        return []  # the rule of such lengths says so
    message = f"scores follow the longest position of a call: one at {position:.0f} changes those of all others"
    advice = "freeze what follows the length before going there, or cache keys that are not turned"
    return [Finding("growth", "risk", message, position, float(probe.length), {"position": position}, advice, SOURCE)]


RULE = Rule("growth", "where does the dtype lose a score", needs_scores, _check)
