"""Every entry of the registries under its shipped checker, properties over random generators, and proof that each checker can fail."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import eigenclock as ec
from eigenclock.attention import Backend
from eigenclock.clocks.clock import Clock, Reading
from eigenclock.encodings.base import Encoding, Recipe
from eigenclock.encodings.parameter import Parameter
from eigenclock.schedules import Spectrum
from eigenclock.testing import (
    LawError,
    check_axioms,
    check_backend,
    check_clock,
    check_encoding,
    check_generator,
    check_learned_clock,
    check_schedule,
    strategies,
)
from eigenclock.theory import (
    AxesRotation,
    Conjugate,
    DampedRotation,
    Decay,
    Dense,
    DirectSum,
    Generator,
    Jordan,
    OnClock,
    Plane,
    Product,
    Rotation,
    Zero,
    dissipative,
    skew_symmetric,
)
from eigenclock.theory.split import Split, Turn

F64 = torch.float64


def t(*values) -> Tensor:
    return torch.tensor(values, dtype=F64)


# One table per registry: a new entry without a row here is a failure.
GENERATORS: dict[str, list[Generator]] = {
    "zero": [Zero(1), Zero(5)],
    "decay": [Decay(t(0.1, 0.0, 5.0), 3), Decay(t(0.3), 4), Decay(t([0.1], [2.0]), 3)],
    "rotation": [Rotation(t(1.0, -0.3)), Rotation(t(1.0, 0.01), "half"), Rotation(t([1.0, 0.2], [0.5, 0.0]))],
    "on_clock": [
        OnClock(Rotation(t(1.0, -0.5)), 1, 2),
        OnClock(Decay(t([0.5], [2.0]), 3), 0, 1),
        OnClock(DampedRotation(t(0.1, 0.2), t(1.0, 0.5)), 0, 2),
    ],
    "axes_rotation": [
        AxesRotation(t([1.0, 0.0], [0.0, 0.3])),
        AxesRotation(t([[1.0, -0.2], [0.5, 0.3]], [[0.1, 0.0], [0.7, 2.0]]), "half"),
    ],
    "damped_rotation": [DampedRotation(t(0.1, 0.0), t(1.0, -2.0)), DampedRotation(t([0.1, 2.0], [0.0, 1.0]), t(1.0, 0.5), "half")],
    "jordan": [
        Jordan(t(0.0), order=2),
        Jordan(t(0.5, 0.0), order=4),
        Jordan(t(0.2, 0.0), order=3, freq=t(1.0, -0.5)),
        Jordan(t([0.2, 0.1], [0.0, 1.0]), order=2, freq=t(0.3, 0.7), eta=t(0.5, 2.0), pairing="half"),
    ],
    "direct_sum": [DirectSum((Rotation(t(1.0)), Zero(2), Jordan(t(0.1), order=2))), DirectSum((Decay(t([0.1], [0.2]), 2), Zero(1)))],
    "product": [Product(Rotation(t(1.0, 0.5)), Decay(t(0.2), 4)), Product(Jordan(t(0.0), order=3), Decay(t(0.4), 3))],
    "conjugate": [
        Conjugate(Jordan(t(0.1), order=2), t([1.0, 2.0], [0.0, 1.0])),
        Conjugate(Decay(t(0.1, 3.0), 2), t([[2.0, 0.0], [1.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]])),
    ],
    "dense": [
        Dense(skew_symmetric(t(0.5, 1.0, -0.3, 0.2, 0.0, 2.0))),
        Dense(dissipative(t([0.5, 1.0, -0.3], [1.0, 0.2, 0.1]), t([1.0], [0.5], [0.0]))),
        Dense(t([0.0, 4.0], [-1.0, 0.0])),
    ],
    "plane": [Plane(t(1.0, 2.0, 0.0), t(0.0, -0.5, 0.3)), Plane(t([1.0, 0.0], [0.6, 0.8]), t([0.0, 1.0], [-1.6, 1.2]))],
}
SCHEDULES = {
    "geometric": [(ec.geometric(10000.0), {4: [1, 0.1, 0.01, 0.001]}), (ec.geometric((100.0, 10000.0)), {2: [[1, 0.1], [1, 0.01]]})],
    # The slopes printed in the paper for 8 heads, and those of the authors' code for 12.
    "alibi": [
        (
            ec.alibi_slopes(),
            {8: [2.0**-i for i in range(1, 9)], 12: [2.0**-i for i in range(1, 9)] + [2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5]},
        ),
        (ec.alibi_slopes("single_geometric_sequence"), {3: [2.0 ** (-8 / 3), 2.0 ** (-16 / 3), 2.0**-8]}),
    ],
    "half_lives": [(ec.half_lives(1.0, 100.0), {3: [math.log(2), math.log(2) / 10, math.log(2) / 100]})],
    "retnet": [(ec.retnet_rates(), {2: [-math.log(31 / 32), -math.log(63 / 64)]})],
    "retnet_angles": [(ec.retnet_angles(), {5: [1, 0.1, 0.01, 0.001, 0.0001]}), (ec.retnet_angles(100.0), {2: [1, 0.01]})],
    # Head 0 never decays; two layers have rates 8h/n and half of them.
    "lightning": [
        (ec.lightning_rates(), {4: [0, 2, 4, 6], 3: [0, 8 / 3, 16 / 3]}),
        (ec.lightning_rates(3, 4), {2: [0, 1]}),
    ],
    "minimax": [
        (ec.minimax_rates(), {2: [2.0**-4 * 1.00001, 2.0**-8 * 1.00001]}),
        (ec.minimax_rates(2, 3), {1: [2.0**-8 * (1 - 2 / 2.00001 + 1e-5)]}),
    ],
    # zeta_0 = 0.4 / 1.4 loses a factor e in 512 / ln 3.5 steps; with one pair there is no other.
    "xpos": [(ec.xpos_rates(), {1: [math.log(3.5) / 512], 2: [math.log(3.5) / 512, math.log(1.4 / 0.9) / 512]}), (ec.xpos_rates(1.0), {})],
    "proportional": [
        (ec.proportional(0.5), {4: [1, 0.1, 0, 0]}),
        (ec.proportional(0.25, (100.0, 10000.0)), {4: [[1, 0, 0, 0], [1, 0, 0, 0]]}),
        (ec.proportional(1.0), {2: [1, 0.01]}),
    ],
    "linear": [(ec.linear(4.0), {2: [0.25, 0.0025]}), (ec.linear(2.0, (100.0, 10000.0)), {2: [[0.5, 0.05], [0.5, 0.005]]})],
    "ntk": [(ec.ntk(4.0), {1: [1], 2: [1, 0.0025]}), (ec.ntk(4.0, ec.linear(2.0)), {2: [0.5, 0.00125]})],
    "dynamic": [
        (ec.dynamic(2.0, 100).at(100), {2: [1, 0.01]}),
        (ec.dynamic(2.0, 100, length=250), {2: [1, 0.0025]}),  # 2 * 2.5 - 1 = 4
    ],
    # 1e4 and 1e2 turns in 2 pi 1e4 steps: the second pair is half way between 80 and 120.
    "ntk_by_parts": [(ec.ntk_by_parts(4.0, 2e4 * math.pi, beta_fast=120.0, beta_slow=80.0), {2: [1, 0.01 * 0.625]})],
    "yarn": [
        # Bounds 2 and 6 of 8 pairs; pair 4 is half way.
        (ec.yarn(4.0, 4096), {8: [1, 1e1**-0.5, 0.1, 10**-1.5 * 0.8125, 0.01 * 0.625, 10**-2.5 * 0.4375, 0.25e-3, 10**-3.5 / 4]}),
        (ec.yarn(4.0, 4096, truncate=False, attention_factor=1.0, theta=(1e4, 5e5)), {}),
    ],
    "longrope": [
        (ec.longrope((1.0, 1.1), (1.0, 8.0), 16, 4.0).at(16), {2: [1, 0.01 / 1.1]}),
        (ec.longrope((1.0, 1.1), (1.0, 8.0), 16, 4.0, use="long"), {2: [1, 0.01 / 8]}),
    ],
    "llama3": [(ec.llama3(8.0, 2e4 * math.pi, low_freq_factor=50.0, high_freq_factor=150.0), {2: [1, 0.01 * (0.5 + 0.5 / 8)]})],
    "resonance": [(ec.resonance(), {4: [2 * math.pi / n for n in (6, 63, 628, 6283)]}), (ec.resonance(ec.yarn(4.0, 4096)), {})],
    "drope": [(ec.drope(), {3: [0, 0, 0]})],
}
NOW = 1_700_000_000_000_000_000
CLOCKS = {
    "index": [(ec.Index(), torch.arange(7), None), (ec.Index(), t(-3.5, 0.0, 0.25, 9.0), None)],
    "timestamps": [
        (ec.Timestamps("ns"), torch.tensor([NOW, NOW + 1, NOW + 5_000_000_000, NOW + 5_000_000_001]), None),
        (ec.Timestamps("ms", per="min", decreasing="sort"), torch.tensor([0, 10, 60_000]), None),
        (ec.Timestamps("d", per="w"), t(0.5, 7.5, 7.75, 90.0), None),
    ],
    "axes": [
        (ec.Axes(), torch.tensor([[0, 3], [1, 3], [5, 9]]), None),
        (ec.Axes(("time", "height", "width"), order="time"), t([0.0, 0.5, 1.0], [2.5, 0.5, 1.5], [2.5, 1.0, 7.0]), None),
    ],
    # Stamps stay inside sessions under the shifts that are tried; a night lies between the first two and the last of the second row.
    "sessions": [
        (ec.Sessions("00:00-24:00", "America/New_York"), torch.tensor([NOW, NOW + 1, NOW + 5_000_000_000, NOW + 5_000_000_001]), None),
        (
            ec.Sessions("09:30-16:00", "America/New_York", half_days=["2023-11-14 13:00"], closed=0.25, unit="s", per="h"),
            torch.tensor([1_699_974_000, 1_699_980_000, 1_700_064_000]),
            None,
        ),
    ],
    "column": [
        (ec.Column("shares"), torch.tensor([NOW, NOW + 100, NOW + 100, NOW + 2600]), None),
        (ec.Column("km", decreasing="sort"), t(0.5, 7.5, 7.75, 90.0), None),
    ],
    "cumulative": [],  # reads activations: LEARNED below
    "selective": [],  # the same
    "documents": [(ec.Documents(), torch.arange(6), torch.tensor([7, 7, 9, 9, 9, 7]))],
}
MINUTES = torch.tensor([0, 1, 20, 21, 45, 46, 90, 91, 120]) * 60_000_000_000 + NOW


def _turned(x: Tensor, angle: Tensor) -> Tensor:
    """Each pair (2i, 2i + 1) of the last axis as a complex number, turned."""
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(angle), angle)


def _rope_formula(freq: Tensor, rate: float = 0.0):
    def formula(q: Tensor, k: Tensor, s: Tensor, u: Tensor) -> Tensor:
        product = torch.einsum("bhtn,bhsn->bhts", _turned(q, s[:, None] * freq), _turned(k, u[:, None] * freq).conj()).real
        return product * torch.exp(-rate * (s[:, None] - u)) / math.sqrt(q.shape[-1])

    return formula


def _amplified_formula(freq: Tensor, amplitude: float):
    """The pairs that turn carry an amplitude on both sides, the channels after them do not."""
    n = 2 * freq.numel()

    def formula(q: Tensor, k: Tensor, s: Tensor, u: Tensor) -> Tensor:
        turned = _rope_formula(freq)(q[..., :n], k[..., :n], s, u) * math.sqrt(n)
        return (amplitude**2 * turned + q[..., n:] @ k[..., n:].mT) / math.sqrt(q.shape[-1])

    return formula


def _alibi_formula(slopes: Tensor):
    return lambda q, k, s, u: q @ k.mT / math.sqrt(q.shape[-1]) - slopes[:, None, None] * (s[:, None] - u)


def _per_channel_formula(q: Tensor, k: Tensor, s: Tensor, u: Tensor) -> Tensor:
    """sum_c q_c k_c exp(-(s_c - u_c)), a clock (1, H, T, D) for every channel."""
    return torch.einsum("bhtc,bhsc,bhtsc->bhts", q, k, torch.exp(u[:, :, None] - s[:, :, :, None])) / math.sqrt(q.shape[-1])


def _scalar_formula(rate: Tensor):
    return lambda q, k, s, u: q @ k.mT / math.sqrt(q.shape[-1]) * torch.exp(-rate * (s[..., :, None] - u[..., None, :]))


STEPS = torch.randn(1, 9, 3, dtype=F64, generator=torch.Generator().manual_seed(1))


def _trapezoid_formula(dim: int):
    """Mamba-3 from its three kinds of time: sum D, sum D a and the phases; l = sigmoid of the third projection of two heads."""
    clock = ec.mamba3(dim, heads=2, features=3, rope_fraction=1.0).clock
    assert isinstance(clock, ec.Selective) and clock.weight is not None
    projection = clock.weight[0].detach().double()

    def formula(q: Tensor, k: Tensor, s: Tensor, u: Tensor) -> Tensor:
        share = torch.sigmoid(STEPS @ projection)[..., 4:6].mT  # the bias starts at 0
        step = s[..., 0].diff(dim=-1, prepend=torch.zeros_like(s[..., :1, 0]))
        turned = torch.einsum("bhtn,bhsn->bhts", _turned(q, -s[..., 2:]), _turned(k, -u[..., 2:]).conj()).real
        later = share * step
        later[..., :-1] += ((1 - share) * step)[..., 1:]
        weight = torch.where(torch.eye(9, dtype=torch.bool), (share * step)[..., None, :], later[..., None, :])
        return turned * torch.exp(u[..., None, :, 1] - s[..., :, None, 1]) * weight / math.sqrt(dim)

    return formula


def _bonus_formula(bonus: Tensor):
    """RWKV-6: a query stands at the token before its own, which weighs the bonus."""

    def formula(q: Tensor, k: Tensor, s: Tensor, u: Tensor) -> Tensor:
        before = torch.cat([s[:, :, :1], s[:, :, :-1]], 2)
        earlier = torch.einsum("bhtc,bhsc,bhtsc->bhts", q, k, torch.exp(u[:, :, None] - before[:, :, :, None]))
        return torch.where(torch.eye(9, dtype=torch.bool), (q * bonus) @ k.mT, earlier) / math.sqrt(q.shape[-1])

    return formula


def _polar_formula(delta: Tensor, theta: float):
    def formula(q: Tensor, k: Tensor, s: Tensor, u: Tensor) -> Tensor:
        freq = theta ** -(torch.arange(delta.numel(), dtype=F64) / delta.numel())
        angle = (u - s[:, None])[..., None] * freq + delta
        magnitudes = (torch.log1p(x.exp()) for x in (q, k))
        return torch.einsum("bhtc,bhsc,tsc->bhts", *magnitudes, angle.cos()) / math.sqrt(q.shape[-1])

    return formula


def _log_formula(p: Tensor, a: Tensor):
    return lambda q, k, s, u: q @ k.mT / math.sqrt(q.shape[-1]) - p[:, None, None] * (1 + a[:, None, None] * (s[:, None] - u).abs()).log()


def _sinusoidal_formula(freq: Tensor):
    def formula(q: Tensor, k: Tensor, s: Tensor, u: Tensor) -> Tensor:
        vectors = (torch.stack([(x[:, None] * freq).sin(), (x[:, None] * freq).cos()], -1).flatten(-2) for x in (s, u))
        return (q + next(vectors)) @ (k + next(vectors)).mT / math.sqrt(q.shape[-1])

    return formula


def _gaussian_formula(sigma: Tensor):
    return lambda q, k, s, u: q @ k.mT / math.sqrt(q.shape[-1]) - (s[:, None] - u) ** 2 / (2 * sigma[:, None, None] ** 2)


def _boost_formula(boost: Tensor, rate: float):
    def formula(q: Tensor, k: Tensor, s: Tensor, u: Tensor) -> Tensor:
        lag = (s[:, None] - u)[..., None]
        x, y, a, b = (side[..., i::2] for side in (q, k) for i in (0, 1))
        straight = torch.einsum("bhtn,bhsn,tsn->bhts", x, a, (boost * lag).cosh()) + torch.einsum(
            "bhtn,bhsn,tsn->bhts", y, b, (boost * lag).cosh()
        )
        crossed = torch.einsum("bhtn,bhsn,tsn->bhts", x, b, (boost * lag).sinh()) + torch.einsum(
            "bhtn,bhsn,tsn->bhts", y, a, (boost * lag).sinh()
        )
        return (straight + crossed) * torch.exp(-rate * lag[..., 0]) / math.sqrt(q.shape[-1])

    return formula


# name -> encodings with the keywords of the check
ENCODINGS: dict[str, list[tuple[Encoding, dict]]] = {
    "nope": [(ec.nope(6, heads=2), {"formula": lambda q, k, s, u: q @ k.mT / math.sqrt(6)})],
    "rope": [
        (ec.rope(8, heads=2, theta=100.0), {"formula": _rope_formula(100.0 ** -(torch.arange(4, dtype=F64) / 4))}),
        (ec.rope(8, heads=2, rotary_dim=4, pairing="half", learn="freq"), {}),
        (ec.rope(8, heads=4, kv_heads=2, theta=(10.0, 1e4)), {}),
        (ec.rope(4, freq=ec.half_lives(3.0, 9.0)), {}),
        (ec.rope(8, freq=ec.proportional(0.5, 100.0)), {"formula": _rope_formula(t(1.0, 100.0**-0.25, 0.0, 0.0))}),
        (
            ec.rope(8, heads=2, rotary_dim=4, freq=ec.yarn(4.0, 64, attention_factor=1.5)),
            {"formula": _amplified_formula(t(1.0, 0.0025), 1.5)},
        ),
    ],
    "decay": [
        (ec.decay(4, heads=2, half_life=3), {"formula": lambda q, k, s, u: q @ k.mT / 2 * 0.5 ** ((s[:, None] - u) / 3)}),
        (ec.decay(4, heads=2, half_life=(0.5, 30.0), learn="rate"), {"compiled": True}),
        (ec.decay(4, half_life="30min", clock=ec.Timestamps("ns")), {"times": MINUTES}),
    ],
    "decay_bias": [
        (ec.decay_bias(4, heads=2, rate=[0.1, 0.7]), {"formula": _alibi_formula(t(0.1, 0.7))}),
        (ec.decay_bias(4, heads=2, half_life=(1.0, 9.0), learn="rate"), {}),
        (ec.decay_bias(4, heads=2, rate=ec.retnet_rates()), {"formula": _alibi_formula(t(-math.log(31 / 32), -math.log(63 / 64)))}),
        (ec.decay_bias(4, heads=3, half_life=("1min", "2h"), clock=ec.Timestamps("ns", per="min")), {"times": MINUTES}),
    ],
    "damped_rope": [
        (ec.damped_rope(4, heads=2, freq=[1.0, 0.1], rate=0.2), {"formula": _rope_formula(t(1.0, 0.1), rate=0.2)}),
        (ec.damped_rope(4, heads=2, freq=[-1.0, 0.1], half_life=(0.5, 20.0), pairing="half", learn=("freq", "rate")), {}),
        (ec.damped_rope(4, heads=2), {}),
        (ec.damped_rope(4, heads=2, rate=ec.xpos_rates(8.0)), {}),
    ],
    "alibi": [
        (ec.alibi(4, heads=8), {"formula": _alibi_formula(2.0 ** -torch.arange(1, 9, dtype=F64))}),
        (ec.alibi(4, heads=6, kv_heads=2, learn="slope"), {}),
        (ec.alibi(4, heads=2, slopes=ec.alibi_slopes("single_geometric_sequence", shard=(4, 6))), {}),
    ],
    "xpos": [
        (ec.xpos(4, heads=2, scale_base=4), {}),
        (ec.xpos(4, theta=(10.0, 100.0), heads=2, scale_base=2.0, pairing="half", learn=("freq", "rate")), {}),
    ],
    "retnet": [
        (ec.retnet(2, heads=2), {}),
        (ec.retnet(4, heads=4, kv_heads=2, theta=50.0, pairing="half", learn=("freq", "rate")), {}),
    ],
    "jordan_rope": [
        (ec.jordan_rope(8, heads=2, eta=0.3, rate=0.2), {}),
        (ec.jordan_rope(12, heads=4, kv_heads=2, order=3, length=8, c=(0.5, 2.0), pairing="half", learn=("freq", "rate", "eta")), {}),
        (ec.jordan_rope(8, freq=[-1.0, 0.1], half_life=3.0, eta=[0.5, -0.2]), {}),
        (ec.jordan_rope(8, freq=ec.geometric(10.0), half_life="1h", eta=0.05, clock=ec.Timestamps("ns", per="min")), {"times": MINUTES}),
    ],
    "sandwich": [
        (ec.sandwich(4, heads=2, width=6, theta=10.0), {}),
        (ec.sandwich(4, heads=4, kv_heads=2, width=4, amplitude=(0.1, 0.2, 0.3, 0.4), learn=("freq", "amplitude")), {}),
    ],
    "gaussian_bias": [
        (ec.gaussian_bias(4, heads=2, sigma=(0.5, 9.0)), {"formula": _gaussian_formula(t(0.5, 9.0))}),
        (ec.gaussian_bias(4, heads=2, sigma=[0.5, 9.0], learn="sigma"), {}),
        (ec.rope(4, heads=2) * ec.gaussian_bias(4, heads=2, sigma="5min", clock=ec.Timestamps("ns", per="min")), {"times": MINUTES}),
    ],
    "transformer_xl": [
        (ec.transformer_xl(4, heads=2, theta=10.0, position=[[0.1, -0.2, 0.3, 0.5], [1.0, 0.0, 0.0, -1.0]], seed=3), {}),
        (ec.transformer_xl(4, heads=4, kv_heads=2, sinusoids=2, content=[[0.1] * 4, [-0.2] * 4], learn="weight"), {}),
    ],
    "axial_rope": [(ec.axial_rope(8, heads=2), {}), (ec.axial_rope(12, pairing="half", theta=10.0, clock=ec.Axes(("a", "b", "c"))), {})],
    "string": [
        (ec.string(4, heads=2, basis=[0.3, -0.2, 0.1, 0.5, 0.0, 0.7]), {}),
        (ec.string(8, heads=2, learn="basis", theta=10.0), {}),
    ],
    "mixed_rope": [
        (ec.mixed_rope(8, heads=2, seed=1), {}),
        (ec.mixed_rope(4, freq=[[1.0, 0.3], [-0.5, 0.0]], learn=(), pairing="half"), {}),
    ],
    "m_rope": [(ec.m_rope(8, heads=2), {}), (ec.m_rope(12, sections=(2, 3, 1), assignment="interleaved", theta=50.0, pairing="half"), {})],
    "hyperbolic": [
        (ec.hyperbolic(4, heads=2, boost=[0.3, -0.1], rate=0.4), {"formula": _boost_formula(t(0.3, -0.1), 0.4)}),
        (ec.hyperbolic(8, heads=4, kv_heads=2, theta=5.0, pairing="half", learn="boost"), {}),
        (ec.hyperbolic(4, heads=2, boost=0.2, half_life=(0.5, 3.0), learn=("rate", "boost")), {}),
    ],
    "grape_m": [
        (ec.grape_m(4, heads=2, theta=10.0), {"formula": _rope_formula(t(1.0, 10.0**-0.5))}),
        (ec.grape_m(6, heads=2, planes=2, basis=[0.1 * i for i in range(15)], learn=("freq", "basis")), {}),
        (ec.grape_m(3, heads=4, kv_heads=2, planes=1, freq=0.7, a=[1.0, 0.2, -0.3], b=[0.0, 1.0, 1.0], learn="basis"), {}),
    ],
    "fox": [
        (ec.fox(4, heads=2, features=5), {"formula": lambda q, k, s, u: q @ k.mT / 2 - (s[..., :, None] - u[..., None, :])}),
        (ec.fox(4, heads=4, kv_heads=2, features=5, clock=ec.Cumulative(5, gate="softplus", base=ec.Index(decreasing="sort"))), {}),
    ],
    "wall": [
        (ec.wall(4, heads=2), {"formula": _per_channel_formula}),
        (ec.wall(4, heads=4, kv_heads=2, features=3), {}),
    ],
    "gla": [(ec.gla(4, heads=2, rank=2), {"formula": _per_channel_formula})],
    "hgrn2": [
        (ec.hgrn2(4, heads=2), {"formula": _per_channel_formula}),
        (ec.hgrn2(4, heads=4, kv_heads=2, features=3, lower_bound=0.5), {}),
    ],
    "lightning": [
        (ec.lightning(4, heads=2, layer=1, layers=2), {"formula": _scalar_formula(t([[0.0]], [[2.0]]))}),
        (ec.lightning(4, heads=4, kv_heads=2), {}),
    ],
    "minimax": [
        (ec.minimax(4, heads=2), {"formula": _scalar_formula(t([[2.0**-4]], [[2.0**-8]]) * 1.00001)}),
        (ec.minimax(4, heads=4, kv_heads=2, layer=5, layers=6, clock=ec.Timestamps("ns", per="min")), {"times": MINUTES}),
    ],
    "mamba1": [
        (ec.mamba1(4, heads=2), {}),
        (ec.mamba1(3, heads=4, kv_heads=2, features=5, rank=2, rate=[0.5, 1.0, 9.0], learn=()), {}),
    ],
    "mamba2": [
        (ec.mamba2(4, heads=2, rate=[[0.5], [2.0]], learn=()), {"formula": _scalar_formula(t([[0.5]], [[2.0]]))}),
        (ec.mamba2(4, heads=4, kv_heads=2, features=3, seed=4), {}),
    ],
    "mamba3": [
        (ec.mamba3(4, heads=2, features=3, rope_fraction=1.0), {"x": STEPS, "formula": _trapezoid_formula(4)}),
        (ec.mamba3(8, heads=4, kv_heads=2, features=3, pairing="half"), {}),
    ],
    "rwkv6": [
        (ec.rwkv6(4, heads=2, features=3, bonus=[0.5, 2.0, -1.0, 0.0]), {"formula": _bonus_formula(t(0.5, 2.0, -1.0, 0.0))}),
        (ec.rwkv6(4, heads=4, kv_heads=2, features=3, rank=2), {}),
    ],
    "selective_rope": [(ec.selective_rope(4, heads=2), {}), (ec.selective_rope(4, heads=4, kv_heads=2, features=3, pairing="half"), {})],
    "carope": [(ec.carope(6, heads=2), {})],
    "grape_ctx": [(ec.grape_ctx(4, heads=2, theta=10.0), {}), (ec.rope(4, heads=2, clock=ec.Cumulative(3, per="block")), {})],
    "pope": [
        (
            ec.pope(4, heads=2, theta=10.0, delta=[-0.3, 0.0, -2.0, -6.0], learn=()),
            {"formula": _polar_formula(t(-0.3, 0.0, -2.0, -6.0), 10.0)},
        ),
        (ec.pope(4, heads=4, kv_heads=2, delta="uniform", seed=3), {"compiled": True}),
        (ec.pope(3, freq=[1.0, -0.2, 0.0], learn=()), {}),
        (ec.pope(4, heads=2, delta="uniform", clock=ec.Timestamps("ns", per="min")), {"times": MINUTES}),
    ],
    "t5_bias": [
        (ec.t5_bias(4, heads=2), {}),
        (ec.t5_bias(4, heads=4, kv_heads=2, buckets=8, max_distance=6, bidirectional=True), {}),
        (ec.t5_bias(4, heads=2, buckets=4, table=[[0.0, -1.0, 2.0, 0.5], [1.0, 0.0, 0.0, 3.0]], learn=()), {}),
        (ec.t5_bias(4, heads=2, clock=ec.Timestamps("ns", per="min")), {"times": MINUTES}),
    ],
    "kerple_log": [
        (ec.kerple_log(4, heads=2, p=(0.5, 2.0), a=(1.0, 0.1), learn=()), {"formula": _log_formula(t(0.5, 2.0), t(1.0, 0.1))}),
        (ec.kerple_log(4, heads=4, kv_heads=2, seed=1, learn="p"), {"compiled": True}),
    ],
    "fire": [(ec.fire(4, heads=2, length=8.0), {}), (ec.fire(4, heads=4, kv_heads=2, c=0.5, width=5, seed=2, learn=("c", "mlp")), {})],
    "cope": [
        (ec.cope(4, heads=2, positions=4, table=[[0.1 * i + j for j in range(4)] for i in range(4)]), {}),
        (ec.cope(4, heads=4, kv_heads=2), {}),
    ],
    "learned_absolute": [
        (ec.learned_absolute(4, heads=2, length=64), {}),
        (ec.learned_absolute(4, heads=4, kv_heads=2, length=32, seed=1), {"times": torch.arange(3, 12)}),
    ],
    "sinusoidal": [
        (ec.sinusoidal(4, heads=2, theta=10.0), {"formula": _sinusoidal_formula(t(1.0, 10.0**-0.5))}),
        (ec.sinusoidal(4, heads=4, kv_heads=2), {}),
    ],
    "two_sided": [(ec.two_sided(ec.damped_rope(4, heads=2, half_life=5.0)), {}), (ec.two_sided(ec.alibi(4, heads=2)), {})],
    "sums and products": [
        (ec.rope(4, heads=2) * ec.alibi(4, heads=2, learn="slope"), {}),
        (ec.rope(4, heads=2) + ec.decay(2, heads=2, half_life=4.0), {}),
        ((ec.rope(2) + ec.nope(2)) * ec.decay(4, rate=0.1) * ec.decay_bias(4, heads=2, rate=0.3), {}),
        (ec.pope(4, heads=2, delta="uniform") * ec.alibi(4, heads=2), {}),
        (ec.rope(2, heads=2) + ec.pope(3, heads=2), {}),
        (ec.rope(4, heads=2) * ec.t5_bias(4, heads=2), {}),
        (ec.damped_rope(4, heads=2, half_life=9.0) * ec.fire(4, heads=2, length=8.0), {}),
        (ec.pope(4, heads=2) * ec.kerple_log(4, heads=2), {}),
        (ec.rope(4, heads=2) * ec.sinusoidal(4, heads=2, theta=10.0) + ec.learned_absolute(2, heads=2), {"times": torch.arange(9)}),
    ],
}


def _rows(table):
    return [pytest.param(row, id=f"{name}-{i}") for name, rows in table.items() for i, row in enumerate(rows)]


def test_every_registered_thing_has_a_row():
    assert set(GENERATORS) == set(ec.GENERATORS)
    assert set(SCHEDULES) == set(ec.SCHEDULES)
    assert set(CLOCKS) == set(ec.CLOCKS)
    assert set(ENCODINGS) == {*ec.ENCODINGS, "sums and products"}
    for name, rows in GENERATORS.items():
        assert all(type(row) is ec.GENERATORS[name] for row in rows)
    for name, rows in SCHEDULES.items():
        assert all(type(schedule) is ec.SCHEDULES[name] for schedule, _ in rows)


@pytest.mark.parametrize("generator", _rows(GENERATORS))
def test_generators(generator):
    check_generator(generator)


@pytest.mark.parametrize("row", _rows(SCHEDULES))
def test_schedules(row):
    sizes = {"sizes": (2,)} if isinstance(row[0], ec.longrope) else {}  # its lists have one length
    check_schedule(row[0], expected=row[1], zeros=isinstance(row[0], ec.proportional | ec.drope | ec.lightning_rates), **sizes)


@pytest.mark.parametrize("row", _rows(CLOCKS))
def test_clocks(row):
    check_clock(row[0], row[1], documents=row[2])


@pytest.mark.parametrize("row", _rows(ENCODINGS))
def test_encodings(row):
    check_encoding(row[0], **row[1])


@pytest.mark.parametrize("name", list(ec.BACKENDS))
def test_backends(name):
    carried, refused = check_backend(name)
    if name != "sdpa":  # these two carry everything that the check asks for
        assert not refused
    else:  # and this one what only turns, or adds a bias
        assert any(case.startswith("rope(head_dim=4, heads=2, theta=50.0") and ", causal, float32" in case for case in carried)
        assert any(case.startswith("alibi(") and ", causal, float32" in case for case in carried)
        assert all("log-sum-exp" in reason for case, reason in refused.items() if case.startswith("nope"))


# --- properties --------------------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(strategies.generators(max_order=4))
def test_any_generator_keeps_the_laws(generator):
    # Rates and frequencies come from a continuum and a basis may be turned: rounding is measured in units of a few thousand steps.
    check_generator(generator, atol=1e-7)


@settings(max_examples=15)
@given(strategies.generators(max_order=4, heads=2))
def test_any_generator_with_heads_keeps_the_laws(generator):
    check_generator(generator, atol=1e-7)


@settings(max_examples=25)
@given(st.integers(1, 4).flatmap(strategies.blocks), strategies.times(min_size=2, max_size=8), st.data())
def test_queries_and_keys_meet_in_the_lag(generator, times, data):
    """<exp(tL)^T q, exp(-sL) k> = q^T exp((t-s)L) k for t, s around one reference, whatever the block."""
    q, k = (data.draw(strategies.tensors(times.numel(), generator.dim)) for _ in range(2))
    ticks = (times - times[0]) / (1 + float(times[-1] - times[0]))  # within one unit, so that nothing outgrows float64
    met = generator.T.act(q, ticks) @ generator.act(k, -ticks).mT
    lag = ticks[:, None] - ticks
    dense = torch.einsum("ti,tsij,sj->ts", q, generator.matrix(lag), k)
    torch.testing.assert_close(met, dense, rtol=0, atol=1e-9 * (1 + float(dense.abs().max())))


FIRST_ORDER = {"zero", "decay", "rotation", "axes_rotation", "damped_rotation", "dense", "plane"}
EVERY = [(name, order) for name in ec.GENERATORS for order in ((1,) if name in FIRST_ORDER else (1, 2, 3, 4))]


@pytest.mark.parametrize(("name", "order"), EVERY)
@settings(max_examples=25)
@given(st.data())
def test_the_laws_of_the_group_for_every_registered_generator(name, order, data):
    """A(0) = 1, A(t) A(s) = A(t + s), scores of the lag alone, contragredience, and no overflow where nothing grows."""
    generator = data.draw(strategies.of_kind(name, order))
    n, eye = generator.dim, torch.eye(generator.dim, dtype=F64)
    a, b, c = (data.draw(strategies.numbers(0.0, 2.0)) for _ in range(3))
    A = lambda time: generator.matrix(time).reshape(n, n)  # noqa: E731
    size = 1 + max(float(A(time).abs().max()) for time in (a, b, a + b, -a, -b - c))
    torch.testing.assert_close(A(0.0), eye, rtol=0, atol=1e-12 * size)
    torch.testing.assert_close(A(a) @ A(b), A(a + b), rtol=0, atol=1e-10 * size**2)
    q, k = (data.draw(strategies.tensors(1, n)) for _ in range(2))

    def score(time: float, key_time: float) -> Tensor:
        return (generator.T.act(q, t(time)) * generator.act(k, t(-key_time))).sum()

    torch.testing.assert_close(score(a + c, b + c), score(a, b), rtol=0, atol=1e-9 * size**3 * (1 + n))
    torch.testing.assert_close(generator.T.matrix(a).reshape(n, n).mT @ A(-a), eye, rtol=0, atol=1e-10 * size**2)
    for far in (1e2, 1e4, 1e8):
        for dtype in (F64, torch.float32):
            x = torch.ones(1, n, dtype=dtype)
            moved, turned = generator.act(x, t(far)), generator.T.act(x, t(far))
            assert torch.isfinite(moved).all() and torch.isfinite(turned).all()
            if name not in ("conjugate", "dense") and generator.split().order == 1:  # a contraction on each block
                assert float(moved.norm()) <= float(x.norm()) * (1 + 1e-5)


@given(strategies.times(min_size=3, max_size=20))
def test_the_strategy_of_times_gives_clocks_that_are_in_order(times):
    assert times.dtype == F64
    assert bool((times.diff() >= 0).all())
    assert 3 <= times.numel() <= 20


def test_the_strategies_reach_every_kind_and_order():
    seen: set[str] = set()

    @settings(max_examples=200, derandomize=True, database=None)
    @given(strategies.generators(max_order=4))
    def collect(generator):
        seen.update(str(block) for block, _ in generator.form)
        seen.add(type(generator).__name__)

    collect()
    wanted = {"Z", "D", "R", "S", *(f"{kind}{order}" for kind in "ZRSD" for order in (2, 3, 4)), "DirectSum", "Product", "Conjugate"}
    assert wanted <= seen


# --- each checker fails on a broken thing ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Broken(Generator):
    """A damped rotation of one pair with one thing wrong."""

    fault: str
    rate: Tensor
    freq: Tensor

    @property
    def good(self) -> DampedRotation:
        return DampedRotation(self.rate, self.freq)

    @property
    def dim(self) -> int:
        return 2

    @property
    def heads(self) -> int:
        return 1

    def blocks(self):
        if self.fault == "hides its decay":
            return Rotation(self.freq).blocks()
        return DampedRotation(t(0.2, 0.2), t(1.0, 1.0)).blocks() if self.fault == "form too wide" else self.good.blocks()

    def act(self, x, t):
        if self.fault == "not the identity at 0":
            return self.good.act(x, t + 0.1)
        if self.fault == "not a group":
            return self.good.act(x, t) * (1 + t * t)[..., None]
        if self.fault == "another clock":
            return self.good.act(x, 2 * t)
        if self.fault == "loses the gradient":
            return self.good.act(x, t.detach())
        return self.good.act(x, t).double() if self.fault == "changes the dtype" else self.good.act(x, t)

    def transpose(self):
        if self.fault == "one map on both sides":
            return self
        return DampedRotation(self.rate, self.freq if self.fault == "transpose keeps the sign" else -self.freq)

    def split(self):
        rate = self.rate.repeat(2)
        if self.fault == "parts do not commute":
            rate = rate * t(1.0, 3.0)
        if self.fault == "grows":
            rate = -rate
        return Split(2, (Turn(0, self.freq),), rate)


def broken(fault: str) -> Broken:
    return Broken(fault, t(0.2), t(1.0))


def test_the_broken_generator_without_a_fault_is_right():
    check_generator(broken(""))


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("not the identity at 0", "identity"),
        ("not a group", "exp(tL) exp(sL)"),
        ("another clock", "derivative"),
        ("one map on both sides", "transpose acts"),
        ("transpose keeps the sign", "transpose acts"),
        ("parts do not commute", ""),  # the parts no longer sum to the L of `act` either
        ("grows", ""),
        ("hides its decay", "decaying part shows in the form"),
        ("form too wide", "form has the width"),
        ("loses the gradient", "gradient to the times"),
        ("changes the dtype", "dtype"),
    ],
)
def test_check_generator_can_fail(fault, law):
    with pytest.raises(LawError) as caught:
        check_generator(broken(fault))
    assert law in caught.value.law
    assert caught.value.where == "Broken"
    assert "measured" in str(caught.value) and "limit" in str(caught.value)


@dataclasses.dataclass(frozen=True)
class Bad:
    """A schedule with one thing wrong.

    Units: radians.
    """

    fault: str = ""

    def __call__(self, n: int) -> Spectrum:
        values = torch.linspace(1, 2, n + (self.fault == "one too many"), dtype=torch.float32 if self.fault == "float32" else F64)
        if self.fault == "zero":
            values[0] = 0.0
        if self.fault == "random":
            values = values + torch.rand(n, dtype=F64)
        return values if self.fault == "a tensor" else Spectrum(values, 0.0 if self.fault == "no scale" else 1.0)


class Undocumented(Bad):
    """A schedule that says nothing about its scale."""


class Thawed:
    """Units: radians."""

    def __call__(self, n: int) -> Spectrum:
        return Bad()(n)


def test_check_schedule_can_fail():
    check_schedule(Bad(), expected={3: [1, 1.5, 2]})
    for fault in ("one too many", "float32", "zero", "random", "a tensor", "no scale"):
        with pytest.raises(LawError):
            check_schedule(Bad(fault))
    with pytest.raises(LawError, match="published numbers"):
        check_schedule(Bad(), expected={3: [1, 1.5, 2.0001]})
    with pytest.raises(LawError, match="units"):
        check_schedule(Undocumented())
    with pytest.raises(LawError, match="frozen"):
        check_schedule(Thawed())


class BadClock(Clock):
    """The index clock with one thing wrong."""

    def __init__(self, fault: str = ""):
        super().__init__()
        self.fault = fault
        if fault == "rounds with casts":
            self.factor = nn.Parameter(torch.tensor(0.1, dtype=F64), requires_grad=False)

    def spec(self):
        if self.fault == "spec of another":
            return {"name": "index"}
        return {"name": "bad", "fault": object() if self.fault == "odd spec" else ""}

    def forward(self, times=None, *, length=None, origin=None, documents=None, mask=None, x=None, since=None, device=None):
        if self.fault == "lets NaN in":
            times = torch.as_tensor(times).double().nan_to_num()
        if times is None:
            ticks = torch.arange(length, dtype=F64)
            return Reading(-ticks if self.fault == "documents go back" else ticks, None)
        reading = ec.Index()(times, origin=origin, since=since)
        ticks = reading.ticks
        if self.fault == "bends time":
            ticks = (torch.as_tensor(times).double().abs() + 1).log()
        if self.fault == "goes back":
            ticks = -ticks
        if self.fault == "forgets the origin":
            ticks = ticks - ticks[..., :1]
        if self.fault == "float32":
            ticks = ticks.float()
        if self.fault == "one clock for the batch" and ticks.ndim == 2:
            ticks = ticks.flatten().cumsum(0).view_as(ticks)
        if self.fault == "no gradient":
            ticks = ticks.detach()
        last = None if self.fault == "forgets the last time" else reading.last
        return Reading(ticks * self.factor.double() if self.fault == "rounds with casts" else ticks, reading.origin, last)


def test_check_clock_can_fail():
    times, documents = torch.arange(6), torch.tensor([0, 0, 0, 1, 1, 1])
    check_clock(BadClock(), times, documents=documents)
    laws = {
        "bends time": "shift",
        "goes back": "increasing times",
        "forgets the origin": "two pieces",
        "forgets the last time": "last given time",
        "float32": "float64",
        "one clock for the batch": "row in a batch",
        "no gradient": "differentiable",
        "rounds with casts": "casting",
        "lets NaN in": "NaN",
        "documents go back": "inside a document",
        "odd spec": "plain data",
    }
    for fault, law in laws.items():
        with pytest.raises(LawError) as caught:
            check_clock(BadClock(fault), times, documents=documents)
        assert law in caught.value.law
    with pytest.raises(LawError, match="builds the clock again"):
        check_clock(BadClock("spec of another"), times)


LEARNED = [
    (ec.Cumulative(5).bind(2, 1), None),
    (ec.Cumulative(5, per="block", gate="signed", rank=2).bind(2, 3), None),
    (ec.Cumulative(5, per="block", gate="forget", lower_bound=0.3, powers=True).bind(2, 3), None),
    (ec.Cumulative(5, per="all", base=ec.Timestamps("ns", per="min")).bind(2, 1), MINUTES),
    (ec.Cumulative(5, base=ec.Column("trades"), gate="reciprocal").bind(2, 1), torch.arange(9) ** 2),
    (ec.Selective(5).bind(2, 3), None),
    (ec.Selective(5, base=ec.Timestamps("ns", per="min"), seed=2).bind(2, 1), MINUTES),
]


@pytest.mark.parametrize(("clock", "times"), LEARNED)
def test_learned_clocks(clock, times):
    check_learned_clock(clock, torch.randn(2, 9, 5, dtype=F64, generator=torch.Generator().manual_seed(0)), times)


class BadGate(ec.Cumulative):
    """A learned clock with one thing wrong."""

    fault = ""

    def forward(self, times=None, *, x=None, origin=None, since=None, **rest):
        kept = {} if self.fault == "forgets the gap" else {"since": since}
        reading = super().forward(times, x=x.detach() if self.fault == "no gradient" else x, origin=origin, **kept, **rest)
        if self.fault == "one clock for the batch":
            reading = reading._replace(ticks=reading.ticks.mean(0, keepdim=True).expand_as(reading.ticks))
        return reading._replace(ticks=reading.ticks.float()) if self.fault == "float32" else reading


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("forgets the gap", "two pieces"),
        ("no gradient", "differentiable"),
        ("one clock for the batch", "as it does alone"),
        ("float32", "float64"),
    ],
)
def test_check_learned_clock_can_fail(fault, law):
    clock = BadGate(5, base=ec.Timestamps("ns", per="min")).bind(2, 1)
    x = torch.randn(2, 9, 5, dtype=F64, generator=torch.Generator().manual_seed(0))
    clock.fault = fault
    with pytest.raises(LawError, match=law):
        check_learned_clock(clock, x, MINUTES)


class BadEncoding(Recipe):
    """Damped RoPE with one thing wrong."""

    def __init__(self, fault: str = "", clock: Clock | None = None, name: str = "damped_rope"):
        parameters = {"freq": Parameter(t(1.0, 0.1)), "rate": Parameter(t(0.2, 0.2), learned=True)}
        if fault == "buffer":
            parameters = {"freq": Buffered(t(1.0, 0.1)), "rate": parameters["rate"]}
        options = {"freq": [1.0, 0.1], "rate": [0.2, 0.2], "learn": ["rate"]}
        if fault == "spec forgets an option":
            options.pop("freq")
        super().__init__(name, 4, 1, None, clock, options, parameters, lambda values, recipe: self.make(values))
        self.fault = fault

    def make(self, values):
        rate = values["rate"].detach() if self.fault == "no gradient" else values["rate"]
        return DampedRotation(rate, values["freq"])


class Buffered(nn.Module):
    """Frequencies that a cast rounds."""

    def __init__(self, value: Tensor):
        super().__init__()
        self.register_buffer("number", value)

    def value(self, device=None) -> Tensor:
        return self.number.double()


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("spec forgets an option", "spec builds the same numbers"),
        ("buffer", "state dict holds the learned numbers only"),
        ("no gradient", "learned values.rate.raw gets a finite gradient"),
    ],
)
def test_check_encoding_can_fail(fault, law):
    with pytest.raises(LawError) as caught:
        check_encoding(BadEncoding(fault))
    assert law in caught.value.law


@pytest.mark.parametrize(
    ("enc", "said", "law"),
    [
        (lambda: ec.kerple_log(4, heads=2), "continuity", "continuity is broken where it is said"),
        (lambda: ec.kerple_log(4, heads=2), "translation invariance", "translation invariance is broken"),
        (lambda: ec.t5_bias(4, heads=2), "finite dimension", "continuity is broken where it is said"),
        (lambda: ec.fire(4, heads=2), "linearity", "translation invariance holds"),
        (lambda: ec.cope(4, heads=2), "continuity", "linearity holds"),
        (lambda: ec.sinusoidal(4, heads=2), "translation invariance and linearity", "linearity is broken"),
        (lambda: ec.learned_absolute(4, heads=2), "translation invariance", "continuity is broken"),
        (lambda: ec.t5_bias(4, heads=2), "the peace", "breaks names axioms"),
    ],
)
def test_what_is_said_to_break_is_checked(enc, said, law, monkeypatch):
    built, parts = enc(), Recipe.outside
    renamed = lambda self, device=None: tuple(dataclasses.replace(part, breaks=tuple(said.split(" and "))) for part in parts(self, device))  # noqa: E731
    monkeypatch.setattr(Recipe, "outside", renamed)
    with pytest.raises(LawError) as caught:
        check_axioms(built)
    assert law in caught.value.law


def test_check_encoding_can_fail_on_what_it_computes(monkeypatch):
    check_encoding(BadEncoding())
    with pytest.raises(LawError, match="common shift"):
        check_encoding(BadEncoding(clock=BadClock("bends time")))
    with pytest.raises(LawError, match="formula"):
        check_encoding(ec.damped_rope(4, freq=[1.0, 0.1], rate=0.2), formula=_rope_formula(t(1.0, 0.1), rate=0.21))
    with pytest.raises(LawError, match="bfloat16|half"):
        check_encoding(Rounding())
    # A generator whose action is not exp(tL): its scores still depend on the lag alone.
    monkeypatch.setattr(DampedRotation, "act", lambda self, x, t: Decay(self.rate.repeat_interleave(2, -1), self.dim).act(x, t))
    with pytest.raises(LawError, match="matrix_exp|exp\\(\\(t-s\\)L\\)"):
        check_encoding(ec.damped_rope(4, freq=[1.0, 0.1], rate=0.2))


def on_any_device(head_dim, *, heads=1, kv_heads=None, clock=None):
    """A recipe that makes its numbers wherever the default device is."""
    parameters = {"freq": Parameter(torch.ones(head_dim // 2, dtype=F64))}
    return Recipe("on_any_device", head_dim, heads, kv_heads, clock, {}, parameters, lambda values, _: Rotation(values["freq"]))


def test_check_encoding_can_fail_on_the_meta_device(monkeypatch):
    monkeypatch.setitem(ec.ENCODINGS, "on_any_device", on_any_device)
    with pytest.raises(LawError, match="meta device"):
        check_encoding(on_any_device(4))


class Rounding(BadEncoding):
    """Its learned rate follows casts."""

    def _apply(self, fn, recurse=True):
        out = super()._apply(fn, recurse)
        raw = self.values["rate"].raw
        if fn(torch.zeros((), dtype=torch.float32)).dtype != torch.float32:
            raw.data = raw.data.bfloat16().float()
        return out


def wrapped(change=None, refuses=None) -> Backend:
    """The reference, changed."""
    good = ec.BACKENDS["reference"]

    def run(problem):
        out, lse = good.run(problem)
        return change(problem, out, lse) if change else (out, lse)

    return Backend("the reference, changed", refuses or good.refuses, run)


def _without_times(problem):
    names = ("query_times", "key_times", "query_vectors", "key_vectors")
    times = {name: getattr(problem, name).detach() for name in names}
    return ec.BACKENDS["reference"].run(dataclasses.replace(problem, **times))


def test_check_backend_can_fail():
    small = {"length": 7, "dtypes": (F64,)}
    assert not check_backend(wrapped(), **small).refused
    with pytest.raises(LawError, match="output is that of the reference"):
        check_backend(wrapped(lambda p, out, lse: (out + 1e-6, lse)), **small)
    with pytest.raises(LawError, match="gradient to q"):
        check_backend(wrapped(lambda p, out, lse: (out.detach() + 0 * p.q.sum() + 0 * p.k.sum() + 0 * p.v.sum(), lse)), **small)
    with pytest.raises(LawError, match="gradient to times"):
        check_backend(Backend("forgets the gradient to times", ec.BACKENDS["reference"].refuses, _without_times), **small)
    with pytest.raises(LawError, match="log-sum-exp"):
        check_backend(wrapped(lambda p, out, lse: (out, None)), **small)
    with pytest.raises(LawError, match="dtype of q"):
        check_backend(wrapped(lambda p, out, lse: (out.float(), lse)), **small)
    with pytest.raises(LawError, match="reason in words"):
        check_backend(wrapped(refuses=lambda p: "no"), **small)
    with pytest.raises(LawError, match="carries something"):
        check_backend(wrapped(refuses=lambda p: "it is a holiday"), **small)
