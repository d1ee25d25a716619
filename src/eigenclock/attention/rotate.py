"""Rotations applied once, fast in eager mode: one head at a time so that float32 intermediates stay in cache."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.theory.generator import working_dtype
from eigenclock.theory.split import Turn
from eigenclock.theory.trig import cos_sin, reduced


@dataclass(frozen=True)
class Table:
    """The angles of one run of rotations at given times, made once and used for queries and keys alike.

    angle (B|1, H|1, T, n) in float64, differentiable; turning e^(i angle) in complex64 (complex128 for float64), None while traced.
    """

    turn: Turn
    angle: Tensor
    turning: Tensor | None


def make_table(times: Tensor, turn: Turn, dtype: torch.dtype) -> Table:
    """The table of one run for tensors of ``dtype``; times (B|1, H|1, T) float64, or (B|1, H|1, T, W) on a clock of several times.

    Stability: angles are float64 products, reduced by whole turns and rounded once.
    """
    freq = turn.per_head.double()
    if turn.axes > 1:
        angle = times @ freq
    elif times.ndim == 3:
        angle = times[..., None] * freq[:, None]
    else:
        angle = (times if turn.clock is None else times[..., list(turn.clock)]) * freq[:, None]
    if torch.compiler.is_compiling():
        return Table(turn, angle, None)
    small = reduced(angle.detach()).to(torch.promote_types(dtype, torch.float32))
    return Table(turn, angle, torch.complex(small.cos(), small.sin()))


def rotate(x: Float[Tensor, "B H T D"], table: Table) -> Float[Tensor, "B H T D"]:
    """Turn the pairs of one run of channels by their angle: the action on queries and on keys alike, in the dtype of ``x``.

    Source: Su et al. (RoFormer), 2104.09864, eq. 34.
    """
    turn = table.turn
    if table.turning is None:
        return _rotate_traced(x, table.angle, turn)
    return _Rotate.apply(x, table.angle, table.turning, turn.start, turn.width, turn.pairing)


def _rotate_traced(x: Tensor, angle: Tensor, turn: Turn) -> Tensor:
    """Real arithmetic in one expression, for the compiler to fuse (it generates no code for complex numbers)."""
    cos, sin = cos_sin(angle, working_dtype(x))
    a, b = x[..., turn.first], x[..., turn.second]
    first, second = a * cos - b * sin, a * sin + b * cos
    turned = torch.cat([first, second], -1) if turn.pairing == "half" else torch.stack([first, second], -1).flatten(-2)
    return torch.cat([x[..., : turn.start], turned.to(x.dtype), x[..., turn.start + turn.width :]], -1)


class _Rotate(torch.autograd.Function):
    """out = R(angle) x on channels start .. start + width; the backward is the inverse rotation."""

    @staticmethod
    def forward(ctx, x: Tensor, angle: Tensor, turning: Tensor, start: int, width: int, pairing: str) -> Tensor:  # type: ignore[override]
        ctx.options = start, width, pairing, angle.shape
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, turning)
        return _turn(x, turning, start, width, pairing)

    @staticmethod
    def backward(ctx, g: Tensor):  # type: ignore[override]
        start, width, pairing, shape = ctx.options
        x, turning = ctx.saved_tensors
        dx = _turn(g, turning.conj(), start, width, pairing)
        d_angle = None
        if x is not None:  # d angle = <R^-1 g, J x> on each pair
            run = Turn(start, turning.new_empty(width // 2), pairing)
            work = working_dtype(x)
            d_angle = dx[..., run.second].to(work) * x[..., run.first].to(work) - dx[..., run.first].to(work) * x[..., run.second].to(work)
            d_angle = d_angle.double().sum_to_size(shape)
        return dx, d_angle, None, None, None, None


ROWS = 256
"""Rows of all heads that are turned at a time on halves: what is written is read again while it is in cache."""


def _turn(x: Tensor, turning: Tensor, start: int, width: int, pairing: str) -> Tensor:
    """The rotation of one run; x (B, H, T, D), turning (B|1, H|1, T, n)."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if width < x.shape[-1]:
        out[..., :start] = x[..., :start]
        out[..., start + width :] = x[..., start + width :]
    source, target = x[..., start : start + width], out[..., start : start + width]
    (_turn_pairs if pairing == "interleaved" else _turn_halves)(source, turning.resolve_conj(), target)
    return out


def _turn_pairs(x: Tensor, turning: Tensor, out: Tensor) -> None:
    """Interleaved pairs are complex numbers already: one multiplication, in place where dtype and strides allow."""
    n, work = x.shape[-1] // 2, working_dtype(x)
    if x.dtype == work and _is_complex(x) and _is_complex(out):
        pairs, result = (torch.view_as_complex(side.unflatten(-1, (n, 2))) for side in (x, out))
        torch.mul(pairs, turning, out=result)
        return
    rows = max(1, min(ROWS, x.shape[2]))
    buffer = torch.empty(*x.shape[:2], rows, n, 2, dtype=work, device=x.device)
    for low in range(0, x.shape[2], rows):
        block = slice(low, low + rows)
        part = x[:, :, block].unflatten(-1, (n, 2))
        turned = buffer[:, :, : part.shape[2]].copy_(part)
        torch.view_as_complex(turned).mul_(turning[:, :, block])
        out[:, :, block].unflatten(-1, (n, 2)).copy_(turned)


def _is_complex(x: Tensor) -> bool:
    """Whether neighbouring channels can be read as complex numbers without a copy."""
    return x.stride(-1) == 1 and x.storage_offset() % 2 == 0 and all(stride % 2 == 0 for stride in x.stride()[:-1])


def _turn_halves(x: Tensor, turning: Tensor, out: Tensor) -> None:
    """(a, b) -> (a, b) cos + (-b, a) sin on halves, a block of rows at a time."""
    work, n = working_dtype(x), x.shape[-1] // 2
    parts = torch.view_as_real(turning)
    cos, sin = parts[..., 0].repeat(1, 1, 1, 2), parts[..., 1].contiguous()
    rows = max(1, min(ROWS, x.shape[2]))
    given, turned = (torch.empty(*x.shape[:2], rows, 2 * n, dtype=work, device=x.device) if x.dtype != work else None for _ in range(2))
    for low in range(0, x.shape[2], rows):
        block = slice(low, low + rows)
        part, result = x[:, :, block], out[:, :, block]
        if given is not None and turned is not None:
            size = part.shape[2]
            part, result = given[:, :, :size].copy_(part), turned[:, :, :size]
        torch.mul(part, cos[:, :, block], out=result)
        result[..., :n].addcmul_(part[..., n:], sin[:, :, block], value=-1)
        result[..., n:].addcmul_(part[..., :n], sin[:, :, block])
        if turned is not None:
            out[:, :, block].copy_(result)
