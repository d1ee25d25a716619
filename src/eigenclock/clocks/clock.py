"""The clock: it says what time is, exactly, before anything is rounded."""

from abc import abstractmethod
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eigenclock.errors import ClockError, ConfigError, ShapeError
from eigenclock.theory.numbers import spacing


class Reading(NamedTuple):
    """Times read by a clock: float64 ticks with the origin removed, and the origin in the dtype it arrived in.

    ``last`` is the last given time of each row as it arrived, int64 or float64, padding left out: what the next piece of the sequence
    takes as ``since``. A row that had no real token yet holds the smallest number of the dtype (-inf in floats). None without times.
    ``counts`` says the same as the ticks in the counts of the stamps, int64 or as floating as they came: a window in time compares
    these, before anything is rounded (see ``Clock.resolution``). Only differences between readings of one origin mean anything. None
    where a clock has nothing better than its ticks.
    """

    ticks: Float[Tensor, "*clock T"]
    origin: Tensor | None
    last: Tensor | None = None
    counts: Tensor | None = None


class Clock(nn.Module):
    """Positions, timestamps or activations -> times, in a unit. A clock knows no frequencies.

    unit: the unit that rates and durations are counted in, None where the clock counts steps.
    width: how many times each token gets (1: one scalar clock).
    decreasing: what to do where times go back and the law needs order: "refuse" or "sort".
    """

    unit: str | None = None
    stamp_unit: str | None = None  # what whole stamps count, for clocks that read timestamps
    width: int = 1
    signed: bool = False  # whether time may go back by the clock's own making
    sums: bool = False  # whether a time is a sum along the sequence: queries must be tokens of the keys' own, and pieces hand on ``since``
    decreasing: str = "refuse"

    @property
    def order_axis(self) -> int | None:
        """Which of several times says what came before; None where none does."""
        return None

    @property
    def resolution(self) -> Fraction | None:
        """What one of a reading's ``counts`` is in ``unit``, exactly; None where readings have none."""
        return None

    @abstractmethod
    def forward(
        self,
        times: Any = None,
        *,
        length: int | None = None,
        origin: Tensor | None = None,
        documents: Int[Tensor, "*batch T"] | None = None,
        mask: Bool[Tensor, "*batch T"] | None = None,
        x: Tensor | None = None,
        since: Tensor | None = None,
        device: torch.device | None = None,
    ) -> Reading:
        """Times as float64 ticks of shape (T,), (B, T) or (B, H, T), with a last axis of ``width`` where that is above 1; the origin is
        subtracted exactly.

        ``origin`` is one returned before, so that queries and keys share it. ``times=None`` is the clock's own count of ``length``
        tokens; ``documents`` and ``mask`` (True = a real token) matter to clocks that restart or pause. ``since`` is the last given time
        of the piece before (``Reading.last``), for a gate on elapsed time: the gap between pieces counts as any other.
        """

    def continued(self, reading: Reading, given: bool) -> Tensor | None:
        """The origin with which the next piece of a sequence is read, from the reading of this one.

        ``given``: whether times were given, which share one origin; a clock's own count goes on where it stopped.
        """
        return reading.origin

    def spec(self) -> dict[str, Any]:
        """The name and the options, enough to build the clock again."""
        return {"name": type(self).__name__.lower()}

    def __repr__(self) -> str:
        options = ", ".join(f"{k}={v!r}" for k, v in self.spec().items() if k != "name")
        return f"{type(self).__name__}({options})"


def after_count(reading: Reading, given: bool) -> Tensor | None:
    """The origin that makes a count from 0 go on after its last token: minus the number of tokens counted so far."""
    return reading.origin if given or not reading.ticks.shape[-1] else -(reading.ticks.detach()[..., -1:].long() + 1)


def check_decreasing(choice: str) -> str:
    """Refuse an unknown choice of what to do where times go back."""
    if choice not in ("refuse", "sort"):
        raise ConfigError(f"got decreasing={choice!r}; expected 'refuse' or 'sort'")
    return choice


def check_rank(ticks: Tensor) -> None:
    """Times are (T,), (B, T) or (B, H, T), told apart by rank alone."""
    if not 1 <= ticks.ndim <= 3:
        raise ShapeError(f"got times of shape {tuple(ticks.shape)}; expected (T,), (B, T) or (B, H, T)")


def with_heads(times: Tensor, width: int = 1) -> Tensor:
    """Times of any rank as (B|1, H|1, T): (B, T) never becomes (H, T). With ``width`` above 1 a last axis follows, one time each."""
    if width > 1:
        check_rank(times[..., 0])
        return times[None, None] if times.ndim == 2 else times.unsqueeze(1) if times.ndim == 3 else times
    check_rank(times)
    return times.reshape(1, 1, -1) if times.ndim == 1 else times.unsqueeze(1) if times.ndim == 2 else times


def check_finite(ticks: Tensor) -> None:
    """Refuse NaN and infinite times."""
    if not torch.compiler.is_compiling() and not bool(torch.isfinite(ticks.detach()).all()):
        raise ClockError(
            "got times that are NaN or infinite; expected finite times: drop those rows, or mask them and give any finite time"
        )


def check_precision(times: Tensor) -> None:
    """Refuse floating times below 64 bits whose rounding already spoilt their differences.

    Within the range where the dtype holds every integer (up to 2/eps), integers pass, and so do times that are all ties. Otherwise
    the spacing of the dtype at the largest time must be below 1 % of the median gap between neighbours: bfloat16 positions fail
    beyond 256, float32 Unix seconds fail at once.
    """
    if not times.is_floating_point() or times.dtype == torch.float64 or times.numel() < 2 or torch.compiler.is_compiling():
        return
    t = times.detach().double()
    info = torch.finfo(times.dtype)
    top = float(t.abs().max())
    in_range = top <= 2 / info.eps
    if in_range and bool((t == t.round()).all()):
        return
    gaps = t.diff(dim=-1).abs()
    gaps = gaps[gaps > 0]
    if in_range and gaps.numel() == 0:
        return  # ties are ordinary data; beyond the range they may be different times that rounding made equal
    step = spacing(top, times.dtype)
    if gaps.numel() == 0 or step > 0.01 * float(gaps.median()):
        typical = f"a median gap of {float(gaps.median()):.3g}" if gaps.numel() else "no two different times"
        raise ClockError(
            f"got times in {str(times.dtype).removeprefix('torch.')} up to {top:.6g}, where neighbouring numbers are {step:.3g} apart, "
            f"with {typical}: "
            "the differences are already lost; give the original int64 or float64 times (the origin is subtracted exactly)"
        )


def exact_difference(times: Tensor, origin: Tensor | None, mask: Tensor | None = None, since: Tensor | None = None) -> Reading:
    """Times minus an origin (the smallest real time of each row where none is given), subtracted in their own exact type.

    ``mask`` (B|1, T), True = a real token: padding may hold any time, and must not become the origin.

    Raises: ClockError where times are NaN or too coarse, or a difference does not fit int64.
    """
    exact, origin = exact_times(times, origin, mask)
    ticks = exact - origin
    if not ticks.is_floating_point():
        ticks = _fitting(ticks, exact, origin, mask)
    return Reading(ticks.double(), origin, last_given(exact, mask, since), times.detach() if _rounded(times) else exact.detach())


def _rounded(times: Tensor) -> bool:
    """Whether times below 64 bits are no whole numbers: what they say then ends with the digits of their dtype."""
    if not times.is_floating_point() or times.dtype == torch.float64 or torch.compiler.is_compiling():
        return False
    return not bool((times.detach() == times.detach().round()).all())


def exact_times(times: Tensor, origin: Tensor | None, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Checked times in int64 or float64, and their origin, of as many axes: what :func:`exact_difference` subtracts."""
    check_rank(times)
    if times.dtype == torch.bool:
        raise ClockError("got boolean times; expected integers or floats (a mask goes to mask=)")
    if times.is_floating_point():
        check_precision(times)
        check_finite(times)
        exact = times.double()
    else:
        exact = times.long()
    if origin is None:
        origin = _first(exact.detach(), mask)
    elif origin.is_floating_point() != exact.is_floating_point():
        exact, origin = exact.double(), origin.double()
    return (exact, origin) if origin.ndim == exact.ndim else (with_heads(exact), with_heads(origin))


def last_given(exact: Tensor, mask: Tensor | None, since: Tensor | None) -> Tensor:
    """The last real time of each row, ``since`` where a row has none (see :class:`Reading`)."""
    if exact.shape[-1] and (mask is None or mask.shape[-1] != exact.shape[-1]):
        return exact[..., -1:]
    if since is None:
        since = exact.new_full((*exact.shape[:-1], 1), _nothing(exact))
    elif since.dtype != exact.dtype:
        since, exact = torch.where(nothing_before(since), -torch.inf, since.double()), exact.double()
    return since if mask is None or not exact.shape[-1] else carried(with_heads(exact), with_heads(since), mask)[..., -1:]


def carried(values: Tensor, before: Tensor, mask: Tensor) -> Tensor:
    """At each token the last real value (B|1, H|1, T) up to it by ``mask`` (B|1, T), and ``before`` (B|1, H|1, 1) until there is one."""
    index = torch.where(mask, torch.arange(1, mask.shape[-1] + 1, device=mask.device), 0).cummax(-1).values[:, None]
    shape = torch.broadcast_shapes(values.shape[:2], before.shape[:2], index.shape[:2])
    both = torch.cat([before.expand(*shape, -1), values.expand(*shape, -1)], -1)
    return both.gather(-1, index.expand(*shape, -1))


def first_real(values: Tensor, mask: Tensor) -> Tensor:
    """The first real value of each row of (B|1, H|1, T) by ``mask`` (B|1, T), the first of all where none is real."""
    shape = torch.broadcast_shapes(values.shape[:2], (mask.shape[0], 1))
    if not values.shape[-1]:
        return values.expand(*shape, -1)
    index = mask.long().argmax(-1, keepdim=True)[:, None]
    return values.expand(*shape, -1).gather(-1, index.expand(*shape, -1))


def elapsed(read: Callable[..., Reading], mask: Tensor | None, since: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Time since the real token before, 0 at the very first one, and the last time given: what a clock that accumulates sums up.

    ``read(origin=...)`` gives the times of the piece less an origin, exactly; ``since`` is the last given time of the piece before.

    Shape: that of the times; (B|1, H|1, T) where the mask or what came before differs by row.
    """
    if since is None:
        fresh, reading = torch.ones(1, 1, 1, dtype=torch.bool), read(origin=None)
        fresh = fresh.to(reading.ticks.device)
    else:  # times less the one before them, subtracted exactly
        fresh, start = with_heads(nothing_before(since)), since
        if bool(fresh.any()):
            start = torch.where(fresh, with_heads(read(origin=None).origin), with_heads(since))  # type: ignore[arg-type]
        reading = read(origin=start)
    ticks = with_heads(reading.ticks)
    first = ticks[..., :1] if mask is None else first_real(ticks, mask)
    before = torch.where(fresh, first, 0.0) if first.numel() else first
    gaps = (ticks if mask is None else carried(ticks, before, mask)).diff(dim=-1, prepend=before)
    return (gaps.reshape(reading.ticks.shape) if gaps.numel() == reading.ticks.numel() else gaps), reading.last


def nothing_before(since: Tensor) -> Tensor:
    """Which rows had no real token before."""
    return since == _nothing(since)


def _nothing(like: Tensor) -> float | int:
    return -torch.inf if like.is_floating_point() else torch.iinfo(like.dtype).min


def _first(exact: Tensor, mask: Tensor | None) -> Tensor:
    """The smallest real time of each row, or of all tokens where a row has no real one."""
    if not exact.shape[-1]:
        return exact.new_zeros(*exact.shape[:-1], 1)
    if mask is None or mask.shape[-1] != exact.shape[-1]:
        return exact.amin(-1, keepdim=True)
    real = _real(exact, mask)
    top = torch.inf if exact.is_floating_point() else torch.iinfo(exact.dtype).max
    return torch.where(real.any(-1, keepdim=True), exact.masked_fill(~real, top).amin(-1, keepdim=True), exact.amin(-1, keepdim=True))


def _real(exact: Tensor, mask: Tensor) -> Tensor:
    """The mask in the shape of the times; one clock for all rows counts a token that is real in any."""
    if exact.ndim == 1 or exact.shape[0] == 1:
        mask = mask.any(0, keepdim=True)
    return (mask[0] if exact.ndim == 1 else mask if exact.ndim == 2 else mask.unsqueeze(1)).expand(exact.shape)


def _fitting(ticks: Tensor, exact: Tensor, origin: Tensor, mask: Tensor | None) -> Tensor:
    """Integer differences that did not wrap around; those of padding become 0 where they did."""
    if torch.compiler.is_compiling():
        return ticks
    wrapped = (exact.double() - origin.double() - ticks.double()).abs() > 2.0**62
    if not bool(wrapped.any()):
        return ticks
    if mask is None or mask.shape[-1] != ticks.shape[-1] or bool((wrapped & _real(ticks, mask)).any()):
        raise ClockError(
            "got int64 times more than 2^63 apart, so that their difference does not fit 64 bits; expected one epoch and unit: "
            "mask sentinels such as the smallest int64, or give the times in a coarser unit"
        )
    return ticks.masked_fill(wrapped, 0)
