"""Plane: a rotation in one plane of any direction, by the Rodrigues formula."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.errors import ConfigError, ShapeError
from eigenclock.theory.generator import Block, Generator, check_width, parameter_heads, per_token, working_dtype
from eigenclock.theory.generators.dense import one_clock
from eigenclock.theory.split import Split, Turn


@dataclass(frozen=True)
class Plane(Generator):
    """L = a b^T - b a^T: the plane of a and b turns, what stands upright on it stays. Rank 2, and O(D) to apply.

    exp(tL) x = x + sin(st)/s L x + (1 - cos(st))/s^2 L^2 x, with s^2 = |a|^2 |b|^2 - (a.b)^2 the frequency squared.

    Shape: a and b (D,) or (heads, D).
    Units: s in radians per unit of the clock.
    Raises: ShapeError where the two differ in width; ConfigError where they are parallel and span no plane.
    Stability: the angle is a float64 product; sin(st)/s and its square stay finite for any s.
    Source: Zhang et al. (GRAPE), 2512.07805.

    >>> import torch
    >>> Plane(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 2.0, 0.0])).form
    JordanForm('1R + 1Z')
    """

    a: Float[Tensor, "*heads D"]
    b: Float[Tensor, "*heads D"]

    def __post_init__(self) -> None:
        if self.a.shape[-1] != self.b.shape[-1] or self.a.shape[-1] < 2:
            raise ShapeError(f"got a of shape {tuple(self.a.shape)} and b of shape {tuple(self.b.shape)}; expected one width of at least 2")
        if torch.compiler.is_compiling() or self.a.device.type != "cpu":
            return
        a, b = self.a.detach().double(), self.b.detach().double()
        area = a.square().sum(-1) * b.square().sum(-1)
        if not bool((area - (a * b).sum(-1).square() > 1e-12 * area).all()):
            raise ConfigError("got two parallel (or zero) vectors; expected a and b that span a plane")

    @property
    def dim(self) -> int:
        return self.a.shape[-1]

    @property
    def heads(self) -> int:
        return parameter_heads(self.a, self.b)

    def blocks(self) -> tuple[Block, ...]:
        return (Block((0, 1), turns=True), *(Block((c,)) for c in range(2, self.dim)))

    def act(self, x: Tensor, t: Tensor) -> Tensor:
        check_width(x, self.dim, "Plane")
        dtype = working_dtype(x)
        a, b = per_token(self.a).double(), per_token(self.b).double()
        aa, bb, ab = a.square().sum(-1), b.square().sum(-1), (a * b).sum(-1)  # () or (heads, 1): times along tokens follow
        s, t = (aa * bb - ab.square()).clamp_min(0).sqrt(), one_clock(t, x).double()
        first = (t * torch.sinc(s * t / torch.pi))[..., None].to(dtype)  # sin(st)/s
        second = (t.square() / 2 * torch.sinc(s * t / (2 * torch.pi)).square())[..., None].to(dtype)  # (1 - cos(st))/s^2

        def turned(y: Tensor) -> Tensor:
            return a.to(dtype) * (y * b.to(dtype)).sum(-1, keepdim=True) - b.to(dtype) * (y * a.to(dtype)).sum(-1, keepdim=True)

        once = turned(x.to(dtype))
        return (x.to(dtype) + first * once + second * turned(once)).to(x.dtype)

    def transpose(self) -> "Plane":
        return Plane(self.b, self.a)

    def split(self) -> Split:
        """In the orthonormal basis of two Householder reflections, whose first two columns span the plane."""
        a, b = torch.broadcast_tensors(self.a.double(), self.b.double())
        length = torch.linalg.vector_norm(a, dim=-1)
        first, first_sign = _reflection(a / length[..., None], 0)
        rest = (first @ b[..., None])[..., 0]
        rest = torch.cat([torch.zeros_like(rest[..., :1]), rest[..., 1:]], -1)
        height = torch.linalg.vector_norm(rest, dim=-1)
        second, second_sign = _reflection(rest / height[..., None], 1)
        basis = first @ second
        freq = (length * height * first_sign * second_sign)[..., None]
        return Split(self.dim, (Turn(0, freq),), basis=basis, inverse=basis.mT)


def _reflection(u: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """H = 1 - 2 v v^T / |v|^2 with H u = -sign e_axis, and the sign of u along the axis (the stable choice)."""
    sign = torch.where(u[..., axis] >= 0, 1.0, -1.0).to(u.dtype)
    eye = torch.eye(u.shape[-1], dtype=u.dtype, device=u.device)
    v = u + sign[..., None] * eye[axis]
    return eye - 2 * v[..., :, None] * v[..., None, :] / v.square().sum(-1)[..., None, None], sign
