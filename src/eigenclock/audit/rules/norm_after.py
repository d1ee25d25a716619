"""A norm or a gain after the action: it undoes a decay, and where its gains differ within a pair it breaks the law of lags."""

import torch

from eigenclock.audit.measure.matrices import action_matrices
from eigenclock.audit.measure.samples import best, coarse, lags_of, many, needs_scores
from eigenclock.audit.measure.shifts import exact_law
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule

SOURCE = "rotations commute with a norm of the whole vector, not with a gain per channel; nothing that decays commutes with a norm"


def _check(probe: Probe) -> list[Finding]:
    if exact_law(probe):
        return []
    sides = [name for name, doubled in zip(("queries", "keys"), _doubled(probe), strict=True) if doubled]
    gain = _gain(probe)
    if not sides and gain is None:
        return []
    advice = "normalise before the action; gains after it must be equal within each pair, for queries times keys"
    if sides:
        message = (
            f"the scores do not depend on the size of the {' and the '.join(sides)}, and change when both positions move: a norm with "
        )
        message += "gains of its own stands after the action"
        return [Finding("norm_after", "fault", message, None, None, {"sides": sides}, advice, SOURCE)]
    assert gain is not None
    message = f"channels are multiplied after the action, by {gain[0]:.6g} to {gain[1]:.6g}: it turns in unequal axes"
    return [Finding("norm_after", "fault", message, gain[1] / max(gain[0], 1e-300), 1.0, {}, advice, SOURCE)]


def _doubled(probe: Probe) -> tuple[bool, bool]:
    """Whether scores stay where queries, or keys, are twice as large."""
    fn, (q, k) = best(probe), coarse(probe)
    lags = lags_of(probe, 16)
    z = [many(fn, probe, (a * q).to(probe.dtype), (b * k).to(probe.dtype), lags, 0.0) for a, b in ((1, 1), (2, 1), (1, 2))]
    size = float(z[0].nan_to_num(posinf=0.0, neginf=0.0).abs().max()) or 1.0
    limit = max(64 * probe.unit_roundoff, 1e-3) * size  # norms have an epsilon of their own
    first, second = (bool(((other - z[0]).abs().nan_to_num(nan=torch.inf) <= limit).all()) for other in z[1:])
    return first, second


def _gain(probe: Probe) -> tuple[float, float] | None:
    """The two gains of the pair of channels that are most unequal, where the action is a turn and then gains; None where they are equal.

    Channels that turn with no other may have any gain: an amplitude of the turned ones stands beside those that pass through.
    """
    if probe.action is None:
        return None
    times = [0.0, 1.0, 2.0, float(min(7, probe.length - 1))]
    found = action_matrices(probe, times)
    if found is None or found[0].shape[-1] != found[0].shape[-2]:
        return None
    gains = found[0].norm(dim=-2)  # columns: what an output channel collects
    steady = bool((gains - gains[0]).abs().max() <= 16 * probe.unit_roundoff * gains.max())
    others = found[0].abs().amax(0).fill_diagonal_(0.0)
    shares, partner = others.max(0)
    ratio = torch.where(shares > 64 * probe.unit_roundoff * gains.max(), gains[0] / gains[0][partner].clamp_min(1e-300), 1.0)
    most = int(ratio.argmax())
    if not steady or float(ratio[most]) <= 1 + 64 * probe.unit_roundoff:
        return None
    return float(gains[0][partner[most]]), float(gains[0][most])


RULE = Rule("norm_after", "is there a norm or a gain after the action", needs_scores, _check)
