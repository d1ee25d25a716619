"""Case 17: slopes for head counts that are no power of two: two rules by name, explicit slopes, and shards of a larger model."""

import math

import pytest
import torch

import eigenclock as ec

RECIPES = ["published_code", "single_geometric_sequence"]


def in_use(enc: ec.Encoding) -> torch.Tensor:
    """What one unit of lag costs: the logit of the key before, content zero."""
    q = torch.zeros(1, enc.heads, 2, enc.head_dim, dtype=torch.float64)
    return -ec.scores(q, q, enc)[0, :, 1, 0]


def longhand(heads: int, recipe: str) -> list[float]:
    if recipe == "single_geometric_sequence":
        return [2 ** (-8 * (h + 1) / heads) for h in range(heads)]
    p = 2 ** math.floor(math.log2(heads))
    double = [2 ** (-8 * (h + 1) / (2 * p)) for h in range(2 * p)]
    return [2 ** (-8 * (h + 1) / p) for h in range(p)] + double[0::2][: heads - p]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("heads", ["6", "8", "40"])
def test_numbers_of_the_case(case, recipe, heads):
    expect = torch.tensor(case["expect"][recipe][heads], dtype=torch.float64)
    n = int(heads)
    assert n in case["given"]["heads"]
    assert torch.allclose(in_use(ec.alibi(8, heads=n, slopes=ec.alibi_slopes(recipe))), expect, rtol=case["expect"]["rel_tol"], atol=0)
    assert torch.allclose(in_use(ec.alibi(8, heads=n, slopes=expect)), expect, rtol=1e-12, atol=0)  # explicit
    if recipe == "published_code":  # what is used where nothing is said
        assert torch.allclose(in_use(ec.alibi(8, heads=n)), expect, rtol=case["expect"]["rel_tol"], atol=0)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("heads", ["6", "8", "40"])
def test_a_shard_uses_the_slopes_of_its_global_heads(case, recipe, heads):
    """Not those of a model with as many heads as the shard has."""
    total, half = int(heads), int(heads) // 2
    expect = torch.tensor(case["expect"][recipe][heads], dtype=torch.float64)[half:]
    enc = ec.alibi(8, heads=half, slopes=ec.alibi_slopes(recipe, shard=(half, total)))
    assert torch.allclose(in_use(enc), expect, rtol=case["expect"]["rel_tol"], atol=0)
    assert not torch.allclose(in_use(ec.alibi(8, heads=half, slopes=ec.alibi_slopes(recipe))), expect, rtol=1e-2, atol=0)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("heads", [1, 2, 3, 5, 7, 12, 16, 20, 25, 63, 64, 96])
def test_other_head_counts(recipe, heads):
    slopes = in_use(ec.alibi(4, heads=heads, slopes=ec.alibi_slopes(recipe)))
    assert torch.allclose(slopes, torch.tensor(longhand(heads, recipe), dtype=torch.float64), rtol=1e-9, atol=0)
    assert slopes.max() < 1  # the exponent counts from 1
    parts = [ec.alibi(4, heads=1, slopes=ec.alibi_slopes(recipe, shard=(h, heads))) for h in range(heads)]
    assert torch.equal(torch.cat([in_use(part) for part in parts]), slopes)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "tiled"])
def test_a_sharded_call_is_a_slice_of_the_whole(attend, recipe, backend):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 6, 50, 8, dtype=torch.float64)
    whole = attend(q, k, v, ec.alibi(8, heads=6, slopes=ec.alibi_slopes(recipe)), backend=backend)
    enc = ec.alibi(8, heads=3, slopes=ec.alibi_slopes(recipe, shard=(3, 6)))
    assert torch.allclose(attend(q[:, 3:], k[:, 3:], v[:, 3:], enc, backend=backend), whole[:, 3:], rtol=0, atol=1e-12)


def test_the_recipe_is_named_and_round_trips():
    enc = ec.alibi(8, heads=3, slopes=ec.alibi_slopes("single_geometric_sequence", shard=(3, 6)))
    assert "single_geometric_sequence" in str(enc) and "shard=(3, 6)" in str(enc)
    again = ec.encoding(enc.spec)
    assert str(again) == str(enc) == str(ec.encoding(str(enc))) and torch.equal(in_use(again), in_use(enc))
    written = ec.encoding("alibi(slopes=alibi(recipe='single_geometric_sequence'))", head_dim=8, heads=6)
    assert torch.equal(in_use(written), in_use(ec.alibi(8, heads=6, slopes=ec.alibi_slopes("single_geometric_sequence"))))
    assert str(ec.alibi(8, heads=3, slopes=ec.alibi_slopes())).count("published_code") == 1


def test_refusals():
    with pytest.raises(ec.ConfigError, match="did you mean 'published_code'"):
        ec.alibi_slopes("published_cod")
    for shard in ((4, 6), (-1, 6), (3, 2)):
        with pytest.raises(ec.ConfigError, match="shard="):
            ec.alibi(8, heads=3, slopes=ec.alibi_slopes(shard=shard))
    with pytest.raises(ec.ShapeError, match="slopes of shape"):
        ec.alibi(8, heads=3, slopes=(0.5, 0.25))
