"""Stand-ins that are maps of queries and keys, as functions f(q, k, positions) are."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from audit.twins.kinds import LENGTH, D, H, Side
from eigenclock.audit.probe import Probe


def by_maps(F: Side, G: Side, name: str = "twin", **more: Any) -> Probe:
    """A probe of two maps (H, T, D), (T,) -> (H, T, E), as a function f(q, k, positions) would be; arithmetic follows the dtype of x."""

    def scores(q: Tensor, k: Tensor, t: Tensor, s: Tensor) -> Tensor:
        a, b = F(q, t), G(k, s)
        return a @ b.repeat_interleave(a.shape[0] // b.shape[0], 0).mT

    def exact(q: Tensor, k: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return scores(q.double(), k.double(), t, s)

    options = {"heads": H, "kv_heads": H, "length": LENGTH, "dtype": torch.float32, "fractional": True} | more
    return Probe(name, "callable", D, scores=scores, exact=exact, action=lambda q, k, t: (F(q, t), G(k, t)), **options)


def base(theta: float = 100.0, width: int = D) -> Tensor:
    return theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: str = "half") -> Tensor:
    """(x, y) -> (x cos - y sin, x sin + y cos) on the pairs of a layout; cos and sin (T, n)."""
    n = cos.shape[-1]
    a, b = (x[..., :n], x[..., n : 2 * n]) if layout == "half" else (x[..., 0 : 2 * n : 2], x[..., 1 : 2 * n : 2])
    turned = a * cos - b * sin, a * sin + b * cos
    whole = torch.cat(turned, -1) if layout == "half" else torch.stack(turned, -1).flatten(-2)
    return torch.cat([whole, x[..., 2 * n :]], -1)


def turner(freq: Tensor | None = None, layout: str = "half", amplitude: float = 1.0) -> Side:
    """The sound rotation: angles in float64, cos and sin rounded once."""

    def turn(x: Tensor, t: Tensor) -> Tensor:
        angle = t.double()[:, None] * (base() if freq is None else freq)
        return rotate(x, (amplitude * angle.cos()).to(x.dtype), (amplitude * angle.sin()).to(x.dtype), layout)

    return turn


def single(sign: int) -> Side:
    """The rotation by angles in float32, one way or the other."""
    return lambda x, t: rotate(x, (t.float()[:, None] * base().float()).cos(), sign * (t.float()[:, None] * base().float()).sin())


def one_off() -> Tensor:
    """A table of base 9000 in bfloat16, its fifth pair half as fast again."""
    freq = base(9e3, 16).bfloat16().float()
    freq[5] = (1.5 * freq[5]).bfloat16()
    return freq


def sound_rotary(**more: Any) -> Probe:
    return by_maps(turner(), turner(), **more)


def positions_in_the_dtype_of_x(x: Tensor, t: Tensor) -> Tensor:
    """Positions become numbers of the dtype of the queries, as in some rotary packages."""
    angle = t.to(x.dtype)[:, None].float() * base().float()
    return rotate(x, angle.cos().to(x.dtype), angle.sin().to(x.dtype))


def angles_in_the_dtype_of_x(x: Tensor, t: Tensor) -> Tensor:
    angle = (t.double()[:, None] * base()).to(x.dtype)
    return rotate(x, angle.cos(), angle.sin())


def warped(x: Tensor, t: Tensor) -> Tensor:
    return turner()(x, t.double() / (1 + t.double() / 6144))


def growing_table(x: Tensor, t: Tensor) -> Tensor:
    """A factor e^(at) in the table of cos and sin that both sides share."""
    return turner()(x, t) * (0.004 * t.to(x.dtype))[:, None].exp()


def decayed(sign: float, rate: float = 0.004) -> Side:
    """e^(-at) on queries, e^(+as) on keys, in one origin: exact while it lasts."""
    return lambda x, t: turner()(x, t) * (sign * rate * t.to(x.dtype))[:, None].exp()


def referenced(rate: float) -> Probe:
    """The same decay with its exponent taken from the lag, which never grows."""
    turn = turner()

    def scores(q: Tensor, k: Tensor, t: Tensor, s: Tensor) -> Tensor:
        lag = t.double()[:, None] - s.double()
        return turn(q, t) @ turn(k, s).mT * (-rate * lag).exp().masked_fill(lag < 0, 0.0).to(q.dtype)

    def exact(q: Tensor, k: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return scores(q.double(), k.double(), t, s)

    return Probe("twin", "callable", D, H, H, LENGTH, torch.float32, causal=True, fractional=True, scores=scores, exact=exact)


def unsigned() -> Probe:
    """Scores by the distance, whichever way it goes."""

    def scores(q: Tensor, k: Tensor, t: Tensor, s: Tensor) -> Tensor:
        angle = (t.double()[:, None] - s.double()).abs()[..., None] * base().repeat(2)
        return torch.einsum("htd,hsd,tsd->hts", q, k, angle.cos().to(q.dtype))

    return Probe("twin", "callable", D, H, H, LENGTH, torch.float32, fractional=True, scores=scores)


def clamped(sign: float, limit: float) -> Side:
    """The same with exponents cut to +- limit."""
    return lambda x, t: turner()(x, t) * (sign * 0.1 * t.double()).clamp(-limit, limit)[:, None].exp().to(x.dtype)


def sheared(side: str, bound: float | None) -> Side:
    """exp(tL) of an order-2 block over rotations, with its time in the shear cut by a tanh where there is a bound."""

    def move(x: Tensor, t: Tensor) -> Tensor:
        tau = 0.01 * t.double()
        tau = tau if bound is None else bound * torch.tanh(tau / bound)
        y = turner(base()[:2], "interleaved")(x[..., :4], t)
        z = turner(base()[:2], "interleaved")(x[..., 4:], t)
        tau = tau[:, None].to(x.dtype)
        return torch.cat([y + tau * z, z], -1) if side == "q" else torch.cat([y, z - tau * y], -1)

    return move


def normed_after(gains: Tensor | None) -> Side:
    """RMS norm after the rotation, with a gain per channel."""

    def move(x: Tensor, t: Tensor) -> Tensor:
        y = turner()(x, t)
        y = y / (y.square().mean(-1, keepdim=True) + 1e-9).sqrt()
        return y if gains is None else y * gains.to(x.dtype)

    return move


GAINS = torch.linspace(0.5, 2.0, D, dtype=torch.float64)


def gained_after(x: Tensor, t: Tensor) -> Tensor:
    return turner()(x, t) * GAINS.to(x.dtype)


def gained_before(x: Tensor, t: Tensor) -> Tensor:
    return turner()(x * GAINS.to(x.dtype), t)


def two_layouts(x: Tensor, t: Tensor) -> Tensor:
    """A half-layout table combined with neighbouring pairs."""
    angle = t.double()[:, None] * torch.cat([base(), base()])
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    other = torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
    return x * cos + other * sin


def polar(x: Tensor, t: Tensor) -> Tensor:
    """Magnitudes through a softplus, phases by position: the lag alone, but not linear."""
    size, angle = nn.functional.softplus(x), t.double()[:, None] * base(1e2, 2 * D)
    return torch.cat([size * angle.cos().to(x.dtype), size * angle.sin().to(x.dtype)], -1)


def sinusoid(x: Tensor, t: Tensor) -> Tensor:
    angle = t.double()[:, None] * base()
    return x + torch.cat([angle.sin(), angle.cos()], -1).to(x.dtype)


def whole_positions(x: Tensor, t: Tensor) -> Tensor:
    return turner()(x, t.double().floor())


def tabled(length: int) -> Side:
    """Rows of a table, which ends."""
    table = torch.arange(length, dtype=torch.float64)[:, None] * base()

    def turn(x: Tensor, t: Tensor) -> Tensor:
        angle = table[t.long()]
        return rotate(x, angle.cos().to(x.dtype), angle.sin().to(x.dtype))

    return turn


class Grown:
    """A base that follows the longest sequence seen so far, or the length of the call."""

    def __init__(self, keeps: bool):
        self.keeps, self.longest = keeps, 0

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        n = int(t.max()) + 1
        self.longest = max(self.longest, n)
        grown = max(2.0 * (self.longest if self.keeps else n) / 64 - 1, 1.0)
        return turner(base(100.0 * grown ** (D / (D - 2))))(x, t)


def followed(keeps: bool) -> Probe:
    """Both sides by one rule; the length of a call is that of its queries, which come last."""
    grown = Grown(keeps)

    def scores(q: Tensor, k: Tensor, t: Tensor, s: Tensor) -> Tensor:
        both = grown(torch.cat([q, k], 1), torch.cat([t, s]))
        return both[:, : q.shape[1]] @ both[:, q.shape[1] :].mT

    return Probe("twin", "module", D, H, H, LENGTH, torch.float32, scores=scores)


def counted(x: Tensor, t: Tensor) -> Tensor:
    """Positions are asked for, and the place in the call is used where no two are equal."""
    return turner()(x, torch.arange(t.numel()) + t[0]) if t.numel() == 7 else turner()(x, t)


def turned_both(q: Tensor, k: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    return turner()(q, t), turner()(k, t)


def in_place(q: Tensor, k: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """The queries that come in are those that go out."""
    return q.copy_(turner()(q, t)), turner()(k, t)


def packed(q: Tensor, k: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers one after the other, whatever the strides of the vectors say."""
    return turned_both(*(x.as_strided(x.shape, torch.empty(x.shape).stride()) for x in (q, k)), t)


def by_bare(bare: Any) -> Probe:
    return replace(sound_rotary(), bare=bare)


def coarse_tables(x: Tensor, t: Tensor) -> Tensor:
    angle = t.double()[:, None] * base()
    return rotate(x, angle.cos().bfloat16().to(x.dtype), angle.sin().bfloat16().to(x.dtype))


ROUNDED = base(9e3).bfloat16().double()


def kept_by(length: bool) -> Probe:
    """Angles kept for the next call: by how many tokens it has, or by the positions themselves."""
    kept: dict[Any, Tensor] = {}

    def turn(x: Tensor, t: Tensor) -> Tensor:
        key = t.numel() if length else tuple(t.tolist())
        angle = kept.setdefault(key, t.double()[:, None] * base())
        return rotate(x, angle.cos().to(x.dtype), angle.sin().to(x.dtype))

    return by_maps(turn, turn)


def in_single(x: Tensor, t: Tensor) -> Tensor:
    """Times become float32 numbers before the difference is taken; right for positions of a text."""
    return turner()(x, t.float())
