"""What the forms of linear attention work on: plain tensors, and what a form is."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Task:
    """One call of linear attention, lowered: everything that turns has been turned; what is left of L decays and shears.

    out_t = scale * sum over s <= t of the same document of (q_t^T exp((u_t - u_s) L) k_s) v_s, and ``start`` counts as keys and values
    at the time ``before``; L = -diag(rate) + nilpotent, which commute.

    q (B, H, T, D), k (B, G, T, D), v (B, G, T, V), float32 or float64. times (B|1, G|1, T, W) and before (B|1, G|1, 1, W) float64,
    nondecreasing; they are subtracted from each other before anything else. rate (1|G, R) >= 0; W and R are 1 or D. nilpotent
    (1|G, D, D) with nilpotent^order = 0 (then W = 1). documents (B|1, T): run numbers in order, 0 for the document that is open in
    ``start`` (B, G, D, V).
    chunk: tokens of a chunk, None for the form's own choice.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    times: Tensor
    before: Tensor
    scale: float
    rate: Tensor | None = None
    nilpotent: Tensor | None = None
    order: int = 1
    documents: Tensor | None = None
    start: Tensor | None = None
    chunk: int | None = None

    @property
    def groups(self) -> int:
        """Query heads for each key head."""
        return self.q.shape[1] // max(1, self.k.shape[1])

    def of_queries(self, parameter: Tensor) -> Tensor:
        """A parameter with one row per key head (or one row), with one row per query head."""
        rows = parameter.shape[0]
        return parameter if rows in (1, self.q.shape[1]) else parameter.repeat_interleave(self.q.shape[1] // rows, 0)

    def sheared_queries(self) -> list[Tensor]:
        """The rows q^T N^r for r below the order: q^T exp(uN) k is the sum of u^r / r! times (q^T N^r) k, exact at any lag."""
        out = [self.q]
        for _ in range(1, self.order if self.nilpotent is not None else 1):
            assert self.nilpotent is not None
            out.append(out[-1] @ self.of_queries(self.nilpotent.to(self.q.dtype)))
        return out

    def gathered(self, moments: list[Tensor]) -> Tensor:
        """sum_r N^r S_r, the state from its moments S_r = sum_s (u - u_s)^r / r! exp(-rate (u - u_s)) k_s v_s^T."""
        out, power = moments[0], None
        for moment in moments[1:]:
            assert self.nilpotent is not None
            n = self.nilpotent.to(moment.dtype)
            power = n if power is None else power @ n
            out = out + power @ moment
        return out


@dataclass(frozen=True)
class Form:
    """A way to compute linear attention: one line on what it is, why it cannot take a task, and the function.

    refuses: returns None where the form carries the task exactly, else the reason in words.
    run: returns the output (B, H, T, V) and the state at the last token (B, G, D, V).
    chunks: whether it works on chunks of a size that can be chosen.
    """

    summary: str
    refuses: Callable[[Task], str | None]
    run: Callable[[Task], tuple[Tensor, Tensor]]
    chunks: bool = False


def carries_all(task: Task) -> str | None:
    """For forms that take every task."""
    return None


def power(lag: Tensor, r: int) -> Tensor:
    """lag^r / r!."""
    return lag**r / math.factorial(r)


def no_state(task: Task) -> Tensor:
    """The state before the first token: what was given, or zeros."""
    b, g, _, d = task.k.shape
    return task.k.new_zeros(b, g, d, task.v.shape[-1]) if task.start is None else task.start


def work_dtype(dtype: torch.dtype) -> torch.dtype:
    """Linear attention adds up in float32, in float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32
