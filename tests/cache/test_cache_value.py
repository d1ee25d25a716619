"""The cache as a value: forks, rows, files, what is dropped; and what is refused, with one clear error each."""

import dataclasses
import errno
from itertools import pairwise

import pytest
import torch

import eigenclock as ec
from cache.conftest import F64, RATES, B, D, H, V, close, cut, full, in_pieces, inputs, irregular, normal, one_pass

DAMPED = {"heads": H, "rate": RATES}


def parts(cache: ec.KVCache) -> dict[str, object]:
    """Everything a cache holds, by name."""
    own = {f.name: getattr(cache, f.name) for f in dataclasses.fields(cache) if f.name != "store"}
    return own | {name: run.tensor for name, run in cache.store.runs().items()} | {"first": cache.store.first}


def equal(a: ec.KVCache, b: ec.KVCache) -> bool:
    left, right = parts(a), parts(b)
    return left.keys() == right.keys() and all(
        torch.equal(x, y) and x.dtype == y.dtype if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) else x == y
        for x, y in zip(left.values(), right.values(), strict=True)
    )


def example(length: int = 300, enc: ec.Encoding | None = None, **keywords) -> ec.KVCache:
    q, k, v = inputs(length, dtype=torch.float32)
    return ec.cached_attention(q, k, v, enc or ec.damped_rope(D, **DAMPED), **keywords)[1]


CALLS = {
    "count": {},
    "stamps": {"times": torch.arange(300) + 1_700_000_000_000_000_000},
    "float times": {"times": irregular(B, 300) + 1e9},
    "padding": {"mask": torch.arange(300).expand(B, 300) >= torch.tensor([[2], [270]])},
}
BUILD = {
    "damped_rope": lambda: ec.damped_rope(D, **DAMPED),
    "rope": lambda: ec.rope(D),
    "alibi": lambda: ec.alibi(D, heads=H),
    "jordan_rope": lambda: ec.jordan_rope(D, heads=H, eta=0.2, half_life=9.0),
    "transformer_xl": lambda: ec.transformer_xl(D, heads=H),
    "fox": lambda: ec.fox(D, heads=H, features=5),
    "t5_bias": lambda: ec.t5_bias(D, heads=H),
}
LONE = {
    "pope": lambda: ec.pope(D),
    "sinusoidal": lambda: ec.sinusoidal(D),
    "selective_rope": lambda: ec.selective_rope(D, heads=H, features=5),
}


# --- values: what one holder does, no other sees ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILD)
def test_forks_do_not_see_each_other(name):
    """Two continuations of one cache write into the same spare memory; each gives what it would alone, in any order."""
    enc, length = BUILD[name](), 262
    keywords = {"x": normal(B, length + 8, 5, seed=3)} if name == "fox" else {}
    base = inputs(length)
    _, _, cache = in_pieces(base, enc, [255, *[1] * 7], **{n: x[:, :length] for n, x in keywords.items()})
    before = parts(cache.fork())
    branches = []
    for seed in (50, 60):
        new = inputs(8, seed=seed)
        branches.append([torch.cat([a, b], 2) for a, b in zip(base, new, strict=True)])
    caches, outs = [cache, cache], [[], []]
    for i in range(8):  # one step each, in turn
        for j in (0, 1):
            out, _, caches[j] = in_pieces(branches[j], enc, [1], caches[j], length + i, **keywords)
            outs[j].append(out)
    for j in (0, 1):
        close(torch.cat(outs[j], 2), full(branches[j], enc, **keywords)[0][:, :, length:])
    now = parts(cache)
    assert all(torch.equal(x, now[n]) for n, x in before.items() if isinstance(x, torch.Tensor))  # type: ignore[arg-type]


def test_appending_shares_memory():
    """A step copies what is new, not what is there."""
    cache = example(3000)
    grown = ec.cached_attention(*inputs(1, dtype=torch.float32), ec.damped_rope(D, **DAMPED), cache=cache)[1]
    again = ec.cached_attention(*inputs(1, dtype=torch.float32), ec.damped_rope(D, **DAMPED), cache=grown)[1]
    assert again.store.keys.tensor.data_ptr() == grown.store.keys.tensor.data_ptr() == cache.store.keys.tensor.data_ptr()
    assert again.store.ticks.tensor.data_ptr() == grown.store.ticks.tensor.data_ptr() != cache.store.ticks.tensor.data_ptr()


def test_fork_detach_and_device():
    tensors = [x.requires_grad_() for x in inputs(300)]
    cache = ec.cached_attention(*tensors, ec.damped_rope(D, **DAMPED))[1]
    fork = cache.fork()
    assert equal(fork, cache) and equal(cache.to("cpu"), cache) and equal(cache.detach(), cache)
    assert fork.store.keys.tensor.data_ptr() != cache.store.keys.tensor.data_ptr()
    assert fork.store.keys.tensor.requires_grad and fork.store.open_keys.tensor.requires_grad
    assert not any(x.requires_grad for x in parts(cache.detach()).values() if isinstance(x, torch.Tensor))


def test_the_cache_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        example().count = torch.zeros(1)  # type: ignore[misc]


def test_a_step_without_gradients_leaves_a_graph_alone():
    """Keys that a graph has saved are not written over when the same cache grows later."""
    enc, q = ec.rope(D), inputs(1)[0].requires_grad_()
    with torch.no_grad():
        cache = example(40, enc)
    with torch.no_grad():
        out, cache = ec.cached_attention(*inputs(1, dtype=torch.float32), enc, cache=cache)
    q = q.float().detach().requires_grad_()
    _, k, v = inputs(1, dtype=torch.float32)
    out, later = ec.cached_attention(q, k, v, enc, cache=cache)
    with torch.no_grad():
        for _ in range(3):
            later = ec.cached_attention(*inputs(1, dtype=torch.float32), enc, cache=later)[1]
    out.sum().backward()
    assert q.grad is not None and bool(q.grad.isfinite().all())


def test_inference_mode_and_outside_it():
    enc = ec.damped_rope(D, **DAMPED)
    with torch.inference_mode():
        cache = example(20, enc)
        cache = ec.cached_attention(*inputs(1, dtype=torch.float32), enc, cache=cache)[1]
    with torch.no_grad():
        out, cache = ec.cached_attention(*inputs(1, dtype=torch.float32), enc, cache=cache)
    assert len(cache) == 22 and bool(out.isfinite().all())


@pytest.mark.parametrize("name", BUILD)
def test_rows_are_picked_in_any_order(name):
    """A beam search: the rows of the new batch go on as their ancestors would."""
    enc, length = BUILD[name](), 270
    keep = torch.arange(length).expand(B, length) >= torch.tensor([[0], [4]])
    keywords = {"x": normal(B, length + 3, 5, seed=3)} if name == "fox" else {}
    cache = in_pieces(inputs(length), enc, [length], mask=keep, **keywords)[2]
    rows = torch.tensor([1, 1, 0])
    new = inputs(3, seed=30)
    later = {n: x[:, length:] for n, x in keywords.items()}
    got = in_pieces([x[rows] for x in new], enc, [1, 2], cache.select(rows), **{n: x[rows] for n, x in later.items()})[0]
    close(got, in_pieces(new, enc, [3], cache, **later)[0][rows], 1e-12)
    assert cache.select([0]).batch == 1


@pytest.mark.parametrize("rows", [[2], [-1], [[0]], [0.5], [True]])
def test_rows_that_are_not_there(rows):
    with pytest.raises(ec.ShapeError, match="rows"):
        example().select(rows)


@pytest.mark.parametrize("name", [*BUILD, "pope", "sinusoidal", "selective_rope"])
def test_append_is_a_step_without_queries(name):
    enc, (q, k, v), cuts = BUILD[name]() if name in BUILD else LONE[name](), inputs(300), (0, 200, 260, 261, 300)
    keywords = {"x": normal(B, 300, 5, seed=3)} if enc.clock.sums else {}
    _, _, expected = in_pieces((q, k, v), enc, [200, 60, 1, 39], **keywords)
    cache = None
    for low, high in pairwise(cuts):
        part, words = (k[:, :, low:high], v[:, :, low:high], enc), cut(keywords, low, high)
        cache = ec.KVCache.of(*part, **words) if cache is None else cache.append(*part, **words)
    assert cache is not None and equal(cache, expected)


# --- what is let go ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*BUILD])
@pytest.mark.parametrize("window", [7, 300])
def test_evicting_what_a_window_does_not_reach_changes_nothing(name, window):
    enc, length = BUILD[name](), 620
    tensors = inputs(length)
    keywords = {"x": normal(B, length, 5, seed=3)} if name == "fox" else {}
    expected, lse = one_pass(tensors, enc, window=window, **keywords)
    cache, outs, lses, start = None, [], [], 0
    for n in [300, 1, 1, 270, *[1] * 3, 45]:
        out, one, cache = in_pieces(tensors, enc, [n], cache, start, window=window, **keywords)
        cache = cache.evict(window)
        assert len(cache) <= window
        outs.append(out)
        lses.append(one)
        start += n
    close(torch.cat(outs, 2), expected)
    close(torch.cat(lses, 2), lse)


@pytest.mark.parametrize("name", ["rope", "damped_rope", "alibi"])
def test_evicting_what_a_duration_does_not_reach_changes_nothing(name):
    """Irregular nanoseconds, padding on the left, a window of half a minute."""
    clock, length = ec.Timestamps("ns"), 600
    enc = {
        "rope": ec.rope(D, clock=clock), "damped_rope": ec.damped_rope(D, heads=H, half_life=("1s", "1h"), clock=clock),
        "alibi": ec.alibi(D, heads=H, clock=clock),
    }[name]  # fmt: skip
    steps = torch.randint(0, 10**9, (B, length), generator=torch.Generator().manual_seed(0))
    steps[:, 400] = 20 * 10**9
    times = steps.cumsum(-1) + 1_700_000_000_000_000_000
    mask = torch.arange(length).expand(B, length) >= torch.tensor([[0], [150]])
    keywords = {"times": times, "mask": mask, "window": "30s"}
    tensors = inputs(length)
    expected, lse = one_pass(tensors, enc, **keywords)
    cache, start, lengths = None, 0, []
    for n in [350, 40, *[1] * 4, 200, *[1] * 6]:
        out, one, cache = in_pieces(tensors, enc, [n], cache, start, **keywords)
        cache = cache.evict("30s")
        piece = slice(start, start + n)
        close(out, expected[:, :, piece], rows=mask[:, piece])
        close(one, lse[:, :, piece], rows=mask[:, piece])
        start += n
        lengths.append(len(cache))
    assert max(lengths[1:]) < 250


def test_evicted_memory_is_given_back():
    enc, cache = ec.rope(D), None
    for _ in range(40):
        _, k, v = inputs(256, dtype=torch.float32)
        cache = ec.KVCache.of(k, v, enc) if cache is None else cache.append(k, v, enc).evict(300)
    assert cache is not None
    assert len(cache) == 300 and cache.next_count.tolist() == [40 * 256]
    assert cache.store.keys.tape.data.shape[0] <= 8
    assert len(cache.evict(0)) == 0


@pytest.mark.parametrize("name", ["rope", "damped_rope", "alibi", "jordan_rope", "t5_bias"])
@pytest.mark.parametrize("gone", [slice(0, 3), slice(2, 258), slice(None, None, 2), slice(550, None)])
def test_dropped_tokens_are_as_if_they_were_masked(name, gone):
    enc, length = BUILD[name](), 560
    q, k, v = inputs(length + 3)
    cache = ec.KVCache.of(k[:, :, :length], v[:, :, :length], enc)
    shorter = cache.drop(gone, enc)
    mask = torch.ones(B, length + 3, dtype=torch.bool)
    mask[:, :length][:, gone] = False
    expected = one_pass((q, k, v), enc, times=torch.arange(length + 3), mask=mask)[0][:, :, length:]
    close(in_pieces((q, k, v), enc, [1, 2], shorter, length)[0], expected)
    assert len(shorter) == int(mask[0, :length].sum()) and len(cache) == length
    # also of a cache that has lost its oldest tokens, and of one that moved
    late = cache.evict(length - 1).drop(slice(gone.start and gone.start - 1, None), enc) if gone.step is None and gone.start else None
    assert late is None or len(late) == gone.start - 1


def test_dropping_after_a_move():
    enc, (q, k, v) = BUILD["rope"](), inputs(41)
    moved = ec.KVCache.of(k[:, :, :40], v[:, :, :40], enc).moved(enc, to=torch.arange(40) * 3)
    times = torch.arange(40) * 3
    for one, kept in (
        (moved.evict(30), torch.arange(10, 40)),
        (moved.drop(slice(5, 20), enc), torch.cat([torch.arange(5), torch.arange(20, 40)])),
    ):
        again = times[kept] + 2 * torch.arange(len(kept))
        back = one.moved(enc, to=again)
        new = torch.tensor([int(again[-1]) + 1])
        parts_of = [torch.cat([x[:, :, kept], x[:, :, 40:]], 2) for x in (q, k, v)]
        expected = one_pass(parts_of, enc, times=torch.cat([again, new]))[0][:, :, -1:]
        close(in_pieces((q, k, v), enc, [1], back, 40)[0], expected)


# --- files -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CALLS)
def test_files_hold_everything(tmp_path, name):
    pytest.importorskip("safetensors")
    cache = example(**CALLS[name])
    cache.save(tmp_path / "folder" / "cache.safetensors")
    assert equal(ec.KVCache.load(tmp_path / "folder" / "cache.safetensors"), cache)


@pytest.mark.parametrize("name", BUILD)
def test_a_loaded_cache_goes_on(tmp_path, name):
    pytest.importorskip("safetensors")
    enc, tensors = BUILD[name](), inputs(320)
    keywords = {"x": normal(B, 320, 5, seed=3)} if name == "fox" else {}
    _, _, cache = in_pieces(tensors, enc, [290], **keywords)
    cache = cache.evict(280)
    cache.save(tmp_path / "cache.safetensors")
    loaded = ec.KVCache.load(tmp_path / "cache.safetensors")
    assert equal(loaded, cache)
    got = in_pieces(tensors, enc, [1, 29], loaded, 290, **keywords)[0]
    close(got, in_pieces(tensors, enc, [30], cache, 290, **keywords)[0], 1e-12)


def test_a_file_is_whole_or_not_there(tmp_path, monkeypatch):
    pytest.importorskip("safetensors")
    from eigenclock.present import files

    path = tmp_path / "cache.safetensors"
    example().save(path)
    before = path.read_bytes()

    def no_space(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "_write_all", no_space)
    with pytest.raises(ec.EigenclockError, match="no space is left"):
        example(**CALLS["stamps"]).save(path)
    assert path.read_bytes() == before


def test_files_that_are_no_caches(tmp_path, monkeypatch):
    package = pytest.importorskip("safetensors.torch")
    text, other = tmp_path / "text.safetensors", tmp_path / "other.safetensors"
    text.write_text("not a cache")
    package.save_file({"weight": torch.zeros(3)}, other)
    for path in (text, other):
        with pytest.raises(ec.ConfigError, match=r"expected a cache that KVCache\.save wrote"):
            ec.KVCache.load(path)
    with pytest.raises(ec.EigenclockError, match="no such file"):
        ec.KVCache.load(tmp_path / "missing.safetensors")
    monkeypatch.setitem(__import__("sys").modules, "safetensors.torch", None)
    for act in (lambda: example().save(other), lambda: ec.KVCache.load(other)):
        with pytest.raises(ec.UnsupportedError, match="pip install safetensors"):
            act()


# --- what is refused ---------------------------------------------------------------------------------------------------------------


def refuse(error: type[Exception], words: str, cache: object, *, length: int = 6, enc: ec.Encoding | None = None, **keywords) -> None:
    with pytest.raises(error, match=words) as caught:
        ec.cached_attention(*inputs(length), enc or ec.decay(D, half_life=9.0), cache=cache, **keywords)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_caches_that_do_not_fit():
    enc = ec.decay(D, half_life=9.0)
    cache = ec.cached_attention(*inputs(6), enc)[1]
    refuse(ec.ConfigError, "expected the encoding it was made with", cache, enc=ec.rope(D))
    frozen = ec.rope(D, freq=ec.dynamic(2.0, original_length=64).at(100))
    longer = ec.rope(D, freq=ec.dynamic(2.0, original_length=64).at(200))  # other frequencies: keys turned at 100 no longer match
    refuse(ec.ConfigError, "expected the encoding it was made with", ec.KVCache.of(*inputs(6)[1:], frozen), enc=longer)
    refuse(ec.ShapeError, r"cache\.select", cache.select([0]))
    refuse(ec.ConfigError, "own count and given times", cache, times=torch.arange(6) + 6)
    refuse(ec.ConfigError, "expected the KVCache", cache.store)
    refuse(ec.ShapeError, "expected one dtype", ec.cached_attention(*inputs(6, dtype=torch.float32), enc)[1])
    timed = ec.cached_attention(*inputs(6), enc, times=torch.arange(6))[1]
    refuse(ec.ConfigError, "given times and none", timed)
    with pytest.raises(ec.ConfigError, match="expected the encoding it was made with"):
        cache.append(*inputs(6)[1:], ec.rope(D))
    with pytest.raises(ec.ConfigError, match="without a count"):
        timed.next_count  # noqa: B018
    q, k, v = inputs(2, 2)
    with pytest.raises(ec.ShapeError, match="2 rows, 4 key heads"):
        ec.cached_attention(q, k, v, enc, cache=cache)
    if torch.device("meta"):  # another device than the cache's
        with pytest.raises(ec.ShapeError, match=r"expected one device: cache\.to"):
            ec.cached_attention(*(x.to("meta") for x in inputs(1)), enc, cache=cache)


def test_bad_times():
    enc = ec.decay(D, half_life=9.0)
    nan = torch.arange(6.0)
    nan[2] = torch.nan
    refuse(ec.ClockError, "NaN", None, times=nan)
    refuse(ec.ClockError, "go back at token 3", None, times=torch.tensor([0.0, 1, 2, 1, 4, 5]))
    refuse(ec.ShapeError, "times for 5 tokens", None, times=torch.arange(5))
    refuse(ec.ClockError, "go back.*does not sort", None, times=torch.tensor([0, 1, 2, 1, 4, 5]),
           enc=ec.decay(D, rate=0.1, clock=ec.Index(decreasing="sort")))  # fmt: skip
    cache = ec.cached_attention(*inputs(6), enc, times=torch.arange(6) + 10)[1]
    refuse(ec.ClockError, "go back at token 0 .*from the last token of the cache", cache, times=torch.arange(6) + 14)
    rope = ec.rope(D)  # what only turns takes times in any order
    times = torch.tensor([0.0, 3, 1, 1, 9, 2])
    tensors = inputs(6)
    close(in_pieces(tensors, rope, [2, 1, 3], times=times)[0], full(tensors, rope, times=times)[0])


def test_other_arguments():
    enc = ec.decay(D, half_life=9.0)
    refuse(ec.ShapeError, "key padding", None, mask=torch.ones(1, 1, 6, 6, dtype=torch.bool))
    refuse(ec.ConfigError, "window=0", None, window=0)
    refuse(ec.ClockError, "activations", None, enc=ec.fox(D, heads=H, features=5))
    refuse(ec.UnsupportedError, "linear_attention", None, enc=ec.mamba3(D, heads=H, features=5), x=normal(B, 6, 5))
    q, k, v = inputs(6)
    with pytest.raises(ec.ShapeError, match="6 queries and 5 keys"):
        ec.cached_attention(q, k[:, :, :5], v[:, :, :5], enc)
    cache = ec.cached_attention(q, k, v, enc)[1]
    for keep in (-1, True, 2.5):
        with pytest.raises(ec.ConfigError, match="keep="):
            cache.evict(keep)  # type: ignore[arg-type]
    with pytest.raises(ec.ConfigError, match="counts steps"):
        cache.evict("30min")
    with pytest.raises(ec.ConfigError, match="slice"):
        cache.drop(3, enc)  # type: ignore[arg-type]
    assert cache.value_width == V and cut({}, 0, 1) == {} and q.dtype == F64
