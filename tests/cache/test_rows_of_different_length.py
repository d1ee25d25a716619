"""Padding wherever it stands, in a prompt and in later pieces, changes nothing: every row gives what it gives alone."""

from typing import Any

import pytest
import torch
from attention.test_grid import ENCODED, FEATURES
from torch import Tensor

import eigenclock as ec
from cache.conftest import F64, D, H, close

PROMPT, PIECES = 10, [10, 3, 1, 1, 12, 1]
LENGTH, ROWS = sum(PIECES), 3
COUNTED = [name for name in ENCODED if ENCODED[name][0](H).clock.width == 1 or ENCODED[name][0](H).clock.sums]


def padded() -> Tensor:
    """(ROWS, LENGTH): prompts of 7, 10 and 4 tokens padded on the right, and holes later on."""
    mask = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    for row, n in enumerate((7, 10, 4)):
        mask[row, n:PROMPT] = False
    mask[1, PROMPT + 4] = mask[2, -9:-5] = False
    return mask


def drawn() -> tuple[list[Tensor], Tensor]:
    torch.manual_seed(0)
    tensors = [torch.randn(ROWS, H, LENGTH, D, dtype=F64) for _ in range(3)]
    return tensors, torch.randn(ROWS, LENGTH, FEATURES, dtype=F64)


def learned(enc: ec.Encoding, x: Tensor) -> dict[str, Any]:
    return {"x": x} if enc.clock.sums else {}


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("name", COUNTED)
def test_softmax_whole_and_in_pieces(name, window):
    enc, mask = ENCODED[name][0](H), padded()
    (q, k, v), x = drawn()
    with torch.no_grad():
        whole = ec.attention(q, k, v, enc, mask=mask, window=window, **learned(enc, x))
        parts, cache, start = [], None, 0
        for n in PIECES:
            cut = slice(start, start := start + n)
            new = q[:, :, cut], k[:, :, cut], v[:, :, cut]
            part, cache = ec.cached_attention(*new, enc, cache=cache, mask=mask[:, cut], window=window, **learned(enc, x[:, cut]))
            cache = cache if window is None else cache.evict(window)
            parts.append(part)
        for row, real in enumerate(mask):
            one = q[row : row + 1, :, real], k[row : row + 1, :, real], v[row : row + 1, :, real]
            alone = ec.attention(*one, enc, window=window, backend="reference", **learned(enc, x[row : row + 1, real]))
            close(whole[row : row + 1, :, real], alone)
            close(torch.cat(parts, 2)[row : row + 1, :, real], alone)


@pytest.mark.parametrize("name", [name for name in COUNTED if not ENCODED[name][0](H).lifts() and not ENCODED[name][0](H).outside()])
def test_linear_whole_and_in_pieces(name):
    enc, mask = ENCODED[name][0](H), padded()
    (q, k, v), x = drawn()
    if enc.sides == 2:
        pytest.skip("linear attention looks back only")
    with torch.no_grad():
        whole, _ = ec.linear_attention(q, k, v, enc, mask=mask, **learned(enc, x))
        parts, state, start = [], None, 0
        for n in PIECES:
            cut = slice(start, start := start + n)
            new = q[:, :, cut], k[:, :, cut], v[:, :, cut]
            part, state = ec.linear_attention(*new, enc, state=state, mask=mask[:, cut], **learned(enc, x[:, cut]))
            parts.append(part)
        for row, real in enumerate(mask):
            one = q[row : row + 1, :, real], k[row : row + 1, :, real], v[row : row + 1, :, real]
            alone = ec.linear_attention(*one, enc, form="parallel", **learned(enc, x[row : row + 1, real]))[0]
            close(whole[row : row + 1, :, real], alone)
            close(torch.cat(parts, 2)[row : row + 1, :, real], alone)


def test_what_a_window_counts():
    """Weights on values that name their token: after three of five tokens were real, a window of 3 reaches over the two of padding."""
    enc, mask = ec.nope(2), torch.tensor([[True, True, True, False, False, True, True]])
    q, k, v = torch.zeros(1, 1, 7, 2), torch.zeros(1, 1, 7, 2), torch.eye(7)[None, None]
    weights = ec.attention(q, k, v, enc, mask=mask, window=3)[0, 0, 5:]
    assert [row.nonzero().flatten().tolist() for row in weights] == [[1, 2, 5], [2, 5, 6]]
    _, cache = ec.cached_attention(q[:, :, :5], k[:, :, :5], v[:, :, :5], enc, mask=mask[:, :5], window=3)
    step, later = ec.cached_attention(q[:, :, 5:6], k[:, :, 5:6], v[:, :, 5:6], enc, cache=cache, window=3)
    assert step[0, 0, 0].nonzero().flatten().tolist() == [1, 2, 5]
    assert len(later.evict(3)) == 5 and len(later.evict(1)) == 1
