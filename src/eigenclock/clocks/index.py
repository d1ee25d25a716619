"""The index clock: 0, 1, 2, ... or any numbers given in place of it."""

from typing import Any

import torch
from torch import Tensor

from eigenclock.clocks.clock import Clock, Reading, after_count, check_decreasing, exact_difference
from eigenclock.clocks.stamps import as_times
from eigenclock.errors import ShapeError


class Index(Clock):
    """Positions as time: token i has time i, or the time given for it (integers or floats, in steps).

    ``decreasing`` says what happens where given times go back and the law needs order: "refuse" (default) or "sort", which is stable
    and gives results back in the order of the input.
    With a key padding mask and no times given, only real tokens are counted: padding on the left or in between stops the clock.

    >>> Index()(length=3).ticks
    tensor([0., 1., 2.], dtype=torch.float64)
    """

    def __init__(self, decreasing: str = "refuse"):
        super().__init__()
        self.decreasing = check_decreasing(decreasing)

    def spec(self) -> dict[str, Any]:
        return {"name": "index"} | ({"decreasing": self.decreasing} if self.decreasing != "refuse" else {})

    def continued(self, reading: Reading, given: bool) -> Tensor | None:
        return after_count(reading, given)

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
        if times is not None:
            return exact_difference(as_times(times, None, device), origin, mask, since)
        if mask is not None:
            count = mask.long().cumsum(-1) - 1
            # From 0 at the first real token: padding before it stands at -1, so that a piece of padding alone counts nothing.
            return exact_difference(count, torch.zeros_like(count[..., :1]) if origin is None else origin)._replace(last=None)
        if length is None:
            raise ShapeError("got neither times nor a length; the index clock needs one of them")
        return exact_difference(torch.arange(length, device=device), origin)._replace(last=None)
