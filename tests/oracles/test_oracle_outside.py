"""What is outside the group, against the formulas of the papers written out pair by pair."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import eigenclock as ec

F64 = torch.float64
H, D, T = 4, 8, 40


def tensors(kv: int = H, length: int = T) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(2, heads, length, D, dtype=F64, generator=random) for heads in (H, kv, kv)]


def content(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT / math.sqrt(q.shape[-1])


def attend(z: Tensor, v: Tensor) -> Tensor:
    z = z.masked_fill(torch.ones(z.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return z.softmax(-1) @ v.repeat_interleave(z.shape[1] // v.shape[1], 1)


def leaves(enc: ec.Encoding) -> dict[str, Tensor]:
    """The learned numbers as leaves, by the last part of their names, as they are kept: (value, or its logarithm)."""
    return {name.split(".")[-2]: p.detach().double().requires_grad_() for name, p in enc.named_parameters()}


def t5_bucket(lag: int, buckets: int, farthest: float, both: bool) -> int:
    """The bucket of a whole lag t - s, by the text of the paper's code."""
    found = 0
    if both:
        buckets //= 2
        found = buckets if lag < 0 else 0
        lag = abs(lag)
    lag, exact = max(lag, 0), buckets // 2
    if lag < exact:
        return found + lag
    step = math.log(lag / exact) / math.log(farthest / exact) * (buckets - exact)
    return found + min(exact + int(step + 1e-9), buckets - 1)


def t5(q: Tensor, k: Tensor, own: dict[str, Tensor]) -> Tensor:
    rows = [[own["table"][:, t5_bucket(t - s, 16, 20, False)] for s in range(T)] for t in range(T)]
    return content(q, k) + torch.stack([torch.stack(row, -1) for row in rows], -2)


def kerple(q: Tensor, k: Tensor, own: dict[str, Tensor]) -> Tensor:
    rows = [[-own["p"] * torch.log(1 + own["a"] * abs(t - s)) for s in range(T)] for t in range(T)]
    return content(q, k) + torch.stack([torch.stack(row, -1) for row in rows], -2)


def fire(q: Tensor, k: Tensor, own: dict[str, Tensor]) -> Tensor:
    c, length = own["c"].exp(), own["length"].exp()  # both are learned on a log scale

    def psi(x):
        return torch.log(c * x + 1)

    rows = []
    for t in range(T):
        row = []
        for s in range(T):
            x = psi(abs(t - s)) / psi(torch.maximum(length, torch.tensor(float(t), dtype=F64)))
            row.append(own["out_weight"] @ torch.relu(own["in_weight"] * x + own["in_bias"]) + own["out_bias"])
        rows.append(torch.stack(row, -1))
    return content(q, k) + torch.stack(rows, -2)


def cope(q: Tensor, k: Tensor, own: dict[str, Tensor]) -> Tensor:
    z, table = content(q, k), own["table"]
    gates, rows = z.sigmoid(), []
    at = q @ table.T
    for t in range(T):
        row = []
        for s in range(T):
            p = gates[:, :, t, s : t + 1].sum(-1).clamp(max=table.shape[0] - 1)
            low = p.detach().floor()
            first, second = (at[:, :, t].gather(-1, i.long()[..., None])[..., 0] for i in (low, p.detach().ceil()))
            row.append((1 - (p - low)) * first + (p - low) * second)
        rows.append(torch.stack(row, -1))
    return z + torch.stack(rows, -2)


def learned(q: Tensor, k: Tensor, own: dict[str, Tensor]) -> Tensor:
    return content(q + own["query"][:, :T], k + own["key"][:, :T])


def sinusoids(times: Tensor, theta: float) -> Tensor:
    p = torch.zeros(len(times), D, dtype=F64)
    for i in range(D // 2):
        p[:, 2 * i] = (times / theta ** (2 * i / D)).sin()
        p[:, 2 * i + 1] = (times / theta ** (2 * i / D)).cos()
    return p


def sinusoidal(q: Tensor, k: Tensor, own: dict[str, Tensor]) -> Tensor:
    p = sinusoids(torch.arange(T).double(), 30.0)
    return content(q + p, k + p)


ROWS = torch.randn(7, D, generator=torch.Generator().manual_seed(9)).tolist()
CASES: dict[str, tuple[Callable[[int], ec.Encoding], Callable[..., Tensor]]] = {
    "t5_bias": (lambda kv: ec.t5_bias(D, heads=H, kv_heads=kv, buckets=16, max_distance=20), t5),
    "kerple_log": (lambda kv: ec.kerple_log(D, heads=H, kv_heads=kv), kerple),
    "fire": (lambda kv: ec.fire(D, heads=H, kv_heads=kv, length=11.0, width=6), fire),
    "cope": (lambda kv: ec.cope(D, heads=H, kv_heads=kv, positions=7, table=ROWS), cope),
    "learned_absolute": (lambda kv: ec.learned_absolute(D, heads=H, kv_heads=kv, length=T), learned),
    "sinusoidal": (lambda kv: ec.sinusoidal(D, heads=H, kv_heads=kv, theta=30.0), sinusoidal),
}


@pytest.mark.parametrize("backend", ["auto", "tiled", "reference"])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("kv", [4, 2])
@pytest.mark.parametrize("name", CASES)
def test_written_out(agree, name, kv, dtype, backend):
    enc, formula = CASES[name][0](kv), CASES[name][1]
    own = leaves(enc)

    def oracle(q, k, v):
        if name == "learned_absolute":
            k = k + own["key"][:, :T]
            return attend(content(q + own["query"][:, :T], k), v)
        return attend(formula(q, k, own), v)

    pairs = [(p, own[full.split(".")[-2]]) for full, p in enc.named_parameters() if not full.endswith("out_bias.raw")]
    agree(lambda q, k, v: ec.attention(q, k, v, enc, backend=backend), oracle, *tensors(kv), dtype=dtype, extra=pairs, slack=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_sixteen_bits(agree, name):
    enc, formula = CASES[name][0](H), CASES[name][1]
    own = leaves(enc)
    agree(
        lambda q, k, v: ec.attention(q, k, v, enc),
        lambda q, k, v: attend(formula(q, k, own), v),
        *tensors(),
        dtype=torch.bfloat16,
    )


def test_the_buckets_of_t5_are_steps_of_any_real_lag():
    table = torch.randn(3, 32, generator=torch.Generator().manual_seed(1), dtype=F64)
    enc = ec.t5_bias(D, heads=3, table=table.tolist(), learn=())
    q = torch.zeros(1, 3, 1, D, dtype=F64)
    lags = [*range(300), 1e6]
    found = {u: ec.scores(q, q, enc, times=torch.tensor([float(u)]), key_times=torch.tensor([0.0]))[0, :, 0, 0] for u in lags}
    assert all(torch.equal(found[u], table[:, t5_bucket(int(u), 32, 128, False)]) for u in lags)
    for u in (0.5, 15.999, 16.4, 100.5):
        z = ec.scores(q, q, enc, times=torch.tensor([u]), key_times=torch.tensor([0.0]))[0, :, 0, 0]
        assert torch.equal(z, table[:, t5_bucket(int(u), 32, 128, False)])


@pytest.mark.peer("transformers")
@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (16, 20), (8, 500)])
def test_transformers_counts_the_same_buckets(buckets, farthest, both):
    peer = pytest.importorskip("transformers.models.t5.modeling_t5").T5Attention
    table = torch.randn(1, buckets, generator=torch.Generator().manual_seed(1), dtype=F64)
    enc = ec.t5_bias(D, heads=1, buckets=buckets, max_distance=farthest, bidirectional=both, table=table.tolist(), learn=())
    times = torch.arange(600)
    q = torch.zeros(1, 1, 600, D, dtype=F64)
    z = ec.scores(q, q, enc, causal=not both)[0, 0]
    theirs = peer._relative_position_bucket(times[None, :] - times[:, None], both, buckets, farthest)
    seen = z.isfinite()
    lag = (times[:, None] - times)[seen].abs()
    wrong = lag[z[seen] != table[0][theirs][seen]].unique().tolist()
    each = buckets // 2 if both else buckets
    half = each // 2
    # The library takes a logarithm in float32, which may fall below a whole number exactly where a bucket begins at a whole lag.
    edges = {half * (farthest / half) ** (i / (each - half)) for i in range(each - half)}
    assert all(min(abs(u - edge) for edge in edges) < 1e-9 * u for u in wrong), wrong


def test_every_one_knows_decode_steps_and_given_times():
    q, k, v = tensors()
    for name, (make, _) in CASES.items():
        enc = make(H)
        whole = ec.attention(q, k, v, enc)
        for n in (1, 3):
            step = ec.attention(q[:, :, -n:], k, v, enc)
            torch.testing.assert_close(step, whole[:, :, -n:], rtol=0, atol=1e-10, msg=name)
        given = ec.attention(q, k, v, enc, times=torch.arange(T))
        torch.testing.assert_close(given, whole, rtol=0, atol=1e-12, msg=name)
        late = ec.attention(q[:, :, 5:], k[:, :, 5:], v[:, :, 5:], enc, times=torch.arange(5, T))
        cut = ec.scores(q, k, enc)[:, :, 5:, 5:].softmax(-1) @ v[:, :, 5:]
        torch.testing.assert_close(late, cut, rtol=0, atol=1e-10, msg=name)  # the times themselves are seen, not a count from 0


def test_both_directions():
    q, k, v = tensors()
    lag = torch.arange(T)[:, None] - torch.arange(T)
    for enc in (ec.kerple_log(D, heads=H), ec.fire(D, heads=H), ec.t5_bias(D, heads=H, bidirectional=True)):
        z = ec.scores(q, k, enc, causal=False)
        for backend in ("auto", "reference"):
            out = ec.attention(q, k, v, enc, causal=False, backend=backend)
            torch.testing.assert_close(out, z.softmax(-1) @ v, rtol=0, atol=1e-10)
        bias = z - content(q, k)
        mirrored = torch.allclose(bias, bias.mT, rtol=0, atol=1e-9)
        assert mirrored == ("t5_bias" not in str(enc))  # FIRE is even in the lag below its threshold
        ahead = bias[..., lag < 0]
        assert ahead.isfinite().all() and ahead.abs().max() > 0


def test_padding_documents_windows_and_masks():
    q, k, v = tensors()
    real = torch.arange(T) >= torch.tensor([[0], [7]])
    ways = {
        "padding": {"mask": real},
        "documents": {"documents": torch.arange(T) // 11},
        "window": {"window": 5},
        "a row that sees nothing": {"mask": (torch.arange(T)[:, None] != 3).expand(T, T)[None, None]},
    }
    for name, (make, _) in CASES.items():
        for way, options in ways.items():
            enc = make(H)
            leaf = [x.clone().requires_grad_() for x in (q, k, v)]
            outs = [ec.attention(*leaf, enc, backend=backend, **options) for backend in ("auto", "reference")]
            wanted = [*leaf, *enc.parameters()]
            grads = [torch.autograd.grad(out.sin().sum(), wanted, allow_unused=True) for out in outs]
            torch.testing.assert_close(*outs, rtol=0, atol=1e-10, msg=f"{name}, {way}")
            for a, b in zip(*grads, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9, msg=f"{name}, {way}")


def test_padding_may_hold_any_time():
    q, k, v = tensors()
    enc = ec.learned_absolute(D, heads=H, length=T)
    real = torch.arange(T)[None] < T - 5
    times = torch.where(real[0], torch.arange(T).double(), 1e9 + 0.5)
    plain = ec.attention(q, k, v, enc, mask=real)
    got = ec.attention(q, k, v, enc, mask=real, times=times)
    torch.testing.assert_close(got[:, :, : T - 5], plain[:, :, : T - 5], rtol=0, atol=1e-12)


def test_linear_attention_takes_vectors_and_goes_on():
    q, k, v = tensors()
    for name in ("learned_absolute", "sinusoidal"):
        enc = CASES[name][0](H)
        z = ec.scores(q, k, enc)
        expected = z.masked_fill(z == -torch.inf, 0.0) @ v
        for times in (None, torch.arange(T)):
            cut = {} if times is None else {"times": times[:15]}
            rest = {} if times is None else {"times": times[15:]}
            a, state = ec.linear_attention(q[:, :, :15], k[:, :, :15], v[:, :, :15], enc, **cut)
            b, _ = ec.linear_attention(q[:, :, 15:], k[:, :, 15:], v[:, :, 15:], enc, state=state, **rest)
            torch.testing.assert_close(torch.cat([a, b], 2), expected, rtol=0, atol=1e-10, msg=name)
        with pytest.raises(ec.UnsupportedError, match="feature_map"):
            ec.linear_attention(q, k, v, enc, feature_map=torch.exp)


def test_numbers_of_kerple_stay_above_their_floor():
    enc = ec.kerple_log(D, heads=2, p=(0.5, 1.0), a=(0.01, 0.3))
    with torch.no_grad():
        for p in enc.parameters():
            p[0] = -3.0
    q = torch.zeros(1, 2, 5, D, dtype=F64)
    z = ec.scores(q, q, enc)[0, 0]
    lag = (torch.arange(5)[:, None] - torch.arange(5)).double()
    expected = (-0.01 * (1 + 0.01 * lag.clamp_min(0)).log()).masked_fill(lag < 0, -torch.inf)
    torch.testing.assert_close(z, expected, rtol=0, atol=1e-12)


def test_start_values():
    """T5: normal, of deviation 1/sqrt(width); KERPLE: uniform in (0, 2) and (0, 1); CoPE: zeros; positions: normal, 0.02."""
    table = leaves(ec.t5_bias(64, heads=8))["table"].detach()
    assert abs(float(table.std()) * math.sqrt(512) - 1) < 0.2
    own = {name: value.detach() for name, value in leaves(ec.kerple_log(4, heads=4000)).items()}
    for name, top in (("p", 2.0), ("a", 1.0)):
        assert float(own[name].min()) > 0.0099 and float(own[name].max()) <= top
        assert abs(float(own[name].mean()) - top / 2) < 0.05
    assert not leaves(ec.cope(8))["table"].any()
    assert abs(float(leaves(ec.learned_absolute(8, heads=2))["key"].detach().std()) - 0.02) < 0.001
    start = {name: value.detach() for name, value in leaves(ec.fire(8, heads=2)).items()}
    assert (round(float(start["c"].exp()), 6), round(float(start["length"].exp()), 3)) == (0.1, 512.0)


def test_refusals():
    q, k, v = tensors()
    for name in ("t5_bias", "kerple_log", "fire", "cope"):
        enc = CASES[name][0](H)
        with pytest.raises(ec.UnsupportedError, match="T x S tensor"):
            ec.attention(q, k, v, enc, backend="tiled")
        with pytest.raises(ec.UnsupportedError, match="bias"):
            ec.linear_attention(q, k, v, enc)
        with pytest.raises(ec.UnsupportedError, match="no mirrored law"):
            ec.two_sided(enc)
        _, lse = ec.attention(q, k, v, enc, return_lse=True)  # by the reference
        torch.testing.assert_close(lse, ec.scores(q, k, enc).logsumexp(-1), rtol=0, atol=1e-10)
    for name in ("t5_bias", "cope"):
        enc = CASES[name][0](H)
        with pytest.raises(ec.ConfigError, match="no law for keys after the query"):
            ec.attention(q, k, v, enc, causal=False)
        with pytest.raises(ec.ClockError, match="looks back in time"):
            ec.attention(q, k, v, enc, times=torch.arange(T).flip(0))
    for pair in (lambda: ec.rope(D, heads=H) * ec.cope(D, heads=H), lambda: ec.cope(D, heads=H) + ec.nope(D, heads=H)):
        with pytest.raises(ec.UnsupportedError, match="expected it alone"):
            pair()
    for make in (ec.fire, ec.sinusoidal, ec.learned_absolute):
        with pytest.raises(ec.ConfigError, match="counts steps"):
            make(D, heads=H, clock=ec.Timestamps("ns"))
    absolute = ec.learned_absolute(D, heads=H, length=16)
    for times, said in ((None, "a time of 16 for 16 learned positions"), (torch.arange(T) / 4 - 0.0, "0.25"), (torch.arange(T) - 1, "-1")):
        with pytest.raises(ec.ClockError, match=said):
            ec.attention(q, k, v, absolute, times=times)
    for broken in ({"buckets": 1}, {"buckets": 5, "bidirectional": True}, {"max_distance": 16}):
        with pytest.raises(ec.ConfigError, match="max_distance"):
            ec.t5_bias(D, heads=H, **broken)
    with pytest.raises(ec.ShapeError, match="table"):
        ec.t5_bias(D, heads=H, table=[[0.0] * 31] * H)
    with pytest.raises(ec.ShapeError, match="table"):
        ec.cope(D, positions=3, table=[[0.0] * D] * 4)
    with pytest.raises(ec.ConfigError, match="at least 0.01"):
        ec.kerple_log(D, heads=H, p=0.0)


def test_printouts_say_what_breaks():
    for name, (make, _) in CASES.items():
        enc = make(H)
        assert enc.breaks and f"outside the group: breaks {enc.breaks}" in repr(enc), name
    product = ec.rope(D, heads=H) * ec.t5_bias(D, heads=H) * ec.sinusoidal(D, heads=H)
    assert product.breaks == "continuity and translation invariance" and product.acts_on == "both"
    assert ec.rope(D).breaks == "" and "outside" not in repr(ec.rope(D))
