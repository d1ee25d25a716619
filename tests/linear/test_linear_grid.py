"""Every encoding x every way of calling x every form against (dense scores, masked to 0) @ v, gradients included."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import eigenclock as ec
from linear.conftest import ENCODED, F64, B, Gate, H, close, inputs, irregular, normal, oracle, weights


@dataclass(frozen=True)
class Way:
    """One way of calling."""

    keywords: Callable[[], dict[str, Any]] = dict
    length: int = 45
    kv_heads: int = H
    learn_times: bool = False


def gap(length: int) -> Tensor:
    times = irregular(length)
    return times + (torch.arange(length) >= length // 2) * 1e6


def padding(length: int, left: bool) -> Tensor:
    mask = torch.ones(B, length, dtype=torch.bool)
    mask[0, :3] = False
    mask[1, : length // 2] = False
    return mask if left else mask.roll(length // 3, -1)


def documents(length: int, per_row: bool) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return (torch.rand(*((B,) if per_row else ()), length, generator=generator) < 0.06).long().cumsum(-1) * 3 + 1


def stamps(length: int) -> Tensor:
    return 1_700_000_000_000_000_000 + (irregular(length) * 1e9).long()


WAYS: dict[str, Way] = {
    **{f"length {n}": Way(length=n) for n in (0, 1, 2, 31, 33, 129, 257)},
    "irregular": Way(lambda: {"times": irregular(150)}, 150, learn_times=True),
    "per row": Way(lambda: {"times": irregular(B, 70)}, 70, learn_times=True),
    "per head": Way(lambda: {"times": irregular(B, H, 70)}, 70, learn_times=True),
    "ties": Way(lambda: {"times": torch.zeros(70, dtype=F64)}, 70, learn_times=True),
    "huge gap": Way(lambda: {"times": gap(70)}, 70),
    "documents": Way(lambda: {"documents": documents(150, False)}, 150),
    "documents per row": Way(lambda: {"documents": documents(150, True), "times": irregular(B, 150)}, 150, learn_times=True),
    "left padding": Way(lambda: {"mask": padding(70, True)}, 70),
    "interior padding": Way(lambda: {"mask": padding(70, False), "times": irregular(70)}, 70, learn_times=True),
    "padding and documents": Way(lambda: {"mask": padding(150, False), "documents": documents(150, True)}, 150),
    "grouped heads": Way(lambda: {"times": irregular(70)}, 70, kv_heads=2, learn_times=True),
    "one key head": Way(length=70, kv_heads=1),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ENCODED)
def test_every_form_is_the_definition(name, way):
    row = WAYS[way]
    encoding, keywords = ENCODED[name](row.kv_heads), row.keywords()
    if encoding.clock.width == 2:
        if keywords.get("times") is None or way == "per head":
            keywords["times"] = irregular(row.length)
        keywords["times"] = torch.stack([keywords["times"], 3 - keywords["times"]], -1)
    learned = list(encoding.parameters())
    tensors = inputs(row.length, row.kv_heads, grad=True)
    if row.learn_times:
        keywords["times"].requires_grad_()
        tensors.append(keywords["times"])
    expected = oracle(*tensors[:3], encoding, **keywords)
    g = normal(*expected.shape, seed=9)
    if "mask" in keywords:  # rows of padded queries mean nothing
        g = g * keywords["mask"][:, None, :, None]
    wanted = torch.autograd.grad(expected, [*tensors, *learned], g, allow_unused=True)
    none = torch.zeros(())
    tolerance = 1e-8 if way == "huge gap" else 1e-10  # a million times a frequency has that many digits less
    for form in ec.FORMS:
        got, _ = ec.linear_attention(*tensors[:3], encoding, form=form, **keywords)
        close(got * (g != 0), expected * (g != 0), tolerance)
        back = torch.autograd.grad(got, [*tensors, *learned], g, allow_unused=True)
        for one, other in zip(back, wanted, strict=True):
            shape = tuple((none if other is None else other).shape if one is None else one.shape)
            close(none.expand(shape) if one is None else one, none.expand(shape) if other is None else other, tolerance)


@pytest.mark.parametrize("form", [name for name, form in ec.FORMS.items() if not form.chunks])
def test_a_form_without_chunks_takes_no_size_of_them(form):
    q, k, v = inputs(12)
    with pytest.raises(ec.ConfigError, match=f"got chunk_size=4 with form='{form}', which has no chunks; expected form='chunked'"):
        ec.linear_attention(q, k, v, ENCODED["rope"](H), form=form, chunk_size=4)


@pytest.mark.parametrize("form", ec.FORMS)
def test_nanosecond_stamps(form):
    """int64 stamps in the thousands of petanoseconds: exact to the last one."""
    encoding = ec.damped_rope(8, heads=4, half_life="3s", clock=ec.Timestamps("ns"))
    q, k, v = inputs(70)
    times = stamps(70)
    got, state = ec.linear_attention(q, k, v, encoding, times=times, form=form)
    close(got, oracle(q, k, v, encoding, times=times))
    assert state.origin is not None
    assert state.origin.dtype == torch.int64
    assert int(state.origin.flatten()[0]) == int(times[0])


@pytest.mark.parametrize("form", ["auto", *(name for name, form in ec.FORMS.items() if form.chunks)])
@pytest.mark.parametrize("chunk", [1, 3, 16, 1000])
def test_any_chunk_size(form, chunk):
    encoding = ENCODED["damped_rope, per head and pair"](H)
    q, k, v = inputs(77)
    got, _ = ec.linear_attention(q, k, v, encoding, times=irregular(77), form=form, chunk_size=chunk)
    close(got, oracle(q, k, v, encoding, times=irregular(77)))


@pytest.mark.parametrize("form", ec.FORMS)
def test_a_clock_that_reads_activations(form):
    """Times from activations, one per head: gradients reach the activations and the clock's weights."""
    encoding = ec.damped_rope(8, heads=H, half_life=5.0, clock=Gate(6, H))
    tensors = [*inputs(70, grad=True), normal(B, 70, 6, seed=4).requires_grad_()]
    learned, g = list(encoding.parameters()), normal(B, H, 70, 5, seed=9)
    expected = oracle(*tensors[:3], encoding, x=tensors[3])
    got, _ = ec.linear_attention(*tensors[:3], encoding, x=tensors[3], form=form)
    close(got, expected)
    wanted = torch.autograd.grad(expected, [*tensors, *learned], g)
    for one, other in zip(torch.autograd.grad(got, [*tensors, *learned], g), wanted, strict=True):
        close(one, other)


@pytest.mark.skipif(not hasattr(ec, "Cumulative"), reason="the learned clock is not there yet")
@pytest.mark.parametrize("form", ec.FORMS)
def test_learned_clocks(form):
    """Activations drive the clock: one time per head, and one per head and channel."""
    x = normal(B, 70, 6, seed=4)
    for encoding in (
        ec.decay(8, heads=H, rate=0.5, clock=ec.Cumulative(6)),
        ec.damped_rope(8, heads=H, half_life=5.0, clock=ec.Cumulative(6, per="block")),
        ec.rope(8, heads=H, clock=ec.Cumulative(6, per="block", gate="signed")),
    ):
        encoding = encoding.double()
        tensors = [*inputs(70, grad=True), x.clone().requires_grad_()]
        expected = oracle(*tensors[:3], encoding, x=tensors[3])
        got, _ = ec.linear_attention(*tensors[:3], encoding, x=tensors[3], form=form)
        close(got, expected)
        g, learned = normal(*expected.shape, seed=9), list(encoding.parameters())
        for one, other in zip(
            torch.autograd.grad(got, [*tensors, *learned], g), torch.autograd.grad(expected, [*tensors, *learned], g), strict=True
        ):
            close(one, other, 1e-5 if one.dtype == torch.float32 else 1e-9)


@pytest.mark.parametrize("form", ec.FORMS)
def test_normalised_rows_are_averages(form):
    """Positive features: each row is divided by its sum of scores; a row that has seen nothing is zero."""
    encoding = ENCODED["decay, per head"](H)
    q, k, v = inputs(40, grad=True)
    mask = padding(40, True)

    def positive(x: Tensor) -> Tensor:
        return torch.nn.functional.elu(x) + 1

    w = weights(positive(q), positive(k), encoding, mask=mask)
    total = w.sum(-1, keepdim=True)
    expected = torch.where(total == 0, 0.0, w @ v / torch.where(total == 0, 1.0, total))
    got, state = ec.linear_attention(q, k, v, encoding, mask=mask, normalize=True, feature_map=positive, form=form)
    real = mask[:, None, :, None]
    close(got * real, expected * real)
    assert bool((got[1, :, : 40 // 2] == 0).all())
    g = normal(*got.shape, seed=9) * real
    for one, other in zip(torch.autograd.grad(got, (q, k, v), g), torch.autograd.grad(expected, (q, k, v), g), strict=True):
        close(one, other)
    assert state.z is not None
    assert state.z.shape == (B, H, 8)
