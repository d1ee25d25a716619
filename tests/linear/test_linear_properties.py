"""Laws of every encoding in the registry: where a sequence is cut, and how each part is summed, changes neither outputs nor the state."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import eigenclock as ec
from linear.conftest import F64, B, D, H, close, inputs, normal, oracle, pieces

GAPS = [0.0, 0.0, 1e-3, 0.3, 1.0, 2.5, 40.0, 1e5]  # ties, and silences after which nothing fast is left

SPECS = {  # what does not build from its name alone
    "decay": "decay(half_life=(2, 60))",
    "decay_bias": "decay_bias(half_life=9)",
    "gaussian_bias": "gaussian_bias(sigma=9)",
    "two_sided": "two_sided(decay(half_life=9))",
}


def built(name: str, kv_heads: int) -> ec.Encoding:
    return ec.encoding(SPECS.get(name, name), head_dim=D, heads=H, kv_heads=kv_heads).double()


def times_of(name: str, enc: ec.Encoding, steps: Tensor) -> Tensor:
    """Times (B, T) from steps, one row slower than the other; on several axes the others go their own ways, back as well."""
    if name == "learned_absolute":  # a table of 1024 rows
        return steps.clamp(max=20).round().cumsum(-1).expand(B, -1)
    times = torch.stack([steps.cumsum(-1), 0.5 * steps.cumsum(-1)])
    if enc.clock.sums or enc.clock.width == 1:  # a learned clock of any width reads one time for each token
        return times
    return torch.stack([times, *((0.7 - i) * times for i in range(1, enc.clock.width))], -1)


def activations(enc: ec.Encoding, length: int, seed: int) -> dict[str, Tensor]:
    features = getattr(enc.clock, "features", None)
    return {} if features is None else {"x": normal(B, length, features, seed=seed)}


def refusal(name: str) -> str | None:
    """Why linear attention does not take an encoding, in its own words."""
    enc = built(name, H)
    try:
        ec.linear_attention(*inputs(3), enc, times=times_of(name, enc, torch.ones(3, dtype=F64)), **activations(enc, 3, 0))
    except ec.UnsupportedError as error:
        return str(error)
    return None


REFUSED = {name: reason for name in ec.ENCODINGS if (reason := refusal(name)) is not None}
TAKEN = [name for name in ec.ENCODINGS if name not in REFUSED]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_for_a_reason(name):
    """A bias on the logit, or two sides: nothing else keeps an encoding out."""
    assert "adds a bias to the logit" in REFUSED[name] or "one-sided" in REFUSED[name]


@st.composite
def calls(draw: Any) -> dict[str, Any]:
    """One way of calling: sizes, steps, cuts, documents, padding on the left, key heads."""
    length = draw(st.integers(1, 40))
    ids = draw(st.lists(st.sampled_from([0, 0, 0, 0, 1]), min_size=length, max_size=length))
    return {
        "length": length,
        "kv_heads": draw(st.sampled_from([H, 2, 1])),
        "seed": draw(st.integers(0, 9)),
        "steps": draw(st.none() | st.lists(st.sampled_from(GAPS), min_size=length, max_size=length)),
        "cuts": draw(st.lists(st.integers(0, length), max_size=4)),
        "documents": draw(st.sampled_from([None, torch.tensor(ids).cumsum(-1)])),
        "padding": draw(st.none() | st.tuples(st.integers(0, length - 1), st.integers(0, length - 1))),
    }


@pytest.mark.parametrize("name", TAKEN)
@settings(max_examples=10)
@given(call=calls())
def test_cuts_and_forms_change_nothing(name, call):
    """Each form in pieces against the dense definition; each state against that of one call, token by token."""
    length, enc = call["length"], built(name, call["kv_heads"])
    q, k, v = inputs(length, call["kv_heads"], seed=call["seed"])
    keywords: dict[str, Any] = activations(enc, length, call["seed"] + 50)
    if call["steps"] is not None or (enc.clock.width > 1 and not enc.clock.sums):
        steps = torch.ones(length) if call["steps"] is None else torch.tensor(call["steps"])
        keywords["times"] = times_of(name, enc, steps.double())
    if call["documents"] is not None:
        keywords["documents"] = call["documents"]
    real = torch.ones((), dtype=F64)
    if call["padding"] is not None:
        keywords["mask"] = torch.arange(length) >= torch.tensor(call["padding"])[:, None]
        real = keywords["mask"][:, None, :, None]
    expected = oracle(q, k, v, enc, **keywords)
    _, last = ec.linear_attention(q, k, v, enc, form="recurrent", **keywords)
    for form in ec.FORMS:
        got, state = _in_pieces(q, k, v, enc, call["cuts"], keywords, form)
        close(got * real, expected * real, 1e-9)
        close(state.S, last.S, 1e-9)
        close(absolute(enc, state), absolute(enc, last), 1e-13)
        assert torch.equal(state.count.expand(B), last.count.expand(B))
        assert (state.document is None) == (last.document is None)
        if state.document is not None and last.document is not None:
            assert torch.equal(state.document.expand(B), last.document.expand(B))


def absolute(enc: ec.Encoding, state: ec.State) -> Tensor:
    """The last token's time: a count as it is, a given time with the origin that its row happened to begin with."""
    start = None if enc.clock.sums or not state.given else state.origin
    return (state.tick if start is None else state.tick + start).expand(B, *state.tick.shape[1:])


def _in_pieces(
    q: Tensor, k: Tensor, v: Tensor, enc: ec.Encoding, cuts: list[int], keywords: dict[str, Any], form: str
) -> tuple[Tensor, ec.State]:  # fmt: skip
    out, state = [], None
    for piece in pieces(cuts, q.shape[2]):
        some = {name: x[piece] if x.ndim == 1 else x[:, piece] for name, x in keywords.items()}
        one, state = ec.linear_attention(*(x[:, :, piece] for x in (q, k, v)), enc, state=state, form=form, **some)
        out.append(one)
    assert state is not None
    return torch.cat(out, 2), state


def test_pieces_can_differ():
    """The comparison sees a state that was dropped, and a gap that was not counted."""
    enc, (q, k, v) = built("gla", H), inputs(20)
    x, times = normal(B, 20, H * D, seed=3), torch.arange(20.0, dtype=F64) + (torch.arange(20) >= 10) * 30
    whole, _ = ec.linear_attention(q, k, v, enc, x=x, times=times)
    late = [z[:, :, 10:] for z in (q, k, v)]
    _, state = ec.linear_attention(*(z[:, :, :10] for z in (q, k, v)), enc, x=x[:, :10], times=times[:10])
    close(ec.linear_attention(*late, enc, x=x[:, 10:], times=times[10:], state=state)[0], whole[:, :, 10:])
    assert state.since is not None
    for wrong in (None, replace(state, since=torch.full_like(state.since, 39.0))):
        with pytest.raises(AssertionError):
            close(ec.linear_attention(*late, enc, x=x[:, 10:], times=times[10:], state=wrong)[0], whole[:, :, 10:])


# --- a million steps of learned time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timed", [False, True])
def test_neighbours_are_exact_after_a_million_steps_in_pieces(timed):
    """Read in twenty pieces, on the index and on nanosecond stamps: differences of the ticks are the increments, to 1e-5 of each."""
    clock = ec.Cumulative(1, base=ec.Timestamps("ns", per="s") if timed else None).bind(1, 1)
    piece, generator, origin, since = 50_000, torch.Generator().manual_seed(0), None, None
    start, last, worst = 1_700_000_000 * 10**9, torch.zeros(1, dtype=F64), 0.0
    with torch.no_grad():
        for i in range(20):
            x = torch.randn(1, piece, 1, generator=generator)
            gaps = torch.randint(10**6, 10**9, (piece,), generator=generator)
            times = start + gaps.cumsum(0)
            reading = clock(times if timed else None, x=x, origin=origin, since=since)
            steps = clock.increments(x)[0, 0, :, 0].double() * (gaps.double() / 1e9 if timed else 1.0)
            ticks = reading.ticks[0, 0]
            error = ((ticks.diff(prepend=last) - steps) / steps).abs()
            worst = max(worst, float(error[1 if timed and not i else 0 :].max()))  # no time has passed before the very first stamp
            origin, since, last, start = clock.continued(reading, timed), reading.last, ticks[-1:], int(times[-1])
    assert float(last) > 5e3
    assert worst < 1e-5
    assert float((last + steps.mean()).float() - last.float()) != pytest.approx(float(steps.mean()), rel=1e-3)  # float32 is not enough


@pytest.mark.parametrize("form", ec.FORMS)
@pytest.mark.parametrize("name", ["gla", "mamba2", "selective_rope"])
def test_learned_time_long_past_leaves_no_trace(name, form):
    """A state whose clock stands a million further on gives the next piece the same numbers."""
    enc, (q, k, v) = built(name, H), inputs(40)
    x = normal(B, 40, H * D, seed=3)
    _, state = ec.linear_attention(*(z[:, :, :25] for z in (q, k, v)), enc, x=x[:, :25])
    assert state.origin is not None
    far = replace(state, tick=state.tick + 1e6, origin=state.origin - 1e6)
    outs = [ec.linear_attention(*(z[:, :, 25:] for z in (q, k, v)), enc, x=x[:, 25:], state=s, form=form) for s in (state, far)]
    close(outs[1][0], outs[0][0], 1e-8)
    close(outs[1][1].S, outs[0][1].S, 1e-8)


# --- what is refused ---------------------------------------------------------------------------------------------------------------

Q4 = normal(B, H, 4, D)
X4 = normal(B, 4, 5)


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"x": X4[:, :3]}, ec.ShapeError, "3 tokens; expected 4"),
        ({"x": X4[0]}, ec.ShapeError, r"shape \(4, 5\); expected activations \(batch, time, 5\)"),
        ({"x": X4[..., :4]}, ec.ShapeError, r"shape \(2, 4, 4\); expected activations \(batch, time, 5\)"),
        ({"x": X4.expand(B, 4, 5)[[0, 1, 1]]}, ec.ShapeError, "3"),
        ({"x": X4, "times": torch.tensor([0.0, 2.0, 1.0, 3.0])}, ec.ClockError, "go back at token 2 .*expected nondecreasing"),
        ({"times": torch.arange(4.0)}, ec.ClockError, "no activations .*expected x="),
        ({}, ec.ClockError, "no activations .*expected x="),
    ],
)
def test_bad_input_of_a_learned_clock(keywords, error, words):
    enc = ec.mamba2(D, heads=H, features=5).double()
    with pytest.raises(error, match=words) as caught:
        ec.linear_attention(Q4, Q4, Q4, enc, **keywords)
    assert "\n" not in str(caught.value)
