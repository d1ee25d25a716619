"""Case 22: an odd width is refused when the encoding is built, by its name and number, and not by a broadcast in the first call."""

import pytest
import torch

import eigenclock as ec

# name -> what is built with this width, and the option that carries it
ROTARY = {
    "rope": (lambda width: ec.rope(width), "head_dim"),
    "rope, half": (lambda width: ec.rope(width, pairing="half"), "head_dim"),
    "rope, schedule": (lambda width: ec.rope(width, freq=ec.proportional(0.5)), "head_dim"),
    "rope, part of a head": (lambda width: ec.rope(width + 7, rotary_dim=width), "rotary_dim"),
    "damped_rope": (lambda width: ec.damped_rope(width, half_life=9.0), "head_dim"),
    "xpos": (lambda width: ec.xpos(width), "head_dim"),
    "retnet": (lambda width: ec.retnet(width, heads=2), "head_dim"),
    "jordan_rope": (lambda width: ec.jordan_rope(width), "head_dim"),
    "spec": (lambda width: ec.encoding("rope * alibi", head_dim=width, heads=2), "head_dim"),
    "sandwich": (lambda width: ec.sandwich(8, heads=2, width=width), "width"),
}


@pytest.mark.parametrize("name", ROTARY)
def test_the_width_of_the_case(case, name):
    build, option = ROTARY[name]
    with pytest.raises(ec.ShapeError, match=rf"{option}={case['given']['width']}\b.*(even|multiple of 4)"):
        build(case["given"]["width"])


@pytest.mark.parametrize("width", [1, 3, 63, 127])
@pytest.mark.parametrize("name", ROTARY)
def test_other_odd_widths(name, width):
    build, option = ROTARY[name]
    with pytest.raises(ValueError, match=rf"{option}={width}\b"):
        build(width)


@pytest.mark.parametrize("name", ROTARY)
def test_even_widths_are_built_and_run(name):
    enc = ROTARY[name][0](8)
    q = torch.randn(1, 2, 5, enc.head_dim)
    assert ec.attention(q, q, q, enc).shape == q.shape


@pytest.mark.parametrize("order", [1, 2, 3])
def test_blocks_of_higher_order_need_a_multiple(order):
    """A width that is even may still cut a Jordan block."""
    ec.jordan_rope(6 * order, order=order)
    with pytest.raises(ec.ShapeError, match=rf"head_dim={6 * order + 1}\b.*multiple of {2 * order}"):
        ec.jordan_rope(6 * order + 1, order=order)
    if order > 1:
        with pytest.raises(ec.ShapeError, match=rf"head_dim={6 * order + 2}\b.*multiple of {2 * order}"):
            ec.jordan_rope(6 * order + 2, order=order)


@pytest.mark.parametrize("build", [ec.nope, lambda width: ec.decay(width, rate=0.1), lambda width: ec.alibi(width, heads=2)])
def test_what_does_not_turn_takes_any_width(build):
    """The limit belongs to the pairs of a rotation, not to heads as such."""
    q = torch.randn(1, 2, 5, 9)
    assert ec.attention(q, q, q, build(9)).shape == q.shape
