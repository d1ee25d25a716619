"""What stands around a law and is no part of it: a window, a constant for each query, and the scale of the logits."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eigenclock.audit.measure.samples import hidden_from
from eigenclock.audit.probe import Probe, Scores
from eigenclock.audit.recovery.lags import Lags

Change = Callable[[Scores], Scores]


@dataclass(frozen=True)
class Frame:
    """A probe of the law alone, and in words what was taken away."""

    probe: Probe
    notes: tuple[str, ...] = ()


def _changed(probe: Probe, change: Change, note: str) -> Frame:
    both = {name: change(fn) for name in ("scores", "exact") if (fn := getattr(probe, name)) is not None}
    return Frame(replace(probe, **both), (note,))


def within_window(probe: Probe) -> Frame:
    """The probe for the lags it shows, where it masks keys from some lag on."""
    first = hidden_from(probe)
    if first is None or first < 2:
        return Frame(probe)
    return Frame(replace(probe, length=first), (f"keys {first} and more before the query are masked: its law is measured before that",))


def without_constants(probe: Probe) -> Frame:
    """Scores less those of a query and a key that are 0, both at the time of the query, which softmax does not see."""

    def change(fn: Scores) -> Scores:
        def less(q: Tensor, k: Tensor, at: Tensor, of: Tensor) -> Tensor:
            nothing = torch.zeros_like(q), k.new_zeros(k.shape[0], q.shape[1], k.shape[-1])
            return fn(q, k, at, of) - fn(*nothing, at, at).diagonal(dim1=-2, dim2=-1)[..., None]

        return less

    return _changed(probe, change, "up to a constant for each query, which softmax does not see")


def unscaled(lags: Lags) -> Iterator[Frame]:
    """The law without the scale 1/sqrt(head_dim) of logits, where its scores have that at lag 0: on the products alone, or on all of it."""
    probe, start = lags.probe, lags.at(0.0).content
    scale = probe.head_dim**-0.5
    eye = torch.eye(probe.head_dim, dtype=start.dtype)
    if probe.head_dim == 1 or not float((start / scale - eye).abs().max()) <= max(1e-9, 16 * lags.eps):
        return
    note = f"it scores with the scale 1/sqrt({probe.head_dim}), which attention applies by itself"

    def products(fn: Scores) -> Scores:
        return lambda q, k, at, of: fn(q / scale, k, at, of)

    def whole(fn: Scores) -> Scores:
        return lambda q, k, at, of: fn(q, k, at, of) / scale

    yield _changed(probe, products, note)
    yield _changed(probe, whole, note)
