"""Case 21: stored keys moved to other times by the group, once, without drift."""

import math

import pytest
import torch

import eigenclock as ec

F64 = torch.float64


def stored(case, dtype=torch.float32):
    given = case["given"]
    enc = ec.rope(given["width"], theta=given["theta"], pairing=given["layout"])
    keys = torch.tensor(given["stored_keys"], dtype=dtype)[None, None]
    return enc, keys, torch.tensor(given["stored_at"]), torch.tensor(given["move_to"])


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("start", [0, 1_000_000, 1_700_000_000_000_000_000])
def test_numbers_of_the_case(case, dtype, start):
    """The amplitude is in the stored keys already and is not applied again; only the difference of times counts."""
    enc, keys, stored_at, move_to = stored(case, dtype)
    kept = keys.clone()
    moved = ec.moved_keys(keys, enc, stored_at=stored_at + start, move_to=move_to + start)
    expected = torch.tensor(case["expect"]["moved_keys"], dtype=F64)
    assert torch.allclose(moved[0, 0].double(), expected, rtol=0, atol=case["expect"]["abs_tol"])
    assert torch.equal(keys, kept), "the stored keys were changed in place"
    assert moved.dtype == dtype


def test_moved_keys_are_raw_keys_at_the_new_times(case):
    given = case["given"]
    enc, keys, stored_at, move_to = stored(case, F64)
    raw = given["amplitude"] * torch.tensor(given["raw_keys"], dtype=F64)
    moved = ec.moved_keys(keys, enc, stored_at=stored_at, move_to=move_to)[0, 0]
    assert torch.allclose(moved, enc.generator().act(raw, -move_to), rtol=0, atol=1e-9)
    norms = keys[0, 0].norm(dim=-1)
    assert torch.allclose(moved.norm(dim=-1), norms, rtol=1e-12, atol=0)


@pytest.mark.parametrize("steps", [1, 1000])
def test_drift_of_keys_moved_again_and_again(case, steps):
    drift, expect = case["given"]["drift"], case["expect"]["drift"]
    enc, start = stored(case)[0], drift["start"]
    key = case["given"]["amplitude"] * torch.tensor(drift["key"])[None, None, None]
    key = ec.moved_keys(key, enc, stored_at=torch.tensor([0]), move_to=torch.tensor([start if steps > 1 else 1]))
    for i in range(steps):
        at = start - i if steps > 1 else 1
        key = ec.moved_keys(key, enc, stored_at=torch.tensor([at]), move_to=torch.tensor([at - 1]))
    tolerance = expect["one_move_abs_tol"] if steps == 1 else expect["many_moves_abs_tol"]
    assert torch.allclose(key[0, 0, 0], torch.tensor(expect["target"]), rtol=0, atol=tolerance)


def dense(q, k, v, time, times, enc):
    """One query on keys at any times, as the paper's plain loop would: turn by turn, in float64."""
    n = enc.head_dim // 2
    freq = torch.tensor([10000.0 ** (-i / n) for i in range(n)], dtype=F64)

    def turned(x, at):
        a, angle = x.double(), at.double()[:, None] * freq
        return torch.cat([a[..., :n] * angle.cos() - a[..., n:] * angle.sin(), a[..., :n] * angle.sin() + a[..., n:] * angle.cos()], -1)

    z = turned(q, time) @ turned(k, times).mT / math.sqrt(enc.head_dim)
    return z.softmax(-1) @ v.double()


def inputs(length, dtype, width=8):
    torch.manual_seed(0)
    return [torch.randn(1, 2, length, width, dtype=F64).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, F64])
@pytest.mark.parametrize("length", [12, 600])
def test_a_cache_drops_the_middle_and_closes_the_gap(dtype, length):
    """The next token's count is the true time: the last moved one plus 1, not the number of rows kept, nor what it was."""
    enc, (q, k, v) = ec.rope(8, pairing="half"), inputs(length + 1, dtype)
    cache = ec.KVCache.of(k[:, :, :length], v[:, :, :length], enc)
    cut = slice(4, length // 2)
    shorter = cache.drop(cut, enc)
    kept = torch.tensor([i for i in range(length) if not 4 <= i < length // 2])
    assert len(shorter) == len(kept)
    assert shorter.next_count.tolist() == [length]
    to = torch.arange(len(kept)) * 2 + 3
    moved = shorter.moved(enc, to=to)
    assert moved.next_count.tolist() == [int(to[-1]) + 1]
    for one, times, now in ((shorter, kept, length), (moved, to, int(to[-1]) + 1)):
        out, after = ec.cached_attention(q[:, :, length:], k[:, :, length:], v[:, :, length:], enc, cache=one)
        keys, values = (torch.cat([x[:, :, kept], x[:, :, length:]], 2) for x in (k, v))
        expected = dense(q[:, :, length:], keys, values, torch.tensor([now]), torch.cat([times, torch.tensor([now])]), enc)
        tolerance = {torch.float32: 2e-6, torch.bfloat16: 3e-2, F64: 1e-12}[dtype]
        assert (out.double() - expected).abs().max() < tolerance
        assert after.next_count.tolist() == [now + 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sinks_stay_while_the_rest_moves_a_thousand_times(case, dtype):
    """Four tokens keep their places, all others move by -1 a thousand times: each move starts from the keys as stored first."""
    enc, (q, k, v) = ec.rope(8, pairing="half"), inputs(40, dtype)
    times = torch.cat([torch.arange(4), torch.arange(36) + 1004])
    cache = ec.KVCache.of(k, v, enc, times=times)
    once = cache
    for i in range(1, 1001):
        cache = cache.moved(enc, to=torch.where(times < 4, times, times - i))
    once = once.moved(enc, to=torch.arange(40))
    new = [x[:, :, :1] for x in (q, k, v)]
    out, _ = ec.cached_attention(*new, enc, cache=cache, times=torch.tensor([40]))
    assert torch.equal(out, ec.cached_attention(*new, enc, cache=once, times=torch.tensor([40]))[0])
    expected = dense(new[0], torch.cat([k, new[1]], 2), torch.cat([v, new[2]], 2), torch.tensor([40]), torch.arange(41), enc)
    assert (out.double() - expected).abs().max() < (case["expect"]["drift"]["many_moves_abs_tol"] if dtype == torch.float32 else 3e-2)


@pytest.mark.parametrize("name", ["rope", "damped_rope", "alibi", "rope * alibi", "gaussian_bias(sigma=30)", "jordan_rope"])
def test_moving_everything_is_a_change_of_origin(name):
    """A thousand moves by -1, or one by 10^15: only differences count, so not a bit of any result changes."""
    enc = ec.encoding(name, head_dim=8, heads=2)
    q, k, v = inputs(300, torch.float32)
    times = torch.randint(0, 5, (301,), generator=torch.Generator().manual_seed(1)).cumsum(0) + 1_700_000_000
    cache = ec.KVCache.of(k, v, enc, times=times[:300])
    new = [x[:, :, :1] for x in (q, k, v)]
    expected, _ = ec.cached_attention(*new, enc, cache=cache, times=times[300:])
    near = cache
    for _ in range(1000):
        near = near.moved(enc, by=-1)
    assert torch.equal(ec.cached_attention(*new, enc, cache=near, times=times[300:] - 1000)[0], expected)
    far = cache.moved(enc, by=10**15)
    assert torch.equal(ec.cached_attention(*new, enc, cache=far, times=times[300:] + 10**15)[0], expected)


BUILD = {
    "rope + nope": lambda: ec.rope(4) + ec.nope(4),
    "damped_rope": lambda: ec.damped_rope(8, heads=2, half_life=(100.0, 1e4)),
    "decay": lambda: ec.decay(8, half_life=200.0),
    "yarn, with its amplitude": lambda: ec.rope(8, freq=ec.yarn(4.0, original_length=64)),
    "pope, with its maps": lambda: ec.pope(8),
}


@pytest.mark.parametrize("name", ["rope", "alibi", "rope * alibi", "transformer_xl", "sandwich", *BUILD])
@pytest.mark.parametrize("length", [40, 700])
def test_any_encoding_of_the_group_moves(name, length):
    """Two prompts side by side: the second one moved apart from the first, and tokens after them."""
    enc = BUILD[name]() if name in BUILD else ec.encoding(name, head_dim=8, heads=2)
    q, k, v = inputs(length, F64)
    old = torch.arange(length - 2)
    new = torch.where(old < length // 3, old, old + 17)
    cache = ec.KVCache.of(k[:, :, :-2], v[:, :, :-2], enc).moved(enc, to=new)
    times = torch.cat([new, new[-1] + 1 + torch.arange(2)])
    expected = ec.attention(q[:, :, -2:], k, v, enc, times=times[-2:], key_times=times, backend="reference")
    out, _ = ec.cached_attention(q[:, :, -2:], k[:, :, -2:], v[:, :, -2:], enc, cache=cache)
    assert (out - expected).abs().max() < 1e-11


@pytest.mark.parametrize("given", ["count", "steps", "nanoseconds"])
@pytest.mark.parametrize("name", ["rope", "damped_rope", "rope * alibi", "jordan_rope"])
def test_two_prompts_become_one(name, given):
    """Each prompt was read by itself; the second is moved behind the first, and the next token goes on after it."""
    clock = ec.Timestamps("ns") if given == "nanoseconds" else ec.Index()
    enc = {
        "rope": lambda: ec.rope(8, clock=clock), "damped_rope": lambda: ec.damped_rope(8, heads=2, half_life=(100.0, 1e4), clock=clock),
        "rope * alibi": lambda: ec.rope(8, clock=clock) * ec.alibi(8, heads=2, clock=clock),
        "jordan_rope": lambda: ec.jordan_rope(8, heads=2, eta=0.01, half_life=500.0, clock=clock),
    }[name]()  # fmt: skip
    q, k, v = inputs(600, F64)
    times = torch.arange(600) if given == "count" else torch.randint(1, 9, (600,), generator=torch.Generator().manual_seed(2)).cumsum(0)
    times = times * 10**8 + 1_700_000_000_000_000_000 if given == "nanoseconds" else times
    words = (lambda cut: {}) if given == "count" else (lambda cut: {"times": times[cut] - (int(times[300]) if cut.start == 300 else 0)})
    first, second = (ec.KVCache.of(k[:, :, cut], v[:, :, cut], enc, **words(cut)) for cut in (slice(0, 300), slice(300, 598)))
    both = first.joined(second.moved(enc, by=300 if given == "count" else int(times[300])), enc)
    assert len(both) == 598 and (given != "count" or both.next_count.tolist() == [598])
    end = slice(598, 600)
    out, _ = ec.cached_attention(
        q[:, :, end], k[:, :, end], v[:, :, end], enc, cache=both, **({} if given == "count" else {"times": times[end]})
    )
    expected = ec.attention(q, k, v, enc, times=times, backend="reference")[:, :, end]
    assert (out - expected).abs().max() < 1e-9
    if name != "rope":
        with pytest.raises(ec.ClockError, match="begin before the end"):
            first.joined(second, enc)


@pytest.mark.parametrize("name", ["rope", "damped_rope"])
def test_stamps_move_to_stamps(name):
    """Nanoseconds, a row each: a night is taken out of what was stored."""
    clock = ec.Timestamps("ns", per="s")
    enc = ec.rope(8, clock=clock) if name == "rope" else ec.damped_rope(8, heads=2, half_life=("10min", "9h"), clock=clock)
    q, k, v = (x.repeat(2, 1, 1, 1) for x in inputs(400, F64))
    times = torch.randint(1, 2 * 10**9, (2, 400), generator=torch.Generator().manual_seed(4)).cumsum(-1) + 1_700_000_000_000_000_000
    apart = times + torch.where(torch.arange(400) < 150, 0, 8 * 3600 * 10**9)
    cache = ec.KVCache.of(k[:, :, :399], v[:, :, :399], enc, times=times[:, :399]).moved(enc, to=apart[:, :399])
    out, _ = ec.cached_attention(q[:, :, 399:], k[:, :, 399:], v[:, :, 399:], enc, cache=cache, times=apart[:, 399:])
    expected = ec.attention(q, k, v, enc, times=apart, backend="reference")[:, :, 399:]
    assert (out - expected).abs().max() < 1e-9


def test_a_count_moves_along():
    enc, k = ec.rope(8), torch.randn(1, 2, 10, 8)
    cache = ec.KVCache.of(k, k, enc).drop(slice(0, 4), enc)
    assert cache.next_count.tolist() == [10]
    assert cache.moved(enc, by=-4).next_count.tolist() == [6]
    assert cache.moved(enc, by=-4).moved(enc, to=torch.arange(6) + 2).next_count.tolist() == [8]
    assert cache.moved(enc, by=-4).append(k, k, enc).next_count.tolist() == [16]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: ec.axial_rope(8, clock=ec.Axes(("x", "y"), order="x")), "2 numbers"),
        (lambda: ec.m_rope(8), "numbers"),
        (lambda: ec.fox(8, heads=2, features=5), "learned clock"),
        (lambda: ec.selective_rope(8, heads=2, features=5), "learned clock"),
        (lambda: ec.rope(8, freq=ec.dynamic(2.0, original_length=64).at(128)), "length of the sequence"),
        (lambda: ec.alibi(8, heads=2) * ec.rope(8, freq=ec.dynamic(2.0, original_length=64).at(128)), "length of the sequence"),
        (lambda: ec.t5_bias(8, heads=2), "breaks continuity"),
        (lambda: ec.sinusoidal(8), "translation invariance"),
    ],
)  # fmt: skip
def test_where_the_law_does_not_allow_it(build, words):
    enc = build()
    with pytest.raises(ec.UnsupportedError, match=words) as caught:
        ec.moved_keys(torch.zeros(1, 2, 3, 8), enc, stored_at=torch.arange(3), move_to=torch.arange(3))
    assert "not valid" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_keys_that_decayed_are_not_called_back():
    """What underflowed at the end of its chunk cannot come nearer again: said, never guessed."""
    enc = ec.damped_rope(8, heads=2, half_life=0.5)
    k = torch.randn(1, 2, 600, 8)
    cache = ec.KVCache.of(k, k, enc)
    with pytest.raises(ec.UnsupportedError, match="decayed by"):
        cache.drop(slice(1, 599), enc).moved(enc, to=torch.arange(2))
    assert len(cache.moved(enc, to=torch.arange(600) * 2)) == 600  # gaps may grow
    with pytest.raises(ec.GrowthError, match="multiply keys"):
        ec.moved_keys(k, enc, stored_at=torch.zeros(600), move_to=torch.arange(600.0))
    with pytest.raises(ec.ClockError, match="go back"):
        cache.moved(enc, to=torch.arange(600).flip(0))


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({}, "neither by= nor to="),
        ({"by": 1, "to": torch.arange(5)}, "both by= and to="),
        ({"by": True}, "expected a number"),
        ({"to": torch.arange(4)}, "4 times for 5 stored tokens"),
    ],
)
def test_other_arguments(keywords, words):
    k = torch.zeros(1, 2, 5, 8)
    cache = ec.KVCache.of(k, k, ec.rope(8))
    with pytest.raises(ec.EigenclockError, match=words):
        cache.moved(ec.rope(8), **keywords)
    with pytest.raises(ec.ShapeError, match="width|floating"):
        ec.moved_keys(k[..., :6], ec.rope(8), stored_at=torch.arange(5), move_to=torch.arange(5))
    with pytest.raises(ec.ShapeError, match="one for each"):
        ec.moved_keys(k, ec.rope(8), stored_at=torch.arange(4), move_to=torch.arange(4))
