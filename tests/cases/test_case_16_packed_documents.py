"""Case 16: several documents in one row; each gives what it gives alone."""

import math

import pytest
import torch
from torch import Tensor

import eigenclock as ec

BUILD = {
    "rope": lambda **k: ec.rope(8, heads=2, pairing="half", **k),
    "rope, wide base": lambda **k: ec.rope(8, heads=2, theta=5e5, rotary_dim=4, **k),
    "alibi": lambda **k: ec.alibi(8, heads=2, **k),
    "decay": lambda **k: ec.decay(8, heads=2, rate=0.25, **k),
    "decay_bias": lambda **k: ec.decay_bias(8, heads=2, rate=0.25, **k),
    "damped_rope": lambda **k: ec.damped_rope(8, heads=2, half_life=(1, 80), **k),
    "nope": lambda **k: ec.nope(8, heads=2, **k),
}
LENGTHS = {"of the case": [2, 3], "ones": [1, 1, 1, 1, 1], "long": [130, 1, 64, 105], "single": [33]}


def ids(lengths: list[int]) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def restarted(lengths: list[int]) -> Tensor:
    return torch.cat([torch.arange(n) for n in lengths])


@pytest.mark.parametrize("clock", ["index", "given", "documents"])
@pytest.mark.parametrize("decayed", [True, False])
def test_numbers_of_the_case(case, clock, decayed):
    """The numbers carry the decay of the case; without it each is larger by e^(rate lag)."""
    given, expect = case["given"], case["expect"]
    x, rate = torch.tensor(given["x"])[None, None], given["decay_rate"]
    options = {"theta": given["theta"], "pairing": given["layout"], "clock": ec.Documents() if clock == "documents" else None}
    enc = ec.damped_rope(given["width"], rate=rate, **options) if decayed else ec.rope(given["width"], **options)
    assert restarted(given["lengths"]).tolist() == expect["times"]
    z = ec.scores(x, x, enc, times=restarted(given["lengths"]) if clock == "given" else None, documents=ids(given["lengths"]), scale=1.0)[
        0, 0
    ]
    for i, row in enumerate(expect["scores_causal_within_documents"]):
        for j, value in enumerate(row + [None] * (len(x[0, 0]) - len(row))):
            if value is None:
                assert z[i, j] == -torch.inf
            else:
                assert z[i, j].item() == pytest.approx(value * (1 if decayed else math.exp(rate * (i - j))), abs=expect["abs_tol"])


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
@pytest.mark.parametrize("clock", ["index", "given", "documents"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=list(LENGTHS))
@pytest.mark.parametrize("name", BUILD)
def test_each_document_gives_what_it_gives_alone(attend, name, lengths, clock, backend):
    """Outputs and gradients; times run on, restart as given (they decrease at a boundary, which is fine), or restart by the clock."""
    torch.manual_seed(5)
    n = sum(lengths)
    q, k, v, g = (torch.randn(1, 2, n, 8, dtype=torch.float64) for _ in range(4))
    enc = BUILD[name](clock=ec.Documents() if clock == "documents" else None)
    packed = [x.clone().requires_grad_() for x in (q, k, v)]
    out = attend(*packed, enc, times=restarted(lengths) if clock == "given" else None, documents=ids(lengths), backend=backend)
    out.backward(g)
    start = 0
    for length in lengths:
        piece = slice(start, start + length)
        alone = [x[:, :, piece].clone().requires_grad_() for x in (q, k, v)]
        expected = attend(*alone, BUILD[name](), backend=backend)
        assert torch.allclose(out[:, :, piece], expected, rtol=0, atol=1e-10)
        expected.backward(g[:, :, piece])
        for a, b in zip(packed, alone, strict=True):
            assert torch.allclose(a.grad[:, :, piece], b.grad, rtol=0, atol=1e-9)
        start += length


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
@pytest.mark.parametrize("name", ["rope", "alibi", "damped_rope"])
def test_rows_may_be_packed_differently(attend, name, backend):
    torch.manual_seed(6)
    packs = [[20, 20], [1, 39], [40], [7, 8, 25]]
    q, k, v = (torch.randn(4, 2, 40, 8, dtype=torch.float64) for _ in range(3))
    enc = BUILD[name]()
    out = attend(q, k, v, enc, documents=torch.stack([ids(p) for p in packs]), backend=backend)
    for row, lengths in enumerate(packs):
        one = attend(q[row : row + 1], k[row : row + 1], v[row : row + 1], enc, documents=ids(lengths), backend=backend)
        assert torch.allclose(out[row : row + 1], one, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["rope", "alibi", "damped_rope"])
def test_boundaries_win_over_a_mask_of_ones_and_zeros_do_not_split(name):
    torch.manual_seed(7)
    q, k, v = (torch.randn(1, 2, 5, 8, dtype=torch.float64) for _ in range(3))
    enc, documents = BUILD[name](), ids([2, 3])
    joined = ec.attention(q, k, v, enc)
    split = ec.attention(q, k, v, enc, documents=documents)
    assert torch.allclose(
        split, ec.attention(q, k, v, enc, documents=documents, mask=torch.ones(1, 5, dtype=torch.bool)), rtol=0, atol=1e-12
    )
    assert not torch.allclose(split, joined)
    hole = torch.tensor([[True, True, False, True, True]])  # a padding zero between tokens: one document still
    assert (ec.scores(q, k, enc, mask=hole)[0, :, 4, 0] > -torch.inf).all()


@pytest.mark.parametrize("name", ["rope", "damped_rope"])
def test_document_ids_are_names_not_an_order(name):
    torch.manual_seed(8)
    q, k, v = (torch.randn(1, 2, 9, 8, dtype=torch.float64) for _ in range(3))
    enc = BUILD[name]()
    one = ec.attention(q, k, v, enc, documents=torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2]))
    other = ec.attention(q, k, v, enc, documents=torch.tensor([70, 70, 70, -3, -3, -3, 9, 9, 9]))
    assert torch.allclose(one, other, rtol=0, atol=1e-12)
