"""PoPE: the sum of the paper written out, one cosine for each channel and pair."""

import math

import pytest
import torch
from torch import Tensor

import eigenclock as ec

F64 = torch.float64
H, D, T = 4, 6, 50


def written(q: Tensor, k: Tensor, delta: Tensor, times: Tensor, theta: float) -> Tensor:
    """a_ts = sum_c mu_q mu_k cos((s - t) theta^(-c/d) + delta_c) / sqrt(d), mu = ln(1 + e^x), channel by channel, delta (G, d)."""
    group, total = q.shape[1] // k.shape[1], torch.zeros(*q.shape[:3], k.shape[2], dtype=F64)
    for c in range(q.shape[-1]):
        angle = (times[None, :] - times[:, None]) * theta ** (-c / q.shape[-1])
        phase = angle + delta[:, c, None, None].repeat_interleave(group, 0)
        keys = torch.log1p(k[..., c].exp()).repeat_interleave(group, 1)
        total = total + torch.log1p(q[..., c].exp())[..., None] * keys[:, :, None] * phase.cos()
    return total / math.sqrt(q.shape[-1])


def attend(z: Tensor, v: Tensor, causal: bool = True) -> Tensor:
    if causal:
        z = z.masked_fill(torch.ones(z.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return z.softmax(-1) @ v.repeat_interleave(z.shape[1] // v.shape[1], 1)


def tensors(kv: int = H, seed: int = 0) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(2, heads, T, D, dtype=F64, generator=random) for heads in (H, kv, kv)]


def phases(enc: ec.Encoding) -> Tensor:
    """A leaf with the phases in effect, to train by hand."""
    return next(enc.parameters()).detach().double().clone().requires_grad_()


@pytest.mark.parametrize("backend", ["auto", "sdpa", "tiled", "reference"])
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv", [4, 2])
@pytest.mark.parametrize("causal", [True, False])
def test_written_out(agree, backend, dtype, kv, causal):
    times = (torch.rand(T, generator=torch.Generator().manual_seed(1)) * 2).double().cumsum(0)
    enc = ec.pope(D, heads=H, kv_heads=kv, theta=100.0, delta="uniform", seed=2)
    delta = phases(enc)
    agree(
        lambda q, k, v: ec.attention(q, k, v, enc, times=times, causal=causal, backend=backend),
        lambda q, k, v: attend(written(q, k, delta, times, 100.0), v, causal),
        *tensors(kv),
        dtype=dtype,
        extra=[(next(enc.parameters()), delta)],
        factor=3.0,  # sums run over twice the width
        slack=1e-7,  # phases and their gradients are kept in float32
    )


def test_scores_and_what_stands_at_lag_zero():
    q, k, _ = tensors()
    delta = torch.tensor([[-0.5, 0.0, -1.0, -2.0, -6.0, -3.0]], dtype=F64).expand(H, D)
    enc = ec.pope(D, heads=H, theta=30.0, delta=delta.tolist(), learn=())
    z = ec.scores(q, k, enc, causal=False)
    torch.testing.assert_close(z, written(q, k, delta, torch.arange(T).double(), 30.0), rtol=0, atol=1e-12)
    at_zero = torch.einsum("bhtc,bhtc,hc->bht", *(torch.log1p(x.exp()) for x in (q, k)), delta.cos()) / math.sqrt(D)
    torch.testing.assert_close(z.diagonal(dim1=-2, dim2=-1), at_zero, rtol=0, atol=1e-12)
    assert enc.breaks == "" and "A(0) = R(delta)" in enc.reads_in  # a member of the group, up to what stands beside it


@pytest.mark.parametrize("form", ["chunked", "recurrent", "parallel"])
def test_linear_attention_keeps_a_state_of_twice_the_width(form):
    q, k, v = tensors(kv=2)
    enc = ec.pope(D, heads=H, kv_heads=2, theta=50.0, delta="uniform")
    z = written(q, k, phases(enc).detach(), torch.arange(T).double(), 50.0).tril()
    expected = z @ v.repeat_interleave(2, 1)
    out, state = ec.linear_attention(q, k, v, enc, form=form)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-10)
    assert state.S.shape == (2, 2, 2 * D, D)
    first, state = ec.linear_attention(q[:, :, :20], k[:, :, :20], v[:, :, :20], enc, form=form)
    second, _ = ec.linear_attention(q[:, :, 20:], k[:, :, 20:], v[:, :, 20:], enc, form=form, state=state)
    torch.testing.assert_close(torch.cat([first, second], 2), expected, rtol=0, atol=1e-10)


def test_windows_and_decode_steps():
    q, k, v = tensors()
    enc = ec.pope(D, heads=H, delta="uniform")
    z = written(q, k, phases(enc).detach(), torch.arange(T).double(), 1e4)
    near = torch.ones(T, T, dtype=torch.bool).tril().triu(-6)
    expected = z.masked_fill(~near, -torch.inf).softmax(-1) @ v
    torch.testing.assert_close(ec.attention(q, k, v, enc, window=7), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(ec.attention(q[:, :, -1:], k, v, enc), attend(z, v)[:, :, -1:], rtol=0, atol=1e-10)


def test_phases_stay_in_their_interval_and_are_not_stuck_at_its_ends():
    q, k, v = (x[:, :1] for x in tensors())
    enc = ec.pope(D, delta=-0.02).double()
    raw = next(enc.parameters())
    with torch.no_grad():
        raw[:3], raw[3:] = 0.7, -9.0
    clamped = torch.tensor([0.0] * 3 + [-2 * math.pi] * 3, dtype=F64).requires_grad_()
    times = torch.arange(T).double()
    expected = attend(written(q, k, clamped[None], times, 1e4), v)
    out = ec.attention(q, k, v, enc)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-10)
    g = torch.randn_like(out)
    (got,), (want,) = torch.autograd.grad(out, [raw], g), torch.autograd.grad(expected, [clamped], g)
    inward = (want > 0) == (clamped > -1)  # descent lowers a phase at the upper end, raises one at the lower
    assert inward.any() and not inward.all()
    torch.testing.assert_close(got.double(), torch.where(inward, want, 0.0), rtol=1e-5, atol=1e-7)


def test_products_and_sums():
    q, k, _ = tensors()
    enc = ec.pope(D, heads=H) * ec.alibi(D, heads=H)
    lag = torch.arange(T)[:, None] - torch.arange(T)
    slopes = torch.tensor([0.25, 0.0625, 0.015625, 0.00390625], dtype=F64)
    z = written(q, k, torch.zeros(H, D, dtype=F64), torch.arange(T).double(), 1e4) - slopes[:, None, None] * lag
    seen = lag >= 0
    torch.testing.assert_close(ec.scores(q, k, enc)[..., seen], z[..., seen], rtol=0, atol=1e-12)
    both = ec.pope(4, heads=H) + ec.rope(2, heads=H)
    assert (both.width, str(both.form)) == (10, "5R")
    for other in (ec.rope(D, heads=H), ec.decay(D, heads=H, half_life=3.0), ec.transformer_xl(D, heads=H)):
        with pytest.raises(ec.UnsupportedError, match="acts on 12 channels"):
            ec.pope(D, heads=H) * other


def test_refusals():
    q, k, v = tensors(kv=2)
    with pytest.raises(ec.ConfigError, match="within"):
        ec.pope(D, delta=0.1)
    with pytest.raises(ec.ConfigError, match="'uniform'"):
        ec.pope(D, delta="random")
    with pytest.raises(ec.ShapeError, match="phases for 4 heads and keys with 2"):
        ec.attention(q, k, v, ec.pope(D, heads=H))


@pytest.mark.peer("PoPE_pytorch")
def test_authors_of_the_package_agree():
    peer = pytest.importorskip("PoPE_pytorch")
    q, k, _ = (x.float() for x in tensors())
    enc = ec.pope(D, heads=H, delta="uniform", seed=5)
    module = peer.PoPE(D, heads=H)
    with torch.no_grad():
        module.bias.copy_(phases(enc).float())
    turned = module.apply_pope_to_qk(module(T), q, k)
    z = torch.einsum("bhtd,bhsd->bhts", *turned).double() / math.sqrt(D)
    torch.testing.assert_close(ec.scores(q, k, enc, causal=False), z, rtol=0, atol=1e-4)
