"""How two calls are compared on a machine that others use too.

Ours and the other alternate in one process, after a warm-up. A run gives the ratio of their lower quartiles: the lower quartile, because
what disturbs a measurement only ever makes it slower. Runs are repeated, and a target is missed only when every run misses it.
"""

import gc
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Measure = Callable[[Callable[[], Any]], float]
Verdict = Literal["met", "missed in some", "missed", "no target", "not measured"]


def timed(call: Callable[[], Any]) -> float:
    """Seconds of wall clock that one call takes, the release of its result included."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def reported(call: Callable[[], Any]) -> float:
    """The number that a call measured itself."""
    return float(call())


def load() -> tuple[float, float, float] | None:
    """The load averages of the last 1, 5 and 15 minutes, None where the system has none."""
    try:
        return os.getloadavg()
    except (AttributeError, OSError):
        return None


@dataclass(frozen=True)
class Run:
    """The measurements of one run, in the order they were taken, and the load averages before and after it."""

    ours: tuple[float, ...]
    other: tuple[float, ...]
    load_before: tuple[float, float, float] | None = None
    load_after: tuple[float, float, float] | None = None

    def quantile(self, fraction: float) -> tuple[float, float]:
        """One quantile of ours and of the other.

        >>> Run((1.0, 2.0, 3.0, 4.0, 9.0), (2.0, 2.0, 2.0, 2.0, 2.0)).quantile(0.25)
        (2.0, 2.0)
        """
        return float(np.quantile(self.ours, fraction)), float(np.quantile(self.other, fraction))

    @property
    def ratio(self) -> float:
        """Ours over the other, at the lower quartile of each: the number that targets are about."""
        return _over(*self.quantile(0.25))

    @property
    def median_ratio(self) -> float:
        """The same at the medians."""
        return _over(*self.quantile(0.5))

    @property
    def best_ratio(self) -> float:
        """The same at the minima."""
        return _over(*self.quantile(0.0))

    def to_dict(self) -> dict[str, Any]:
        """Ratios, quantiles, every measurement and the load, as plain data."""
        names = {"min": 0.0, "lower_quartile": 0.25, "median": 0.5, "upper_quartile": 0.75, "max": 1.0}
        out: dict[str, Any] = {"ratio": self.ratio, "median_ratio": self.median_ratio, "best_ratio": self.best_ratio}
        for side, values in (("ours", self.ours), ("other", self.other)):
            out[side] = {name: float(np.quantile(values, fraction)) for name, fraction in names.items()} | {"all": list(values)}
        return out | {"load_before": self.load_before, "load_after": self.load_after}


def _over(ours: float, other: float) -> float:
    return ours / other if other > 0 else float("inf")


def measure(
    ours: Callable[[], Any],
    other: Callable[[], Any],
    *,
    repeats: int = 15,
    warmup: int = 2,
    by: Measure = timed,
    before: Callable[[int], Any] | None = None,
) -> Run:
    """One run: ``warmup`` calls of each that do not count, then ``repeats`` of each, alternating, the first of a pair taking turns.

    ``before`` is called before each pair with the number of pairs done, to tell the user how far it is. The garbage collector rests
    meanwhile.

    >>> run = measure(lambda: 3.0, lambda: 2.0, repeats=4, warmup=0, by=reported)
    >>> run.ratio, len(run.ours)
    (1.5, 4)
    """
    for _ in range(warmup):
        by(ours)
        by(other)
    times: dict[str, list[float]] = {"ours": [], "other": []}
    pair = (("ours", ours), ("other", other))
    before_load, collecting = load(), gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for i in range(repeats):
            if before is not None:
                before(i)
            for name, call in pair if i % 2 == 0 else pair[::-1]:  # neither always finds the caches as the other left them
                times[name].append(by(call))
    finally:
        if collecting:
            gc.enable()
    return Run(tuple(times["ours"]), tuple(times["other"]), before_load, load())


def verdict(ratios: Sequence[float], target: float | None) -> Verdict:
    """Whether a target is met by every run, missed in some runs, or missed, that is missed in all.

    >>> verdict([1.0, 1.2, 1.3], 1.1), verdict([1.2, 1.2, 1.3], 1.1), verdict([1.0], None)
    ('missed in some', 'missed', 'no target')
    """
    if not ratios:
        return "not measured"
    if target is None:
        return "no target"
    missed = [not ratio <= target for ratio in ratios]  # NaN misses
    return "missed" if all(missed) else "missed in some" if any(missed) else "met"
