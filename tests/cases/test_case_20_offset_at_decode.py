"""Case 20: what a call at an offset gives depends on its own offset only."""

import pytest
import torch

import eigenclock as ec


def turned(enc, x, times):
    return enc.generator().act(x, -times)


def rows(case, length, dtype=torch.float32):
    return torch.tensor(case["given"]["x_each_step"], dtype=dtype).expand(1, 1, length, -1)


@pytest.mark.parametrize("variant", ["contiguous", "transposed", "two rows, one step", "strided last axis"])
def test_numbers_of_the_case_in_its_order(case, variant):
    given, expect = case["given"], case["expect"]
    enc = ec.rope(given["width"], theta=given["theta"], pairing=given["layout"])
    for call in given["calls_in_this_order"] + given["calls_in_this_order"][::-1]:
        offset, length = call["offset"], call["length"]
        x, times = rows(case, length).contiguous(), torch.arange(offset, offset + length)
        expected = torch.tensor(expect["rotated"][str(offset)], dtype=torch.float64)
        if variant == "transposed":
            x = x.transpose(1, 2).contiguous().transpose(1, 2)
        if variant == "strided last axis":
            x = torch.stack([x, x + 9], -1)[..., 0]
        if variant == "two rows, one step":
            for i in range(length):
                before = x[:, :, i : i + 1].expand(2, 1, 1, -1)
                y = turned(enc, before, times[i : i + 1])
                assert torch.equal(y[0], y[1])
                assert torch.allclose(y[0, 0, 0].double(), expected[i], rtol=0, atol=expect["abs_tol"])
            continue
        kept = x.clone()
        y = turned(enc, x, times)
        assert torch.allclose(y[0, 0].double(), expected, rtol=0, atol=expect["abs_tol"])
        assert torch.equal(x, kept), "the input was changed in place"


@pytest.mark.parametrize("offset", [0, 13, 15, 16, 1_000, 1_048_576, -5])
@pytest.mark.parametrize(
    ("width", "theta", "pairing"), [(4, 1e4, "half"), (4, 1e4, "interleaved"), (64, 5e5, "half"), (10, 50.0, "interleaved")]
)
def test_there_is_no_end_of_a_table_and_negative_times_invert(offset, width, theta, pairing):
    torch.manual_seed(0)
    x, times = torch.randn(2, 3, 7, width, dtype=torch.float64), torch.arange(offset, offset + 7)
    enc = ec.rope(width, theta=theta, pairing=pairing)
    y = turned(enc, x, times)
    f = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = times.double()[:, None] * f
    first = torch.arange(0, width, 2) if pairing == "interleaved" else torch.arange(width // 2)
    second = first + (1 if pairing == "interleaved" else width // 2)
    expected = torch.empty_like(x)
    expected[..., first] = x[..., first] * angle.cos() - x[..., second] * angle.sin()
    expected[..., second] = x[..., first] * angle.sin() + x[..., second] * angle.cos()
    assert torch.allclose(y, expected, rtol=0, atol=1e-9)
    assert torch.allclose(turned(enc, y, -times), x, rtol=0, atol=1e-12)


BUILD = {
    "rope": lambda: ec.rope(8, pairing="half"),
    "rope per head": lambda: ec.rope(8, heads=4, theta=(1e2, 1e3, 1e4, 1e5)),
    "alibi": lambda: ec.alibi(8, heads=4),
    "damped_rope": lambda: ec.damped_rope(8, heads=4, half_life=(3, 300)),
    "decay": lambda: ec.decay(8, rate=0.01),
    "rope * alibi": lambda: ec.rope(8) * ec.alibi(8, heads=4),
    "nope": lambda: ec.nope(8),
}


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
@pytest.mark.parametrize("times_given", [False, True])
@pytest.mark.parametrize("queries", [1, 3, 8])
@pytest.mark.parametrize("name", BUILD)
def test_decode_equals_the_full_pass(attend, name, queries, times_given, backend):
    torch.manual_seed(1)
    enc = BUILD[name]()
    q, k, v = (torch.randn(2, 4, 150, 8, dtype=torch.float64) for _ in range(3))
    full = ec.attention(q, k, v, enc)
    for end in (queries, 17, 64, 150):
        times = {"times": torch.arange(end - queries, end), "key_times": torch.arange(end)} if times_given else {}
        out = attend(q[:, :, end - queries : end], k[:, :, :end], v[:, :, :end], enc, backend=backend, **times)
        assert torch.allclose(out, full[:, :, end - queries : end], rtol=0, atol=1e-11)


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
@pytest.mark.parametrize("name", ["rope", "alibi", "nope", "decay"])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_few_kv_heads_strides_and_equal_rows(attend, name, kv_heads, backend):
    torch.manual_seed(2)
    enc = BUILD[name]()
    q = (
        torch.randn(1, 20, 4, 8, dtype=torch.float64).expand(2, -1, -1, -1).transpose(1, 2)
    )  # (batch, time, heads, width) seen as (B, H, T, D)
    k, v = (torch.randn(1, 20, kv_heads, 8, dtype=torch.float64).expand(2, -1, -1, -1).transpose(1, 2) for _ in range(2))
    kept = [x.clone() for x in (q, k, v)]
    out = attend(q, k, v, enc, times=torch.arange(100, 120), backend=backend)
    assert torch.equal(out[0], out[1])
    repeated = [x.repeat_interleave(4 // kv_heads, 1).contiguous() for x in (k, v)]
    assert torch.allclose(out, ec.attention(q.contiguous(), *repeated, enc, backend="reference"), rtol=0, atol=1e-11)
    for x, y in zip((q, k, v), kept, strict=True):
        assert torch.equal(x, y), "an input was changed in place"


def test_calls_do_not_remember_each_other():
    torch.manual_seed(3)
    q, k, v = (torch.randn(1, 2, 9, 8) for _ in range(3))
    enc = ec.damped_rope(8, half_life=5.0)
    first = ec.attention(q, k, v, enc, times=torch.arange(9))
    for start, n in ((50, 3), (0, 1), (1_000_000, 9)):
        ec.attention(q[:, :, :n], k[:, :, :n], v[:, :, :n], enc, times=torch.arange(start, start + n))
    assert torch.equal(first, ec.attention(q, k, v, enc, times=torch.arange(9)))
