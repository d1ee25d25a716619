"""Fewer queries than keys and no times: the queries are the last real keys of their row, wherever its padding stands."""

from typing import Any

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from attention.test_grid import ENCODED, F64, FEATURES, D, H, close, on_every_backend

KEYS, QUERIES, ROWS = 70, 5, 4


def rows_of_different_length() -> Tensor:
    """(ROWS, KEYS): padding on the right, on both sides, in between; and one row with hardly more keys than there are queries."""
    mask = torch.zeros(ROWS, KEYS, dtype=torch.bool)
    mask[0, :41] = mask[1, 3:60] = mask[2, ::3] = mask[3, :6] = True
    return mask


def drawn(kv: int) -> tuple[list[Tensor], Tensor]:
    torch.manual_seed(3)
    shapes = ((ROWS, H, QUERIES, D), (ROWS, kv, KEYS, D), (ROWS, kv, KEYS, D))
    return [torch.randn(*shape, dtype=F64).requires_grad_() for shape in shapes], torch.randn(ROWS, KEYS, FEATURES, dtype=F64)


def alone(q: Tensor, k: Tensor, v: Tensor, enc: ec.Encoding, x: Tensor, mask: Tensor, **keywords: Any) -> Tensor:
    """Each row by itself, as a whole sequence of its real tokens, in float64; its last rows."""
    out = []
    for row, real in enumerate(mask):
        one = slice(row, row + 1)
        n = int(real.sum()) - QUERIES
        queries = torch.cat([torch.zeros(1, H, n, D, dtype=F64), q[one]], 2)
        learned = {"x": x[one, real]} if enc.clock.sums else {}
        whole = ec.attention(queries, k[one, :, real], v[one, :, real], enc, backend="reference", **learned, **keywords)
        out.append(whole[:, :, n:])
    return torch.cat(out)


# At the edge of what a phase may be its gradient is cut by sign, which is no sum over rows.
MADE = {name: row[0] for name, row in ENCODED.items()} | {"pope": lambda kv: ec.pope(D, heads=H, kv_heads=kv, delta=-1.0)}
COUNTED = [name for name in ENCODED if MADE[name](H).clock.width == 1 or MADE[name](H).clock.sums]


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("name", COUNTED)
def test_rows_of_different_length_are_each_their_own_sequence(name, window):
    """Padding anywhere among the keys changes nothing: output and gradients of every row are those of the row alone."""
    kv = H if name == "rope * fox" else 2
    enc, mask = MADE[name](kv), rows_of_different_length()
    (q, k, v), x = drawn(kv)
    x = x.requires_grad_(enc.clock.sums)
    keywords = {"mask": mask, "window": window} | ({"key_x": x} if enc.clock.sums else {})
    expected = alone(q, k, v, enc, x, mask, window=window)
    wanted = {"q": q, "k": k, "v": v} | ({"x": x} if enc.clock.sums else {}) | dict(enc.named_parameters())
    g = torch.randn_like(expected)
    want = torch.autograd.grad(expected, list(wanted.values()), g, allow_unused=True)

    def check(backend: str) -> None:
        out = ec.attention(q, k, v, enc, backend=backend, **keywords)
        close("output", out, expected, 1e-10)
        got = torch.autograd.grad(out, list(wanted.values()), g, allow_unused=True)
        for (what, leaf), a, b in zip(wanted.items(), got, want, strict=True):
            zero, limit = torch.zeros_like(leaf), 1e-9 if leaf.dtype == F64 else 1e-6  # of learned numbers: one float32 sum for each row
            close(f"gradient to {what}", zero if a is None else a, zero if b is None else b, limit)

    on_every_backend(check, q, k, v, enc, **keywords)


def seen(enc: ec.Encoding, mask: Tensor, queries: int = 3, **keywords: Any) -> list[list[int]]:
    """The keys that each query of one row sees, from the scores."""
    keys = mask.shape[-1]
    q, k = torch.randn(1, 1, queries, 2), torch.randn(1, 1, keys, 2)
    z = ec.scores(q, k, enc, mask=mask, **keywords)
    weights = ec.attention(q, k, torch.eye(keys)[None, None], enc, mask=mask, **keywords)
    assert torch.equal(z > -torch.inf, weights > 0)
    return [row.nonzero().flatten().tolist() for row in (z > -torch.inf)[0, 0]]


SEVEN_OF_TEN = torch.arange(10)[None] < 7


@pytest.mark.parametrize("name", ["rope", "fox", "signed gate"])
def test_three_queries_on_seven_of_ten_keys(name):
    enc = {
        "rope": lambda: ec.rope(2),
        "fox": lambda: ec.fox(2, heads=1, features=3),
        "signed gate": lambda: ec.rope(2, clock=ec.Cumulative(3, gate="signed")),
    }[name]()
    learned = {"key_x": torch.randn(1, 10, 3)} if name != "rope" else {}
    first = [0, 1, 2, 3, 4]
    assert seen(enc, SEVEN_OF_TEN, **learned) == [first, [*first, 5], [*first, 5, 6]]
    assert seen(enc, SEVEN_OF_TEN, window=3, **learned) == [[2, 3, 4], [3, 4, 5], [4, 5, 6]]
    holes = torch.tensor([[False, True, True, False, True, True, False, True, False, False]])
    assert seen(enc, holes, **learned) == [[1, 2, 4], [1, 2, 4, 5], [1, 2, 4, 5, 7]]
    assert seen(enc, holes, window=2, **learned) == [[2, 4], [4, 5], [5, 7]]
    left = torch.arange(10)[None] >= 8  # two real keys: the first query is padding as they are, and sees nothing
    assert seen(enc, left, **learned) == [[], [8], [8, 9]]
    assert seen(enc, left & False, **learned) == [[], [], []]


def test_times_of_the_last_real_keys():
    """The lag is that to the query's own place: a slope of 1 counts the steps."""
    q, k = torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 10, 2)
    z = ec.scores(q, k, ec.alibi(2, heads=1, slopes=[1.0]), mask=SEVEN_OF_TEN)[0, 0]
    none = -torch.inf
    assert z.tolist() == [
        [-4.0, -3.0, -2.0, -1.0, 0.0, *[none] * 5],
        [-5.0, -4.0, -3.0, -2.0, -1.0, 0.0, *[none] * 4],
        [-6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, *[none] * 3],
    ]


def test_what_cannot_be_known_is_refused():
    enc = ec.rope(2)
    q, k = torch.randn(1, 1, 3, 2), torch.randn(1, 1, 10, 2)
    with pytest.raises(ec.ShapeError, match="2 real keys and padding behind them"):
        ec.attention(q, k, k, enc, mask=torch.arange(10)[None] < 2)
    block = SEVEN_OF_TEN[:, None, None].expand(1, 1, 3, 10)
    with pytest.raises(ec.ShapeError, match="hides key 7 of row 0"):
        ec.attention(q, k, k, enc, mask=block)
    with pytest.raises(ec.ShapeError, match="hides key 7 of row 0"):
        ec.attention(q, k, k, ec.fox(2, heads=1, features=3), mask=block, key_x=torch.randn(1, 10, 3))
    placed = ec.scores(q, k, enc, mask=block, times=torch.arange(4, 7), key_times=torch.arange(10))
    assert (placed[0, 0] > -torch.inf).sum(-1).tolist() == [5, 6, 7]
    padded = torch.ones(3, 10, dtype=torch.bool).tril(7)[None, None] & (torch.arange(10) >= 4)
    assert (ec.scores(q, k, enc, mask=padded)[0, 0] > -torch.inf).sum(-1).tolist() == [4, 5, 6]


@pytest.mark.parametrize("name", ["alibi", "wall"])
def test_compiled_as_eager(name):
    enc, mask = MADE[name](2), rows_of_different_length()
    (q, k, v), x = drawn(2)
    q, k, v = (y.detach().float() for y in (q, k, v))
    learned = {"key_x": x.float()} if enc.clock.sums else {}
    call = torch.compile(lambda q, k, v: ec.attention(q, k, v, enc, mask=mask, **learned), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(call(q, k, v), ec.attention(q, k, v, enc, mask=mask, **learned), rtol=1e-5, atol=1e-5)
