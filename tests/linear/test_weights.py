"""Tokens with weights of their own: Mamba-3 and RWKV-6 against their papers' loops, in every form, in pieces, with gradients."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import eigenclock as ec
from linear.conftest import B, D, H, V, close, inputs, irregular, normal, oracle, part, pieces
from linear.recurrences import mamba3, rwkv6

FEATURES, LENGTH = 6, 37
BONUS = [[0.5, 2.0, -1.0, 0.0, 0.3, 1.0, 0.7, 1.5]] * 3 + [[-0.2] * 8]

# name -> the encoding for this number of key heads, and the loop of its paper
WEIGHED: dict[str, tuple[Callable[[int], ec.Encoding], Callable[..., Tensor]]] = {
    "mamba3": (lambda kv: ec.mamba3(D, heads=H, kv_heads=kv, features=FEATURES), mamba3),
    "mamba3, all pairs": (
        lambda kv: ec.mamba3(D, heads=H, kv_heads=kv, features=FEATURES, rope_fraction=1.0), partial(mamba3, fraction=1.0)
    ),
    "mamba3, half": (
        lambda kv: ec.mamba3(D, heads=H, kv_heads=kv, features=FEATURES, pairing="half", clock=ec.Selective(FEATURES, seed=3)),
        partial(mamba3, half=True),
    ),
    "rwkv6": (lambda kv: ec.rwkv6(D, heads=H, kv_heads=kv, features=FEATURES, bonus=BONUS), rwkv6),
    "rwkv6, low rank": (lambda kv: ec.rwkv6(D, heads=H, kv_heads=kv, features=FEATURES, rank=2, bonus=0.4, learn=()), rwkv6),
}  # fmt: skip


def activations(length: int, *, grad: bool = False) -> Tensor:
    return normal(B, length, FEATURES, seed=4).requires_grad_(grad)


def documents(length: int) -> Tensor:
    return (torch.rand(B, length, generator=torch.Generator().manual_seed(3)) < 0.15).long().cumsum(-1) + 5


def padding(length: int, left: bool) -> Tensor:
    if left:
        return torch.arange(length).expand(B, length) >= torch.tensor([[3], [length // 2]])
    keep = torch.rand(B, length, generator=torch.Generator().manual_seed(4)) < 0.7
    keep[0, :6] = False
    keep[1, -9:] = False
    return keep


def restarted() -> Tensor:
    """Times that go back where both rows begin a document: each document has its own."""
    times, ids = irregular(LENGTH), documents(LENGTH)
    begins = (ids[:, 1:] != ids[:, :-1]).all(0)
    assert bool(begins.any())
    back = torch.cat([torch.zeros(1), (begins * 20.0).cumsum(-1)])
    return times - back


WAYS: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({}, H),
    "grouped heads": ({}, 2),
    "one key head": ({}, 1),
    "times": ({"times": irregular(LENGTH)}, H),
    "times, documents, padding": ({"times": restarted(), "documents": documents(LENGTH), "mask": padding(LENGTH, False)}, H),
    "documents": ({"documents": documents(LENGTH)}, H),
    "one row of documents, grouped heads": ({"documents": documents(LENGTH)[0]}, 2),
    "left padding": ({"mask": padding(LENGTH, True)}, H),
    "padding, documents, grouped heads": ({"mask": padding(LENGTH, False), "documents": documents(LENGTH)}, 2),
    "normalised, padding, documents": ({"mask": padding(LENGTH, False), "documents": documents(LENGTH), "normalize": True}, 2),
}


def run(tensors: list[Tensor], encoding: ec.Encoding, x: Tensor, cuts: list[int], keywords: dict[str, Any], **options: Any):
    """The outputs of all pieces, each from the state of the one before, and the last state."""
    keywords = dict(keywords)
    options["normalize"] = keywords.pop("normalize", False)
    out, state = [], None
    for piece in pieces(cuts, tensors[0].shape[2]):
        one, state = ec.linear_attention(
            *(y[:, :, piece] for y in tensors), encoding, x=x[:, piece], scale=1.0, state=state, **part(keywords, piece), **options
        )  # fmt: skip
        out.append(one)
    assert state is not None
    return torch.cat(out, 2), state


def arguments(way: str, *, grad: bool = False) -> tuple[list[Tensor], Tensor, dict[str, Any], Tensor]:
    """q, k and v, activations, keywords, and which rows are real."""
    keywords, kv = WAYS[way]
    tensors = inputs(LENGTH, kv)
    if "normalize" in keywords:
        tensors[:2] = [x.abs() + 0.1 for x in tensors[:2]]  # sums of scores away from 0: weights of turned keys may still cancel
    tensors = [x.detach().requires_grad_(grad) for x in tensors]
    real = keywords["mask"][:, None, :, None] if "mask" in keywords else torch.ones(B, 1, LENGTH, 1, dtype=torch.bool)
    return tensors, activations(LENGTH, grad=grad), dict(keywords), real


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", WEIGHED)
def test_every_form_is_the_papers_recurrence(name, way):
    """Outputs and gradients to q, k, v, activations and every learned number, in one piece, in some, and one token at a time."""
    make, loop = WEIGHED[name]
    tensors, x, keywords, real = arguments(way, grad=True)
    encoding = make(WAYS[way][1])
    learned = list(encoding.parameters())
    if "times" in keywords:
        keywords["times"] = keywords["times"].clone().requires_grad_()
        learned.append(keywords["times"])
    expected = loop(*tensors, encoding, x, **keywords)
    g = normal(*expected.shape, seed=9) * real
    wanted = torch.autograd.grad(expected, [*tensors, x, *learned], g)
    size = 1e-9 if way.startswith("normalised") else 1e-10
    for form in ec.FORMS:
        for cuts in ([], [0, 5, 6, 23], list(range(1, LENGTH)) if form == "recurrent" else [11, 11]):
            got, _ = run(tensors, encoding, x, cuts, keywords, form=form)
            close(got * real, expected * real, size)
            for one, other in zip(torch.autograd.grad(got, [*tensors, x, *learned], g), wanted, strict=True):
                close(one, other, 2e-6 if one.dtype == torch.float32 else size)  # learned numbers are float32, and so are their gradients


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", WEIGHED)
def test_the_dense_scores_hold_the_weights(name, way):
    if "normalize" in WAYS[way][0]:
        return
    make, loop = WEIGHED[name]
    tensors, x, keywords, real = arguments(way)
    encoding = make(WAYS[way][1])
    close(oracle(*tensors, encoding, x=x, scale=1.0, **keywords) * real, loop(*tensors, encoding, x, **keywords).detach() * real)


# the recipes on a learned clock, and one that is not, for pieces
CONTINUED: dict[str, Callable[[int], ec.Encoding]] = {name: make for name, (make, _) in WEIGHED.items()}
CONTINUED["retnet"] = lambda kv: ec.retnet(D, heads=H, kv_heads=kv)
for _name, _recipe in ec.ENCODINGS.items():
    if _name not in CONTINUED and "features" in signature(_recipe).parameters and not _recipe(D, heads=H, features=FEATURES).lifts():
        CONTINUED[_name] = lambda kv, recipe=_recipe: recipe(D, heads=H, kv_heads=kv, features=FEATURES)


@pytest.mark.parametrize("name", CONTINUED)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_split_points_never_change_the_output(name, data):
    """Any irregular times, counted or given as floats or int64 stamps, any padding and documents, any cuts, any form for each."""
    length = data.draw(st.integers(1, 40))
    cuts = data.draw(st.lists(st.integers(0, length), max_size=6))
    form, other = (data.draw(st.sampled_from([*ec.FORMS, "auto"])) for _ in range(2))
    kv = data.draw(st.sampled_from([1, 2, H]))
    encoding, tensors, x = CONTINUED[name](kv), inputs(length, kv), activations(length)
    keywords: dict[str, Any] = {}
    steps = torch.tensor(data.draw(st.lists(st.sampled_from([0, 1, 3, 400]), min_size=length, max_size=length)))
    kind = data.draw(st.sampled_from(["count", "floats", "stamps"]))
    if kind != "count":
        keywords["times"] = steps.cumsum(-1) + 10**17 if kind == "stamps" else steps.double().cumsum(-1) / 7
    if data.draw(st.booleans()):
        starts = data.draw(st.lists(st.integers(0, 1), min_size=length, max_size=length))
        keywords["documents"] = torch.tensor(starts).cumsum(-1)
    if data.draw(st.booleans()):
        keep = data.draw(st.lists(st.booleans(), min_size=B * length, max_size=B * length))
        keywords["mask"] = torch.tensor(keep).view(B, length)
    real = keywords["mask"][:, None, :, None] if "mask" in keywords else torch.ones(())
    whole, last = run(tensors, encoding, x, [], keywords, form=form)
    got, state = run(tensors, encoding, x, cuts, keywords, form=other)
    close(got * real, whole * real, 1e-9)
    close(state.S, last.S, 1e-9)
    assert (state.pending is None) == (last.pending is None)
    for one, other_one in zip(state.pending or (), last.pending or (), strict=True):
        assert torch.equal(one, other_one)
    assert (state.since is None) == (last.since is None) == (kind == "count")
    if state.since is not None and last.since is not None:
        rows = torch.broadcast_shapes(state.since.shape, last.since.shape)
        assert state.since.dtype == last.since.dtype and torch.equal(state.since.expand(rows), last.since.expand(rows))


@pytest.mark.parametrize("form", ec.FORMS)
@pytest.mark.parametrize("name", ["mamba3", "rwkv6"])
def test_gradients_of_the_state_by_finite_differences(name, form):
    """State in, state out: every entry of the Jacobian, the pending key and value and the normaliser included."""
    encoding = WEIGHED[name][0](H)
    _, first = ec.linear_attention(*inputs(3), encoding, x=activations(3), normalize=True)
    first = first.select([0])
    tensors = [x[:1].clone().requires_grad_() for x in (*inputs(4, seed=20), activations(4))]
    assert first.z is not None
    fields = {"S": first.S, "z": first.z.abs() + 1, "tick": first.tick}
    if first.pending is not None:
        fields |= {"pending_key": first.pending[0], "pending_value": first.pending[1]}
    start = [x.clone().requires_grad_() for x in fields.values()]

    def step(*given: Tensor) -> tuple[Tensor, ...]:
        past = replace(first, **dict(zip(fields, given, strict=False)))
        past = replace(past, origin=-past.tick)
        q, k, v, x = given[len(fields) :]
        out, new = ec.linear_attention(
            q, k, v, encoding, x=x, state=past, normalize=True, form=form, feature_map=lambda y: y.square() + 0.5
        )
        return out, *(y for name in fields if (y := getattr(new, name)) is not None)

    assert torch.autograd.gradcheck(step, (*start, *tensors), fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["mamba3", "rwkv6"])
def test_dtypes(name, dtype):
    make, loop = WEIGHED[name]
    tensors, x, encoding = inputs(LENGTH, dtype=dtype), activations(LENGTH).to(dtype), make(H)
    expected = loop(*(y.double() for y in tensors), encoding, x.double()).detach()
    got, state = run(tensors, encoding, x, [9, 10], {})
    assert got.dtype == dtype and state.S.dtype == torch.float32
    assert state.pending is None or all(y.dtype == torch.float32 for y in state.pending)
    close(got, expected, 1e-5 if dtype == torch.float32 else 2e-2)


def test_a_long_sequence_keeps_its_phases():
    """A hundred thousand steps before, the phases are whole turns more: float64 sums keep the digits of their differences."""
    encoding, tensors, x = WEIGHED["mamba3"][0](H), inputs(20), activations(20)
    _, state = run(tensors, encoding, x, [], {})
    far = replace(state, tick=state.tick + 1e5 * torch.pi, origin=state.origin - 1e5 * torch.pi)  # type: ignore[operator]
    near_out, _ = ec.linear_attention(*tensors, encoding, x=x, state=state)
    far_out, _ = ec.linear_attention(*tensors, encoding, x=x, state=far)
    close(far_out, near_out, 1e-9)


# --- what is refused ---------------------------------------------------------------------------------------------------------------


def refuse(error: type[Exception], words: str, call: Callable[[], Any]) -> None:
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["mamba3", "rwkv6"])
def test_softmax_refuses_weights(name):
    encoding, (q, k, v), x = WEIGHED[name][0](H), inputs(6), activations(6)
    refuse(ec.UnsupportedError, "expected linear_attention", lambda: ec.attention(q, k, v, encoding, x=x))
    refuse(ec.UnsupportedError, "expected linear_attention", lambda: ec.explain(q, k, v, encoding, x=x))
    for keywords in ({"window": 3}, {"mask": torch.ones(1, 1, 6, 6, dtype=torch.bool)}):
        refuse(ec.UnsupportedError, "causal self-attention", partial(ec.scores, q, k, encoding, x=x, **keywords))
    refuse(ec.UnsupportedError, "causal self-attention", lambda: ec.scores(q[:, :, -1:], k, encoding, key_x=x))


@pytest.mark.parametrize("name", ["mamba3", "rwkv6"])
def test_weights_stand_alone(name):
    """Not in sums, products or two directions, which would lose them."""
    encoding = WEIGHED[name][0](H)
    for combine in (lambda: encoding + ec.nope(4), lambda: ec.nope(D) * encoding, lambda: ec.two_sided(encoding)):
        refuse(ec.UnsupportedError, "expected it alone", combine)


def test_states_that_do_not_fit():
    encoding, tensors, x = WEIGHED["mamba3"][0](H), inputs(6), activations(6)
    _, state = ec.linear_attention(*tensors, encoding, x=x)

    def again(state: ec.State, encoding: ec.Encoding = encoding, **keywords: Any) -> None:
        ec.linear_attention(*tensors, encoding, state=state, **({"x": x} | keywords))

    refuse(ec.ConfigError, "without the key and value of its last token", lambda: again(replace(state, pending_key=None)))
    refuse(ec.ConfigError, "expected the encoding it was made with", lambda: again(state, WEIGHED["rwkv6"][0](H)))
    refuse(ec.ShapeError, "got a state of shape", lambda: again(state.select([0])))
    refuse(ec.ShapeError, "pending", lambda: again(replace(state, pending_value=state.S[:, :, 0, :3])))
    refuse(ec.ClockError, "no activations", lambda: again(state, x=None))
    refuse(ec.ClockError, "NaN or infinite", lambda: again(state, x=x * torch.nan))
    _, timed = ec.linear_attention(*tensors, encoding, x=x, times=torch.arange(6))
    refuse(ec.ConfigError, r"state\.since", lambda: again(replace(timed, since=None), times=torch.arange(6) + 9))
    refuse(ec.ClockError, "go back at token 0", lambda: again(timed, times=torch.arange(6) + 3))


def test_bad_options():
    refuse(ec.ConfigError, "rope_fraction", lambda: ec.mamba3(8, heads=2, rope_fraction=1.5))
    refuse(ec.ConfigError, "rope_fraction", lambda: ec.mamba3(8, heads=2, rope_fraction=0.0))
    refuse(ec.ShapeError, "even width", lambda: ec.mamba3(6, heads=2))
    refuse(ec.ConfigError, "Selective", lambda: ec.mamba3(8, heads=2, clock=ec.Cumulative(16)))
    refuse(ec.ShapeError, "bonus", lambda: ec.rwkv6(8, heads=2, bonus=[1.0, 2.0, 3.0]))
    refuse(ec.ConfigError, "learned", lambda: ec.rwkv6(8, heads=2, clock=ec.Index()))
    refuse(ec.ConfigError, "learn", lambda: ec.rwkv6(8, heads=2, learn="rate"))


# --- the state's new fields --------------------------------------------------------------------------------------------------------


def test_files_hold_the_pending_token_and_the_last_time(tmp_path):
    pytest.importorskip("safetensors")
    encoding, tensors, x = WEIGHED["mamba3"][0](H), inputs(20), activations(20)
    times = torch.arange(20) * 3 + 10**17
    whole, _ = run(tensors, encoding, x, [], {"times": times})
    _, state = run([y[:, :, :12] for y in tensors], encoding, x[:, :12], [], {"times": times[:12]})
    assert state.since is not None and state.since.dtype == torch.int64
    assert state.since.flatten().tolist() == [int(times[11])]
    state.save(tmp_path / "state.safetensors")
    rest = {"x": x[:, 12:], "times": times[12:], "scale": 1.0}
    for past in (ec.State.load(tmp_path / "state.safetensors"), state.fork(), state.detach(), state.to("cpu"), state.select([0, 1])):
        out, _ = ec.linear_attention(*(y[:, :, 12:] for y in tensors), encoding, state=past, **rest)
        close(out, whole[:, :, 12:], 1e-15)
    swapped = state.select([1, 1, 0])
    rows = torch.tensor([1, 1, 0])
    rest["x"] = rest["x"][rows]
    out, _ = ec.linear_attention(*(y[rows, :, 12:] for y in tensors), encoding, state=swapped, **rest)
    close(out, whole[rows, :, 12:], 1e-14)


def test_older_files_still_load(tmp_path):
    """A file without the newer tensors is a state without them."""
    package = pytest.importorskip("safetensors.torch")
    safe_open = pytest.importorskip("safetensors").safe_open
    encoding, (q, k, v) = ec.retnet(D, heads=H), inputs(12)
    times = torch.arange(12)
    _, state = ec.linear_attention(*(y[:, :, :7] for y in (q, k, v)), encoding, times=times[:7])
    assert state.since is not None
    path, old = tmp_path / "state.safetensors", tmp_path / "old.safetensors"
    state.save(path)
    with safe_open(path, framework="pt") as file:
        kept = {name: file.get_tensor(name) for name in file.keys() if name != "since"}  # noqa: SIM118 - no mapping
        package.save_file(kept, old, metadata=file.metadata())
    back = ec.State.load(old)
    assert back.since is None and back.pending is None
    out, _ = ec.linear_attention(*(y[:, :, 7:] for y in (q, k, v)), encoding, times=times[7:], state=back)
    close(out, ec.linear_attention(q, k, v, encoding, times=times)[0][:, :, 7:])


def test_a_state_lets_go_of_the_keys():
    """The pending token is a copy: a state kept for long holds no sequence."""
    _, state = ec.linear_attention(*inputs(50), WEIGHED["mamba3"][0](H), x=activations(50))
    assert state.pending is not None
    assert [y.untyped_storage().nbytes() for y in state.pending] == [B * H * D * 8, B * H * V * 8]


# --- the clock ---------------------------------------------------------------------------------------------------------------------


def test_the_selective_clock_is_written_out():
    """Its three kinds of time from the projections, the constants of the paper included."""
    clock = ec.Selective(FEATURES).bind(2, 3)
    assert clock.weight is not None and clock.bias is not None
    x = normal(B, 30, FEATURES, seed=4) * 3
    x[0, 0], x[0, 1] = x[0, 0] * 1e6, -x[0, 0] * 1e6  # far out on both sides: the least rate
    z = x @ clock.weight[0].double() + clock.bias.double()
    step, rate = torch.nn.functional.softplus(z[..., :2]), z[..., 2:4]
    rate = torch.where(rate >= 0, 1 + rate, 1 / (1 - rate.clamp_max(0))).clamp_min(1e-4)
    assert float(rate.detach().min()) == 1e-4
    ticks = clock(x=x).ticks
    close(ticks[..., 0], step.cumsum(1).mT, 1e-12)
    close(ticks[..., 1], (step * rate).cumsum(1).mT, 1e-12)
    phases = step[..., None] * (torch.pi * torch.tanh(z[..., 6:]))[:, :, None]
    close(ticks[..., 2:], phases.cumsum(1).transpose(1, 2), 1e-12)
    close(clock.share(x), torch.sigmoid(z[..., 4:6]).mT, 1e-12)
    start = torch.nn.functional.softplus(ec.Selective(FEATURES).bind(500, 1).bias[:500].detach().double())  # type: ignore[index]
    assert 1e-3 <= float(start.min()) < 2e-3 and 0.05 < float(start.max()) <= 0.1
    assert bool((clock.bias[2:] == 0).all())


def test_a_share_of_one_is_mamba2():
    """With lambda = 1 and no phases Mamba-3 is Mamba-2 with values times the step, under the rates of its own clock."""
    encoding, (q, k, v), x = ec.mamba3(D, heads=H, features=FEATURES), inputs(30), activations(30)
    clock = encoding.clock
    assert isinstance(clock, ec.Selective) and clock.weight is not None and clock.bias is not None
    with torch.no_grad():
        clock.weight[0][:, H:] = 0.0
        clock.bias[2 * H : 3 * H] = 100.0  # lambda = 1
        clock.bias[H : 2 * H] = torch.tensor([0.0, 1.0, 2.0, 3.0])  # rates 1, 2, 3, 4
    plain = ec.mamba2(D, heads=H, features=FEATURES, rate=[[1.0], [2.0], [3.0], [4.0]])
    assert isinstance(plain.clock, ec.Cumulative) and plain.clock.weight is not None and plain.clock.bias is not None
    with torch.no_grad():
        plain.clock.weight[0].copy_(clock.weight[0][:, :H])
        plain.clock.bias.copy_(clock.bias[:H])
    weighted = v * plain.clock.increments(x)[..., :1]
    close(ec.linear_attention(q, k, v, encoding, x=x)[0], ec.linear_attention(q, k, weighted, plain, x=x)[0], 1e-6)


def test_a_document_that_opens_behind_padding_takes_no_gap():
    """The first real token of a piece may begin a document although the padding before it belongs to the one that is open."""
    encoding, tensors, x = CONTINUED["mamba3"](1), inputs(3, 1), activations(3)
    mask = torch.tensor([[True, False, True], [False, True, True]])
    keywords = {"times": torch.tensor([0.5, 0.7, 1.9], dtype=torch.float64), "documents": torch.tensor([0, 1, 1]), "mask": mask}
    whole, _ = run(tensors, encoding, x, [], keywords, form="chunked")
    got, _ = run(tensors, encoding, x, [1], keywords, form="chunked")
    close(got * mask[:, None, :, None], whole * mask[:, None, :, None])


@pytest.mark.parametrize("form", ec.FORMS)
def test_an_empty_piece_after_rows_of_different_length(form):
    """A state whose rows stand at different times goes through a piece without tokens."""
    encoding, tensors, x = CONTINUED["retnet"](1), inputs(3, 1), activations(3)
    keywords = {
        "times": torch.tensor([0.5, 0.7, 1.9], dtype=torch.float64),
        "mask": torch.tensor([[True, False, False], [True, True, True]]),
    }
    whole, last = run(tensors, encoding, x, [], keywords, form=form)
    got, state = run(tensors, encoding, x, [3], keywords, form=form)
    close(got, whole)
    close(state.S, last.S)  # turned to the frame of the call and back
    assert torch.equal(state.tick, last.tick)
