"""Cache: decoding in pieces gives what one pass over the whole gives, while the sequence grows, for rows of different length."""

import torch
from torch import Tensor

from eigenclock.audit.measure.samples import rounding
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule
from eigenclock.errors import EigenclockError

SOURCE = "a cached key is right if its action is a fixed group of its own time: one L, one clock, known when it arrived"
TOKENS = 40


def _applies(probe: Probe) -> str | None:
    return None if probe.full is not None and probe.decode is not None else "it has no cache that can be run"


def _check(probe: Probe) -> list[Finding]:
    n = min(TOKENS, probe.length)
    dense = torch.arange(n)
    spread = torch.linspace(0, probe.length - 1, n, dtype=torch.float64).round().long().unique()
    found = _compare(probe, dense)
    if found is None and int(spread[-1]) > n:
        try:
            found = _compare(probe, spread)
        except (EigenclockError, ValueError, IndexError, RuntimeError):
            found = None  # it takes the positions it counts itself
    return [] if found is None else [found]


def _compare(probe: Probe, times: Tensor) -> Finding | None:
    assert probe.full is not None and probe.decode is not None
    n = times.numel()
    q, k = probe.content(n, seed=5)
    v = probe.content(n, seed=6)[1]
    want = probe.full(q, k, v, times).double()
    size = float(want.abs().max()) or 1.0
    limit = 2 * rounding(probe, float(times[-1]))
    half = n // 2
    for cuts, words in (((half, half + 1, n - 1), "a prompt and some tokens"), (tuple(range(half, n)), "one token at a time")):
        got = probe.decode(q, k, v, times, cuts).double()
        gap = ((got - want).abs() / size).nan_to_num(nan=1e30, posinf=1e30).amax((0, 2))
        if bool((gap > limit).any()):
            token = int((gap > limit).int().argmax())
            h, c = torch.unravel_index((got - want)[:, token].abs().argmax(), got[:, token].shape)
            numbers = float(want[h, token, c]), float(got[h, token, c])
            grows = _at_start(probe, q, k, v, want, limit * size)
            why = "; the part before gives other numbers alone than in the whole: something follows the length" if grows else ""
            message = f"decoded in pieces ({words}) token {token} gives {numbers[1]:.6g}, in one pass {numbers[0]:.6g}{why}"
            advice = (
                "freeze what depends on the length before the first token, or cache keys that are not turned"
                if grows
                else "store with each key all that its score needs (its time, its gate), and keep one reference for the whole sequence"
            )
            where = {"token": token, "position": float(times[token]), "cuts": list(cuts[:3])}
            return Finding("cache", "fault", message, float(gap.max()), limit, where, advice, SOURCE)
    return None


def _at_start(probe: Probe, q: Tensor, k: Tensor, v: Tensor, want: Tensor, limit: float) -> bool:
    """Whether the first part gives other numbers alone than it does within the whole."""
    assert probe.full is not None
    half = want.shape[1] // 2
    alone = probe.full(q[:, :half], k[:, :half], v[:, :half], torch.arange(half)).double()
    return bool(((alone - want[:, :half]).abs() > limit).any()) if alone.shape == want[:, :half].shape else False


RULE = Rule("cache", "does decoding in pieces give what one pass gives", _applies, _check)
