"""Rotary encodings against the formula written out, and against the rotary of Hugging Face's Llama."""

import math

import pytest
import torch
from torch import Tensor

import eigenclock as ec

F64 = torch.float64


def turn(x: Tensor, times: Tensor, f: Tensor, half: bool) -> Tensor:
    """Pair i of x at time t goes through [[cos, -sin], [sin, cos]] of the angle t f_i; channels beyond the pairs stay."""
    pairs = f.shape[-1]
    a = torch.arange(pairs) if half else 2 * torch.arange(pairs)
    b = a + (pairs if half else 1)
    angle = times[..., :, None] * f
    columns = [x[..., i] for i in range(x.shape[-1])]
    for i in range(pairs):
        first, second = x[..., a[i]], x[..., b[i]]
        columns[a[i]] = first * angle[..., i].cos() - second * angle[..., i].sin()
        columns[b[i]] = first * angle[..., i].sin() + second * angle[..., i].cos()
    return torch.stack(columns, -1)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
    """sum_s softmax_s(q_t . k_s / sqrt d) v_s over s <= t."""
    z = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        z = z.masked_fill(torch.ones_like(z, dtype=torch.bool).triu(1), -torch.inf)
    return z.softmax(-1) @ v


def content(heads=2, length=70, width=16, batch=2, seed=0):
    torch.manual_seed(seed)
    return [torch.randn(batch, heads, length, width, dtype=F64) for _ in range(3)]


def spectrum(theta, width: int) -> Tensor:
    return torch.as_tensor(theta, dtype=F64)[..., None] ** (-torch.arange(0, width, 2, dtype=F64) / width)


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rotary", [16, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_written_out(agree, backend, pairing, causal, rotary, dtype):
    q, k, v = content()
    f, times = spectrum(1e4, rotary), torch.arange(70, dtype=F64)
    enc = ec.rope(16, rotary_dim=rotary, pairing=pairing)

    def oracle(q, k, v):
        return softmax_attention(turn(q, times, f, pairing == "half"), turn(k, times, f, pairing == "half"), v, causal)

    agree(lambda q, k, v: ec.attention(q, k, v, enc, causal=causal, backend=backend), oracle, q, k, v, dtype=dtype)


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_learned_frequency_per_head_and_times(agree, backend, pairing):
    """Gradients to a frequency per head and pair, and to irregular times per row."""
    q, k, v = content(heads=3, length=40, width=8)
    enc = ec.rope(8, heads=3, theta=(10.0, 100.0, 1000.0), learn=("freq",), pairing=pairing).double()
    torch.manual_seed(1)
    times = (torch.rand(2, 40, dtype=F64) * 2).cumsum(-1)
    mine, theirs = times.clone().requires_grad_(), times.clone().requires_grad_()
    a = torch.arange(4) if pairing == "half" else 2 * torch.arange(4)

    def in_use() -> Tensor:  # read off L itself, whatever the parametrisation
        return enc.generator().matrix().reshape(3, 8, 8)[:, a, a + (4 if pairing == "half" else 1)]

    f = in_use().detach().requires_grad_()  # a trainable number is kept in float32
    assert torch.allclose(f.detach(), spectrum((10.0, 100.0, 1000.0), 8), rtol=1e-6, atol=0)

    def oracle(q, k, v):
        t = theirs[:, None, :]
        return softmax_attention(turn(q, t, f[:, None, :], pairing == "half"), turn(k, t, f[:, None, :], pairing == "half"), v)

    agree(lambda q, k, v: ec.attention(q, k, v, enc, times=mine, backend=backend), oracle, q, k, v, extra=[(mine, theirs)])
    g = torch.randn(2, 3, 40, 8, dtype=F64)
    ec.attention(q, k, v, enc, times=times, backend=backend).backward(g)
    oracle(q, k, v).backward(g)
    for p, pulled in zip(enc.parameters(), torch.autograd.grad(in_use(), list(enc.parameters()), f.grad), strict=True):
        assert torch.allclose(p.grad, pulled, rtol=1e-5, atol=1e-6 * pulled.abs().max().item())


@pytest.mark.peer("transformers")
@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("width", "theta", "kv_heads", "start"), [(16, 1e4, 4, 0), (64, 5e5, 2, 0), (32, 1e4, 1, 900), (128, 1e6, 4, 3)])
def test_hugging_face_llama(agree, backend, dtype, width, theta, kv_heads, start):
    """Their rotary (half pairing) and a plain softmax, end to end, outputs and gradients, grouped queries included.

    Their table is float32: at time t its angles are off by up to t 2^-24, hence the slack.
    """
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = pytest.importorskip("transformers").LlamaConfig(
        hidden_size=4 * width,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        head_dim=width,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    rotary = llama.LlamaRotaryEmbedding(config)
    torch.manual_seed(0)
    q = torch.randn(2, 4, 60, width, dtype=F64)
    k, v = (torch.randn(2, kv_heads, 60, width, dtype=F64) for _ in range(2))
    positions = torch.arange(start, start + 60)[None].expand(2, -1)

    def oracle(q, k, v):
        cos, sin = (x.double() for x in rotary(torch.zeros(1), positions))
        q, k = llama.apply_rotary_pos_emb(q, k, cos, sin)
        return softmax_attention(q, llama.repeat_kv(k, 4 // kv_heads), llama.repeat_kv(v, 4 // kv_heads))

    enc = ec.rope(width, theta=theta, pairing="half")
    agree(lambda q, k, v: ec.attention(q, k, v, enc, times=positions, backend=backend), oracle, q, k, v, dtype=dtype, slack=3e-7 * start)
