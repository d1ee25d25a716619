"""Rotations applied once, fast in eager mode: one head at a time so that float32 intermediates stay in cache."""

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.theory.generator import working_dtype
from eigenclock.theory.split import Turn
from eigenclock.theory.trig import cos_sin, reduced


def rotate(x: Float[Tensor, "B H T D"], times: Tensor, turn: Turn, split_halves: bool = False) -> Float[Tensor, "B H T D"]:
    """Turn the pairs of one run of channels by +freq * time: the action on queries and on keys alike.

    ``split_halves`` writes interleaved pairs as (i, i + n), an order in which rates of pairs broadcast; the score does not change
    when both sides are written so.

    Shape: times (B|1, H|1, T) float64; turn.freq (n,), (1, n) or (H, n).
    Stability: angles are float64 products, reduced by whole turns, rounded once; the result has the dtype of ``x``.
    Source: Su et al. (RoFormer), 2104.09864, eq. 34.
    """
    freq = turn.freq if turn.freq.ndim == 2 else turn.freq[None]
    angle = times[..., None] * freq.double()[:, None]
    if torch.compiler.is_compiling():
        return _rotate_traced(x, angle, turn, split_halves)
    return _Rotate.apply(x, angle, turn.start, turn.width, turn.pairing, split_halves)


def _rotate_traced(x: Tensor, angle: Tensor, turn: Turn, split_halves: bool) -> Tensor:
    """Real arithmetic in one expression, for the compiler to fuse."""
    cos, sin = cos_sin(angle, working_dtype(x))
    a, b = x[..., turn.first], x[..., turn.second]
    first, second = a * cos - b * sin, a * sin + b * cos
    halves = split_halves or turn.pairing == "half"
    turned = torch.cat([first, second], -1) if halves else torch.stack([first, second], -1).flatten(-2)
    return torch.cat([x[..., : turn.start], turned.to(x.dtype), x[..., turn.start + turn.width :]], -1)


class _Rotate(torch.autograd.Function):
    """out = R(angle) x on channels start .. start + width; the backward is the inverse rotation."""

    @staticmethod
    def forward(ctx, x: Tensor, angle: Tensor, start: int, width: int, pairing: str, split_halves: bool) -> Tensor:  # type: ignore[override]
        out_pairing = "half" if split_halves else pairing
        ctx.options = start, width, pairing, out_pairing
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, angle)
        return _turn(x, angle.detach(), start, width, pairing, out_pairing)

    @staticmethod
    def backward(ctx, g: Tensor):  # type: ignore[override]
        start, width, pairing, out_pairing = ctx.options
        x, angle = ctx.saved_tensors
        dx = _turn(g, -angle.detach(), start, width, out_pairing, pairing)
        d_angle = None
        if x is not None:  # d angle = <R^-1 g, J x> on each pair
            turn = Turn(start, angle.new_empty(width // 2), pairing)
            work = working_dtype(x)
            d_angle = dx[..., turn.second].to(work) * x[..., turn.first].to(work) - dx[..., turn.first].to(work) * x[..., turn.second].to(work)
            d_angle = d_angle.double().sum_to_size(angle.shape) if d_angle.shape != angle.shape else d_angle.double()
        return dx, d_angle, None, None, None, None


def _turn(x: Tensor, angle: Tensor, start: int, width: int, pairing: str, out_pairing: str) -> Tensor:
    """The rotation, head by head; x (B, H, T, D), angle (B|1, H|1, T, n) in float64."""
    work = working_dtype(x)
    angle = reduced(angle).to(work)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if width < x.shape[-1]:
        out[..., :start] = x[..., :start]
        out[..., start + width :] = x[..., start + width :]
    cos, sin = angle.cos(), angle.sin()
    n = width // 2
    if pairing == "half" and out_pairing == "half":
        cos, sin = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
    else:
        turning = torch.complex(cos, sin)
    heads = angle.shape[1]
    for h in range(x.shape[1]):
        part = x[:, h, :, start : start + width].to(work)
        target = out[:, h, :, start : start + width]
        hh = h if heads > 1 else 0
        if pairing == "half" and out_pairing == "half":
            target.copy_((part * cos[:, hh]).addcmul_(torch.roll(part, n, -1), sin[:, hh]))
            continue
        if pairing == "interleaved":
            z = torch.view_as_complex(part.contiguous().unflatten(-1, (n, 2)))
        else:
            z = torch.complex(part[..., :n].contiguous(), part[..., n:].contiguous())
        y = torch.view_as_real(z * turning[:, hh])
        if out_pairing == "interleaved":
            target.copy_(y.flatten(-2))
        else:
            target.unflatten(-1, (2, n)).copy_(y.transpose(-1, -2))
    return out
