"""Log-length temperatures: their numbers, what they multiply, and the law they break."""

import math

import pytest
import torch

import eigenclock as ec

F64 = torch.float64


def test_numbers_written_out():
    positions = [0, 1, 100, 8190, 8191, 8192, 16382, 16383, 10**6]
    expected = [1 + 0.1 * math.log(1 + math.floor((t + 1) / 8192)) for t in positions]
    assert torch.allclose(ec.log_position()(torch.tensor(positions)), torch.tensor(expected, dtype=F64), rtol=1e-15, atol=0)
    expected = [1 + 0.3 * math.log(1 + math.floor((t + 1) / 100)) for t in positions]
    assert torch.allclose(ec.log_position(0.3, 100)(positions), torch.tensor(expected, dtype=F64), rtol=1e-15, atol=0)
    assert torch.allclose(ec.ssmax(0.43)([1, 7, 4096]), torch.tensor([0.43 * math.log(n) for n in (1, 7, 4096)], dtype=F64), rtol=1e-15)


@pytest.mark.parametrize("enc", [ec.rope(8), ec.nope(8), ec.damped_rope(8, half_life=5.0)], ids=str)
def test_ssmax_is_the_softmax_of_scaled_logits(enc):
    q, k, v = torch.randn(3, 1, 2, 20, 8, dtype=F64)
    count = torch.arange(1, 21)
    out = ec.attention(q * ec.ssmax(0.7)(count)[..., None], k, v, enc)
    z = ec.scores(q, k, enc) * (0.7 * count.double().log())[:, None]
    z = z.masked_fill(torch.ones(20, 20, dtype=torch.bool).triu(1), -torch.inf)
    assert torch.allclose(out, z.softmax(-1) @ v, rtol=0, atol=1e-12)


def test_a_bias_is_left_alone():
    """What the docstrings say: the slopes of ALiBi are added after the scale."""
    q, k = torch.randn(2, 1, 2, 20, 8, dtype=F64)
    factor = ec.log_position(0.5, 4)(torch.arange(20))[:, None]
    seen = torch.ones(20, 20, dtype=torch.bool).tril()
    bias = (ec.scores(q, k, ec.alibi(8, heads=2)) - ec.scores(q, k, ec.nope(8)))[..., seen]
    z = ec.scores(q * factor, k, ec.alibi(8, heads=2)) - ec.scores(q, k, ec.nope(8)) * factor
    assert torch.allclose(z[..., seen], bias, rtol=0, atol=1e-12)


def test_translation_invariance_is_broken_where_they_say():
    """A whole step on, the staircase is higher; a count that is the same for every query breaks nothing."""
    q, k = torch.randn(2, 1, 1, 20, 8, dtype=F64)
    t, seen = torch.arange(20), torch.ones(20, 20, dtype=torch.bool).tril()

    def moved(factor) -> float:
        z, late = (ec.scores(q * factor(t + shift), k, ec.rope(8), times=t + shift)[..., seen] for shift in (0, 8192))
        return float((z - late).abs().max())

    assert moved(lambda t: ec.log_position()(t)[:, None]) > 1e-2
    assert moved(lambda t: ec.ssmax(0.4)(t + 1)[:, None]) > 1e-2
    assert moved(lambda t: ec.ssmax(0.4)(20)) < 1e-9


def test_refusals():
    for make in (lambda: ec.ssmax(0.0), lambda: ec.log_position(-0.1), lambda: ec.log_position(0.1, 0)):
        with pytest.raises(ec.ConfigError, match="expected a number above 0"):
            make()


@pytest.mark.peer("transformers")
def test_llama_4():
    """Their configuration holds the two numbers; the formula is written in the forward of their attention, in float32."""
    config = pytest.importorskip("transformers.models.llama4.configuration_llama4").Llama4TextConfig()
    ours = ec.log_position()
    assert (ours.scale, ours.step) == (config.attn_scale, config.floor_scale)
    positions = torch.arange(0, 1_000_000, 997)
    theirs = torch.log1p(torch.floor((positions.float() + 1.0) / config.floor_scale)) * config.attn_scale + 1.0
    assert torch.allclose(theirs.double(), ours(positions), rtol=1e-6, atol=0)
