"""Slopes of a linear bias: one for each head, against those its config asks for or the published rule for that many heads."""

import torch
from torch import Tensor

from eigenclock.audit.measure.claims import claims
from eigenclock.audit.measure.samples import best, needs_scores, times_of
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule
from eigenclock.schedules import alibi_slopes

SOURCE = "Press et al. (ALiBi), 2108.12409: 2^(-8i/n) for a power of two, the odd ones of the next power appended otherwise"


def biases(probe: Probe, lags: list[float]) -> Tensor:
    """The score (H, lags) of a query and a key that are 0."""
    q, k = (torch.zeros_like(x) for x in probe.content(1))
    fn, last = best(probe), float(max(lags))
    keys = times_of(torch.tensor([last - u for u in reversed(lags)], dtype=torch.float64))
    z = fn(q, k.expand(-1, len(lags), -1), times_of([last]), keys).double()[:, 0]
    return z.flip(-1)


def measured_slopes(probe: Probe) -> Tensor | None:
    """The slope (H,) of a bias that falls linearly with the lag, up to a constant for each query; None where there is none."""
    lags = [0.0, 1.0, 2.0, 4.0, float(min(16, probe.length - 1))]
    z = biases(probe, lags)
    if not bool(torch.isfinite(z).all()) or not bool((z != z[:, :1]).any()):
        return None
    slopes = (z[:, 0] - z[:, -1]) / lags[-1]
    line = z[:, :1] - slopes[:, None] * torch.tensor(lags, dtype=torch.float64)
    rounded = 0.0 if probe.exact is not None else 16 * probe.unit_roundoff
    fits = (z - line).abs().max() <= (1e-3 + rounded) * z.abs().max()
    return slopes if bool(fits) and bool((slopes != 0).all()) else None


def _claimed(probe: Probe) -> Tensor | None:
    for enc in claims(probe).values():
        lifts = enc.lifts()
        if len(lifts) == 1 and lifts[0].slope is not None:
            return lifts[0].slope.detach().double().reshape(-1).expand(enc.heads)
    return None


def _applies(probe: Probe) -> str | None:
    if probe.scores is None or probe.encoding is not None:
        return needs_scores(probe) or "its slopes are its own options"
    return None


def _check(probe: Probe) -> list[Finding]:
    slopes = measured_slopes(probe)
    if slopes is None:
        return []
    claimed, published = _claimed(probe), alibi_slopes()(probe.heads).values
    wanted = claimed if claimed is not None and claimed.numel() == slopes.numel() else published
    gap = (slopes / wanted - 1).abs()
    if float(gap.max()) <= max(1e-3, 16 * probe.unit_roundoff):
        return []
    if bool((slopes < 0).any()):
        return [_rising(probe, slopes, wanted, wanted is claimed)]
    other = alibi_slopes("single_geometric_sequence")(probe.heads).values
    single = bool((slopes / other - 1).abs().max() <= 1e-2)
    head = int((gap > 1e-3).int().argmax())
    whose = "its config asks for" if wanted is claimed else f"the published rule for {probe.heads} heads gives"
    message = f"head {head} has the slope {float(slopes[head]):.6g}, {whose} {float(wanted[head]):.6g}"
    near = ": it is one geometric sequence, which is the published rule for powers of two alone" if single else _near(probe, slopes, wanted)
    message += near
    severity = "fault" if wanted is claimed else "risk" if near else "advice"
    advice = "take the slopes of the next power of two, as the authors' code, BLOOM and MPT do; weights trained with others do not fit"
    if severity == "advice":
        advice = "nothing, if these slopes are meant; weights that were trained with the published ones do not fit"
    return [Finding("slopes", severity, message, float(slopes[head]), float(wanted[head]), {"head": head}, advice, SOURCE)]


def _rising(probe: Probe, slopes: Tensor, wanted: Tensor, claimed: bool) -> Finding:
    head = int((slopes < 0).int().argmax())
    rise = float(-slopes[head])
    message = (
        f"in {int((slopes < 0).sum())} of {probe.heads} heads the bias rises with the lag: head {head} adds {rise:.6g} for each position "
    )
    message += f"a key is farther away, {rise * (probe.length - 1):.4g} at lag {probe.length - 1}"
    advice = "the sign is wrong: -slope * (t - s) is added, so that far keys weigh less"
    severity = "fault" if claimed else "risk"
    return Finding("slopes", severity, message, float(slopes[head]), float(wanted[head]), {"head": head}, advice, SOURCE)


def _near(probe: Probe, slopes: Tensor, wanted: Tensor) -> str:
    """What else than the slopes wanted these are, in words; empty where they are nothing known."""

    def same(other: Tensor) -> bool:
        return bool((slopes / other - 1).abs().max() <= max(1e-3, 16 * probe.unit_roundoff))

    if probe.heads > 1 and same(wanted.flip(0)):
        return ": the slopes are in reverse order over the heads"
    for words, factor in (("divided by sqrt(head_dim)", probe.head_dim**-0.5), ("multiplied by sqrt(head_dim)", probe.head_dim**0.5)):
        if same(wanted * factor):
            return f": all slopes are {words}, as where the bias is added on the wrong side of the scale of q.k"
    ratio = float(slopes[0] / wanted[0])
    return f": all slopes are {ratio:.6g} times those" if probe.heads > 2 and same(wanted * ratio) else ""


RULE = Rule("slopes", "does each head have the slope it should have", _applies, _check)
