"""The clock of anything that only grows: traded volume, a count of trades, kilometres."""

import re
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from eigenclock.clocks.clock import Clock, Reading, check_decreasing, exact_difference
from eigenclock.clocks.stamps import as_times
from eigenclock.errors import ClockError, ConfigError


class Column(Clock):
    """Any nondecreasing column as time: tau = value - first value of the row, in the column's own unit.

    The difference is taken in int64 (or float64) before anything is rounded. The column is a running total. From increments, such as
    the size of each trade, make one first: ``size.long().cumsum(-1)``, or ``size.double().cumsum(-1)`` for fractions. A sum in
    float32 loses small increments. To decode against a cache, go on with the same total.

    Args:
        unit: what the column counts, one word of letters: "shares", "trades", "km". Half-lives are plain numbers in it, or text that
            names it ("1000 shares"); windows are such text, since a plain number counts keys. A column in hours, unit="h", takes every
            duration: "30min".
        decreasing: "refuse" (default) or "sort" where values go back; sorting is stable, and results come back in the order given.
    Shape: times (T,), (B, T) or (B, H, T).
    Units: rates and frequencies are per ``unit``.
    Raises: ClockError where values are missing, NaN, or float32 too coarse for their own differences; ConfigError where the unit is no
        word.

    >>> size = torch.tensor([300, 100, 0, 2500])
    >>> Column("shares")(size.cumsum(-1)).ticks
    tensor([   0.,  100.,  100., 2600.], dtype=torch.float64)
    """

    def __init__(self, unit: str = "units", decreasing: str = "refuse"):
        super().__init__()
        if not isinstance(unit, str) or not re.fullmatch("[a-zA-Z]+", unit):
            raise ConfigError(f"got unit={unit!r}; expected one word of letters, such as 'shares', 'trades' or 'km'")
        self.unit, self.decreasing = unit, check_decreasing(decreasing)

    def spec(self) -> dict[str, Any]:
        options: dict[str, Any] = {"name": "column", "unit": self.unit}
        return options | ({"decreasing": self.decreasing} if self.decreasing != "refuse" else {})

    @property
    def resolution(self) -> Fraction:
        return Fraction(1)

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
                f"got no times; the Column clock has no count of its own: pass the running total of {self.unit} as times= "
                "of shape (T,), (B, T) or (B, H, T)"
            )
        return exact_difference(as_times(times, None, device), origin, mask, since)
