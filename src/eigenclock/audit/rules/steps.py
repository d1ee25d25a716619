"""Steps: attention without a mask is continuous in its positions, and does not take steps other than one for the starts of documents."""

import torch
from torch import Tensor

from eigenclock.audit.measure.samples import rounding
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule

SOURCE = "axiom 4 of the derivation: scores are continuous in time; where a document begins is no function of the step of time"
ADVICE = "give an attention mask (of ones, where nothing is padded): then no documents are guessed from positions"
TOKENS = 12
STEP = 2.0**-10
"""How much longer and shorter than one the steps are tried. What is continuous changes by a sixteenth at a sixteenth of it."""


def _applies(probe: Probe) -> str | None:
    if probe.unmasked is not None and probe.full is not None:
        return None
    alone = probe.scores is None or probe.weighed
    return None if probe.full is not None and alone and probe.fractional else "no attention of it can be run without a mask"


def _check(probe: Probe) -> list[Finding]:
    n = min(TOKENS, probe.length // 2)
    q, k = probe.content(n, seed=17)
    v = probe.content(n, seed=18)[1]
    return _masked(probe, q, k, v) if probe.unmasked is not None else _jumps(probe, q, k, v)


def _masked(probe: Probe, q: Tensor, k: Tensor, v: Tensor) -> list[Finding]:
    """Against the same call with a mask of ones: it takes that mask, so what it does without is advice."""
    assert probe.full is not None and probe.unmasked is not None
    plain = torch.arange(q.shape[1])
    tried = [plain, 2 * plain, *([1.25 * plain.double()] if probe.fractional else [])]
    for times in tried:
        want, got = probe.full(q, k, v, times).double(), probe.unmasked(q, k, v, times).double()
        limit = 2 * rounding(probe, float(times[-1]))
        gap = (got - want).abs().amax((0, 2)) / (float(want.abs().max()) or 1.0)
        if not bool((gap > limit).any()):
            continue
        if times is plain:
            return []  # no mask means another thing to it
        why = "are taken for documents of one token each" if _alone(got, v) else "give other numbers than with one"
        message = f"without a mask, positions in steps of {float(times[1]):g} {why}"
        token = int((gap > limit).int().argmax())
        where = {"token": token, "position": float(times[token])}
        return [Finding("steps", "advice", message, float(gap.max()), limit, where, ADVICE, SOURCE)]
    return []


def _jumps(probe: Probe, q: Tensor, k: Tensor, v: Tensor) -> list[Finding]:
    """Both a little longer and a little shorter steps change the outputs by an amount that does not shrink with the change.

    A window in time or a bucket of lags has an edge on one side of a whole lag only.
    """
    assert probe.full is not None
    plain = torch.arange(q.shape[1]).double()
    want = probe.full(q, k, v, plain.long()).double()
    size = float(want.abs().max()) or 1.0
    limit = 64 * rounding(probe, float(plain[-1]))
    found = []
    for sign in (1, -1):
        near, nearer = (probe.full(q, k, v, plain * (1 + sign * step)).double() for step in (STEP, STEP / 16))
        wide, narrow = ((out - want).abs().amax((0, 2)) / size for out in (near, nearer))
        if not bool((narrow > torch.clamp(wide / 4, min=limit)).any()):
            return []
        found.append((narrow, nearer))
    gap, out = found[0]
    token = int((gap > limit).int().argmax())
    h, c = torch.unravel_index((out - want)[:, token].abs().argmax(), out[:, token].shape)
    message = f"attention jumps with the steps of time: token {token} gives {float(want[h, token, c]):.6g} at steps of 1, and "
    message += f"{float(out[h, token, c]):.6g} at steps of {1 + STEP / 16:.8g}"
    message += ": every token then sees itself alone" if _alone(out, v) else ""
    where = {"token": token, "position": float(token)}
    return [Finding("steps", "fault", message, float(gap.max()), limit, where, ADVICE, SOURCE)]


def _alone(out: Tensor, v: Tensor) -> bool:
    """Whether each token gives its own value back."""
    own = v.double().repeat_interleave(out.shape[0] // v.shape[0], 0)
    return out.shape == own.shape and torch.allclose(out, own, rtol=0, atol=1e-2 * float(own.abs().max()))


RULE = Rule("steps", "do steps of time other than one cut a sequence apart", _applies, _check)
