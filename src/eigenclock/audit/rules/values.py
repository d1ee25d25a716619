"""Values: attention averages them as they are; positions act on queries and keys alone."""

import torch

from eigenclock.audit.measure.samples import rounding
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule

SOURCE = "softmax weights are numbers: where every value is v, the output is v at each position, up to the weight that a sink takes"
TOKENS = 12


def _applies(probe: Probe) -> str | None:
    if probe.kind == "decoder":
        return "it makes its values itself"
    return None if probe.full is not None else "no attention of it can be run"


def _check(probe: Probe) -> list[Finding]:
    """Values that are all one vector, at near positions and over the length: what is left across that vector is no average."""
    assert probe.full is not None
    n = min(TOKENS, probe.length)
    q, k = probe.content(n, seed=15)
    v = probe.content(1, seed=16)[1].expand(-1, n, -1)
    out = probe.full(q, k, v, torch.arange(n)).double()
    if out.shape[-1] != v.shape[-1] or out.shape[0] % v.shape[0]:
        return []
    wanted = v.double().repeat_interleave(out.shape[0] // v.shape[0], 0)
    part = (out * wanted).sum(-1, keepdim=True) / wanted.square().sum(-1, keepdim=True)
    gap = (out - part * wanted).norm(dim=-1) / wanted.norm(dim=-1)
    limit = 2 * rounding(probe, n)
    if not float(gap.nan_to_num(nan=0.0).max()) > limit:
        return []
    token = int((gap > limit).any(0).int().argmax())
    h = int(gap[:, token].argmax())
    c = int((out - wanted)[h, token].abs().argmax())
    message = f"every value is one vector, and the output at token {token} is another: channel {c} is {float(out[h, token, c]):.6g}, not "
    message += f"{float(wanted[h, token, c]):.6g}; the values are moved, or mixed with what is no value"
    advice = "turn queries and keys alone; values that are moved carry the position of their key into the output"
    where = {"t": token, "head": h, "channel": c}
    return [Finding("values", "fault", message, float(gap.max()), limit, where, advice, SOURCE)]


RULE = Rule("values", "are values averaged as they are", _applies, _check)
