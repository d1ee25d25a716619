"""Inputs: a call leaves the vectors it is given as they are, and reads them by their shape whatever their strides."""

import torch
from torch import Tensor

from eigenclock.audit.measure.samples import rounding
from eigenclock.audit.probe import Action, Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule

SOURCE = "queries and keys of a layer are views of one projection, and are used again (for the cache, for the backward pass)"
TOKENS = 5


def _applies(probe: Probe) -> str | None:
    return None if probe.bare is not None else "it takes no queries and keys by themselves"


def _check(probe: Probe) -> list[Finding]:
    assert probe.bare is not None
    n = min(TOKENS, probe.length)
    both, times = probe.content(n, seed=15), torch.arange(n)
    given = tuple(x.clone() for x in both)
    plain = _called(probe.bare, given, times)
    found = []
    for side, before, after in zip(("queries", "keys"), both, given, strict=True):
        changed = (before != after).flatten(0, 1)
        if bool(changed.any()):
            token, channel = (int(i) for i in torch.unravel_index(changed.int().argmax(), changed.shape))
            message = f"the call writes into the {side} it is given: channel {channel} of token {token % n} is another number after it"
            advice = "write into new memory: what is turned in place is turned again by the next call, and is lost for the backward pass"
            where = {"side": side, "token": token % n, "channel": channel}
            found.append(Finding("inputs", "fault", message, None, None, where, advice, SOURCE))
    limit = rounding(probe, n)
    for words, made in (("tokens apart", _apart), ("channels first", lambda x: x.mT.contiguous().mT)):
        try:
            moved = _called(probe.bare, tuple(made(x.clone()) for x in both), times)
        except Exception:  # refused with a word: nothing comes out wrong
            continue
        for side, a, b in zip(("queries", "keys"), plain, moved, strict=True):
            gap = float((a - b).abs().nan_to_num(nan=0.0).max()) / (float(a.abs().nan_to_num(posinf=0.0).max()) or 1.0)
            if not gap <= limit:
                message = f"the same {side} in other memory (views with {words}) come out otherwise: strides are not read"
                advice = "index by strides, or copy with contiguous() first"
                found.append(Finding("inputs", "fault", message, gap, limit, {"side": side, "view": words}, advice, SOURCE))
                return found
    return found


def _apart(x: Tensor) -> Tensor:
    """The same numbers as a view of (T, H, D), as a projection of a whole model gives them."""
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def _called(action: Action, both: tuple[Tensor, ...], times: Tensor) -> tuple[Tensor, Tensor]:
    q, k = action(both[0], both[1], times)
    return q.double(), k.double()


RULE = Rule("inputs", "does a call leave its inputs as they are, and read them by their strides", _applies, _check)
