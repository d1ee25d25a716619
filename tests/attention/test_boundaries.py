"""Packed documents by cumulative lengths: each document as a call of its own, as kernels of variable length have it."""

from itertools import pairwise

import pytest
import torch

import eigenclock as ec
from eigenclock.errors import ConfigError, ShapeError

BOUNDS = [0, 5, 5, 12, 40]


def vectors(heads: int = 2) -> tuple[torch.Tensor, ...]:
    random = torch.Generator().manual_seed(0)
    return tuple(torch.randn(2, heads, 40, 8, dtype=torch.float64, generator=random) for _ in range(3))


def alone(call, *tensors):
    """Every document by itself, one after the other."""
    parts = [call(*(x[:, :, start:stop] for x in tensors)) for start, stop in pairwise(BOUNDS) if stop > start]
    return torch.cat(parts, 2)


@pytest.mark.parametrize("name", ["rope", "damped_rope(half_life=5)", "alibi", "jordan_rope(half_life=9)"])
def test_attention(name):
    enc = ec.encoding(name, head_dim=8, heads=2)
    expected = alone(lambda q, k, v: ec.attention(q, k, v, enc), *vectors())
    for bounds in (BOUNDS, tuple(BOUNDS), torch.tensor(BOUNDS, dtype=torch.int32)):
        out = ec.attention(*vectors(), enc, documents=ec.Boundaries(bounds))
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    assert ec.explain(*vectors(), enc, documents=ec.Boundaries(BOUNDS)) == ec.explain(
        *vectors(), enc, documents=ec.Boundaries(BOUNDS).ids(40)
    )
    z = ec.scores(*vectors()[:2], enc, documents=ec.Boundaries(BOUNDS))
    torch.testing.assert_close(z.softmax(-1) @ vectors()[2], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ec.FORMS)
def test_linear_attention(form):
    enc = ec.damped_rope(8, heads=2, half_life=5)
    expected = alone(lambda q, k, v: ec.linear_attention(q, k, v, enc)[0], *vectors())
    out, _ = ec.linear_attention(*vectors(), enc, documents=ec.Boundaries(BOUNDS), form=form)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


def test_a_clock_that_restarts():
    enc = ec.rope(8, heads=2, clock=ec.Documents())
    out = ec.attention(*vectors(), enc, documents=ec.Boundaries(BOUNDS))
    torch.testing.assert_close(out, alone(lambda q, k, v: ec.attention(q, k, v, ec.rope(8, heads=2)), *vectors()), rtol=0, atol=1e-12)


def test_gradients():
    enc = ec.alibi(8, heads=2)
    leaves = [x.requires_grad_() for x in vectors()]
    wanted = torch.autograd.grad(alone(lambda q, k, v: ec.attention(q, k, v, enc), *leaves).sin().sum(), leaves)
    got = torch.autograd.grad(ec.attention(*leaves, enc, documents=ec.Boundaries(BOUNDS)).sin().sum(), leaves)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ([0, 5, 12], "end at 40"),
        ([1, 40], "begin with 0"),
        ([0, 9, 5, 40], "never to go back"),
        ([0.0, 40.0], "whole numbers"),
        ([[0, 40]], "whole numbers"),
        ([0], "whole numbers"),
    ],
)
def test_refusals(bounds, words):
    with pytest.raises(ShapeError, match=words):
        ec.attention(*vectors(), ec.rope(8, heads=2), documents=ec.Boundaries(bounds))


def test_cumulative_lengths_without_their_name_are_refused():
    with pytest.raises(ShapeError, match="Boundaries"):
        ec.attention(*vectors(), ec.rope(8, heads=2), documents=torch.tensor(BOUNDS))
    for call in (ec.attention, ec.linear_attention):
        with pytest.raises(ShapeError, match="Boundaries"):
            call(*vectors(), ec.rope(8, heads=2), documents=BOUNDS)


def test_a_state_asks_for_ids():
    enc = ec.rope(8, heads=2)
    _, state = ec.linear_attention(*vectors(), enc, documents=ec.Boundaries(BOUNDS))
    with pytest.raises(ConfigError, match="whether the first one goes on"):
        ec.linear_attention(*vectors(), enc, documents=ec.Boundaries(BOUNDS), state=state)
