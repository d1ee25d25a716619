"""What is refused, with which class, and that the message says what was got, what was expected and what to do."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import eigenclock as ec

B, H, T, D = 2, 4, 6, 8


def qkv(heads: int = H, kv_heads: int | None = None, queries: int = T, keys: int | None = None, width: int = D) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    kv = (B, heads if kv_heads is None else kv_heads, queries if keys is None else keys, width)
    return [torch.randn(B, heads, queries, width, generator=g), torch.randn(kv, generator=g), torch.randn(kv, generator=g)]


def attend(enc: ec.Encoding, tensors: list[torch.Tensor] | None = None, **keywords: Any) -> Any:
    return ec.attention(*(tensors or qkv()), enc, **keywords)


DECAYS = [
    lambda: ec.decay(D, rate=0.1),
    lambda: ec.damped_rope(D, half_life=3.0),
    lambda: ec.decay_bias(D, heads=H, rate=0.1),
    lambda: ec.rope(4) + ec.decay(4, rate=0.1),
]

# what it is -> (what to do, the class, words the message must contain)
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], list[str]]] = {
    # growth
    **{
        f"decay {i} without causal": (lambda b=b: attend(b(), causal=False), ec.GrowthError, ["causal", "two_sided"])
        for i, b in enumerate(DECAYS)
    },
    "scores of a decay without causal": (
        lambda: ec.scores(*qkv()[:2], ec.decay(D, rate=0.1), causal=False),
        ec.GrowthError,
        ["causal", "two_sided"],
    ),
    "negative rate": (lambda: ec.decay(D, rate=-0.1), ec.GrowthError, ["-0.1", "rate", ">= 0"]),
    "negative rate of damped_rope": (lambda: ec.damped_rope(D, rate=[0.1, 0.1, -2.5, 0.1]), ec.GrowthError, ["-2.5", "rate"]),
    "negative rate of decay_bias": (lambda: ec.decay_bias(D, heads=2, rate=-1.0), ec.GrowthError, ["-1", "rate"]),
    "negative half-life": (lambda: ec.decay(D, half_life=-3.0), (ec.GrowthError, ec.ConfigError), ["-3", "half_life"]),
    "negative slope": (lambda: ec.alibi(D, heads=2, slopes=(0.5, -0.5)), ec.GrowthError, ["-0.5", "slope"]),
    # clocks
    "decreasing times with a decay": (
        lambda: attend(ec.decay(D, rate=0.1), times=torch.tensor([0, 1, 2, 1, 3, 4])),
        ec.ClockError,
        ["decreas", "sort"],
    ),
    "decreasing times with a bias": (
        lambda: attend(ec.alibi(D, heads=H), times=torch.tensor([5, 4, 3, 2, 1, 0])),
        ec.ClockError,
        ["decreas", "sort"],
    ),
    "decreasing times in one row": (
        lambda: attend(ec.damped_rope(D, rate=0.1), times=torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 5, 4]])),
        ec.ClockError,
        ["decreas"],
    ),
    "decreasing times inside a document": (
        lambda: attend(ec.decay(D, rate=0.1), times=torch.tensor([0, 1, 0, 2, 1, 3]), documents=torch.tensor([0, 0, 1, 1, 1, 1])),
        ec.ClockError,
        ["decreas"],
    ),
    "NaN times": (
        lambda: attend(ec.rope(D), times=torch.tensor([0.0, 1.0, float("nan"), 3.0, 4.0, 5.0], dtype=torch.float64)),
        ec.ClockError,
        ["NaN"],
    ),
    "infinite times": (
        lambda: attend(ec.rope(D), times=torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, float("inf")], dtype=torch.float64)),
        ec.ClockError,
        ["infinite"],
    ),
    "NaN key times": (
        lambda: attend(ec.rope(D), times=torch.arange(T).double(), key_times=torch.full((T,), float("nan"), dtype=torch.float64)),
        ec.ClockError,
        ["NaN"],
    ),
    "NaT": (
        lambda: attend(ec.rope(D, clock=ec.Timestamps("ns")), times=np.array(["2024-01-01"] * 5 + ["NaT"], dtype="datetime64[ns]")),
        ec.ClockError,
        ["NaT"],
    ),
    "float32 Unix seconds": (
        lambda: attend(ec.rope(D), times=torch.tensor([1.7e9 + i for i in range(T)], dtype=torch.float32)),
        ec.ClockError,
        ["float32", "float64", "int64"],
    ),
    "bfloat16 positions beyond 256": (lambda: attend(ec.rope(D), times=(torch.arange(T) + 600).bfloat16()), ec.ClockError, ["bfloat16"]),
    "boolean times": (lambda: attend(ec.rope(D), times=torch.ones(T, dtype=torch.bool)), (ec.ClockError, ec.ShapeError), ["bool"]),
    "no times for timestamps": (lambda: attend(ec.rope(D, clock=ec.Timestamps("ns"))), ec.ClockError, ["times"]),
    "no documents for the documents clock": (lambda: attend(ec.rope(D, clock=ec.Documents())), ec.ClockError, ["documents"]),
    "unknown unit": (lambda: ec.Timestamps("fortnight"), (ec.ClockError, ec.ConfigError, ec.UnknownNameError), ["fortnight"]),
    "duration without a unit": (lambda: ec.decay(D, half_life="30min"), (ec.ClockError, ec.ConfigError), ["30min", "Timestamps"]),
    "window in words without a unit": (
        lambda: attend(ec.rope(D), window="30min"),
        (ec.ClockError, ec.ConfigError),
        ["30min", "Timestamps"],
    ),
    # shapes
    "odd rotary width": (lambda: ec.rope(7), ec.ShapeError, ["7", "even"]),
    "odd rotary part": (lambda: ec.rope(8, rotary_dim=3), ec.ShapeError, ["3", "even"]),
    "rotary part wider than the head": (lambda: ec.rope(8, rotary_dim=10), ec.ShapeError, ["10", "8"]),
    "odd damped width": (lambda: ec.damped_rope(9, rate=0.1), ec.ShapeError, ["9", "even"]),
    "q of rank 3": (lambda: ec.attention(*(x[0] for x in qkv()), ec.rope(D)), ec.ShapeError, ["(4, 6, 8)", "heads"]),
    "q of another width": (lambda: attend(ec.rope(D), qkv(width=10)), ec.ShapeError, ["10", "8"]),
    "k of another width than q": (
        lambda: ec.attention(qkv()[0], torch.randn(B, H, T, D + 2), qkv()[2], ec.nope(D)),
        ec.ShapeError,
        ["10", "8"],
    ),
    "v shorter than k": (lambda: ec.attention(*qkv()[:2], torch.randn(B, H, T - 1, D), ec.rope(D)), ec.ShapeError, ["5", "6"]),
    "batch sizes differ": (
        lambda: ec.attention(qkv()[0], torch.randn(B + 1, H, T, D), torch.randn(B + 1, H, T, D), ec.rope(D)),
        ec.ShapeError,
        ["3", "2"],
    ),
    "heads of the encoding differ": (lambda: attend(ec.alibi(D, heads=3)), ec.ShapeError, ["3", "4", "heads"]),
    "heads not a multiple of key heads": (lambda: attend(ec.rope(D), qkv(kv_heads=3)), ec.ShapeError, ["3", "4", "multiple"]),
    "rates per query head under grouped keys": (
        lambda: attend(ec.damped_rope(D, heads=H, rate=[[0.1], [0.2], [0.3], [0.4]]), qkv(kv_heads=2)),
        ec.ShapeError,
        ["kv_heads", "repeat"],
    ),
    "frequencies per query head under grouped keys": (
        lambda: attend(ec.rope(D, heads=H, theta=(10.0, 1e2, 1e3, 1e4)), qkv(kv_heads=2)),
        ec.ShapeError,
        ["kv_heads"],
    ),
    "integer q": (lambda: ec.attention(*(x.long() for x in qkv()), ec.rope(D)), ec.ShapeError, ["int64"]),
    "dtypes differ": (lambda: ec.attention(qkv()[0], *(x.double() for x in qkv()[1:]), ec.rope(D)), ec.ShapeError, ["float32", "float64"]),
    "times of another length": (lambda: attend(ec.rope(D), times=torch.arange(T + 1)), ec.ShapeError, ["7", "6"]),
    "times (H, T) instead of (B, H, T)": (
        lambda: attend(ec.rope(D), times=torch.arange(T).expand(H, T)),
        ec.ShapeError,
        ["4", "(2, T)", "(2, 4, T)"],
    ),
    "times (B, T, 1)": (lambda: attend(ec.rope(D), times=torch.arange(T)[:, None].expand(B, T, 1)), ec.ShapeError, ["1", "6"]),
    "times of rank 4": (lambda: attend(ec.rope(D), times=torch.zeros(B, H, T, 1)), ec.ShapeError, ["(2, 4, 6, 1)"]),
    "times of rank 0": (lambda: attend(ec.rope(D), times=torch.tensor(3)), ec.ShapeError, ["()"]),
    "times of more heads": (lambda: attend(ec.rope(D), times=torch.arange(T).expand(B, H + 1, T)), ec.ShapeError, ["5", "4"]),
    "one clock per query head over grouped keys": (
        lambda: attend(ec.rope(D), qkv(kv_heads=2), times=torch.arange(T).expand(B, H, T)),
        ec.ShapeError,
        ["4", "2", "repeat"],
    ),
    "key times of another length": (
        lambda: attend(ec.rope(D), times=torch.arange(T), key_times=torch.arange(T + 2)),
        ec.ShapeError,
        ["8", "6"],
    ),
    "mask of floats": (lambda: attend(ec.rope(D), mask=torch.zeros(B, T)), ec.ShapeError, ["float32", "bool"]),
    "mask of another length": (lambda: attend(ec.rope(D), mask=torch.ones(B, T + 1, dtype=torch.bool)), ec.ShapeError, ["7", "6"]),
    "mask of rank 1": (lambda: attend(ec.rope(D), mask=torch.ones(T + 3, dtype=torch.bool)), ec.ShapeError, ["9"]),
    "documents of another length": (lambda: attend(ec.rope(D), documents=torch.zeros(T - 1, dtype=torch.long)), ec.ShapeError, ["5", "6"]),
    "documents of another batch": (
        lambda: attend(ec.rope(D), documents=torch.zeros(B + 1, T, dtype=torch.long)),
        ec.ShapeError,
        ["3", "2"],
    ),
    "more queries than keys without times": (lambda: attend(ec.rope(D), qkv(queries=5, keys=3)), ec.ShapeError, ["5", "3", "key_times"]),
    "frequencies of another number": (lambda: ec.rope(8, freq=[1.0, 0.1]), ec.ShapeError, ["2", "4"]),
    "rates of another number": (lambda: ec.damped_rope(8, rate=[0.1, 0.2, 0.3]), ec.ShapeError, ["3", "4"]),
    "slopes of another number": (lambda: ec.alibi(8, heads=4, slopes=(0.5, 0.25)), ec.ShapeError, ["2", "4"]),
    "thetas of another number": (lambda: ec.rope(8, heads=4, theta=(1e3, 1e4)), ec.ShapeError, ["2", "4"]),
    "no width": (lambda: ec.rope(0), (ec.ShapeError, ec.ConfigError), ["0"]),
    # names and settings
    "unknown backend": (
        lambda: attend(ec.rope(D), backend="sdpaa"),
        ec.UnknownNameError,
        ["sdpaa", "did you mean 'sdpa'", "tiled", "reference"],
    ),
    "unknown encoding": (lambda: ec.encoding("roep", head_dim=D), ec.UnknownNameError, ["roep", "did you mean 'rope'"]),
    "unknown encoding in a product": (
        lambda: ec.encoding("rope * alibl", head_dim=D, heads=2),
        ec.UnknownNameError,
        ["alibl", "did you mean 'alibi'"],
    ),
    "unknown setting": (lambda: ec.encoding("rope(thetta=1e4)", head_dim=D), ec.ConfigError, ["thetta", "theta"]),
    "unknown key of a dict": (lambda: ec.encoding({"name": "rope", "head_dim": 8, "thetta": 1e4}), ec.ConfigError, ["thetta", "theta"]),
    "spec that is no spec": (lambda: ec.encoding("rope(theta=", head_dim=D), ec.ConfigError, ["rope(theta="]),
    "spec that runs code": (lambda: ec.encoding("rope(theta=__import__('os').getpid())", head_dim=D), ec.ConfigError, []),
    "no head_dim": (lambda: ec.encoding("rope"), ec.ConfigError, ["head_dim"]),
    "rate and half-life": (lambda: ec.decay(D, rate=0.1, half_life=3.0), ec.ConfigError, ["rate", "half_life"]),
    "neither rate nor half-life": (lambda: ec.decay(D), ec.ConfigError, ["rate", "half_life"]),
    "theta and freq": (lambda: ec.rope(D, theta=500.0, freq=[1.0, 0.1, 0.2, 0.3]), ec.ConfigError, ["theta", "freq"]),
    "unknown pairing": (lambda: ec.rope(D, pairing="halves"), (ec.ConfigError, ec.UnknownNameError), ["halves", "half", "interleaved"]),
    "learning what is not there": (lambda: ec.rope(D, learn=("rate",)), (ec.ConfigError, ec.UnknownNameError), ["rate", "freq"]),
    "theta not positive": (lambda: ec.rope(D, theta=-1.0), ec.ConfigError, ["theta", "-1"]),
    "window of nothing": (lambda: attend(ec.rope(D), window=0), (ec.ConfigError, ec.ShapeError), ["window", "0"]),
    "negative window": (lambda: attend(ec.rope(D), window=-3), (ec.ConfigError, ec.ShapeError), ["window", "-3"]),
    "no clock of that name": (lambda: ec.rope(D, clock="indx"), (ec.ConfigError, ec.UnknownNameError), ["indx", "index"]),
    "two clocks in one sum": (
        lambda: ec.rope(4, clock=ec.Timestamps("s")) + ec.rope(4, clock=ec.Timestamps("ns")),
        (ec.ConfigError, ec.ClockError, ec.UnsupportedError),
        ["clock"],
    ),
    # the group
    "a product on different widths": (lambda: ec.rope(8) * ec.rope(6), ec.ShapeError, ["8", "6"]),
    "a product that does not commute": (lambda: ec.rope(8, pairing="half") * ec.rope(8, pairing="interleaved"), ec.AxiomError, ["commute"]),
    "a decay that differs within a pair of a rotation": (
        lambda: ec.rope(8, pairing="half") * ec.decay(8, rate=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]),
        ec.AxiomError,
        ["commute"],
    ),
    # backends by name never fall back
    "sdpa asked for a decay": (lambda: attend(ec.decay(D, rate=0.1), backend="sdpa"), ec.UnsupportedError, ["sdpa", "tiled"]),
    "sdpa asked for a damped rotation": (
        lambda: attend(ec.damped_rope(D, rate=0.1), backend="sdpa"),
        ec.UnsupportedError,
        ["sdpa", "tiled"],
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_in_words(what):
    act, error, words = REFUSED[what]
    with pytest.raises(error) as caught:
        act()
    message = str(caught.value)
    assert isinstance(caught.value, ec.EigenclockError)
    assert isinstance(caught.value, ValueError | KeyError | NotImplementedError)  # whoever catches the builtin ones is served too
    for word in words:
        assert re.search(rf"(?<![\w.]){re.escape(word)}" if re.fullmatch(r"[\d.]+", word) else re.escape(word), message, re.IGNORECASE), (
            f"{word!r} is not in: {message}"
        )
    assert "\n" not in message and len(message) < 700


# The neighbours of what is refused work.


def test_rates_per_kv_head_under_grouped_keys():
    """The same as repeating the keys and the rates."""
    q, k, v = qkv(kv_heads=2)
    rates = [[0.1, 0.2, 0.3, 0.4], [1.0, 0.0, 2.0, 0.05]]
    out = ec.attention(q, k, v, ec.damped_rope(D, heads=H, kv_heads=2, rate=rates))
    repeated = [x.repeat_interleave(2, 1) for x in (k, v)]
    wide = ec.damped_rope(D, heads=H, rate=[rates[0], rates[0], rates[1], rates[1]])
    assert torch.allclose(out, ec.attention(q, *repeated, wide), rtol=0, atol=1e-6)


def test_slopes_per_query_head_under_grouped_keys_are_fine():
    q, k, v = qkv(kv_heads=2)
    out = ec.attention(q, k, v, ec.alibi(D, heads=H))
    repeated = [x.repeat_interleave(2, 1) for x in (k, v)]
    assert torch.allclose(out, ec.attention(q, *repeated, ec.alibi(D, heads=H), backend="reference"), rtol=0, atol=1e-5)


def test_rank_alone_tells_times_apart():
    """Where B = H a (B, T) of times is per row, never per head."""
    q, k, v = (x[:1].expand(H, -1, -1, -1) for x in qkv())
    times = torch.arange(T) * torch.arange(1, H + 1)[:, None]
    enc = ec.rope(D)
    out = ec.attention(q, k, v, enc, times=times)
    for row in range(H):
        assert torch.allclose(
            out[row], ec.attention(q[row : row + 1], k[row : row + 1], v[row : row + 1], enc, times=times[row])[0], rtol=0, atol=1e-6
        )
    per_head = ec.attention(q[:1], k[:1], v[:1], enc, times=times[None])
    for head in range(H):
        assert torch.allclose(per_head[:, head], out[head : head + 1, head], rtol=0, atol=1e-6)


def test_rotations_take_decreasing_times():
    q, k, v = qkv()
    times = torch.tensor([5, 0, 3, 3, -2, 9])
    assert torch.allclose(
        attend(ec.rope(D), [q, k, v], times=times), attend(ec.rope(D), [q, k, v], times=times, backend="reference"), rtol=0, atol=1e-5
    )


def test_float32_times_that_hold_their_differences_pass():
    for times in (torch.arange(T).float(), torch.arange(T).float() * 0.1, torch.full((T,), 0.5), torch.arange(T).float() + 10_000_000):
        attend(ec.rope(D), times=times)


def test_a_rate_of_zero_and_an_endless_half_life_are_no_decay():
    q, k, v = qkv()
    plain = attend(ec.nope(D), [q, k, v])
    assert torch.allclose(attend(ec.decay(D, rate=0.0), [q, k, v]), plain, rtol=0, atol=1e-6)
    assert torch.allclose(attend(ec.decay_bias(D, heads=H, rate=0.0), [q, k, v]), plain, rtol=0, atol=1e-6)


def test_two_sided_decay_is_the_kernel_of_the_distance():
    q, k, v = qkv()
    lag = (torch.arange(T)[:, None] - torch.arange(T)).abs().double()
    z = ec.scores(q, k, ec.two_sided(ec.decay(D, rate=0.3)), causal=False)
    assert torch.allclose(z, q.double() @ k.double().mT * (-0.3 * lag).exp() / D**0.5, rtol=0, atol=1e-6)
    out = attend(ec.two_sided(ec.decay(D, rate=0.3)), [q, k, v], causal=False)
    assert torch.allclose(out.double(), z.softmax(-1) @ v.double(), rtol=0, atol=1e-5)
