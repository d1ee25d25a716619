"""Proportional rotary (p-RoPE) against the rule written out, partial rotary, and the function of Hugging Face."""

import math

import pytest
import torch

import eigenclock as ec

F64 = torch.float64


@pytest.mark.parametrize(("width", "share", "theta"), [(8, 0.5, 1e4), (64, 0.25, 1e6), (64, 0.3, 1e4), (6, 0.0, 1e4), (10, 1.0, 50.0)])
def test_written_out(width, share, theta):
    kept = math.floor(share * (width // 2))
    expected = torch.tensor([theta ** (-2 * i / width) if i < kept else 0.0 for i in range(width // 2)], dtype=F64)
    assert torch.allclose(ec.proportional(share, theta)(width // 2).values, expected, rtol=1e-14, atol=0)
    pairs = ec.rope(width, freq=ec.proportional(share, theta)).form
    assert pairs == ec.JordanForm(" + ".join(f"{n}{kind}" for n, kind in ((kept, "R"), (width - 2 * kept, "Z")) if n))


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_not_interchangeable_with_partial_rotary(pairing):
    """The same number of turned pairs, other frequencies; the whole spectrum is plain RoPE."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 2, 30, 16, dtype=F64)
    share, part = ec.rope(16, freq=ec.proportional(0.5), pairing=pairing), ec.rope(16, rotary_dim=8, pairing=pairing)
    assert share.form == part.form
    seen = torch.ones(30, 30, dtype=torch.bool).tril()
    assert (ec.scores(q, k, share) - ec.scores(q, k, part))[..., seen].abs().max() > 0.1
    whole = ec.rope(16, freq=ec.proportional(1.0), pairing=pairing)
    assert torch.equal(ec.scores(q, k, whole), ec.scores(q, k, ec.rope(16, pairing=pairing)))


def test_refusals():
    for share in (-0.1, 1.5, math.nan):
        with pytest.raises(ec.ConfigError, match="between 0 and 1"):
            ec.proportional(share)
    with pytest.raises(ec.ConfigError, match="base above 0"):
        ec.proportional(0.5, -1.0)
    with pytest.raises(ec.ConfigError, match="starts at 0"):
        ec.rope(8, freq=ec.proportional(0.5), learn="freq")


@pytest.mark.peer("transformers")
@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
@pytest.mark.parametrize(("width", "share", "theta"), [(16, 0.25, 1e6), (64, 0.5, 1e4), (20, 0.3, 1e4)])
def test_hugging_face(agree, backend, width, share, theta):
    """Frequencies of their function, and attention turned by their rotary (half pairing), outputs and gradients."""
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    if "proportional" not in rope_utils.ROPE_INIT_FUNCTIONS:
        pytest.skip("missing: a transformers with proportional rotary")
    config = pytest.importorskip("transformers").LlamaConfig(
        hidden_size=2 * width, num_attention_heads=2, head_dim=width,
        rope_parameters={"rope_type": "proportional", "rope_theta": theta, "partial_rotary_factor": share},
    )  # fmt: skip
    inv_freq, scale = rope_utils.ROPE_INIT_FUNCTIONS["proportional"](config)
    schedule = ec.proportional(share, theta)
    assert scale == schedule(width // 2).attention_scale
    assert torch.allclose(inv_freq.double(), schedule(width // 2).values, rtol=1e-6, atol=0)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 50, width, dtype=F64) for _ in range(3))
    angle = torch.arange(50, dtype=F64)[:, None] * torch.cat([inv_freq, inv_freq]).double()
    future = torch.ones(50, 50, dtype=torch.bool).triu(1)

    def oracle(q, k, v):
        q, k = llama.apply_rotary_pos_emb(q, k, angle.cos()[None], angle.sin()[None])
        return (q @ k.mT / math.sqrt(width)).masked_fill(future, -torch.inf).softmax(-1) @ v

    enc = ec.rope(width, freq=schedule, pairing="half")
    agree(lambda q, k, v: ec.attention(q, k, v, enc, backend=backend), oracle, q, k, v, dtype=torch.float32)
