"""Stamps as users hold them, read exactly: numpy's datetime64 as counts of a clock's unit."""

import numpy as np
import torch
from torch import Tensor

from eigenclock.errors import ClockError

_NUMPY = {"min": "m", "d": "D", "w": "W"}
"""Units that numpy calls otherwise."""


def counted(times: np.ndarray, unit: str) -> Tensor:
    """datetime64 of any resolution as int64 counts of ``unit`` since 1970, so that queries, keys and pieces may differ in it.

    Raises: ClockError where a stamp is NaT, no whole count of the unit, or beyond what int64 counts of it reach.

    >>> counted(np.array(["1970-01-02", "1970-01-03T12"], dtype="datetime64[h]"), "min")
    tensor([1440, 3600])
    """
    if bool(np.isnat(times).any()):
        raise ClockError("got NaT among the times; expected a timestamp for every token: drop those rows or fill them")
    stamps = times.astype(f"datetime64[{_NUMPY.get(unit, unit)}]")
    if not bool((stamps.astype(times.dtype) == times).all()):
        raise ClockError(
            f"got {times.dtype} stamps that are no whole counts of {unit!r}, or beyond its range; "
            "expected a clock whose unit holds them: unit='ns' for the years 1678 to 2262, unit='us' for any"
        )
    return torch.from_numpy(np.ascontiguousarray(stamps.astype(np.int64)))
