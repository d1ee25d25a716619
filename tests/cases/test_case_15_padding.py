"""Case 15: padded rows give their real tokens what the same tokens get alone, whatever stands in the pads."""

import pytest
import torch
from torch import Tensor

import eigenclock as ec

BUILD = {
    "rope": lambda: ec.rope(8, heads=2, pairing="half"),
    "partial": lambda: ec.rope(8, heads=2, rotary_dim=4),
    "alibi": lambda: ec.alibi(8, heads=2),
    "decay_bias": lambda: ec.decay_bias(8, heads=2, half_life=3.0),
    "damped_rope": lambda: ec.damped_rope(8, heads=2, half_life=(2, 50)),
    "rope * alibi": lambda: ec.rope(8, heads=2) * ec.alibi(8, heads=2),
    "nope": lambda: ec.nope(8, heads=2),
}
LAYOUTS = {
    "left": lambda real, pads: [0] * pads + [1] * real,
    "right": lambda real, pads: [1] * real + [0] * pads,
    "interior": lambda real, pads: [1] * (real // 2) + [0] * pads + [1] * (real - real // 2),
    "scattered": lambda real, pads: (
        ([0, 1] * max(real, pads))[: 2 * min(real, pads)] + [1] * max(real - pads, 0) + [0] * max(pads - real, 0)
    ),
}


def spread(x: Tensor, mask: Tensor, fill: float) -> Tensor:
    """Real tokens at the columns where the mask is 1, ``fill`` elsewhere."""
    out = x.new_full((*x.shape[:-2], len(mask), x.shape[-1]), fill)
    out[..., mask, :] = x
    return out


def test_numbers_of_the_case(case):
    given, expect = case["given"], case["expect"]
    mask = torch.tensor(given["attention_mask"]).bool()
    enc = ec.rope(given["width"], theta=given["theta"], pairing=given["layout"])
    q, k = (torch.tensor(given[name])[None, None] for name in "qk")
    for padded in (False, True):
        rows_q, rows_k = (spread(q, mask, 1e4), spread(k, mask, -1e4)) if padded else (q, k)
        z = ec.scores(rows_q, rows_k, enc, mask=mask[None] if padded else None, scale=1.0)[0, 0]
        z = z[mask][:, mask] if padded else z
        for i, row in enumerate(expect["scores_on_real_tokens"]):
            assert torch.allclose(z[i, : i + 1], torch.tensor(row, dtype=torch.float64), rtol=0, atol=expect["abs_tol"])
            assert (z[i, i + 1 :] == -torch.inf).all()


def test_positions_of_the_case_are_counted_over_real_tokens(case):
    mask = torch.tensor(case["given"]["attention_mask"])
    assert (mask.cumsum(0) - 1)[mask.bool()].tolist() == case["expect"]["positions_of_real_tokens"]


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BUILD)
@pytest.mark.parametrize(("real", "pads"), [(5, 3), (150, 37)])
@pytest.mark.parametrize("times_given", [True, False])
def test_real_tokens_do_not_see_their_pads(attend, name, layout, real, pads, backend, times_given):
    """Times count real tokens, given so or by the index clock itself, which a pad stops.

    Outputs and gradients of the real tokens are what they are alone; gradients of pads are zero.
    """
    torch.manual_seed(1)
    enc = BUILD[name]()
    mask = torch.tensor(LAYOUTS[layout](real, pads)).bool()
    q, k, v, g = (torch.randn(1, 2, real, 8, dtype=torch.float64) for _ in range(4))
    alone = [x.clone().requires_grad_() for x in (q, k, v)]
    padded = [spread(x, mask, fill).requires_grad_() for x, fill in ((q, 3.0), (k, -50.0), (v, 1e3))]
    expected = attend(*alone, enc, backend=backend)
    times = (mask.long().cumsum(0) - 1).clamp_min(0)
    out = attend(*padded, enc, times=times if times_given else None, mask=mask[None], backend=backend)
    assert torch.isfinite(out).all()
    assert torch.allclose(out[..., mask, :], expected, rtol=0, atol=1e-10)
    expected.backward(g)
    out.backward(spread(g, mask, 0.0))
    for a, b in zip(alone, padded, strict=True):
        assert torch.allclose(b.grad[..., mask, :], a.grad, rtol=0, atol=1e-9)
        assert (b.grad[..., ~mask, :] == 0).all()


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
@pytest.mark.parametrize("name", ["rope", "alibi", "damped_rope"])
def test_rows_of_different_padding_do_not_share_a_counter(attend, name, backend):
    torch.manual_seed(2)
    enc = BUILD[name]()
    q, k, v = (torch.randn(1, 2, 40, 8, dtype=torch.float64) for _ in range(3))
    masks = torch.zeros(4, 40, dtype=torch.bool)
    for row, pads in enumerate((0, 1, 17, 39)):
        masks[row, pads:] = True
    rows = [torch.cat([spread(x[:, :, : int(m.sum())], m, 9.0) for m in masks]) for x in (q, k, v)]
    times = (masks.long().cumsum(1) - 1).clamp_min(0)
    out = attend(*rows, enc, times=times, mask=masks, backend=backend)
    for row, m in enumerate(masks):
        n = int(m.sum())
        alone = attend(q[:, :, :n], k[:, :, :n], v[:, :, :n], enc, backend=backend)
        assert torch.allclose(out[row, :, m], alone[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", BUILD)
@pytest.mark.parametrize("filler", [1, -7, 123_456], ids=str)
def test_times_of_pads_may_be_anything_finite(name, filler):
    """Also for a decay, where times must not decrease: a masked key has no say in that."""
    torch.manual_seed(3)
    enc = BUILD[name]()
    mask = torch.tensor([0] * 6 + [1] * 12 + [0] * 4).bool()
    q, k, v = (torch.randn(1, 2, 22, 8, dtype=torch.float64) for _ in range(3))
    counted = (mask.long().cumsum(0) - 1).clamp_min(0)
    base = ec.attention(q, k, v, enc, times=counted, mask=mask[None])
    other = ec.attention(q, k, v, enc, times=torch.where(mask, counted, filler), mask=mask[None])
    assert torch.isfinite(other).all()
    assert torch.allclose(other[..., mask, :], base[..., mask, :], rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
@pytest.mark.parametrize("name", BUILD)
def test_a_row_with_every_key_masked_gives_zeros(attend, name, backend, dtype):
    torch.manual_seed(4)
    q, k, v = (torch.randn(2, 2, 9, 8).to(dtype).requires_grad_() for _ in range(3))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1] = False
    mask[0, :3] = False
    out, lse = attend(q, k, v, BUILD[name](), mask=mask, return_lse=True, backend=backend)
    assert (out[1] == 0).all() and (out[0, :, :3] == 0).all() and (out[0, :, 3:] != 0).any()
    assert (lse[1] == -torch.inf).all() and torch.isfinite(lse[0, :, 3:]).all()
    out.double().sum().backward()
    for x in (q, k, v):
        assert torch.isfinite(x.grad).all() and (x.grad[1] == 0).all()
