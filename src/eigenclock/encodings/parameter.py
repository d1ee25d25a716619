"""The numbers of an encoding: fixed ones that no cast can touch, learned ones behind a declared constraint."""

import datetime as dt
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eigenclock.clocks import duration_text
from eigenclock.errors import ConfigError
from eigenclock.theory.numbers import exact, keeping_dtype


class Parameter(nn.Module):
    """One set of numbers (rates, frequencies or slopes), fixed or learned, always handed out in float64.

    A fixed one is neither a parameter nor a buffer: ``.half()``, ``.to(bfloat16)``, meta-device construction and the default dtype
    leave it alone, and it is in no state dict. A learned one keeps a float32 ``raw`` through casts; its value is

        positive: sign * exp(raw), sign fixed by the start value (steps are relative, and no step can cross 0)
        real:     raw

    Frequencies get gradients proportional to the times they multiply. An optimiser that divides by the gradient's size (Adam) still moves
    a number on the log scale by at most about its learning rate, relative, whatever the length; but a frequency near 1 then turns by
    rate * length radians, so give frequencies a learning rate some 10 times below the weights'. Leave learned numbers out of weight decay:
    on the log scale it pulls each of them towards 1, not 0, and slow ones most.

    Raises: ConfigError where a learned positive number starts at 0.
    """

    def __init__(self, value: Tensor, learned: bool = False, constraint: str = "positive"):
        super().__init__()
        self.constraint = constraint
        self.initial = value.detach().to(device="cpu", dtype=torch.float64)  # a plain attribute: casts and moves pass it by
        self.raw: nn.Parameter | None = None
        if learned:
            if constraint == "positive" and bool((self.initial == 0).any()):
                raise ConfigError(
                    "got a learnable number that starts at 0; expected a start above 0 "
                    "(it is learned on a log scale), or leave it out of learn="
                )
            self.raw = nn.Parameter(self._start())

    def _start(self) -> Tensor:
        return (self.initial.abs().log() if self.constraint == "positive" else self.initial).float()

    @property
    def learned(self) -> bool:
        return self.raw is not None

    @property
    def moved(self) -> bool:
        """Whether a learned number is no longer at its start value; False where it has no numbers yet (meta device)."""
        if self.raw is None or self.raw.is_meta:
            return False
        return not torch.equal(self.raw.detach().cpu(), self._start())

    def reset_parameters(self) -> None:
        """Put a learned number back to its start value, for example after ``to_empty`` on a meta device."""
        if self.raw is not None:
            with torch.no_grad():
                self.raw.copy_(self._start())

    def value(self, device: torch.device | None = None) -> Tensor:
        """The numbers in float64, differentiable where they are learned."""
        if self.raw is None:
            return self.initial if device is None else self.initial.to(device)
        if self.constraint == "real":
            return self.raw.double()
        return self.initial.sign().to(self.raw.device) * self.raw.double().exp()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Parameter":
        super()._apply(keeping_dtype(fn), recurse)
        return self

    def extra_repr(self) -> str:
        return f"shape={tuple(self.initial.shape)}, {'learned, ' + self.constraint if self.learned else 'fixed'}"


def as_numbers(value: Any, what: str, axes: int = 2) -> Tensor:
    """Numbers given as a scalar, sequence, array or tensor, as a finite float64 tensor of at most ``axes`` axes.

    Raises: ConfigError where they are not numbers, not finite, or have more axes.
    """
    shapes = "(), (n,) or (heads, n)" if axes == 2 else f"at most {axes} axes"
    try:
        array = np.asarray(_listed(value))
        if array.dtype.kind not in "biuf":  # text would be read as a number, complex would lose a part
            raise TypeError
        numbers = exact(array)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(f"got {what}={value!r}; expected a number, or numbers of shape {shapes}") from None
    if numbers.ndim > axes or not bool(torch.isfinite(numbers).all()):
        raise ConfigError(
            f"got {what} of shape {tuple(numbers.shape)}, finite: {bool(torch.isfinite(numbers).all())}; "
            f"expected finite numbers of shape {shapes}"
        )
    return numbers


def _listed(value: Any) -> Any:
    """Tensors, alone or in sequences, as lists of Python numbers (exact for every dtype); anything else as it is."""
    if isinstance(value, Tensor):
        return value.detach().cpu().tolist()
    return [_listed(v) for v in value] if isinstance(value, list | tuple) else value


def plain(value: Any, what: str = "the options of an encoding") -> Any:
    """A value as plain data (numbers, text, lists) that JSON and a spec string can carry.

    Raises: ConfigError where a number is not finite, naming ``what`` it was given as.
    """
    if isinstance(value, torch.Tensor):
        return plain(value.detach().cpu().tolist(), what)
    if isinstance(value, dt.timedelta | np.timedelta64):
        return duration_text(value)
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return plain(value.tolist(), what)
    if isinstance(value, list | tuple):
        return [plain(v, what) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"got {value} in {what}; expected finite numbers")
    return value


def within(x: Tensor, low: float = -math.inf, high: float = math.inf) -> Tensor:
    """x clamped to an interval. At or beyond an edge the gradient that leads back inside passes, so that no number is stuck there.

    >>> x = torch.tensor([-2.0, 0.5, 3.0], requires_grad=True)
    >>> within(x, 0.0, 1.0).sum().backward()  # a step of descent goes down: into the interval from above, further out below
    >>> x.grad
    tensor([0., 1., 1.])
    """
    return _Within.apply(x, low, high)


class _Within(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, low: float, high: float) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x <= low, x >= high)
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx, g: Tensor):  # type: ignore[override]
        below, above = ctx.saved_tensors
        return g.masked_fill((below & (g > 0)) | (above & (g < 0)), 0.0), None, None
