"""Rotations over several axes: the formulas written out, and the multimodal rotary of Hugging Face's Qwen models."""

import math

import pytest
import torch
from torch import Tensor

import eigenclock as ec

F64 = torch.float64


def content(heads: int = 2, length: int = 48, width: int = 16, seed: int = 0) -> list[Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(2, heads, length, width, dtype=F64) for _ in range(3)]


def attend(q: Tensor, k: Tensor, v: Tensor, angle: Tensor) -> Tensor:
    """Both sides turned by an angle (..., T, pairs) as complex numbers, pairs interleaved; softmax over all keys."""
    turned = [torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.exp(1j * angle)).flatten(-2) for x in (q, k)]
    return (turned[0] @ turned[1].mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


def grid(height: int, width: int) -> Tensor:
    return torch.cartesian_prod(torch.arange(height), torch.arange(width))


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
def test_axial_written_out(agree, backend, dtype):
    """A picture of 6 x 8 patches: the first half of the pairs turns with the row, the second with the column."""
    q, k, v = content()
    place, f = grid(6, 8).double(), 100.0 ** (-torch.arange(4, dtype=F64) / 4)
    angle = torch.cat([place[:, :1] * f, place[:, 1:] * f], -1)
    enc = ec.axial_rope(16)
    agree(
        lambda q, k, v: ec.attention(q, k, v, enc, times=grid(6, 8), causal=False, backend=backend),
        lambda q, k, v: attend(q, k, v, angle), q, k, v, dtype=dtype,
    )  # fmt: skip


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
def test_mixed_written_out(agree, backend):
    """angle = f_x x + f_y y per head and pair, with gradients to the frequencies."""
    q, k, v = content(heads=3)
    enc = ec.mixed_rope(16, heads=3, seed=5)
    (mine,) = enc.parameters()
    start = enc.generator().freq.detach()
    theirs = start.clone().requires_grad_()
    place = grid(6, 8).double()

    def oracle(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, torch.einsum("ta,han->htn", place, theirs))

    q, k, v = (x.requires_grad_() for x in (q, k, v))
    out, expected = ec.attention(q, k, v, enc, times=grid(6, 8), causal=False, backend=backend), oracle(q, k, v)
    assert torch.allclose(out, expected, rtol=0, atol=1e-6)  # the learned numbers are kept in float32
    g = torch.randn_like(out)
    for a, b in zip(torch.autograd.grad(out, (q, k, v, mine), g), torch.autograd.grad(expected, (q, k, v, theirs), g), strict=True):
        assert torch.allclose(a.double(), b, rtol=1e-4, atol=1e-5)


def test_string_written_out():
    """P^T RoPE P over two axes with P from the Cayley transform of an antisymmetric matrix, gradients included."""
    q, k, v = (x.requires_grad_() for x in content(width=8))
    torch.manual_seed(3)
    enc = ec.string(8, heads=2, basis=torch.randn(2, 28))
    freq, upper = (dict(enc.named_parameters())[f"values.{name}.raw"] for name in ("freq", "basis"))
    theirs = [x.detach().double().requires_grad_() for x in (freq, upper)]
    place = grid(6, 8).double()
    S = torch.zeros(2, 8, 8, dtype=F64)
    rows, columns = torch.triu_indices(8, 8, 1)
    S = S.index_put((torch.arange(2)[:, None], rows, columns), theirs[1])
    S = S - S.mT
    P = torch.linalg.inv(torch.eye(8, dtype=F64) + S) @ (torch.eye(8, dtype=F64) - S)
    expected = attend(q @ P, k @ P, v, place @ theirs[0])
    out = ec.attention(q, k, v, enc, times=grid(6, 8), causal=False)
    assert torch.allclose(out, expected, rtol=0, atol=1e-6)
    g = torch.randn_like(out)
    got = torch.autograd.grad(out, (q, k, v, freq, upper), g)
    for a, b in zip(got, torch.autograd.grad(expected, (q, k, v, *theirs), g), strict=True):
        assert torch.allclose(a.double(), b, rtol=1e-4, atol=1e-5)


def test_start_of_mixed():
    """Magnitudes theta^(-i / (n/2)), one direction per head for the first half of the pairs and a right angle to it for the second."""
    freq = ec.mixed_rope(32, heads=3, theta=10.0).generator().freq.detach()
    size = 10.0 ** (-torch.arange(8, dtype=F64) / 8)
    assert torch.allclose(freq.norm(dim=1), size.repeat(2).expand(3, -1), rtol=1e-6)
    direction = freq / freq.norm(dim=1, keepdim=True)
    assert torch.allclose(direction[..., :8], direction[..., :1].expand(-1, -1, 8), atol=1e-6)
    assert torch.allclose((direction[..., :8] * direction[..., 8:]).sum(1), torch.zeros(3, 8, dtype=F64), atol=1e-6)
    assert len({round(float(x), 4) for x in direction[:, 0, 0]}) == 3


def places(length: int) -> Tensor:
    """Text, a video of 2 x 3 x 4 patches, text: (length, 3)."""
    text = torch.arange(5)[:, None].expand(5, 3)
    video = torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(4)) + 5
    rest = torch.arange(length - 29)[:, None].expand(-1, 3) + 9
    return torch.cat([text, video, rest])


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
@pytest.mark.parametrize("model", ["qwen2_vl", "qwen3_vl"])
def test_m_rope_equals_hugging_face(agree, model, backend):
    """The tables of Qwen2-VL (contiguous sections) and Qwen3-VL (interleaved), on halves."""
    pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    sections = [4, 2, 2]
    parameters = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections}
    if model == "qwen2_vl":
        from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding as Rotary
        from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLTextConfig as Config
    else:
        from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextConfig as Config
        from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding as Rotary
    config = Config(hidden_size=32, num_attention_heads=2, num_key_value_heads=2, head_dim=16, rope_parameters=parameters)
    q, k, v = content()
    place = places(48)
    rotary = Rotary(config)
    assert rotary.mrope_section == sections
    cos, sin = rotary(q, place.T[:, None].expand(3, 2, -1))
    enc = ec.m_rope(16, sections=tuple(sections), assignment="contiguous" if model == "qwen2_vl" else "interleaved", pairing="half")

    def oracle(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        a, b = apply_rotary_pos_emb(q, k, cos.double(), sin.double())
        z = a @ b.mT / math.sqrt(16)
        return z.masked_fill(torch.ones(48, 48, dtype=torch.bool).triu(1), -torch.inf).softmax(-1) @ v

    out = ec.attention(q, k, v, enc, times=place, backend=backend)
    assert torch.allclose(out, oracle(q, k, v), rtol=0, atol=2e-6)  # their tables are float32
    wrong = ec.m_rope(16, sections=tuple(sections), assignment="interleaved" if model == "qwen2_vl" else "contiguous", pairing="half")
    assert not torch.allclose(ec.attention(q, k, v, wrong, times=place), oracle(q, k, v), rtol=0, atol=1e-3)


def test_generators_of_the_axes_commute():
    """exp(x L_x + y L_y) = exp(x L_x) exp(y L_y), and the dense exponential agrees."""
    generator = ec.mixed_rope(8, heads=2).generator()
    along = generator.along().detach()
    assert torch.allclose(along[:, 0] @ along[:, 1], along[:, 1] @ along[:, 0], atol=1e-12)
    place = torch.tensor([[3.0, -2.0]], dtype=F64)
    x = torch.randn(2, 1, 8, dtype=F64)
    dense = torch.linalg.matrix_exp(3.0 * along[:, 0] - 2.0 * along[:, 1])
    assert torch.allclose(generator.act(x, place[None].expand(2, 1, 2)), (dense @ x.mT).mT, atol=1e-9)


@pytest.mark.parametrize(
    "build", [lambda c: ec.rope(8, clock=c), lambda c: ec.alibi(8, heads=2, clock=c), lambda c: ec.decay(8, rate=0.1, clock=c)]
)
def test_one_clock_encodings_refuse_several_axes(build):
    q = torch.randn(1, 2, 6, 8)
    with pytest.raises(ec.ConfigError, match="axial_rope"):
        ec.attention(q, q, q, build(ec.Axes(("x", "y"))), times=torch.zeros(6, 2))


def test_causal_cross_attention_needs_an_order():
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 6, 8)
    enc, times = ec.axial_rope(8), {"times": torch.zeros(3, 2), "key_times": torch.zeros(6, 2)}
    with pytest.raises(ec.ClockError, match="order="):
        ec.attention(q, k, k, enc, **times)
    assert ec.attention(q, k, k, enc, causal=False, **times).shape == q.shape
