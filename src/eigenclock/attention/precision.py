"""Whether a dtype can hold what Jordan blocks do over a context: their entries grow like powers of the lag."""

import math
import sys
import warnings

import torch
from torch import Tensor

from eigenclock.attention.bands import first_of_latest
from eigenclock.attention.problem import Problem
from eigenclock.theory import Split

GROWTH_LIMIT = 1e-2
"""Largest rounding step times largest entry of exp(uL) that is left alone; the worst of many logits is off by several times that."""


def rounding_of_growth(problem: Problem) -> float | None:
    """eps max_u |p(u)| e^(-rate u) over the lags of a call, p the polynomial of its Jordan blocks on the content, eps of its dtype.

    0 where there are none; None while a graph is traced and away from the CPU, where reading the value would stall the device.
    """
    if problem.split.nilpotent is None:
        return 0.0
    if torch.compiler.is_compiling() or problem.q.device.type != "cpu":
        return None
    return torch.finfo(problem.q.dtype).eps * largest_entry(problem.split, longest_lag(problem))


def refuses_growth(problem: Problem) -> str | None:
    """Why 16-bit queries and keys cannot take these Jordan blocks (they act in float32 and are cast once), or None."""
    if problem.split.nilpotent is None or problem.q.dtype not in (torch.float16, torch.bfloat16):
        return None
    error = rounding_of_growth(problem)
    if error is None:
        return "whether 16 bits hold these Jordan blocks is not known here; they act in float32 or better"
    if error > GROWTH_LIMIT:
        return f"16 bits would round these Jordan blocks by {error:.2g} of their operands over this context; they act in float32 or better"
    return None


def warn_of_growth(problem: Problem) -> None:
    """Warn where Jordan blocks on the content grow past what the dtype of the queries holds over the lags of this call."""
    error = rounding_of_growth(problem)
    if error is None or error <= GROWTH_LIMIT:
        return
    kind, entry = str(problem.q.dtype).removeprefix("torch."), error / torch.finfo(problem.q.dtype).eps
    warnings.warn(
        f"got {problem.encoding} with lags of up to {longest_lag(problem):.6g}: its Jordan blocks grow to {entry:.2g} there, and rounding "
        f"in {kind} alone moves scores by about {error:.2g} of their operands; expected at most {GROWTH_LIMIT:g}: raise the rate, lower "
        "eta (length= scales both), bound the lag with window=, or give float64 tensors",
        RuntimeWarning,
        stacklevel=_caller(),
    )


def _caller() -> int:
    """How many frames above the one that warns the package was called: a warning points there, whatever road led to it."""
    frame, level = sys._getframe(2), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "eigenclock":
        frame, level = frame.f_back, level + 1
    return level


def largest_entry(split: Split, lag: float) -> float:
    """About the largest row sum of |exp(uL)| for 0 <= u <= lag, rotations left out (they keep norms).

    Taken where each u^r e^(-rate u) peaks, at u = r / rate; the maximum of their sum is within a factor of the order of it.
    """
    if split.nilpotent is None:
        return 1.0
    nilpotent = split.nilpotent.detach().double()
    nilpotent = nilpotent if nilpotent.ndim == 3 else nilpotent[None]
    rate = split.rate_per_channel()
    rate = torch.zeros_like(nilpotent[:, 0]) if rate is None else rate.detach().double()
    power, sums = nilpotent, [torch.ones_like(nilpotent[:, 0])]
    for _ in range(1, split.order):
        sums.append(power.abs().sum(-1))
        power = power @ nilpotent
    worst = 1.0
    for peak in range(1, split.order):
        u = (peak / rate).clamp(max=lag)
        polynomial = sum((s * u**r / math.factorial(r) for r, s in enumerate(sums)), torch.zeros_like(u))
        worst = max(worst, float((polynomial * (-rate * u).exp()).max()))
    return worst


def longest_lag(problem: Problem) -> float:
    """The longest lag between a query and a key it can see, from windows and documents; padding is not looked at."""
    queries, keys = (x.detach() for x in problem.scalar_times)
    if not queries.numel() or not keys.numel():
        return 0.0
    first = keys.amin(-1, keepdim=True) if problem.documents is None else _first_of_document(keys, problem.documents)
    lags = [float((queries - first).max())]
    if problem.span is not None:
        lags.append(problem.span.size)
    if problem.window is not None and not problem.cross:
        places = torch.arange(keys.shape[-1], dtype=torch.float64, device=keys.device)[None, None]
        first = first_of_latest(places, places, problem.key_mask, problem.window)
        rows = torch.broadcast_shapes(keys.shape, first.shape)
        lags.append(float((queries - keys.expand(rows).gather(-1, first.expand(rows))).max()))
    return max(0.0, min(lags))


def _first_of_document(times: Tensor, documents: Tensor) -> Tensor:
    """The time of the first token of each token's document, (B, H|1, T)."""
    index = torch.arange(documents.shape[-1], device=documents.device)
    starts = torch.ones_like(documents, dtype=torch.bool)
    starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    first = torch.where(starts, index, 0).cummax(-1).values[:, None]
    rows = torch.broadcast_shapes(times.shape, first.shape)
    return times.expand(rows).gather(-1, first.expand(rows))
