"""What the caller says a subject is, held against its scores."""

import torch

from eigenclock.attention import scores
from eigenclock.audit.measure.samples import best, many, needs_scores, rounding
from eigenclock.audit.probe import Probe
from eigenclock.audit.recovery.lags import lags_of
from eigenclock.audit.recovery.match import short
from eigenclock.audit.recovery.recover import limit_of, verified
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule

SOURCE = "the scores of what was declared, by the dense oracle"


def _applies(probe: Probe) -> str | None:
    if probe.declared is None:
        return "nothing was declared beside it"
    return needs_scores(probe)


def _check(probe: Probe) -> list[Finding]:
    enc = probe.declared
    assert enc is not None
    lags = lags_of(probe)
    gap = verified(probe, enc, lags, enc.sides == 1)
    limit = max(limit_of(lags), rounding(probe, probe.length))  # its frequencies may be a table in float32
    if gap <= limit:
        return []
    u, head, wanted, got = _first_apart(probe, limit)
    message = f"it is not the {short(enc)} that was declared: at lag {u:g} that scores {wanted:.6g}, this {got:.6g}"
    advice = "correct what builds it or what is declared; the report says which encoding was measured"
    return [Finding("declared", "fault", message, gap, limit, {"lag": u, "head": head}, advice, SOURCE)]


def _first_apart(probe: Probe, limit: float) -> tuple[float, int, float, float]:
    """The smallest lag of which a score differs by more than the limit (else that of the largest difference): lag, head, both scores."""
    enc = probe.declared
    assert enc is not None
    tried = [float(u) for u in (0, 1, 2, 3, 7, *(2**j for j in range(4, 40))) if u < probe.length]
    q, k = (x.double() for x in probe.content(4))

    def ours(q: torch.Tensor, k: torch.Tensor, t: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        at, of = (x if enc.clock.width == 1 else x[:, None].expand(-1, enc.clock.width) for x in (t, s))
        return scores(q[None], k[None], enc, times=at, key_times=of, causal=enc.sides == enc.clock.width == 1, scale=1.0)[0]

    wide = probe.exact is not None
    got = many(best(probe), probe, *((q, k) if wide else (q.to(probe.dtype), k.to(probe.dtype))), tried, 0.0)
    wanted = many(ours, probe, q, k, tried, 0.0)
    gap = (got - wanted).abs().nan_to_num(nan=torch.inf) / wanted.abs().amax().clamp_min(1e-300)
    worst = gap.amax((0, 2))
    apart = (worst > limit).nonzero()
    j = int(apart[0]) if apart.numel() else int(worst.argmax())
    h, p = torch.unravel_index(gap[:, j].argmax(), gap[:, j].shape)
    return tried[j], int(h), float(wanted[h, j, p]), float(got[h, j, p])


RULE = Rule("declared", "is it what it was declared to be", _applies, _check)
