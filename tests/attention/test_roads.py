"""Both roads under the tiles: the fused kernel behind the public call, and plain matrix products where it is not to be had."""

import pytest
import torch

import eigenclock as ec
from eigenclock.attention import ops
from eigenclock.attention.backends import sdpa

HEADS, WIDTH, LENGTH = 4, 8, 150
ENCODINGS = {
    "rope": lambda: ec.rope(WIDTH),
    "damped_rope": lambda: ec.damped_rope(WIDTH, heads=HEADS, half_life=(1.0, 60.0), learn="rate"),
    "fast decay": lambda: ec.decay(WIDTH, rate=3.0, learn="rate"),
    "alibi": lambda: ec.alibi(WIDTH, heads=HEADS, learn="slope"),
    "damped_rope * alibi": lambda: ec.damped_rope(WIDTH, half_life=20.0) * ec.alibi(WIDTH, heads=HEADS),
}
MODES = {
    "causal": {},
    "window": {"window": 40},
    "documents": {"documents": torch.arange(LENGTH) // 47},
    "padding": {"mask": torch.arange(LENGTH)[None] >= torch.tensor([[0], [31]])},
    "block mask": {"mask": torch.arange(LENGTH * LENGTH).reshape(1, 1, LENGTH, LENGTH) % 3 != 1},
}


def run(encoding, dtype, groups=HEADS, **mode):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, h, LENGTH, WIDTH, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for h in (HEADS, groups, groups)
    )
    out, lse = ec.attention(q, k, v, encoding, return_lse=True, **mode)
    weights = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(dtype)
    loss = (out * weights).sum() + lse.masked_fill(lse == -torch.inf, 0.0).sum()
    return [out, lse, *torch.autograd.grad(loss, [q, k, v, *encoding.parameters()])]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ENCODINGS)
def test_the_plain_road_gives_what_the_fused_kernel_gives(name, mode, monkeypatch):
    encoding = ENCODINGS[name]()
    fused = run(encoding, torch.float64, **MODES[mode])
    monkeypatch.setattr(ops, "use_fused", lambda q: False)
    plain = run(encoding, torch.float64, **MODES[mode])
    for a, b in zip(fused, plain, strict=True):
        assert torch.equal(a == -torch.inf, b == -torch.inf)
        torch.testing.assert_close(a.nan_to_num(neginf=0), b.nan_to_num(neginf=0), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_plain_road_shares_keys_in_groups(dtype, monkeypatch):
    fused = run(ec.alibi(WIDTH, heads=HEADS), dtype, groups=2)
    monkeypatch.setattr(ops, "use_fused", lambda q: False)
    plain = run(ec.alibi(WIDTH, heads=HEADS), dtype, groups=2)
    limit = {torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    for a, b in zip(fused, plain, strict=True):
        torch.testing.assert_close(a.float(), b.float(), rtol=limit, atol=limit)


def test_padding_and_bias_without_the_key_term(monkeypatch):
    encoding = ec.rope(WIDTH)
    want = run(encoding, torch.float64, **MODES["padding"])[0]
    q, k, v = (torch.randn(2, HEADS, LENGTH, WIDTH, dtype=torch.float64) for _ in range(3))
    free = ec.attention(q, k, v, encoding, backend="sdpa", **MODES["padding"])
    monkeypatch.setattr(sdpa, "key_term_is_free", lambda device: False)
    torch.testing.assert_close(ec.attention(q, k, v, encoding, backend="sdpa", **MODES["padding"]), free, rtol=1e-10, atol=1e-10)
    assert want.shape == free.shape
    with pytest.raises(ec.UnsupportedError, match="key term"):
        ec.attention(q, k, v, ec.alibi(WIDTH, heads=HEADS, slopes=0.01), backend="sdpa")


def test_a_kernel_that_is_wrong_is_not_used(monkeypatch):
    """The check of the fused kernel accepts a faithful stand-in and notices one that ignores its bias."""
    real, backward = (
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward,
    )

    def stand_in(faithful):
        def forward(q, k, v, dropout, causal, attn_mask=None, scale=None):
            return real(q, k, v, dropout, causal, attn_mask=attn_mask if faithful else None, scale=scale)

        names = {"_scaled_dot_product_flash_attention_for_cpu": forward, "_scaled_dot_product_flash_attention_for_cpu_backward": backward}
        return type("Aten", (), {name: staticmethod(f) for name, f in names.items()})

    try:
        for faithful in (True, False):
            ops.fused_is_sound.cache_clear()
            monkeypatch.setattr(torch.ops, "aten", stand_in(faithful))
            assert ops.fused_is_sound() is faithful
    finally:
        ops.fused_is_sound.cache_clear()


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_empty_axes_reach_no_kernel(shape):
    t, s = shape
    q, k = torch.zeros(1, 2, t, WIDTH), torch.zeros(1, 2, s, WIDTH)
    out, lse = ops.forward(q, k, k, False, None, 1.0)
    assert out.shape == q.shape and bool((lse == -torch.inf).all())
    assert [x.shape for x in ops.backward(out, q, k, k, out, lse, False, None, 1.0)] == [q.shape, k.shape, k.shape]


@pytest.mark.parametrize("backend", ["auto", "sdpa", "tiled", "reference"])
@pytest.mark.parametrize("name", ["rope", "alibi", "damped_rope"])
def test_layouts_of_memory(name, backend):
    """Transposed and strided tensors give what their contiguous copies give: fused kernels want neighbouring channels."""
    enc = ec.encoding(name, head_dim=8, heads=2)
    torch.manual_seed(0)
    plain = torch.randn(3, 1, 2, 64, 8)
    transposed, strided = plain.mT.contiguous().mT, torch.stack([plain, plain + 1], -1)[..., 0]
    try:
        expected = ec.attention(*plain, enc, backend=backend)
    except ec.UnsupportedError as refusal:
        pytest.skip(f"declined: {refusal}")
    for other in (transposed, strided):
        assert other.stride(-1) != 1
        assert torch.allclose(ec.attention(*other, enc, backend=backend), expected, rtol=0, atol=1e-6)
