"""The laws of encodings outside the group: what they say breaks is broken by a measurable amount, and the other axioms hold."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from eigenclock.attention import scores
from eigenclock.encodings import Encoding, Parameter
from eigenclock.errors import ClockError
from eigenclock.testing.laws import LawError, close, holds
from eigenclock.theory.axioms import Sampling, measure_kernel

AXIOMS = ("translation invariance", "linearity", "continuity", "finite dimension")
BROKEN = 1e-3
"""A violation of less than this part of the size of the scores proves nothing."""


def check_axioms(enc: Encoding, *, atol: float = 1e-9) -> None:
    """The axioms that ``enc.breaks`` names are broken, by more than 1e-3 of the scores, and those it does not name hold.

    Measured on a copy whose learned numbers are moved at random: a law holds for all of them, and a start at zero hides what breaks.
    Linearity is that of q and k as they are given, constants allowed, and not asked where :meth:`Encoding.read_in` changes them first.
    Finite dimension is broken where no L of finite size gives the scores of one query and one key as a function of the lag.

    Raises: LawError.

    >>> from eigenclock.encodings import kerple_log
    >>> check_axioms(kerple_log(4, heads=2))
    """
    where, enc = str(enc), _moved(enc)
    holds("breaks names axioms", where, set(enc.breaks.split(" and ")) <= set(AXIOMS), enc.breaks, " and ".join(AXIOMS))
    random = torch.Generator().manual_seed(1)
    g = enc.kv_heads or enc.heads
    q, k = (torch.randn(1, heads, 9, enc.head_dim, dtype=torch.float64, generator=random) for heads in (enc.heads, g))
    times = torch.arange(9) * 2

    def at(q: Tensor, k: Tensor, shift: int = 0) -> Tensor:
        z = scores(q, k, enc, times=times + shift)
        return z.masked_fill(z == -torch.inf, 0.0)

    shifts = (5,) if any(part.length is not None for part in enc.outside()) else (5, 8192)  # near, and beyond any threshold
    moved = torch.stack([at(q, k, shift) for shift in shifts])
    _decide("translation invariance", moved, at(q, k).expand_as(moved), enc.breaks, atol, where)
    if enc.read_in(q, k)[0] is q:  # maps of q and k that know no time may be anything
        _check_linearity(enc, at, q, k, atol, where)
    _check_kernel(enc, q[:, :, :1], k[:, :, :1], where)


def _check_linearity(enc: Encoding, at: Callable[[Tensor, Tensor], Tensor], q: Tensor, k: Tensor, atol: float, where: str) -> None:
    bent = [at(2 * q, k) - at(q, k), at(q, 2 * k) - at(q, k)]
    straight = [at(q, k) - at(0 * q, k), at(q, k) - at(q, 0 * k)]
    _decide("linearity", torch.stack(bent), torch.stack(straight), enc.breaks, atol, where)


def _decide(axiom: str, got: Tensor, expected: Tensor, breaks: str, atol: float, where: str) -> None:
    if axiom not in breaks:
        close(f"{axiom} holds, which is not said to break", where, got, expected, atol)
        return
    gap, limit = float((got - expected).detach().abs().max()), BROKEN * float(expected.detach().abs().max())
    holds(f"{axiom} is broken, as it is said", where, gap > limit, gap, f"above {limit:.3g}")


def _check_kernel(enc: Encoding, q: Tensor, k: Tensor, where: str) -> None:
    """Continuity and the group law of the scores of one query and one key, as a function of the lag."""

    far = torch.tensor([0.0, 2.0**60], dtype=torch.float64)
    unit = float(far[1] / enc.clock(far).ticks[1])  # of the clock, in that of its times

    def kernel(u: float) -> Tensor:
        z = scores(q, k, enc, times=torch.tensor([u * unit], dtype=torch.float64), key_times=torch.zeros(1, dtype=torch.float64))
        return z[0, :, 0]

    if any(part.length is not None for part in enc.outside()):  # defined at whole times alone, and it must say so
        try:
            kernel(0.5)
        except ClockError:
            holds("continuity is broken, as it is said", where, "continuity" in enc.breaks, enc.breaks, "continuity")
            return
        raise LawError("a time without a vector of its own is refused", measured="no error", limit="ClockError", where=where)
    found = measure_kernel(kernel, Sampling(causal=True))
    jumps = found.continuity.holds is False
    holds(
        "continuity is broken where it is said to be, and only there", where, jumps == ("continuity" in enc.breaks), str(found.continuity),
        enc.breaks,
    )  # fmt: skip
    if "finite dimension" in enc.breaks:
        law = "no L of finite size gives these scores"
        holds(law, where, found.group_law.holds is False, str(found.group_law), "a residual above the limit")


def _moved(enc: Encoding) -> Encoding:
    """A copy whose learned numbers are each moved by about a third."""
    out, random = copy.deepcopy(enc), torch.Generator().manual_seed(2)
    for module in out.modules():
        if isinstance(module, Parameter) and module.raw is not None:
            with torch.no_grad():
                module.raw.add_(torch.randn(module.raw.shape, generator=random) / 3)
    return out
