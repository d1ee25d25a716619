"""The clock of real, irregular time: timestamps of any unit, exact to the last one."""

from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from eigenclock.clocks.clock import Clock, Reading, check_decreasing, exact_difference
from eigenclock.clocks.stamps import as_times
from eigenclock.clocks.units import seconds
from eigenclock.errors import ClockError


class Timestamps(Clock):
    """Timestamps as time: raw stamps count ``unit``, rates and frequencies are per ``per``.

    tau = (stamp - first stamp of the row) * unit / per; the difference is taken in int64 (or float64) before anything is rounded.

    Args:
        unit: what one count of an int64 or float64 stamp is: ns, us, ms, s, min, h, d or w. numpy datetime64 is brought to it.
        per: the unit of rates, frequencies and durations.
        decreasing: "refuse" (default) or "sort" where stamps go back; sorting is stable, and results come back in the order given.
    Shape: times (T,), (B, T) or (B, H, T).
    Raises: ClockError where times are missing, NaN, or float32 too coarse for their own differences.

    >>> stamps = torch.tensor([1_700_000_000_000_000_000, 1_700_000_000_300_000_000])
    >>> Timestamps("ns")(stamps).ticks
    tensor([0.0000, 0.3000], dtype=torch.float64)
    """

    stamp_unit: str

    def __init__(self, unit: str = "ns", per: str = "s", decreasing: str = "refuse"):
        super().__init__()
        for name in (unit, per):
            seconds(name)  # refuses an unknown unit here, not in the first call
        self.stamp_unit, self.per, self.decreasing = unit, per, check_decreasing(decreasing)
        self.unit = per

    def spec(self) -> dict[str, Any]:
        options: dict[str, Any] = {"name": "timestamps", "unit": self.stamp_unit, "per": self.unit}
        return options | ({"decreasing": self.decreasing} if self.decreasing != "refuse" else {})

    @property
    def resolution(self) -> Fraction:
        return seconds(self.stamp_unit) / seconds(self.per)

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
            raise ClockError("got no times; the Timestamps clock has no count of its own: pass times= of shape (T,), (B, T) or (B, H, T)")
        ratio = self.resolution
        reading = exact_difference(as_times(times, self.stamp_unit, device), origin, mask, since)
        return reading._replace(ticks=reading.ticks * float(ratio.numerator) / float(ratio.denominator))
