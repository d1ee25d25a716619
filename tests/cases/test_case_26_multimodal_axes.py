"""Case 26: every pair belongs to one axis, and to the right one."""

import pytest
import torch
from torch import Tensor

import eigenclock as ec


def turned(enc: ec.Encoding, x: Tensor, place: Tensor) -> Tensor:
    """A key at one place, (3,), as attention turns it."""
    return enc.generator().act(x[None], -place.double()[None])[0]


def build(case, assignment: str, **keywords) -> ec.Encoding:
    given = case["given"]
    return ec.m_rope(given["width"], sections=given["sections"], assignment=assignment, theta=given["theta"], pairing="half", **keywords)


@pytest.mark.parametrize("assignment", ["contiguous", "interleaved"])
def test_the_numbers_of_the_case(case, assignment):
    given, expect = case["given"], case["expect"]
    enc = build(case, assignment)
    x, place = torch.tensor(given["x"], dtype=torch.float64), torch.tensor(given["position"])
    axis = (enc.generator().freq != 0).long().argmax(0)
    assert axis.tolist() == expect[f"axis_of_pair_{assignment}"]
    expected = torch.tensor(expect[f"rotated_{assignment}"], dtype=torch.float64)
    assert torch.allclose(turned(enc, x, place), expected, rtol=0, atol=expect["abs_tol"])
    one = ec.rope(given["width"], theta=given["theta"], pairing="half").generator()
    text = torch.tensor(given["text_position"])
    assert torch.allclose(turned(enc, x, text), one.act(x[None], -text[:1].double())[0], rtol=0, atol=1e-12)


def test_assignments_agree_on_text_and_differ_on_pictures(case):
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 2, 9, 8, dtype=torch.float64)
    text = torch.arange(9)[:, None].expand(9, 3)
    picture = torch.stack([torch.zeros(9), torch.arange(9) // 3, torch.arange(9) % 3], -1)
    same, apart = (
        [ec.scores(q, k, build(case, assignment), times=times, causal=False) for assignment in ("contiguous", "interleaved")]
        for times in (text, picture)
    )
    assert torch.allclose(*same, rtol=0, atol=1e-12)
    assert not torch.allclose(*apart, rtol=0, atol=1e-2)


@pytest.mark.parametrize("times", [torch.arange(9), torch.arange(9)[:, None], torch.zeros(9, 2), torch.zeros(2, 9)])
def test_positions_of_one_axis_are_refused(case, times):
    q = torch.randn(1, 2, 9, 8)
    with pytest.raises(ec.ShapeError, match="time, height, width"):
        ec.attention(q, q, q, build(case, "contiguous"), times=times)


def test_a_missing_position_is_refused(case):
    q = torch.randn(1, 2, 9, 8)
    with pytest.raises(ec.ClockError, match="no count of its own"):
        ec.attention(q, q, q, build(case, "contiguous"))


@pytest.mark.parametrize("sections", [(2, 1), (2, 1, 2), (4,), (5, -1, 0), (1, 1, 1, 1)])
def test_sections_that_do_not_fit_are_refused(sections):
    with pytest.raises(ec.ShapeError, match="sections"):
        ec.m_rope(8, sections=sections)


@pytest.mark.parametrize("assignment", ["contiguous", "interleaved"])
def test_scores_depend_on_the_three_differences_only(case, assignment):
    torch.manual_seed(1)
    q, k = torch.randn(2, 1, 2, 20, 8, dtype=torch.float64)
    place = torch.randint(0, 50, (20, 3))
    enc = build(case, assignment)
    z = ec.scores(q, k, enc, times=place, causal=False)
    assert torch.allclose(ec.scores(q, k, enc, times=place + torch.tensor([1000, -7, 123456]), causal=False), z, rtol=0, atol=1e-9)
    for axis in range(3):
        moved = place.clone()
        moved[:10, axis] += 1
        assert not torch.allclose(ec.scores(q, k, enc, times=moved, causal=False), z, rtol=0, atol=1e-3)
