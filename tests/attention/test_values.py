"""Values through the lag, against dense sums written out, in every way of calling and on every backend."""

from typing import Any

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from eigenclock.attention.backends import BACKENDS

F64 = torch.float64
B, H, D, V = 2, 4, 8, 6
SECONDS = ec.Timestamps("s")
PLANE = ec.Axes(("x", "y"), order="x")


def drawn(length: int, keys: int | None = None, kv: int = H, width: int = V) -> list[Tensor]:
    torch.manual_seed(3)
    shapes = (B, H, length, D), (B, kv, keys or length, D), (B, kv, keys or length, width)
    return [torch.randn(*shape, dtype=F64).requires_grad_() for shape in shapes]


def irregular(*shape: int, seed: int = 1) -> Tensor:
    return (torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64) * 2).cumsum(-1)


def written_out(q: Tensor, k: Tensor, v: Tensor, enc: ec.Encoding, values: ec.Encoding, t: Tensor, s: Tensor, **keywords: Any) -> Tensor:
    """sum_s softmax_s(scores) exp((t - s) L) v_s with a matrix exponential for every pair; t and s (B|1, T) and (B|1, S)."""
    z = ec.scores(q, k, enc, **keywords)
    dead = (z == -torch.inf).all(-1, keepdim=True)
    weights = z.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0)
    matrix = values.generator().matrix().double()  # (V, V) or (kv, V, V)
    matrix = matrix if matrix.ndim == 3 else matrix[None]
    lag = t[:, None, :, None] - s[:, None, None, :]
    moved = torch.matrix_exp(lag[..., None, None] * matrix[:, None, None])  # (B|1, kv|1, T, S, V, V)
    group = q.shape[1] // v.shape[1]
    moved = moved.repeat_interleave(group, 1) if moved.shape[1] == v.shape[1] else moved
    return torch.einsum("bhts,bhtsij,bhsj->bhti", weights, moved.expand(*z.shape, *matrix.shape[-2:]), v.repeat_interleave(group, 1))


EARLY, LATE = irregular(20) + 5, irregular(40, seed=2)
INDEX = torch.arange(40, dtype=F64)[None]
OF_VALUES = {
    "rope": lambda kv: ec.rope(V, theta=30.0, learn=("freq",)),
    "half": lambda kv: ec.rope(V, pairing="half", theta=30.0),
    "partial": lambda kv: ec.rope(V, rotary_dim=2),
    "trailing": lambda kv: ec.nope(2) + ec.rope(4),
    "per head": lambda kv: ec.rope(V, heads=H, kv_heads=kv, theta=(10.0, 30.0, 90.0, 270.0)[:kv], learn=("freq",)),
    "in a basis": lambda kv: ec.grape_m(V, heads=H, kv_heads=kv, learn=("freq", "basis")),
    "none": lambda kv: ec.nope(V),
}
ENCODED = {
    "nope": lambda: ec.nope(D),
    "rope": lambda: ec.rope(D),
    "damped": lambda: ec.damped_rope(D, half_life=9.0),
    "alibi": lambda: ec.alibi(D, heads=H, slopes=0.1),
}
WAYS: dict[str, Any] = {
    "plain": (40, None, H, {}, INDEX, INDEX),
    "grouped": (40, None, 2, {}, INDEX, INDEX),
    "window": (40, None, H, {"window": 7}, INDEX, INDEX),
    "documents": (40, None, H, {"documents": torch.arange(40) // 13}, INDEX, INDEX),
    "padding": (40, None, H, {"mask": torch.arange(40)[None] >= torch.tensor([[0], [11]])}, INDEX, INDEX),
    "decode": (3, 40, 2, {}, INDEX[:, -3:], INDEX),
    "times per row": (40, None, H, {"times": irregular(B, 40)}, irregular(B, 40), irregular(B, 40)),
    "cross": (20, 40, H, {"times": EARLY, "key_times": LATE}, EARLY[None], LATE[None]),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ENCODED)
def test_every_way_equals_the_dense_sum(name, way):
    length, keys, kv, keywords, t, s = WAYS[way]
    enc, values = ENCODED[name](), OF_VALUES["rope"](kv)
    (q, k, v) = drawn(length, keys, kv)
    expected = written_out(q, k, v, enc, values, t, s, **keywords)
    wanted = [q, k, v, *values.parameters()]
    g = torch.randn_like(expected)
    want, carried = torch.autograd.grad(expected, wanted, g), []
    for backend in BACKENDS:
        try:
            out = ec.attention(q, k, v, enc, value_encoding=values, backend=backend, **keywords)
        except ec.UnsupportedError:
            continue
        carried.append(backend)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-10, msg=lambda text, b=backend: f"{b}: {text}")
        for a, b in zip(torch.autograd.grad(out, wanted, g), want, strict=True):
            torch.testing.assert_close(a.double(), b.double(), rtol=1e-9, atol=1e-9)
    assert "tiled" in carried and "reference" in carried
    assert ec.explain(q, k, v, enc, value_encoding=values, **keywords).backend == carried[0]


@pytest.mark.parametrize("kv", [H, 2, 1])
@pytest.mark.parametrize("name", OF_VALUES)
def test_every_rotation_equals_the_dense_sum(name, kv):
    values, enc = OF_VALUES[name](kv), ec.rope(D)
    q, k, v = drawn(40, None, kv)
    expected = written_out(q, k, v, enc, values, INDEX, INDEX)
    out = ec.attention(q, k, v, enc, value_encoding=values)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-10)
    wanted = [v, *(p for p in values.parameters())]
    g = torch.randn_like(out)
    for a, b in zip(torch.autograd.grad(out, wanted, g), torch.autograd.grad(expected, wanted, g), strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-8, atol=1e-9)


def test_outputs_know_no_origin():
    """A common shift of all times, even of 10^15 seconds, changes nothing; turning values alone would."""
    enc, values = ec.rope(D, clock=SECONDS), ec.rope(V, clock=SECONDS)
    q, k, v = drawn(30)
    times = torch.arange(30) * 7
    out = ec.attention(q, k, v, enc, times=times, value_encoding=values)
    torch.testing.assert_close(ec.attention(q, k, v, enc, times=times + 10**15, value_encoding=values), out, rtol=0, atol=1e-12)
    assert not torch.allclose(out, ec.attention(q, k, v, enc, times=times), atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_and_log_sum_exp(dtype):
    values = ec.rope(V, learn=("freq",))
    q, k, v = (x.detach().to(dtype).requires_grad_() for x in drawn(129))
    out, lse = ec.attention(q, k, v, ec.alibi(D, heads=H), value_encoding=values, return_lse=True)
    exact, exact_lse = ec.attention(q.double(), k.double(), v.double(), ec.alibi(D, heads=H), value_encoding=values, return_lse=True)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=16 * torch.finfo(dtype).eps)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=0, atol=16 * torch.finfo(dtype).eps)
    g = torch.randn_like(out)
    (got,), (want,) = (torch.autograd.grad(y, list(values.parameters()), h) for y, h in ((out, g), (exact, g.double())))
    assert float((got - want).norm() / want.norm()) < 20 * torch.finfo(dtype).eps


def test_deepseek_v4():
    """One shared key head whose tensor is also the value, its last channels turned in place; outputs turned back by R(-t)."""
    torch.manual_seed(0)
    width, turned, theta, length, heads = 12, 4, 100.0, 17, 3
    q, kv = torch.randn(1, heads, length, width, dtype=F64), torch.randn(1, 1, length, width, dtype=F64)
    rope = ec.nope(width - turned) + ec.rope(turned, theta=theta)
    out = ec.attention(q, kv, kv, rope, value_encoding=rope)

    def turn(x: Tensor, time: int) -> Tensor:
        x = x.clone()
        for i in range(turned // 2):
            angle = torch.tensor(time * theta ** (-2 * i / turned), dtype=F64)
            a, b = x[width - turned + 2 * i].clone(), x[width - turned + 2 * i + 1].clone()
            x[width - turned + 2 * i] = a * angle.cos() - b * angle.sin()
            x[width - turned + 2 * i + 1] = a * angle.sin() + b * angle.cos()
        return x

    cached = [turn(kv[0, 0, s], s) for s in range(length)]  # what the cache holds: key and value are one turned tensor
    for h in range(heads):
        for t in range(length):
            query = turn(q[0, h, t], t)
            logits = torch.stack([query @ cached[s] for s in range(t + 1)]) * width**-0.5
            plain = logits.softmax(0) @ torch.stack(cached[: t + 1])
            torch.testing.assert_close(out[0, h, t], turn(plain, -t), rtol=0, atol=1e-12)


def test_several_axes_and_learned_times():
    q, k, v = drawn(25, width=8)
    places = torch.stack([torch.arange(25) // 5, torch.arange(25) % 5], -1).double()
    enc, values = ec.axial_rope(D, clock=PLANE), ec.mixed_rope(8, heads=H, clock=PLANE)
    out = ec.attention(q, k, v, enc, times=places, value_encoding=values)
    weights, turn = ec.scores(q, k, enc, times=places).softmax(-1), values.generator().act
    lag = (places[:, None] - places)[None, None].expand(B, H, 25, 25, 2)
    for t in range(25):
        moved = turn(v.detach(), lag[:, :, t])
        torch.testing.assert_close(out[:, :, t], (weights[:, :, t, :, None] * moved).sum(2), rtol=0, atol=1e-10)
    clock = ec.Cumulative(5)
    x = torch.randn(B, 25, 5, dtype=F64)
    enc, values = ec.rope(D, heads=H, clock=clock), ec.rope(8, heads=H, clock=clock)
    out = ec.attention(q, k, v, enc, x=x, value_encoding=values)
    tau, weights = clock(x=x).ticks, ec.scores(q, k, enc, x=x).softmax(-1)
    for t in range(25):
        moved = values.generator().act(v, tau[:, :, t, None] - tau)
        torch.testing.assert_close(out[:, :, t], (weights[:, :, t, :, None] * moved).sum(2), rtol=0, atol=1e-10)


def test_stamps_sorted_as_asked():
    clock = ec.Timestamps("s", decreasing="sort")
    enc, values = ec.rope(D, clock=clock), ec.rope(V, clock=clock)
    q, k, v = drawn(50)
    order = torch.randperm(50)
    times = torch.arange(50) * 2
    out = ec.attention(q[:, :, order], k[:, :, order], v[:, :, order], enc, times=times[order], value_encoding=values)
    torch.testing.assert_close(out, ec.attention(q, k, v, enc, times=times, value_encoding=values)[:, :, order], rtol=0, atol=1e-11)


def test_compiled():
    enc, values = ec.damped_rope(D, half_life=5.0), ec.rope(V)
    q, k, v = (x.detach().float() for x in drawn(40))
    call = torch.compile(lambda q, k, v: ec.attention(q, k, v, enc, value_encoding=values), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(call(q, k, v), ec.attention(q, k, v, enc, value_encoding=values), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        (lambda: ec.damped_rope(V, half_life=5.0), ec.UnsupportedError, "decays"),
        (lambda: ec.jordan_rope(V, order=3, rate=0.0), ec.UnsupportedError, "shears|decays"),
        (lambda: ec.alibi(V, heads=H), ec.UnsupportedError, "bias"),
        (lambda: ec.two_sided(ec.rope(V)), ec.UnsupportedError, "the other way"),
        (lambda: ec.rope(D), ec.ShapeError, "width 6"),
        (lambda: ec.rope(V, heads=2), ec.ShapeError, "heads=4"),
        (lambda: ec.rope(V, clock=SECONDS), ec.ClockError, "same clock"),
        (lambda: ec.rope(V, heads=H, clock=ec.Cumulative(5)), ec.ClockError, "same object"),
        (lambda: ec.axial_rope(V, clock=ec.Axes(("x", "y", "z"))), ec.ClockError, "same clock"),
        (lambda: "rope", ec.ShapeError, "an Encoding"),
    ],
)
def test_refusals(values, error, says):
    q, k, v = drawn(9)
    for call in (ec.attention, ec.explain):
        with pytest.raises(error, match=says):
            call(q, k, v, ec.rope(D), value_encoding=values())
