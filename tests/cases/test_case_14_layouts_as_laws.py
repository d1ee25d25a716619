"""Case 14: interleaved and half layouts are one encoding up to a permutation, which converts weights; mixed is no group."""

import pytest
import torch

import eigenclock as ec


def key_side(width: int, theta: float, pairing: str, x: torch.Tensor, time: float) -> torch.Tensor:
    return ec.rope(width, theta=theta, pairing=pairing).generator().act(x[None, None, None], torch.tensor([-time]))[0, 0, 0]


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_numbers_of_the_case(case, pairing):
    given, expect = case["given"], case["expect"]
    y = key_side(given["width"], given["theta"], pairing, torch.tensor(given["x"], dtype=torch.float64), given["time"])
    assert torch.allclose(y, torch.tensor(expect[pairing], dtype=torch.float64), rtol=0, atol=expect["abs_tol"])


def test_the_permutation_of_the_case_conjugates_the_layouts(case):
    given, expect = case["given"], case["expect"]
    order = given["permutation_interleaved_to_half"]
    x = torch.tensor(given["x"], dtype=torch.float64)
    permuted = key_side(given["width"], given["theta"], "half", x[order], given["time"])
    assert torch.allclose(permuted, torch.tensor(expect["interleaved"], dtype=torch.float64)[order], rtol=0, atol=expect["abs_tol"])


def test_convert_is_the_permutation_of_the_case(case):
    given, expect = case["given"], case["expect"]
    assert ec.convert(torch.arange(given["width"]), heads=1, to="half").tolist() == given["permutation_interleaved_to_half"]
    for source, to in (("interleaved", "half"), ("half", "interleaved")):
        x = ec.convert(torch.tensor(given["x"], dtype=torch.float64), heads=1, to=to)
        turned = key_side(given["width"], given["theta"], to, x, given["time"])
        expected = ec.convert(torch.tensor(expect[source], dtype=torch.float64), heads=1, to=to)
        assert torch.allclose(turned, expected, rtol=0, atol=expect["abs_tol"])


@pytest.mark.parametrize(
    ("model_type", "pairing"), [("llama", "half"), ("gptj", "interleaved"), ("cohere", "interleaved"), ("gpt_neox", "half")]
)
def test_weights_of_one_layout_under_the_config_of_the_other_are_seen_and_converted(case, model_type, pairing):
    """The trap: the same rows under the other layout are wrong at every lag but 0, and right after the conversion."""
    sizes = {"n_head": 2, "n_embd": 16, "rotary_dim": 8} if model_type == "gptj" else {"hidden_size": 16, "num_attention_heads": 2}
    sizes |= {} if model_type == "gptj" else {"rope_theta": case["given"]["theta"], "partial_rotary_factor": 1.0}
    found = ec.encodings({"model_type": model_type, **sizes})
    other = {"half": "interleaved", "interleaved": "half"}[pairing]
    assert found.conventions.pairing == pairing
    x, weight = torch.randn(1, 9, 5, dtype=torch.float64), torch.randn(2, 16, 5, dtype=torch.float64)

    def scores(weights: torch.Tensor, encoding: ec.Encoding) -> torch.Tensor:
        q, k = ((x @ w.T).unflatten(-1, (2, 8)).transpose(1, 2) for w in weights)
        return ec.scores(q, k, encoding)

    meant = scores(weight, ec.rope(8, heads=2, theta=case["given"]["theta"], pairing=other))
    seen = torch.ones(9, 9, dtype=torch.bool).tril()
    assert (scores(weight, found.only) - meant)[..., seen].abs().max() > 0.1
    converted = torch.stack([ec.convert(w, heads=2, to=pairing) for w in weight])
    assert torch.allclose(scores(converted, found.only)[..., seen], meant[..., seen], rtol=0, atol=1e-11)


@pytest.mark.parametrize(("width", "theta"), [(2, 1e4), (6, 10.0), (64, 5e5)])
@pytest.mark.parametrize("recipe", ["rope", "damped_rope"])
def test_scores_agree_when_q_and_k_are_permuted_alike(width, theta, recipe):
    torch.manual_seed(width)
    more = {"half_life": 9.0} if recipe == "damped_rope" else {}
    build = getattr(ec, recipe)
    order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
    q, k = torch.randn(2, 3, 40, width, dtype=torch.float64), torch.randn(2, 3, 40, width, dtype=torch.float64)
    one = ec.scores(q, k, build(width, theta=theta, pairing="interleaved", **more))
    other = ec.scores(q[..., order], k[..., order], build(width, theta=theta, pairing="half", **more))
    assert torch.allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize(("width", "rotary_dim"), [(8, None), (8, 4), (64, None), (64, 16)])
@pytest.mark.parametrize(("s", "t"), [(1.0, 2.0), (0.25, -3.5), (1000.0, 0.125)])
def test_each_layout_is_a_one_parameter_group(pairing, width, rotary_dim, s, t):
    generator = ec.rope(width, rotary_dim=rotary_dim, pairing=pairing).generator()
    a, b, c = (generator.matrix(torch.tensor(x, dtype=torch.float64)).reshape(-1, width, width)[0] for x in (s, t, s + t))
    eye = torch.eye(width, dtype=torch.float64)
    assert torch.allclose(a @ b, c, rtol=0, atol=1e-12)
    assert torch.allclose(a.T @ a, eye, rtol=0, atol=1e-12)
    assert torch.allclose(generator.matrix(torch.tensor(0.0, dtype=torch.float64)).reshape(-1, width, width)[0], eye, rtol=0, atol=1e-15)


def test_the_mixed_table_of_the_case_is_no_group(case):
    """The control: the same law, broken by combining a half-layout table with neighbouring pairs."""
    given = case["given"]
    width, theta = given["width"], given["theta"]
    f = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    table = torch.cat([f, f])

    def mixed(time: float) -> torch.Tensor:
        m, a, b = torch.zeros(width, width, dtype=torch.float64), torch.arange(0, width, 2), torch.arange(1, width, 2)
        m[a, a], m[a, b], m[b, b], m[b, a] = (
            (time * table)[a].cos(),
            -(time * table)[a].sin(),
            (time * table)[b].cos(),
            (time * table)[b].sin(),
        )
        return m

    broken = torch.linalg.matrix_norm(mixed(given["s"]) @ mixed(given["t"]) - mixed(given["s"] + given["t"]))
    assert broken.item() == pytest.approx(case["expect"]["mixed_law_defect"], abs=1e-6)
