"""Every encoding x every way of calling x every backend that claims it, against softmax(scores) @ v, gradients included.

Encodings and backends come from the registries: a new entry without a row here is built with its defaults and tested all the same.
A backend asked for by name may decline with UnsupportedError (counted as a skip); what each must carry is listed at the end.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from eigenclock.attention.backends import BACKENDS
from eigenclock.encodings import ENCODINGS

F64 = torch.float64
B, H, D = 2, 4, 8
RATES = [[1.0, 0.3, 0.02, 0.004], [5.0, 0.1, 0.1, 0.5], [1e-3, 2.0, 0.7, 0.05], [0.2, 0.2, 0.01, 3.0]]

# name -> (encoding for this number of key heads, does its kernel need causal?)
ENCODED: dict[str, tuple[Callable[[int], ec.Encoding], bool]] = {
    "nope": (lambda kv: ec.nope(D), False),
    "rope": (lambda kv: ec.rope(D, learn=("freq",)), False),
    "rope, partial": (lambda kv: ec.rope(D, rotary_dim=4), False),
    "rope, half": (lambda kv: ec.rope(D, pairing="half", theta=50.0, learn=("freq",)), False),
    "rope, per head": (lambda kv: ec.rope(D, heads=H, kv_heads=kv, theta=(10.0, 1e2, 1e3, 1e4)[:kv], learn=("freq",)), False),
    "decay": (lambda kv: ec.decay(D, rate=0.05, learn=("rate",)), True),
    "decay, per channel": (lambda kv: ec.decay(D, rate=[0.0, 0.01, 0.4, 5.0, 1.0, 0.1, 0.0, 0.002]), True),
    "decay_bias": (lambda kv: ec.decay_bias(D, heads=H, half_life=(2.0, 60.0), learn=("rate",)), True),
    "damped_rope": (lambda kv: ec.damped_rope(D, rate=0.03, learn=("freq", "rate")), True),
    "damped_rope, per head and pair": (
        lambda kv: ec.damped_rope(D, heads=H, kv_heads=kv, rate=RATES[:kv], pairing="half", learn=("freq", "rate")),
        True,
    ),
    "damped_rope, negative freq": (lambda kv: ec.damped_rope(D, freq=[-1.0, 0.5, -0.1, 0.0], rate=[2.0, 0.0, 0.1, 5.0]), True),
    "alibi": (lambda kv: ec.alibi(D, heads=H, learn=("slope",)), True),
    "rope * alibi": (lambda kv: ec.rope(D, heads=H, kv_heads=kv, learn=("freq",)) * ec.alibi(D, heads=H, learn=("slope",)), True),
    "rope + nope": (lambda kv: ec.rope(4, learn=("freq",)) + ec.nope(4), False),
    "rope + decay": (lambda kv: ec.rope(4) + ec.decay(4, half_life=7.0, learn=("rate",)), True),
    "damped_rope * alibi": (
        lambda kv: ec.damped_rope(D, rate=0.2, learn=("freq", "rate")) * ec.alibi(D, heads=H, learn=("slope",)),
        True,
    ),
    "two_sided(decay)": (lambda kv: ec.two_sided(ec.decay(D, half_life=6.0)), False),
    "two_sided(damped_rope)": (lambda kv: ec.two_sided(ec.damped_rope(D, half_life=6.0)), False),
    "two_sided(alibi)": (lambda kv: ec.two_sided(ec.alibi(D, heads=H, learn=("slope",))), False),
}
FEATURES = 5
ENCODED |= {
    "fox": (lambda kv: ec.fox(D, heads=H, kv_heads=kv, features=FEATURES), True),
    "rope * fox": (lambda kv: ec.rope(D, heads=H, kv_heads=kv) * ec.fox(D, heads=H, kv_heads=kv, features=FEATURES), True),
    "wall": (lambda kv: ec.wall(D, heads=H, kv_heads=kv, features=FEATURES), True),
    "gla": (lambda kv: ec.gla(D, heads=H, kv_heads=kv, features=FEATURES, rank=2), True),
    "hgrn2": (lambda kv: ec.hgrn2(D, heads=H, kv_heads=kv, features=FEATURES, lower_bound=0.3), True),
    "mamba1": (lambda kv: ec.mamba1(D, heads=H, kv_heads=kv, features=FEATURES, rank=2, rate=[0.1 * n for n in range(1, D + 1)]), True),
    "mamba2": (lambda kv: ec.mamba2(D, heads=H, kv_heads=kv, features=FEATURES, rate=0.3), True),
    "selective_rope": (lambda kv: ec.selective_rope(D, heads=H, kv_heads=kv, features=FEATURES), False),
    "carope": (lambda kv: ec.carope(D, heads=H, kv_heads=kv, features=FEATURES), False),
    "grape_ctx": (lambda kv: ec.grape_ctx(D, heads=H, kv_heads=kv, features=FEATURES), False),
    "damped_rope, learned clock": (
        lambda kv: ec.damped_rope(D, heads=H, kv_heads=kv, rate=0.3, clock=ec.Cumulative(FEATURES, per="block")),
        True,
    ),
}
PLANE = ec.Axes(("x", "y"), order="x")
ENCODED |= {
    "gaussian_bias": (lambda kv: ec.gaussian_bias(D, heads=H, sigma=(2.0, 30.0), learn=("sigma",)), False),
    "rope * gaussian_bias": (lambda kv: ec.rope(D) * ec.gaussian_bias(D, heads=H, sigma=9.0), False),
    "damped_rope * gaussian_bias": (lambda kv: ec.damped_rope(D, half_life=9.0) * ec.gaussian_bias(D, heads=H, sigma=20.0), True),
    "transformer_xl": (
        lambda kv: ec.transformer_xl(
            D, heads=H, kv_heads=kv, theta=30.0, weight=torch.randn(H, D, D, generator=torch.Generator().manual_seed(1)),
            content=torch.randn(kv, D, generator=torch.Generator().manual_seed(2)),
            position=torch.randn(H, D, generator=torch.Generator().manual_seed(3)),
        ),
        False,
    ),
    "transformer_xl * alibi": (lambda kv: ec.transformer_xl(D, heads=H, kv_heads=kv, sinusoids=4) * ec.alibi(D, heads=H), True),
    "sandwich": (lambda kv: ec.sandwich(D, heads=H, width=6, theta=30.0, learn=("freq", "amplitude")), False),
    "retnet": (lambda kv: ec.retnet(D, heads=H, kv_heads=kv, learn=("freq", "rate")), True),
    "jordan_rope": (lambda kv: ec.jordan_rope(D, heads=H, kv_heads=kv, eta=0.2, half_life=9.0, learn=("freq", "rate", "eta")), True),
    "grape_m": (lambda kv: ec.grape_m(D, heads=H, kv_heads=kv, learn=("freq", "basis")), False),
    "grape_m, one plane": (lambda kv: ec.grape_m(D, planes=1, learn=("freq", "basis")), False),
    "hyperbolic": (lambda kv: ec.hyperbolic(D, boost=0.05, rate=0.1, learn=("rate", "boost")), True),
    "axial_rope": (lambda kv: ec.axial_rope(D, clock=PLANE), False),
    "string": (
        lambda kv: ec.string(D, heads=H, kv_heads=kv, basis=torch.randn(28, generator=torch.Generator().manual_seed(4)), clock=PLANE),
        False,
    ),
    "mixed_rope": (lambda kv: ec.mixed_rope(D, heads=H, kv_heads=kv, clock=PLANE), False),
    "rope, yarn": (lambda kv: ec.rope(D, rotary_dim=6, freq=ec.yarn(4.0, 64), learn=("freq",)), False),
    "m_rope": (lambda kv: ec.m_rope(D, pairing="half", assignment="interleaved"), False),
}  # fmt: skip
for _name in ENCODINGS:
    # What weighs its tokens is made for linear attention (tests/linear), and softmax refuses it.
    if not any(_name in row for row in ENCODED) and not ec.encoding(_name, head_dim=D, heads=H).weighs:
        ENCODED[_name] = (lambda kv, name=_name: ec.encoding(name, head_dim=D, heads=H, kv_heads=kv), True)


@dataclass(frozen=True)
class Way:
    """One way of calling: the sizes, and the keywords (made anew for every test, so that times can carry gradients)."""

    keywords: Callable[[], dict[str, Any]] = dict
    queries: int = 45
    keys: int | None = None
    kv_heads: int = H
    needs_causal: bool = True  # False: called with causal=False
    learn_times: tuple[str, ...] = field(default=())


def irregular(*shape: int, ties: bool = False, seed: int = 5) -> Tensor:
    """Increasing float64 times with steps between 0 and 2, optionally with runs of equal ones."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.rand(*shape, generator=generator, dtype=F64) * 2
    if ties:
        steps[..., 1::3] = 0
        steps[..., 10:14] = 0
    return steps.cumsum(-1)


def random_mask(*shape: int, share: float = 0.6, seed: int = 6) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < share


def padding(length: int, kind: str) -> Tensor:
    """(B, length): one row padded by a few tokens, one by many."""
    mask = torch.ones(B, length, dtype=torch.bool)
    for row, pads in enumerate((3, length // 2)):
        if kind == "left":
            mask[row, :pads] = False
        elif kind == "right":
            mask[row, length - pads :] = False
        else:
            mask[row, length // 4 : length // 4 + pads] = False
    return mask


def documents(length: int, per_row: bool) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return (torch.rand(*((B,) if per_row else ()), length, generator=generator) < 0.06).long().cumsum(-1) * 3 + 1


WAYS: dict[str, Way] = {
    "plain": Way(),
    "not causal": Way(lambda: {"causal": False}, needs_causal=False),
    "not causal, long": Way(lambda: {"causal": False, "times": irregular(150)}, queries=150, needs_causal=False, learn_times=("times",)),
    **{f"length {n}": Way(queries=n) for n in (0, 1, 2, 31, 33, 129, 257)},
    "length 300, irregular": Way(lambda: {"times": irregular(300)}, queries=300, learn_times=("times",)),
    "window 1": Way(lambda: {"window": 1}),
    "window 5": Way(lambda: {"window": 5}),
    "window 40": Way(lambda: {"window": 40, "times": irregular(150)}, queries=150, learn_times=("times",)),
    "window 100 of 257": Way(lambda: {"window": 100}, queries=257),
    "window longer than the sequence": Way(lambda: {"window": 500}),
    "window 20, documents, padding": Way(
        lambda: {"window": 20, "documents": documents(150, True), "mask": padding(150, "left")}, queries=150
    ),
    "window 9, interior padding": Way(
        lambda: {"window": 9, "documents": documents(150, True), "mask": padding(150, "interior")}, queries=150, kv_heads=2
    ),
    "documents": Way(lambda: {"documents": documents(45, False)}),
    "documents per row, long": Way(
        lambda: {"documents": documents(300, True), "times": irregular(300)}, queries=300, learn_times=("times",)
    ),
    "documents per row, not causal, long": Way(
        lambda: {"documents": documents(300, True), "mask": padding(300, "interior"), "causal": False}, queries=300, needs_causal=False
    ),
    "documents per row, not causal": Way(lambda: {"documents": documents(45, True), "causal": False}, needs_causal=False),
    "left padding": Way(lambda: {"mask": padding(45, "left")}),
    "right padding": Way(lambda: {"mask": padding(45, "right")}),
    "interior padding": Way(lambda: {"mask": padding(45, "interior")}),
    "left padding, long": Way(lambda: {"mask": padding(200, "left"), "times": irregular(B, 200)}, queries=200, learn_times=("times",)),
    "interior padding, long": Way(lambda: {"mask": padding(200, "interior")}, queries=200),
    "padding, not causal": Way(lambda: {"mask": padding(45, "interior"), "causal": False}, needs_causal=False),
    "dense mask": Way(lambda: {"mask": random_mask(1, 1, 45, 45)}),
    "dense mask per row": Way(lambda: {"mask": random_mask(B, 1, 45, 45)}),
    "dense mask per head, not causal": Way(lambda: {"mask": random_mask(B, H, 45, 45), "causal": False}, needs_causal=False),
    "grouped queries": Way(kv_heads=2),
    "one kv head, long": Way(lambda: {"times": irregular(150)}, queries=150, kv_heads=1, learn_times=("times",)),
    "grouped queries, documents": Way(lambda: {"documents": documents(150, True)}, queries=150, kv_heads=2),
    "cross, causal by time": Way(
        lambda: {"times": irregular(40, seed=1), "key_times": irregular(55, seed=2)}, 40, 55, learn_times=("times", "key_times")
    ),
    "cross, long": Way(
        lambda: {"times": irregular(B, 170, seed=1), "key_times": irregular(B, 140, seed=2)}, 170, 140, learn_times=("times", "key_times")
    ),
    "cross, ties between queries and keys": Way(lambda: {"times": torch.arange(30) // 2, "key_times": torch.arange(40) // 3}, 30, 40),
    "cross, no key yet": Way(lambda: {"times": torch.arange(9), "key_times": torch.arange(5) + 4}, 9, 5),
    "cross, not causal": Way(
        lambda: {"times": irregular(40, seed=1), "key_times": irregular(55, seed=2), "causal": False},
        40,
        55,
        needs_causal=False,
        learn_times=("times", "key_times"),
    ),
    "cross, not causal, ties and padding": Way(
        lambda: {
            "times": torch.arange(170) // 2,
            "key_times": torch.arange(140) // 3,
            "mask": padding(140, "interior"),
            "causal": False,
        },
        170,
        140,
        needs_causal=False,
    ),
    "cross, not causal, long, unsorted": Way(
        lambda: {"times": irregular(B, 170, seed=1).flip(-1), "key_times": irregular(B, 140, seed=2).flip(-1), "causal": False},
        170,
        140,
        needs_causal=False,
    ),
    "cross, no keys": Way(lambda: {"times": torch.arange(4), "key_times": torch.arange(0)}, 4, 0),
    "one query, long cache": Way(queries=1, keys=300),
    "three queries, long cache": Way(queries=3, keys=300),
    "three queries, cache with times": Way(
        lambda: {"times": irregular(300)[-3:], "key_times": irregular(300)}, 3, 300, learn_times=("times", "key_times")
    ),
    "cache, window": Way(lambda: {"window": 50}, queries=3, keys=300),
    "cross, window and padding": Way(
        lambda: {
            "window": 30,
            "times": irregular(B, 170, seed=1),
            "key_times": irregular(B, 140, seed=2),
            "mask": padding(140, "interior"),
        },
        170,
        140,
    ),
    "cross, window, unsorted": Way(
        lambda: {"window": 40, "times": irregular(170, seed=1).flip(-1), "key_times": irregular(140, seed=2).flip(-1)}, 170, 140
    ),
    "cache, left padding, grouped": Way(lambda: {"mask": padding(300, "left")}, queries=3, keys=300, kv_heads=2),
    "cache, right padding": Way(lambda: {"mask": padding(90, "right")}, queries=3, keys=90, kv_heads=2),
    "cache, interior padding, window": Way(lambda: {"mask": padding(90, "interior"), "window": 9}, queries=40, keys=90),
    "ties": Way(lambda: {"times": irregular(45, ties=True)}, learn_times=("times",)),
    "all times equal": Way(lambda: {"times": torch.full((45,), 7)}),
    "ties, long": Way(lambda: {"times": irregular(B, 150, ties=True)}, queries=150, learn_times=("times",)),
    "a huge gap": Way(lambda: {"times": torch.cat([torch.arange(70), torch.arange(70) + 10**5])}, queries=140),
    "times per row": Way(lambda: {"times": irregular(B, 45)}, learn_times=("times",)),
    "times per head": Way(lambda: {"times": irregular(B, H, 45)}, learn_times=("times",)),
    "times per head, long": Way(lambda: {"times": irregular(1, H, 150)}, queries=150, learn_times=("times",)),
    "int64 times": Way(lambda: {"times": torch.arange(45) * 3 + 10**15}),
    "int32 times": Way(lambda: {"times": torch.arange(45, dtype=torch.int32) * 3}),
    "own scale": Way(lambda: {"scale": 0.17}),
}


def allowed(name: str, way: str) -> bool:
    chosen = WAYS[way]
    learned = isinstance(ENCODED[name][0](H).clock, ec.Cumulative)
    if learned and (chosen.keys is not None or "key_times" in chosen.keywords()) and "times" in chosen.keywords():
        return False  # a learned clock sums along one sequence
    if name == "rope * fox" and chosen.kv_heads != H:
        return False  # a clock per query head cannot turn shared keys
    known = [part.length for part in ENCODED[name][0](H).outside() if part.length is not None]
    if known and any(bool(((x != x.round()) | (x >= min(known))).any()) for k, x in chosen.keywords().items() if k.endswith("times")):
        return False  # a vector for each whole position up to a length
    return chosen.needs_causal or not ENCODED[name][1]


def arguments(way: Way, dtype: torch.dtype = F64, value_width: int = D) -> tuple[list[Tensor], dict[str, Any]]:
    torch.manual_seed(11)
    keys = way.queries if way.keys is None else way.keys
    shapes = ((B, H, way.queries, D), (B, way.kv_heads, keys, D), (B, way.kv_heads, keys, value_width))
    tensors = [torch.randn(*shape, dtype=F64).to(dtype).requires_grad_() for shape in shapes]
    keywords = way.keywords()
    for name in way.learn_times:
        keywords[name] = keywords[name].requires_grad_()
    return tensors, keywords


def on_axes(enc: ec.Encoding, keywords: dict[str, Any], way: Way) -> dict[str, Any]:
    """The same call as the clock wants it: activations for a learned one; a place on every axis for several, the times on the first and
    whole numbers that wander on the others."""
    width, keys = enc.clock.width, way.queries if way.keys is None else way.keys
    if isinstance(enc.clock, ec.Cumulative):
        random = torch.Generator().manual_seed(8)
        of_keys = torch.randn(B, keys, FEATURES, dtype=F64, generator=random)
        cross = "key_times" in keywords or way.queries != keys
        return keywords | ({"key_x": of_keys} if cross else {"x": of_keys})
    if width == 1:
        return keywords
    out = dict(keywords)
    for name, length in (("times", way.queries), ("key_times", keys)):
        if name == "times" or name in out or way.queries != keys:
            index = torch.arange(max(keys, length))[-length:] if length else torch.arange(0)
            first = torch.as_tensor(out.get(name, index)).double()
            out[name] = torch.stack([first, *((index * (a + 2) % 7).double().expand(first.shape) for a in range(width - 1))], -1)
    return out


def dense(q: Tensor, k: Tensor, v: Tensor, enc: ec.Encoding, **keywords: Any) -> tuple[Tensor, Tensor]:
    """softmax(scores) v, zeros (and lse -inf) where a row has nothing to attend to."""
    z = ec.scores(q, k, enc, **keywords)
    dead = (z == -torch.inf).all(-1, keepdim=True)
    weights = z.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0) if z.shape[-1] else z
    lse = (
        z.masked_fill(dead, 0.0).logsumexp(-1).masked_fill(dead[..., 0], -torch.inf)
        if z.shape[-1]
        else z.new_full(z.shape[:-1], -torch.inf)
    )
    return weights @ v.double().repeat_interleave(q.shape[1] // v.shape[1], 1), lse


def close(what: str, a: Tensor, b: Tensor, tolerance: float) -> None:
    assert a.shape == b.shape, f"{what}: shape {tuple(a.shape)}, expected {tuple(b.shape)}"
    assert not a.isnan().any(), f"{what}: NaN"
    if b.numel():
        finite = b.isfinite()
        assert torch.equal(a.isfinite(), finite), f"{what}: infinities differ"
        a, b = a.detach().double()[finite], b.detach().double()[finite]
        error, size = (float(x.abs().amax()) if finite.any() else 0.0 for x in (a - b, b))
        assert error <= tolerance * max(1.0, size), f"{what}: error {error:.2e}, size {size:.2e}"


def on_every_backend(check: Callable[[str], None], q: Tensor, k: Tensor, v: Tensor, enc: ec.Encoding, **keywords: Any) -> None:
    """Run ``check(backend)`` on each that does not decline; "auto" must take the first of them, and the reference takes everything."""
    wrong, carried = [], []
    for backend in BACKENDS:
        try:
            check(backend)
            carried.append(backend)
        except ec.UnsupportedError as refusal:
            assert backend != "reference", refusal
        except Exception as error:  # told per backend, all of them
            carried.append(backend)
            wrong.append(f"{backend}: {type(error).__name__}: {error}".splitlines()[0])
    assert not wrong, "; ".join(wrong)
    assert ec.explain(q, k, v, enc, **keywords).backend == carried[0]


CELLS = [(name, way) for name in ENCODED for way in WAYS if allowed(name, way)]


@pytest.mark.parametrize(("name", "way"), CELLS)
def test_outputs_and_gradients_in_float64(name, way):
    enc = ENCODED[name][0](WAYS[way].kv_heads)
    (q, k, v), keywords = arguments(WAYS[way])
    wanted = (
        {"q": q, "k": k, "v": v}
        | {key: keywords[key] for key in WAYS[way].learn_times}
        | {f"parameter {key}": p for key, p in enc.named_parameters()}
    )
    keywords = on_axes(enc, keywords, WAYS[way])
    expected, _ = dense(q, k, v, enc, **keywords)
    g = torch.randn_like(expected)
    want = torch.autograd.grad(expected, list(wanted.values()), g, allow_unused=True)

    def check(backend: str) -> None:
        out = ec.attention(q, k, v, enc, backend=backend, **keywords)
        close("output", out, expected, 1e-10)
        got = torch.autograd.grad(out, list(wanted.values()), g, allow_unused=True)
        for (what, x), a, b in zip(wanted.items(), got, want, strict=True):
            close(f"gradient to {what}", torch.zeros_like(x) if a is None else a, torch.zeros_like(x) if b is None else b, 1e-9)

    on_every_backend(check, q, k, v, enc, **keywords)


LSE_WAYS = [
    *("plain", "length 129", "not causal", "left padding", "documents", "window 5", "grouped queries", "three queries, long cache"),
    *("cross, no key yet", "cross, no keys", "length 0", "dense mask", "ties, long", "one query, long cache"),
]
LSE_NAMES = ["rope", "damped_rope, per head and pair", "alibi", "damped_rope * alibi", "two_sided(decay)"]


@pytest.mark.parametrize(("name", "way"), [(name, way) for name in LSE_NAMES for way in LSE_WAYS if allowed(name, way)])
def test_log_sum_exp(name, way):
    """Natural log of the denominator, -inf where a row sees nothing, with gradients of its own."""
    enc = ENCODED[name][0](WAYS[way].kv_heads)
    (q, k, v), keywords = arguments(WAYS[way])
    wanted = [q, k, v, *enc.parameters()]
    expected, expected_lse = dense(q, k, v, enc, **keywords)
    seen = expected_lse.isfinite()
    g, h = torch.randn_like(expected), torch.randn_like(expected_lse).masked_fill(~seen, 0.0)

    def loss(out: Tensor, lse: Tensor) -> Tensor:
        return (out * g).sum() + (lse.masked_fill(~seen, 0.0) * h).sum()

    want = torch.autograd.grad(loss(expected, expected_lse), wanted, allow_unused=True)

    def check(backend: str) -> None:
        out, lse = ec.attention(q, k, v, enc, backend=backend, return_lse=True, **keywords)
        close("output", out, expected, 1e-10)
        close("lse", lse, expected_lse, 1e-10)
        for x, a, b in zip(wanted, torch.autograd.grad(loss(out, lse), wanted, allow_unused=True), want, strict=True):
            close("gradient", torch.zeros_like(x) if a is None else a, torch.zeros_like(x) if b is None else b, 1e-9)

    on_every_backend(check, q, k, v, enc, return_lse=True, **keywords)


DTYPE_WAYS = [
    *("plain", "length 257", "documents per row, long", "left padding, long", "window 40", "times per row"),
    *("one query, long cache", "grouped queries", "cross, long"),
]
DTYPE_NAMES = ["nope", "rope", "rope, half", "decay, per channel", "damped_rope, per head and pair", "alibi", "damped_rope * alibi"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("way", DTYPE_WAYS)
@pytest.mark.parametrize("name", DTYPE_NAMES)
def test_every_dtype(name, way, dtype):
    """The output within a few roundings, gradients within a few roundings of their root mean square, all in the dtype of the input."""
    enc = ENCODED[name][0](WAYS[way].kv_heads)
    low, keywords = arguments(WAYS[way], dtype)
    q, k, v = (x.detach().double().requires_grad_() for x in low)
    keywords = {key: value.detach() if isinstance(value, Tensor) else value for key, value in keywords.items()}
    expected, _ = dense(q, k, v, enc, **keywords)
    eps = torch.finfo(dtype).eps
    g = torch.randn_like(expected).to(dtype)
    want = torch.autograd.grad(expected, (q, k, v), g.double())

    def check(backend: str) -> None:
        out = ec.attention(*low, enc, backend=backend, **keywords)
        assert out.dtype == dtype
        close("output", out, expected, 16 * eps)
        for what, a, b in zip("qkv", torch.autograd.grad(out, low, g), want, strict=True):
            assert a.dtype == dtype
            error = (a.double() - b).square().mean().sqrt() / b.square().mean().sqrt().clamp_min(1e-12)
            assert error <= 8 * eps, f"gradient to {what}: relative error {float(error):.2e}"

    on_every_backend(check, *low, enc, **keywords)


CARRIES = [
    ("sdpa", name)
    for name in ("nope", "rope", "rope, partial", "rope, half", "rope, per head", "rope + nope", "alibi", "decay_bias", "rope * alibi")
]
CARRIES += [
    ("tiled", name)
    for name in ("decay", "decay, per channel", "damped_rope", "damped_rope, per head and pair", "rope + decay", "damped_rope * alibi")
]


@pytest.mark.parametrize(("backend", "name"), CARRIES)
def test_what_each_backend_must_carry(backend, name):
    """Declining everything would pass the grid above; this is the part that may not be declined."""
    enc = ENCODED[name][0](H)
    (q, k, v), _ = arguments(WAYS["plain"], torch.float32)
    ec.attention(q, k, v, enc, backend=backend).sum().backward()
    assert str(ec.explain(q, k, v, enc)).strip()


def test_the_comparison_can_fail():
    (q, k, v), _ = arguments(WAYS["plain"])
    right, _ = dense(q, k, v, ec.rope(D))
    wrong, _ = dense(q, k, v, ec.rope(D, theta=9_999.0))
    with pytest.raises(AssertionError):
        close("output", wrong, right, 1e-10)
    by_hand = (q @ k.mT / math.sqrt(D)).masked_fill(torch.ones(45, 45, dtype=torch.bool).triu(1), -torch.inf).softmax(-1) @ v
    close("output", dense(q, k, v, ec.nope(D))[0], by_hand, 1e-13)
