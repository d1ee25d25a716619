"""Case 09: the amplitude of YaRN: how large, on which channels, on which side, and once."""

import math

import pytest
import torch

import eigenclock as ec
from eigenclock.encodings.describe import describe

F64 = torch.float64


def read(factor: float, **keys: float) -> ec.yarn:
    return ec.yarn(factor, 4096, **keys)


def g(s: float, c: float) -> float:
    return 0.1 * c * math.log(s) + 1


def test_numbers_of_the_case(case):
    config, expect = case["given"]["config"], case["expect"]
    s, tol = config["factor"], expect["abs_tol"]
    as_given = read(s, mscale=config["mscale"], mscale_all_dim=config["mscale_all_dim"])
    explicit, plain = read(s, attention_factor=1.0), read(s)
    for schedule, name in ((as_given, "as_given"), (explicit, "explicit_one"), (plain, "no_keys")):
        assert abs(schedule(32).attention_scale - expect[name]["table_amplitude"]) <= tol
        assert abs(schedule.logit_scale - expect[name].get("extra_logit_multiplier", 1.0)) <= tol
    assert abs(plain(32).attention_scale ** 2 - expect["no_keys"]["rotary_logit_multiplier"]) <= tol


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
def test_squared_on_the_rotary_logit_and_nowhere_else(case, attend, backend, pairing):
    """Partial rotary with a bias: more than one key, later positions, so that softmax cannot hide a factor."""
    a = case["expect"]["no_keys"]["table_amplitude"]
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 40, 16, dtype=F64).unbind()
    for x in (q, k, v):
        x.requires_grad_()
    schedule = read(case["given"]["config"]["factor"])
    enc = ec.rope(16, heads=2, rotary_dim=6, freq=schedule, pairing=pairing) * ec.alibi(16, heads=2)
    turned = ec.scores(q[..., :6], k[..., :6], ec.rope(6, freq=schedule(3).values, pairing=pairing), scale=1.0)
    lag = torch.arange(40)[:, None] - torch.arange(40)
    z = (a**2 * turned + q[..., 6:] @ k[..., 6:].mT) / 4 - ec.alibi_slopes()(2).values[:, None, None] * lag
    assert torch.allclose(ec.scores(q, k, enc), z, rtol=1e-6, atol=1e-6)
    out, expected = attend(q, k, v, enc, times=torch.arange(500, 540), backend=backend), z.softmax(-1) @ v
    assert torch.allclose(out, expected, rtol=0, atol=1e-6)
    g = torch.randn_like(out)
    for got, wanted in zip(torch.autograd.grad(out, (q, k, v), g), torch.autograd.grad(expected, (q, k, v), g), strict=True):
        assert torch.allclose(got, wanted, rtol=0, atol=1e-5)


def test_a_bias_that_reads_queries_is_not_amplified():
    """Its coordinates would be made of amplified queries, so the product is refused."""
    bias = ec.transformer_xl(8, heads=2, sinusoids=4)
    with pytest.raises(ec.UnsupportedError, match="reads queries or keys"):
        ec.rope(8, freq=read(4.0)) * bias
    with pytest.raises(ec.UnsupportedError, match="reads queries or keys"):
        bias * (ec.rope(4, freq=read(4.0)) + ec.nope(4))
    assert (ec.rope(8) * bias).heads == (ec.rope(8, freq=read(4.0, attention_factor=1.0)) * bias).heads == 2


def test_turning_a_stored_key_on_does_not_multiply_it_again(case):
    """The amplitude stands before the group: a key of width 1 stored at time 5 and turned on by 100 keeps its size."""
    schedule = read(case["given"]["config"]["factor"])
    enc, torch_k = ec.rope(8, freq=schedule), torch.randn(1, 1, 1, 8, dtype=F64)
    _, k = enc.read_in(torch_k, torch_k)
    stored = enc.generator().act(k, torch.tensor([-5.0]))
    turned = enc.generator().act(stored, torch.tensor([-100.0]))
    assert torch.allclose(turned, enc.generator().act(k, torch.tensor([-105.0])), rtol=0, atol=1e-12)
    assert float(turned.norm() / torch_k.norm()) == pytest.approx(case["expect"]["no_keys"]["table_amplitude"])
    q = torch.randn(1, 1, 1, 8, dtype=F64)
    by_hand = (enc.generator().T.act(enc.read_in(q, q)[0], torch.tensor([120.0])) * turned).sum()
    z = ec.scores(q, torch_k, enc, times=torch.tensor([120]), key_times=torch.tensor([105]), scale=1.0)
    assert torch.allclose(z, by_hand, rtol=1e-12)


def test_the_amplitude_is_reported(case):
    schedule = read(case["given"]["config"]["factor"])
    assert "amplitude 1.36889 on q and k" in repr(ec.rope(64, freq=schedule))
    assert "amplitude" not in repr(ec.rope(64, freq=read(40.0, attention_factor=1.0))).partition("#")[2]
    found = describe(ec.rope(64, rotary_dim=16, freq=schedule) * ec.alibi(64, heads=2)).findings
    told = [finding for finding in found if finding.about == "amplitude"]
    assert len(told) == 1 and told[0].value == (schedule.amplitude,) * 2 and "The 16 channels" in told[0].text and "1.87385" in told[0].text
    assert not [f for f in describe(ec.rope(64)).findings if f.about in ("amplitude", "length")]


@pytest.mark.parametrize("s", [1.0, 4.0, 40.0])
@pytest.mark.parametrize(("mscale", "all_dim"), [(0.707, 0.707), (1.0, 0.0), (1.0, 1.0), (0.5, 0.8), (0.0, 0.0)])
def test_other_coefficients(s, mscale, all_dim):
    schedule = read(s, mscale=mscale, mscale_all_dim=all_dim)
    assert math.isclose(schedule(8).attention_scale, g(s, mscale) / g(s, all_dim), rel_tol=1e-15)
    assert math.isclose(schedule.logit_scale, g(s, all_dim) ** 2, rel_tol=1e-15)
    assert read(s, mscale=mscale, mscale_all_dim=all_dim, attention_factor=1.7)(8).attention_scale == 1.7


def test_latent_attention_as_deepseek_writes_it(case):
    """Content beside a rotary part; the softmax scale carries the multiplier, for all channels."""
    config = case["given"]["config"]
    schedule = read(config["factor"], mscale=config["mscale"], mscale_all_dim=config["mscale_all_dim"])
    enc = ec.nope(6) + ec.rope(2, freq=schedule)
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 9, 8, dtype=F64)
    w = float(schedule(1).values)
    for t in range(9):
        for s in range(t + 1):
            a, b, c, d = q[0, 0, t, 6], q[0, 0, t, 7], k[0, 0, s, 6], k[0, 0, s, 7]
            rotary = (a * c + b * d) * math.cos(w * (t - s)) + (a * d - b * c) * math.sin(w * (t - s))
            dot = float(q[0, 0, t, :6] @ k[0, 0, s, :6] + rotary)
            z = ec.scores(q, k, enc, scale=8**-0.5 * schedule.logit_scale)[0, 0, t, s]
            assert float(z) == pytest.approx(dot / math.sqrt(8) * case["expect"]["as_given"]["extra_logit_multiplier"], rel=1e-6)


def test_encodings_that_cannot_carry_it_say_so():
    schedule = read(4.0)
    for build in (
        lambda: ec.jordan_rope(8, freq=schedule),
        lambda: ec.grape_m(8, freq=schedule),
        lambda: ec.hyperbolic(8, boost=schedule, rate=2.0),
        lambda: ec.decay(8, rate=schedule),
        lambda: ec.alibi(8, heads=4, slopes=schedule),
    ):
        with pytest.raises(ec.ConfigError, match="amplitude of 1.13863 on queries and keys"):
            build()
    for wrong in (0.0, -1.0):
        with pytest.raises(ec.ConfigError, match=f"attention_factor={wrong}"):
            read(4.0, attention_factor=wrong)
    for name in ("mscale", "mscale_all_dim"):
        with pytest.raises(ec.ConfigError, match=f"{name}=-0.5"):
            read(4.0, **{name: -0.5})
