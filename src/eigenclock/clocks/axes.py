"""The clock of several axes: one number per axis and token, such as time, height and width."""

from typing import Any

import torch
from torch import Tensor

from eigenclock.clocks.clock import Clock, Reading, exact_difference
from eigenclock.clocks.stamps import as_times
from eigenclock.errors import ClockError, ConfigError, ShapeError


class Axes(Clock):
    """Times with one number per axis, in the order of ``names``: the axes of an image, a video, a table.

    Args:
        names: one name per axis, at least two.
        order: the axis that says what came before in causal cross attention and caches, by name; None where no axis does.
    Shape: times (T, axes), (B, T, axes) or (B, H, T, axes). There is no count of its own: an axis left to a default would put every
        token on a diagonal without a word.
    Raises: ClockError where times are missing, or NaN; ShapeError where the last axis has another size.

    >>> Axes(("height", "width"))(torch.tensor([[5, 7], [5, 8], [6, 7]])).ticks
    tensor([[0., 0.],
            [0., 1.],
            [1., 0.]], dtype=torch.float64)
    """

    def __init__(self, names: tuple[str, ...] = ("height", "width"), order: str | None = None):
        super().__init__()
        if isinstance(names, str) or len(names) < 2 or len(set(names)) != len(names) or not all(isinstance(n, str) for n in names):
            raise ConfigError(f"got axes {names!r}; expected at least two different names, such as ('height', 'width')")
        if order is not None and order not in names:
            raise ConfigError(f"got order={order!r}; expected one of the axes {', '.join(names)}, or None")
        self.names, self.order, self.width = tuple(names), order, len(names)

    @property
    def order_axis(self) -> int | None:
        """The index of the axis that orders tokens, None where none does."""
        return None if self.order is None else self.names.index(self.order)

    def spec(self) -> dict[str, Any]:
        return {"name": "axes", "names": list(self.names)} | ({"order": self.order} if self.order is not None else {})

    def forward(
        self,
        times: Any = None,
        *,
        length: int | None = None,
        origin: Tensor | None = None,
        documents: Tensor | None = None,
        mask: Tensor | None = None,
        x: Tensor | None = None,
        since: Tensor | None = None,
        device: torch.device | None = None,
    ) -> Reading:
        if times is None:
            raise ClockError(
                f"got no times; the clock of the axes {', '.join(self.names)} has no count of its own: "
                f"pass times= of shape (T, {self.width}), (B, T, {self.width}) or (B, H, T, {self.width})"
            )
        times = as_times(times, None, device)
        if times.ndim < 2 or times.shape[-1] != self.width:
            raise ShapeError(
                f"got times of shape {tuple(times.shape)}; expected a last axis of size {self.width}, one number for each of "
                f"{', '.join(self.names)}: plain text repeats its position on every axis, times[..., None].expand(-1, {self.width})"
            )
        none = (None,) * self.width
        origins, before = (none if x is None else x.unbind(-1) for x in (origin, since))
        readings = [exact_difference(t, o, mask, s) for t, o, s in zip(times.unbind(-1), origins, before, strict=True)]
        return Reading(*(torch.stack([x for x in each if x is not None], -1) for each in zip(*readings, strict=True)))
