"""Case 13, the encodings of it: contiguous partial rotary and proportional rotary are two conventions, and each says which it is."""

import pytest
import torch

import eigenclock as ec

BUILD = {
    "contiguous": lambda width, share, theta, pairing: ec.rope(width, rotary_dim=int(share * width), theta=theta, pairing=pairing),
    "proportional": lambda width, share, theta, pairing: ec.rope(width, freq=ec.proportional(share, theta), pairing=pairing),
}


def at(enc: ec.Encoding, x: torch.Tensor, time: float, side: str) -> torch.Tensor:
    """A query or a key at one time."""
    generator, x = enc.generator(), x[None, None, None]
    moved = generator.T.act(x, torch.tensor([time])) if side == "query" else generator.act(x, torch.tensor([-time]))
    return moved[0, 0, 0]


def longhand(x: torch.Tensor, time: float, width: int, share: float, theta: float, pairing: str, convention: str) -> torch.Tensor:
    """Channel by channel: which pairs turn, and by which power of theta."""
    out, n = x.clone(), width // 2
    turned = int(share * width) // 2 if convention == "contiguous" else int(share * n)
    over = 2 * turned if convention == "contiguous" else width  # what the exponent is counted over
    for i in range(turned):
        reach = turned if convention == "contiguous" else n  # halves of the part that holds the pairs
        a, b = (i, i + reach) if pairing == "half" else (2 * i, 2 * i + 1)
        angle = torch.tensor(time * theta ** (-2 * i / over), dtype=torch.float64)
        out[a], out[b] = x[a] * angle.cos() - x[b] * angle.sin(), x[a] * angle.sin() + x[b] * angle.cos()
    return out


@pytest.mark.parametrize("side", ["query", "key"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("convention", BUILD)
def test_numbers_of_the_case(case, convention, dtype, side):
    given, expect = case["given"], case["expect"]
    enc = BUILD[convention](given["head_dim"], given["fraction"], given["theta"], given["layout"])
    y = at(enc, torch.tensor(given["x"], dtype=dtype), given["time"], side)
    assert torch.allclose(y.double(), torch.tensor(expect[convention], dtype=torch.float64), rtol=0, atol=expect["abs_tol"])


@pytest.mark.parametrize("convention", BUILD)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize(("width", "share", "theta"), [(8, 0.25, 1e4), (64, 0.25, 1e6), (64, 0.5, 5e5), (20, 0.3, 1e4), (16, 1.0, 1e2)])
@pytest.mark.parametrize("time", [0.0, 1.0, 8191.0, 2.5])
def test_other_widths_shares_bases_and_times(convention, pairing, width, share, theta, time):
    torch.manual_seed(width)
    x = torch.randn(width, dtype=torch.float64)
    y = at(BUILD[convention](width, share, theta, pairing), x, time, "key")
    assert torch.allclose(y, longhand(x, time, width, share, theta, pairing, convention), rtol=0, atol=1e-9)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
@pytest.mark.parametrize("convention", BUILD)
def test_scores_of_attention(attend, convention, pairing, backend):
    """With one key in sight, value its own channels, the output of attention at late times is that of turned vectors."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 30, 16, dtype=torch.float64)
    enc, times = BUILD[convention](16, 0.5, 1e4, pairing), torch.arange(5000, 5030)
    turned = [
        torch.stack(
            [torch.stack([longhand(x[0, h, i], 5000.0 + i, 16, 0.5, 1e4, pairing, convention) for i in range(30)]) for h in range(2)]
        )
        for x in (q, k)
    ]
    z = (turned[0] @ turned[1].mT / 4).masked_fill(torch.ones(30, 30, dtype=torch.bool).triu(1), -torch.inf)
    out = attend(q, k, v, enc, times=times, backend=backend)
    assert torch.allclose(out[0], z.softmax(-1) @ v[0], rtol=0, atol=1e-10)


def test_both_agree_at_time_0_and_nowhere_else():
    """Why a short test cannot tell them apart."""
    x = torch.arange(1.0, 9.0, dtype=torch.float64)
    one, other = (BUILD[name](8, 0.5, 1e4, "interleaved") for name in BUILD)
    assert torch.equal(at(one, x, 0.0, "key"), at(other, x, 0.0, "key"))
    assert (at(one, x, 100.0, "key") - at(other, x, 100.0, "key")).abs().max() > 1


def test_the_convention_is_part_of_the_specification():
    contiguous, proportional = (BUILD[name](8, 0.5, 1e4, "half") for name in BUILD)
    assert "rotary_dim=4" in str(contiguous) and "proportional" not in str(contiguous)
    assert "proportional(share=0.5" in str(proportional) and "rotary_dim" not in str(proportional)
    for enc in (contiguous, proportional):
        assert enc.form == ec.JordanForm("2R + 4Z")
        again = ec.encoding(str(enc))
        assert str(again) == str(enc) and torch.equal(again.generator().matrix(), enc.generator().matrix())


@pytest.mark.parametrize("width", [3, 5])
def test_a_rotated_width_that_is_odd_or_too_wide_is_refused(width):
    with pytest.raises(ec.ShapeError, match=f"rotary_dim={width}"):
        ec.rope(8, rotary_dim=width)
    with pytest.raises(ec.ShapeError, match="rotary_dim=10 for head_dim=8"):
        ec.rope(8, rotary_dim=10)
