"""One call, calls on pieces and one token at a time give the same numbers, with gradients through the state."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import eigenclock as ec
from linear.conftest import ENCODED, F64, B, Gate, H, close, in_pieces, inputs, irregular, normal, oracle, part, pieces

SAMPLES = ("rope, half", "decay, per channel", "damped_rope, per head and pair", "jordan_rope", "hyperbolic", "grape_m", "rope + decay")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_split_points_never_change_the_output(data):
    """Any encoding, any irregular times, any cuts (empty pieces too), any form for each: the same to 1e-10."""
    name = data.draw(st.sampled_from(sorted(set(ENCODED) - {"axial_rope"})))
    length = data.draw(st.integers(1, 90))
    steps = data.draw(st.lists(st.sampled_from([0.0, 1e-3, 0.3, 1.0, 2.5, 40.0, 1e5]), min_size=length, max_size=length))
    cuts = data.draw(st.lists(st.integers(0, length), max_size=6))
    form, other = (data.draw(st.sampled_from([*ec.FORMS, "auto"])) for _ in range(2))
    encoding, (q, k, v) = ENCODED[name](H), inputs(length, seed=data.draw(st.integers(0, 5)))
    times = torch.tensor(steps, dtype=F64).cumsum(-1)
    whole, last = ec.linear_attention(q, k, v, encoding, times=times, form=form)
    got, state = in_pieces(q, k, v, encoding, cuts, keywords={"times": times}, form=other)
    close(got, whole)
    assert state is not None
    close(state.S, last.S)
    assert torch.equal(state.count, last.count)
    close(state.tick, last.tick, 1e-15)


def documents(length: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return (torch.rand(B, length, generator=generator) < 0.1).long().cumsum(-1) + 5


def mask(length: int) -> Tensor:
    keep = torch.rand(B, length, generator=torch.Generator().manual_seed(4)) < 0.7
    keep[0, :6] = False
    keep[1, -9:] = False
    return keep


KEYWORDS: dict[str, dict[str, Any]] = {
    "count": {},
    "times": {"times": irregular(60)},
    "times per head": {"times": irregular(B, H, 60)},
    "stamps": {"times": (irregular(B, 60) * 1e9).long() + 1_700_000_000_000_000_000},
    "documents": {"documents": documents(60)},
    "padding": {"mask": mask(60)},
    "padding, times, documents": {"mask": mask(60), "documents": documents(60), "times": irregular(B, 60)},
}


@pytest.mark.parametrize("form", [*ec.FORMS, "auto"])
@pytest.mark.parametrize("way", KEYWORDS)
@pytest.mark.parametrize("name", SAMPLES)
def test_pieces_and_tokens_equal_the_whole(name, way, form):
    encoding, (q, k, v), keywords = ENCODED[name](H), inputs(60), dict(KEYWORDS[way])
    if way == "stamps":
        keywords["times"] = keywords["times"] // 10**9 * 3  # an index that starts at 5e9
    real = keywords["mask"][:, None, :, None] if "mask" in keywords else torch.ones(())
    expected = oracle(q, k, v, encoding, **keywords) * real
    for cuts in ([23], [1, 2, 59], list(range(1, 60)) if form in ("recurrent", "auto") else [30, 30]):
        got, _ = in_pieces(q, k, v, encoding, cuts, keywords=keywords, form=form)
        close(got * real, expected)


@pytest.mark.parametrize("form", ec.FORMS)
@pytest.mark.parametrize("name", SAMPLES)
def test_gradients_flow_through_the_state(name, form):
    """Three pieces in one graph: gradients to q, k, v, times and all learned numbers are those of one call."""
    encoding, tensors, g = ENCODED[name](H), [*inputs(50, grad=True), irregular(50).requires_grad_()], normal(B, H, 50, 5, seed=8)
    learned = list(encoding.parameters())
    whole, _ = ec.linear_attention(*tensors[:3], encoding, times=tensors[3], form="recurrent")
    got, _ = in_pieces(*tensors[:3], encoding, [17, 18], keywords={"times": tensors[3]}, form=form)
    for one, other in zip(
        torch.autograd.grad(got, [*tensors, *learned], g), torch.autograd.grad(whole, [*tensors, *learned], g), strict=True
    ):
        close(one, other, 1e-6 if one.dtype == torch.float32 else 1e-10)  # learned numbers are float32, and so are their gradients


@pytest.mark.parametrize("form", ec.FORMS)
def test_gradients_of_the_state_by_finite_differences(form):
    """Initial state in, final state out: every entry of the Jacobian, normaliser included."""
    encoding = ENCODED["damped_rope, per head and pair"](H)
    q, k, v = inputs(3)
    _, first = ec.linear_attention(q, k, v, encoding, times=irregular(3), normalize=True)
    tensors = [x[:1].clone().requires_grad_() for x in inputs(5, seed=20)]

    def step(S: Tensor, z: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        past = replace(first.select([0]), S=S, z=z)
        out, new = ec.linear_attention(
            *tensors, encoding, times=irregular(5) + 4, state=past, normalize=True, form=form, feature_map=lambda x: x.square() + 0.5
        )
        assert new.z is not None
        return out, new.S, new.z

    assert first.z is not None
    start = first.S[:1].clone().requires_grad_(), (first.z[:1].abs() + 1).requires_grad_()
    assert torch.autograd.gradcheck(step, (*start, *tensors), fast_mode=True)


@pytest.mark.parametrize("form", ec.FORMS)
def test_activations_continue(form):
    """A clock that sums over activations goes on from the last piece, per head."""
    encoding = ec.damped_rope(8, heads=H, half_life=5.0, clock=Gate(6, H))
    q, k, v = inputs(50)
    x = normal(B, 50, 6, seed=4).requires_grad_()
    whole, _ = ec.linear_attention(q, k, v, encoding, x=x)
    out, state = [], None
    for piece in pieces([9, 10, 31], 50):
        one, state = ec.linear_attention(*(z[:, :, piece] for z in (q, k, v)), encoding, x=x[:, piece], state=state, form=form)
        out.append(one)
    got = torch.cat(out, 2)
    close(got, whole)
    g = normal(*got.shape, seed=8)
    wanted = [x, *encoding.parameters()]
    for one, other in zip(torch.autograd.grad(got, wanted, g), torch.autograd.grad(whole, wanted, g), strict=True):
        close(one, other)


def test_the_document_clock_continues():
    encoding = ec.jordan_rope(8, eta=0.1, half_life=9.0, clock=ec.Documents())
    q, k, v = inputs(60)
    keywords = {"documents": documents(60)}
    got, _ = in_pieces(q, k, v, encoding, [7, 30, 31, 55], keywords=keywords)
    close(got, oracle(q, k, v, encoding, **keywords))


def test_which_document_goes_on():
    """The id of the state's document continues it, another id starts anew, and no ids at all mean the open document."""
    encoding, (q, k, v) = ENCODED["decay"](H), inputs(20)
    first = [x[:, :, :12] for x in (q, k, v)]
    rest = [x[:, :, 12:] for x in (q, k, v)]
    _, state = ec.linear_attention(*first, encoding, documents=torch.tensor([1] * 5 + [2] * 7))
    assert state.document is not None
    assert state.document.tolist() == [2]
    together = ec.linear_attention(q, k, v, encoding, documents=torch.tensor([1] * 5 + [2] * 15))[0][:, :, 12:]
    alone = ec.linear_attention(*rest, encoding)[0]
    close(ec.linear_attention(*rest, encoding, documents=torch.tensor([2] * 8), state=state)[0], together)
    close(ec.linear_attention(*rest, encoding, state=state)[0], together)
    close(ec.linear_attention(*rest, encoding, documents=torch.tensor([3] * 8), state=state)[0], alone)
    assert float((together - alone).detach().abs().max()) > 1e-3


def test_rows_at_different_positions():
    """Rows padded by different amounts count their own tokens, before and after they are stepped one token at a time."""
    encoding, (q, k, v) = ENCODED["jordan_rope"](H), inputs(30)
    keep = torch.ones(B, 30, dtype=torch.bool)
    keep[0, :7] = False
    keep[1, 20:24] = False  # a row that pauses while the other goes on
    got, state = in_pieces(q, k, v, encoding, list(range(9, 30)), keywords={"mask": keep})
    assert state is not None
    assert state.count.tolist() == [23, 26]
    for row in range(B):
        real = keep[row]
        alone = ec.linear_attention(*(x[row : row + 1, :, real] for x in (q, k, v)), encoding)[0]
        close(got[row : row + 1, :, real], alone)


def test_absolute_time_leaves_no_trace():
    """Moved by a billion steps, the output and the state are the same: nothing in S grows with absolute time."""
    encoding, (q, k, v) = ENCODED["damped_rope, per head and pair"](H), inputs(40)
    times = torch.randint(0, 3, (40,), generator=torch.Generator().manual_seed(1)).cumsum(-1)
    near, first = in_pieces(q, k, v, encoding, [20], keywords={"times": times})
    far, second = in_pieces(q, k, v, encoding, [20], keywords={"times": times + 10**9})
    assert first is not None and second is not None
    close(far, near, 1e-14)
    close(second.S, first.S, 1e-14)


def test_a_state_does_not_change_when_used():
    encoding, (q, k, v) = ENCODED["rope + decay"](H), inputs(20)
    _, state = ec.linear_attention(q, k, v, encoding)
    before = state.S.clone(), state.tick.clone()
    for form in ec.FORMS:
        ec.linear_attention(q, k, v, encoding, state=state, form=form)
    assert torch.equal(state.S, before[0])
    assert torch.equal(state.tick, before[1])


def test_part_cuts_along_time():
    """The helper of these tests cuts keywords of any rank."""
    cut = part({"a": torch.arange(6), "b": torch.zeros(2, 6), "c": torch.zeros(2, 3, 6)}, slice(1, 4))
    assert [tuple(x.shape) for x in cut.values()] == [(3,), (2, 3), (2, 3, 3)]


@pytest.mark.skipif(not hasattr(ec, "Cumulative"), reason="the learned clock is not there yet")
@pytest.mark.parametrize("way", ["plain", "padding"])
@pytest.mark.parametrize("per", ["head", "block"])
def test_learned_clocks_continue(per, way):
    """A learned clock goes on from its last sum: pieces, single tokens and rows that pause."""
    encoding = ec.damped_rope(8, heads=H, half_life=5.0, clock=ec.Cumulative(6, per=per))
    (q, k, v), x = inputs(40), normal(B, 40, 6, seed=4)
    keywords: dict[str, Any] = {"mask": mask(40)} if way == "padding" else {}
    whole, _ = ec.linear_attention(q, k, v, encoding, x=x, **keywords)
    for cuts in ([9, 10, 31], list(range(1, 40))):
        out, state = [], None
        for piece in pieces(cuts, 40):
            one, state = ec.linear_attention(
                *(z[:, :, piece] for z in (q, k, v)), encoding, x=x[:, piece], state=state, **part(keywords, piece)
            )  # fmt: skip
            out.append(one)
        real = keywords["mask"][:, None, :, None] if keywords else torch.ones(())
        close(torch.cat(out, 2) * real, whole * real, 1e-9)
