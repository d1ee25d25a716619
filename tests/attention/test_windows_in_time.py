"""A window given as a duration: a key is seen where it is less than that old, decided in whole counts of the stamps, on every path."""

from fractions import Fraction

import numpy as np
import pytest
import torch

import eigenclock as ec
from eigenclock.attention.bands import Span

START = 1_700_000_000_000_000_000  # nanoseconds since 1970
MS = 1_000_000

CLOCKS = {
    "timestamps": lambda: ec.Timestamps("ns"),
    "always open": lambda: ec.Sessions(tuple(f"{day} 00:00-24:00" for day in ("mon-fri", "sat,sun"))),
    "a tenth while closed": lambda: ec.Sessions("00:00-24:00", closed=0.1),
    "column": lambda: ec.Column("s"),
}
ENCODINGS = {
    "rope": lambda clock: ec.rope(4, clock=clock),
    "damped": lambda clock: ec.damped_rope(4, half_life=1.0, clock=clock),
    "bias": lambda clock: ec.decay_bias(4, heads=1, half_life=1.0, clock=clock),
}


def plain(n, width=4):
    """Queries of zeros: every key that is seen weighs alike, but for a bias or a decay, which keep all weights above 0."""
    return torch.zeros(1, 1, n, width, dtype=torch.float64), torch.randn(1, 1, n, width, dtype=torch.float64)


def seen(weights):
    """How many keys each query sees, from weights (1, 1, T, S)."""
    return (weights[0, 0] > 0).sum(-1)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("backend", ["auto", "tiled", "reference"])
@pytest.mark.parametrize("start", [0, START, START + 1, -START, START + 123_456_789])
def test_every_row_of_a_grid_sees_as_many_keys(encoding, backend, start):
    """Milliseconds in int64 nanoseconds, a window of 100 ms: 100 keys, the query among them, wherever the row begins."""
    n = 1000
    enc, times = ENCODINGS[encoding](ec.Timestamps("ns", per="s")), start + torch.arange(n) * MS
    q, k = plain(n)
    out = ec.attention(q, k, torch.eye(n, dtype=torch.float64)[None, None], enc, times=times, window="100ms", backend=backend)
    assert seen(out).tolist() == [min(i + 1, 100) for i in range(n)]
    assert torch.equal(out > 0, torch.isfinite(ec.scores(q, k, enc, times=times, window="100ms")))


def grid(clock, n):
    """(times, window, keys inside it) on a grid whose steps no float in the clock's unit holds."""
    if clock == "column":
        return torch.arange(n, dtype=torch.float64) * 0.1, "0.7s", 7
    return START + torch.arange(n) * MS, "70ms", 70


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_slice_agrees_with_the_whole(clock, encoding):
    n, at = 300, 117
    times, window, keys = grid(clock, n)
    enc = ENCODINGS[encoding](CLOCKS[clock]())
    q, k, v = torch.randn(3, 1, 1, n, 4, dtype=torch.float64)
    whole = ec.attention(q, k, v, enc, times=times, window=window)
    q, k, v = (x[:, :, at:] for x in (q, k, v))
    part = ec.attention(q, k, v, enc, times=times[at:], window=window)
    assert torch.allclose(part[:, :, keys:], whole[:, :, at + keys :], rtol=0, atol=1e-9)
    oracle = ec.scores(q, k, enc, times=times[at:], window=window).softmax(-1) @ v
    assert torch.allclose(part, oracle, rtol=0, atol=1e-9)


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("backend", ["auto", "tiled", "reference"])
def test_cross_attention_sees_the_same_keys(clock, encoding, backend):
    """Queries apart from the keys, in any order: those of self-attention, whatever the keys' first stamp is."""
    n = 220
    times, window, keys = grid(clock, n)
    enc = ENCODINGS[encoding](CLOCKS[clock]())
    q, k = plain(n)
    chosen = torch.randperm(n)[:150]
    v = torch.eye(n, dtype=torch.float64)[None, None]
    out = ec.attention(q[:, :, :150], k, v, enc, times=times[chosen], key_times=times, window=window, backend=backend)
    assert seen(out).tolist() == [min(i + 1, keys) for i in chosen.tolist()]
    shuffled = torch.randperm(n)
    k, v = k[:, :, shuffled], v[:, :, shuffled]
    given = {"times": times[chosen], "key_times": times[shuffled], "window": window, "backend": backend}
    again = ec.attention(q[:, :, :150], k, v, enc, **given)
    assert torch.allclose(again, out, rtol=0, atol=1e-12)


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("sizes", [(1,) * 40, (7, 3, 12, 18), (40,)], ids=["tokens", "pieces", "long"])
@pytest.mark.parametrize("evict", [False, True])
def test_a_cache_sees_the_same_keys(clock, encoding, sizes, evict):
    n, begun = 340, 300
    times, window, keys = grid(clock, n)
    enc = ENCODINGS[encoding](CLOCKS[clock]())
    q, k, v = torch.randn(3, 1, 1, n, 4, dtype=torch.float64)
    whole = ec.attention(q, k, v, enc, times=times, window=window)
    _, cache = ec.cached_attention(q[:, :, :begun], k[:, :, :begun], v[:, :, :begun], enc, times=times[:begun], window=window)
    parts, low = [], begun
    for size in sizes:
        if evict:
            cache = cache.evict(window)
            assert len(cache) == keys  # the last token and those that it sees itself
        cut = slice(low, low + size)
        out, cache = ec.cached_attention(q[:, :, cut], k[:, :, cut], v[:, :, cut], enc, times=times[cut], cache=cache, window=window)
        parts.append(out)
        low += size
    assert torch.allclose(torch.cat(parts, 2), whole[:, :, begun:], rtol=0, atol=1e-9)


@pytest.mark.parametrize("move", ["by", "to", "join", "file"])
@pytest.mark.parametrize("clock", ["timestamps", "a tenth while closed", "column"])
def test_a_cache_that_was_changed_sees_the_same_keys(clock, move, tmp_path):
    n, begun = 60, 40
    times, window, _ = grid(clock, n)
    window = "20ms" if clock != "column" else "2s"
    enc = ENCODINGS["rope"](CLOCKS[clock]())
    q, k, v = torch.randn(3, 1, 1, n, 4, dtype=torch.float64)
    whole = ec.attention(q, k, v, enc, times=times, window=window)
    away = 12345 * MS if clock != "column" else 12.5
    if move == "by":
        cache = ec.KVCache.of(k[:, :, :begun], v[:, :, :begun], enc, times=times[:begun] - away).moved(enc, by=away)
    elif move == "to":
        cache = ec.KVCache.of(k[:, :, :begun], v[:, :, :begun], enc, times=times[:begun] - away).moved(enc, to=times[:begun])
    elif move == "join":
        first, second = (ec.KVCache.of(k[:, :, cut], v[:, :, cut], enc, times=times[cut]) for cut in (slice(0, 25), slice(25, begun)))
        cache = first.joined(second, enc)
    else:
        pytest.importorskip("safetensors")
        ec.KVCache.of(k[:, :, :begun], v[:, :, :begun], enc, times=times[:begun]).save(tmp_path / "cache")
        cache = ec.KVCache.load(tmp_path / "cache")
        assert len(cache.evict(window)) == 20
    out, _ = ec.cached_attention(q[:, :, begun:], k[:, :, begun:], v[:, :, begun:], enc, times=times[begun:], cache=cache, window=window)
    assert torch.allclose(out, whole[:, :, begun:], rtol=0, atol=1e-9)


@pytest.mark.parametrize("backend", ["auto", "tiled", "reference"])
def test_a_nanosecond_counts_after_a_year(backend):
    """Beyond 2^53 nanoseconds (104 days) float64 has no single ones left; the window still ends at the very count."""
    year = 365 * 86400 * 10**9
    enc = ENCODINGS["rope"](ec.Timestamps("ns"))
    times = torch.tensor([0, year, year + 1, year + 10, year + 11])
    q, k = plain(5)
    out = ec.attention(q, k, torch.eye(5, dtype=torch.float64)[None, None], enc, times=times, window="10ns", backend=backend)
    assert seen(out).tolist() == [1, 1, 2, 2, 2]  # year + 10 is 10 ns behind year, which is out
    _, cache = ec.cached_attention(*(x[:, :, :4] for x in (q, k, k)), enc, times=times[:4], window="10ns")
    assert len(cache.evict("10ns")) == 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("start", [0.0, 1000.0])
def test_floating_stamps_behave_as_they_read(dtype, start):
    """Every tenth of a second: 0.3 - 0.2 is more than 0.4 - 0.3 in floats, and both are a tenth."""
    n = 90
    times = (start + torch.arange(n, dtype=torch.float64) / 10).to(dtype)
    enc = ENCODINGS["rope"](ec.Timestamps("s"))
    q, k = plain(n)
    for backend in ("auto", "tiled", "reference"):
        out = ec.attention(q, k, torch.eye(n, dtype=torch.float64)[None, None], enc, times=times, window="1.5s", backend=backend)
        assert seen(out).tolist() == [min(i + 1, 15) for i in range(n)]


def test_whole_numbers_in_16_bits_are_whole():
    times = torch.arange(200).bfloat16()
    enc = ENCODINGS["rope"](ec.Timestamps("s"))
    q, k = plain(200)
    out = ec.attention(q, k, torch.eye(200, dtype=torch.float64)[None, None], enc, times=times, window="3s")
    assert seen(out).tolist() == [1, 2] + [3] * 198


@pytest.mark.parametrize(("window", "keys"), [("10ms", 10), ("10.5ms", 11), ("9.999999ms", 10), ("10.000001ms", 11), ("1ns", 1)])
def test_the_edge_of_a_window(window, keys):
    """t - s < window: a key exactly that old is out, one a nanosecond younger is in."""
    times = START + torch.arange(50) * MS
    z = ec.scores(*plain(50), ENCODINGS["rope"](ec.Timestamps("ns")), times=times, window=window)
    assert int(torch.isfinite(z[0, 0, -1]).sum()) == keys


def test_closed_hours_count_whole_ticks():
    """A night that counts nothing: half an hour of trading looks from the morning back into the afternoon before."""
    clock = ec.Sessions("09:30-16:00", "America/New_York", unit="ms", per="h")
    day = np.datetime64("2026-03-05T21:00", "ms")  # the close on a Thursday, in UTC
    before = day - np.arange(40, 0, -1) * np.timedelta64(60_000, "ms")
    after = np.datetime64("2026-03-06T14:30", "ms") + np.arange(20) * np.timedelta64(60_000, "ms")
    stamps = np.concatenate([before, after])
    z = ec.scores(*plain(60), ENCODINGS["rope"](clock), times=stamps, window="30min")
    counts = torch.isfinite(z[0, 0]).sum(-1)
    assert counts[30:].tolist() == [30] * 30
    part = ec.scores(*plain(40), ENCODINGS["rope"](clock), times=stamps[20:], window="30min")
    assert torch.isfinite(part[0, 0]).sum(-1)[30:].tolist() == [30] * 10


@pytest.mark.parametrize("encoding", ["rope", "damped"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("backend", ["auto", "tiled", "reference"])
def test_documents_that_go_back_in_time(encoding, padded, backend):
    """The second document is a thousand seconds earlier; padding inside it may hold any time."""
    times, documents = torch.cat([1000 + torch.arange(20), torch.arange(20)]), torch.arange(40) // 20
    mask = torch.ones(1, 40, dtype=torch.bool)
    if padded:
        mask[0, 20:24] = mask[0, 8:11] = False
        times[20:24] = torch.tensor([7, 3, 9, 1])
    enc = ENCODINGS[encoding](ec.Timestamps("s"))
    q, k, v = torch.randn(3, 1, 1, 40, 4, dtype=torch.float64)
    out = ec.attention(q, k, v, enc, times=times, documents=documents, mask=mask, window="5s", backend=backend)
    for rows in (slice(0, 20), slice(20, 40)):
        kept = mask[0, rows]
        q1, k1, v1 = (x[:, :, rows][:, :, kept] for x in (q, k, v))
        alone = ec.attention(q1, k1, v1, enc, times=times[rows][kept], window="5s", backend="reference")
        assert torch.allclose(out[:, :, rows][:, :, kept], alone, rtol=0, atol=1e-12)


def test_heads_with_times_of_their_own():
    times = START + torch.arange(64) * MS + torch.tensor([[0], [7]])  # two key heads
    enc = ec.damped_rope(4, heads=4, kv_heads=2, half_life="50ms", clock=ec.Timestamps("ns"))
    q, k, v = torch.randn(1, 4, 64, 4), torch.randn(1, 2, 64, 4), torch.randn(1, 2, 64, 4)
    q, k, v = (x.double() for x in (q, k, v))
    given = {"times": times[None], "window": "16ms"}
    z = ec.scores(q, k, enc, **given)
    assert torch.isfinite(z).sum(-1)[0, :, 20:].unique().tolist() == [16]
    out = ec.attention(q, k, v, enc, **given)
    assert torch.allclose(out, z.softmax(-1) @ v.repeat_interleave(2, 1), rtol=0, atol=1e-10)


def test_the_limit_is_exact():
    assert Span.of(Fraction(1, 10), Fraction(1, 10**9)).limit == 10**8
    assert Span.of(Fraction(1, 3), Fraction(1, 1000)).limit == Fraction(1000, 3)
    queries, keys = torch.tensor([1000]), torch.tensor([666, 667])
    assert Span.of(Fraction(1, 3), Fraction(1, 1000)).holds(queries, keys).tolist() == [False, True]
