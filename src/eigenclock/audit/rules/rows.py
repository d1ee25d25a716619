"""Rows of a batch: each alone what it is together, padded on the left, at its own offset, and with documents packed in one row."""

from collections.abc import Callable

import torch
from torch import Tensor

from eigenclock.attention import attention
from eigenclock.audit.measure.claims import claims, length_schedule
from eigenclock.audit.measure.samples import rounding, said
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule
from eigenclock.errors import UnsupportedError

SOURCE = "a row, a padded row and a document give what they give alone: the clock counts real tokens, and restarts where a document does"
TOKENS = 12
Call = Callable[..., Tensor]
Gap = tuple[float, int] | None


def batch_of(probe: Probe) -> Call | None:
    """The batched call of a subject, or the public one where it is an encoding."""
    if probe.batch is not None:
        return probe.batch
    enc = probe.encoding
    if enc is None or probe.full is None or enc.clock.sums or enc.clock.width > 1:
        return None

    def call(q: Tensor, k: Tensor, v: Tensor, times: Tensor | None, mask: Tensor | None, documents: Tensor | None) -> Tensor:
        return attention(q, k, v, enc, times=times, mask=mask, documents=documents)

    return call


def _applies(probe: Probe) -> str | None:
    return None if batch_of(probe) is not None else "it takes no batch with times, padding or documents"


def _check(probe: Probe) -> list[Finding]:
    call = batch_of(probe)
    assert call is not None
    n = min(TOKENS, probe.length)
    q, k = (x[None] for x in probe.content(n, seed=11))
    v = probe.content(n, seed=12)[1][None]
    own = _own_times(probe, n)
    alone = call(q, k, v, own, None, None).double()
    limit = 2 * rounding(probe, n)
    beside = "a row gives other numbers beside others, whose times begin elsewhere or reach further, than alone"
    behind = "a document packed behind another gives other numbers than alone"
    padded = "a row padded on the left gives other numbers than alone"
    tried: list[tuple[str, str, Callable[[], Gap]]] = [
        ("offsets", beside, lambda: _offsets(probe, call, q, k, v)),
        ("left padding", padded, lambda: _padded(call, q, k, v, alone, own)),
        ("documents", behind, lambda: _packed(call, q, k, v, own)),
    ]
    if own is None and probe.batch is not None:  # as generating does: positions that count the real tokens are given as well
        given = f"{padded}, its positions given"
        tried.insert(2, ("left padding", given, lambda: _padded(call, q, k, v, alone, torch.arange(n)[None])))
    found = []
    for what, words, gap_of in tried:
        try:
            gap = gap_of()
        except UnsupportedError as error:  # it says itself that it is not made for this
            if what == "documents":
                advice = "give a mask that parts the documents, or one document in each row"
                found.append(Finding("rows", "advice", str(error), None, None, {"what": what}, advice, SOURCE))
            continue
        if gap is not None and not gap[0] <= limit:
            message = f"{words}: token {gap[1]} is off by {gap[0]:.3g} of the largest output"
            advice = {
                "offsets": "keep one position per row and token; a counter or longest position that rows share is wrong for all but one",
                "left padding": "count positions from the first real token of the row, and mask the padding",
                "documents": "restart positions with each document, and let it see no other",
            }[what]
            severity = "advice" if said(probe, "translation invariance") else "fault"  # absolute positions run on in a packed row
            found.append(Finding("rows", severity, message, gap[0], limit, {"what": what, "token": gap[1]}, advice, SOURCE))
    if _dead(call, q, k, v, own):
        message = "a padded token, which has nothing to attend to, gives nan: one layer further every token of the row is nan"
        advice = "give zeros where a row of the mask is empty, or a large negative number in place of -inf"
        found.append(Finding("rows", "fault", message, "nan", None, {"what": "empty rows", "token": 0}, advice, SOURCE))
    return found


def _dead(call: Call, q: Tensor, k: Tensor, v: Tensor, own: Tensor | None) -> bool:
    """Whether a token gives nan before which nothing real stands."""
    mask = torch.ones(1, q.shape[2], dtype=torch.bool)
    mask[:, :2] = False
    try:
        return bool(call(q, k, v, own, mask, None).isnan().any())
    except UnsupportedError:
        return False


def _gap(got: Tensor, want: Tensor) -> tuple[float, int]:
    size = float(want.abs().max()) or 1.0
    gap = ((got.double() - want).abs() / size).nan_to_num(nan=1e30, posinf=1e30).amax((0, 1, 3))
    return float(gap.max()), int(gap.argmax())


def _offsets(probe: Probe, call: Call, q: Tensor, k: Tensor, v: Tensor) -> Gap:
    n = q.shape[2]
    start = min(5, probe.length - 2 * n)
    if start < 1:
        return None
    both = [torch.cat([x, x.flip(-1)]) for x in (q, k, v)]
    far = torch.linspace(0, probe.length - 1, n).long()  # across every length at which a schedule may switch
    known = probe.follows is not None or any(length_schedule(enc) is not None for enc in claims(probe).values())
    for other in (2 * torch.arange(n) + start, *(() if known else (far,))):  # what follows the length is said to be so elsewhere
        times = torch.stack([torch.arange(n), other])
        want = torch.cat([call(*(x[i : i + 1] for x in both), times[i : i + 1], None, None) for i in (0, 1)]).double()
        gap = _gap(call(*both, times, None, None), want)
        if not gap[0] <= 2 * rounding(probe, float(other[-1])):
            return gap
    return None


def _own_times(probe: Probe, n: int) -> Tensor | None:
    """The times (1, n) a subject has to be given, None where it counts by itself."""
    counts = probe.encoding is None or probe.encoding.clock.unit is None
    return None if counts else torch.arange(n)[None]


def _padded(call: Call, q: Tensor, k: Tensor, v: Tensor, alone: Tensor, own: Tensor | None) -> Gap:
    n, pad = q.shape[2], 3
    longer = [torch.cat([x[:, :, :pad].flip(-1) * 2, x], 2) for x in (q, k, v)]
    other = [torch.cat([x, x[:, :, :pad]], 2) for x in (q, k, v)]
    mask = torch.ones(2, n + pad, dtype=torch.bool)
    mask[0, :pad] = False
    count = torch.arange(n + pad)
    times = None if own is None else torch.stack([(count - pad).clamp_min(0), count])
    got = call(*(torch.cat(pair) for pair in zip(longer, other, strict=True)), times, mask, None)
    return _gap(got[:1, :, pad:], alone)


def _packed(call: Call, q: Tensor, k: Tensor, v: Tensor, own: Tensor | None) -> Gap:
    n = q.shape[2]
    cut = n // 3
    documents = (torch.arange(n) >= cut).long()[None]
    parts = []
    for piece in (slice(0, cut), slice(cut, n)):
        parts.append(call(*(x[:, :, piece] for x in (q, k, v)), None if own is None else own[:, piece], None, None))
    return _gap(call(q, k, v, own, None, documents), torch.cat(parts, 2).double())


RULE = Rule("rows", "does each row of a batch, padded or packed, give what it gives alone", _applies, _check)
