"""Scores that follow the longest position of a call: dynamic schedules, LongRoPE beyond its original length."""

from dataclasses import replace

import torch
from torch import Tensor

from eigenclock.audit.measure.samples import SINGLE, best, many
from eigenclock.audit.measure.shifts import worst_shift
from eigenclock.audit.probe import Action, Probe, Scores


def held(fn: Scores, last: float) -> Scores:
    """The scores in calls that reach a position: one more query and key of zeros stand there."""

    def scores(q: Tensor, k: Tensor, query_times: Tensor, key_times: Tensor) -> Tensor:
        q, k, query_times, key_times = _longer(q, query_times, k, key_times, last)
        return fn(q, k, query_times, key_times)[..., :-1, :-1]

    return scores


def _longer(q: Tensor, query_times: Tensor, k: Tensor, key_times: Tensor, last: float) -> tuple[Tensor, ...]:
    q, k = (torch.cat([x, x.new_zeros(x.shape[0], 1, x.shape[-1])], 1) for x in (q, k))
    query_times, key_times = (torch.cat([t, t.new_full((1,), last)]) for t in (query_times, key_times))
    return q, k, query_times, key_times


def _held_action(action: Action, last: float) -> Action:
    def moved(q: Tensor, k: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        q, k, times, _ = _longer(q, times, k, times, last)
        a, b = action(q, k, times)
        return a[:, :-1], b[:, :-1]

    return moved


def holding(probe: Probe) -> Probe:
    """The probe in calls that reach its last position, where scores follow the longest one of a call and keep the law once that is one.

    ``follows`` is then the first position that changes scores before it.
    """
    fn, last = probe.scores, probe.length - 1
    if fn is None or probe.weighed or probe.encoding is not None or probe.as_read or last < 4:
        return probe
    q, k = probe.content(4)
    lags, finest = [0.0, 1.0, 2.0], best(probe)
    near = many(finest, probe, q, k, lags, 0.0)
    # The same tokens at the same positions: what differs by more than the rounding of sums is the length of the call.
    steps = SINGLE if probe.exact is not None else max(SINGLE, probe.unit_roundoff)
    limit = 64 * steps * float(near.abs().nan_to_num(posinf=0.0, neginf=0.0).max())

    def changes(position: int) -> bool:
        return float((many(held(finest, position), probe, q, k, lags, 0.0) - near).abs().nan_to_num(nan=torch.inf).max()) > limit

    if not changes(last):
        return probe
    exact, action = probe.exact, probe.action
    at_length = replace(
        probe,
        scores=held(fn, last),
        exact=None if exact is None else held(exact, last),
        action=None if action is None else _held_action(action, last),
    )
    assert at_length.scores is not None
    if worst_shift(at_length.scores, at_length) is not None:
        return probe
    low, high = 2, last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if changes(middle) else (middle, high)
    note = f"scores follow the longest position of a call from {high} on: they are measured in calls that reach {last}"
    return replace(at_length, follows=float(high), notes=(*probe.notes, note))
