"""The laws of encodings and backends: scores of the lag alone, specs and states that round trip, results of the reference."""

import copy
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eigenclock.attention import BACKENDS, Backend, attention, linear_attention, scores
from eigenclock.attention.problem import build, needs_order
from eigenclock.clocks import Cumulative
from eigenclock.clocks.clock import Reading, with_heads
from eigenclock.encodings import Encoding, alibi, damped_rope, decay, decay_bias, encoding, nope, rope, two_sided
from eigenclock.encodings.outside import Pairs, absolute, place
from eigenclock.encodings.parameter import Parameter
from eigenclock.testing.laws import LawError, close, holds
from eigenclock.testing.outside import check_axioms
from eigenclock.theory import Generator, Split

Formula = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def check_encoding(
    enc: Encoding,
    *,
    times: Any = None,
    x: Tensor | None = None,
    formula: Formula | None = None,
    atol: float = 1e-9,
    compiled: bool = False,
) -> None:
    """The laws of an encoding.

    Scores depend on t - s only; they are scale * q^T exp((t-s)L) k + bias with the dense ``matrix_exp``; ``attention`` is the softmax of
    them; text, dict and JSON specs build it again; a state dict carries the learned numbers and nothing else; ``.half()``,
    ``.bfloat16()``, a copy and construction on the meta device leave the numbers alone; every learned number gets a gradient. Outside the
    group the axioms that ``breaks`` names are broken by a measurable amount, and the others hold.
    An encoding that weighs its tokens is held to ``linear_attention``, which sums the scores; its weights are the formula's to check.

    Args:
        times: increasing example times (T,), or (T, axes), in the unit its clock reads; left out, irregular float64 times between 0 and
            12. Choose them so that they last a few half-lives: lags too small to matter prove little.
        x: activations (1, T, features) for a learned clock, random ones if left out; T must be that of the times.
        formula: the scores of the source written out, (q, k, query_times, key_times) -> logits, scaled, in float64, before any mask. The
            limit allows for the float32 in which learned numbers are kept: what one step of each of them does to the scores.
        compiled: also run it under ``torch.compile(fullgraph=True)`` (a few seconds).
    Shape: formula takes q (1, H, T, D), k (1, G, T, D) and twice the ticks as the clock gives them, (T,), or (1, H, T) and
        (1, H, T, W) on learned clocks; it returns (1, H, T, T).
    Raises: LawError.

    >>> from eigenclock.encodings import rope
    >>> check_encoding(rope(8, heads=2, theta=100.0))
    """
    where = str(enc)
    random = torch.Generator().manual_seed(0)
    if isinstance(enc.clock, Cumulative):
        times = torch.arange(9) if times is None else torch.as_tensor(times)
        x = torch.randn(1, times.shape[0], enc.clock.features, dtype=torch.float64, generator=random) if x is None else x
    if any(part.length is not None for part in enc.outside()):
        times = torch.arange(9) if times is None else times
    if times is None:
        steps = torch.rand(9, *((enc.clock.width,) if enc.clock.width > 1 else ()), dtype=torch.float64, generator=random)
        times = steps.cumsum(0).mul(4096).round().div(4096) * 2.5
    times = torch.as_tensor(times)
    h, g, n = enc.heads, enc.kv_heads or enc.heads, times.shape[0]
    q, k, v = (torch.randn(1, heads, n, enc.head_dim, dtype=torch.float64, generator=random) for heads in (h, g, g))
    base = scores(q, k, enc, times=times, x=x)
    for causal in (True, False) if _both_ways(enc) else (True,):
        z = scores(q, k, enc, times=times, x=x, causal=causal)
        for shift in (8192, -5) if "translation invariance" not in enc.breaks else ():
            moved = scores(q, k, enc, times=times + shift, x=x, causal=causal)
            close(f"a common shift of the times by {shift} leaves scores alone", where, moved, z, atol)
    rounded = 0.0 if formula is None else _rounding_of_learned(enc, lambda: scores(q, k, enc, times=times, x=x))
    _check_dense(enc, q, k, enc.clock(times, x=x), base, formula, atol, rounded, where)
    if enc.breaks:
        check_axioms(enc, atol=atol)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if enc.weighs:
            return linear_attention(q, k, v, enc, times=times, x=x)[0]
        out = attention(q, k, v, enc, times=times, x=x)
        return out if isinstance(out, Tensor) else out[0]

    out = attend(q, k, v)
    law = "linear attention sums the scores" if enc.weighs else "attention is the softmax of the scores"
    weights = base.masked_fill(base == -math.inf, 0.0) if enc.weighs else base.softmax(-1)
    close(law, where, out, weights @ v.repeat_interleave(h // g, 1), 100 * atol)
    width = enc.width + sum(lift.generator.dim for lift in enc.lifts())
    holds("the form has the width of the head and the lifts", where, enc.form.dim == width, enc.form.dim, width)
    acts = ("score", "weight", "both", "nothing")
    holds("acts_on says what it acts on", where, enc.acts_on in acts, enc.acts_on, acts)
    _check_specs(enc, where)
    _check_state(enc, where)
    if any(p.requires_grad for p in enc.parameters()):
        names, leaves = zip(*enc.named_parameters(), strict=True)
        total = base.masked_fill(base == -math.inf, 0.0).sin().sum()
        found = torch.autograd.grad(total, leaves, allow_unused=True) if total.requires_grad else [None] * len(leaves)
        for name, got in zip(names, found, strict=True):
            alive = got is not None and bool(torch.isfinite(got).all()) and bool((got != 0).any())
            holds(f"the learned {name} gets a finite gradient", where, alive, "none" if got is None else got.tolist(), "finite, not all 0")
    if compiled:
        run = torch.compile(attend, fullgraph=True, backend="aot_eager")
        close("it compiles, and the result is the same", where, run(q, k, v), out, 100 * atol)


def _both_ways(enc: Encoding) -> bool:
    """Whether it may be used without ``causal``: it is two-sided, or only turns."""
    split = enc.generator().split()
    return enc.sides == 2 or not (needs_order(split, enc.lifts()) or any(part.directed for part in enc.outside()))


def _rounding_of_learned(enc: Encoding, of: Callable[[], Tensor]) -> float:
    """How far scores may be from those of exact numbers, since learned ones are kept in float32: the sum of what one step of each does."""
    base, total = of().detach(), 0.0
    kept = [module.raw for module in enc.modules() if isinstance(module, Parameter) and module.raw is not None]
    for leaf in kept:
        flat, start = leaf.data.view(-1), leaf.detach().clone().view(-1)
        for i, value in enumerate(start):
            flat[i] = torch.nextafter(value, value.new_tensor(math.inf))
            gap = (of().detach() - base).nan_to_num(posinf=0.0, neginf=0.0)
            flat[i] = value
            total += float(gap.abs().max())
    return total


def _check_dense(
    enc: Encoding, q: Tensor, k: Tensor, read: Reading, z: Tensor, formula: Formula | None, atol: float, rounded: float, where: str
) -> None:  # fmt: skip
    """The scores against dense matrix exponentials, and against the formula of the source."""
    ticks, given = read.ticks, (q, k)
    outside, origin = enc.outside(), read.origin if "translation invariance" in enc.breaks else None
    if outside:
        own = absolute(with_heads(ticks), origin)
        q, k = (place(outside, x, own, None, keys=keys) for x, keys in ((q, False), (k, True)))
    times = ticks if enc.clock.width > 1 else ticks[..., None]  # (T, W), or (1, H, T, W) where each head has its own
    times = times[None] if times.ndim == 2 else times[0]
    lag = times[:, :, None] - times[:, None]  # (H|1, T, S, W)
    seen = torch.isfinite(z)
    lag = lag.masked_fill(~seen[0, :1, :, :, None], 0.0)  # what lies in the future is masked
    heads = q.shape[1]
    inner_q, inner_k = enc.read_in(q, k)  # what stands on either side of the group
    keys = inner_k.repeat_interleave(heads // k.shape[1], 1)
    dense = _dense(enc.generator(), inner_q, keys, lag) * enc.head_dim**-0.5
    for lift in enc.lifts():
        bias = _dense(lift.generator, lift.queries(inner_q), lift.keys(inner_k).repeat_interleave(heads // k.shape[1], 1), lag)
        dense = dense + (bias * enc.head_dim**-0.5 if lift.scaled else bias)
    for part in outside:
        if part.bias is not None:
            own = with_heads(ticks)
            dense = dense + part.bias(Pairs(inner_q, inner_k, own, own, seen, enc.head_dim**-0.5, origin))
    if not enc.weighs:  # else a factor on each score, which the formula says
        close("scores are scale * q^T exp((t-s)L) k + bias", where, torch.where(seen, z, 0.0), torch.where(seen, dense, 0.0), atol)
    if formula is not None:
        own = absolute(ticks, origin)
        written = formula(*given, own, own).double()
        written = torch.where(seen, written, 0.0).detach()
        limit = atol + rounded / max(1.0, float(written.abs().max()))  # close takes limits relative to that size
        close("scores are those of the formula", where, torch.where(seen, z, 0.0), written, limit)


def _dense(generator: Generator, q: Tensor, k: Tensor, lag: Tensor) -> Tensor:
    """q^T exp(sum_a lag_a L_a) k through dense exponentials, (1, H, T, S); lag (H|1, T, S, W), one L for each of W times."""
    heads = q.shape[1]
    along = _along(generator, lag.shape[-1])
    along = along.expand(heads if along.shape[0] == 1 else along.shape[0], *along.shape[1:])
    along = along.repeat_interleave(heads // along.shape[0], 0)
    moved = torch.linalg.matrix_exp(torch.einsum("htsa,haij->htsij", lag.repeat_interleave(heads // lag.shape[0], 0), along).contiguous())
    return torch.einsum("bhti,htsij,bhsj->bhts", q, moved, k)


def _along(generator: Generator, width: int) -> Tensor:
    """The commuting generators of a clock with ``width`` times, (heads|1, W, D, D): what each time moves alone."""
    if width == 1:
        L = generator.matrix()
        return (L if L.ndim == 3 else L[None])[:, None]
    split, out = generator.split(), []
    for a in range(width):
        turns = []
        for turn in split.turns:
            reads = torch.tensor([c == a for c in turn.clock or range(turn.freq.shape[-1])], dtype=torch.float64)
            turns.append(replace(turn, freq=turn.freq[..., a, :] if turn.axes > 1 else turn.freq * reads, axes=1))
        rate = split.rate
        if rate is not None:
            own = split.rate_clock or _own(split, width)
            rate = rate * torch.tensor([c == a for c in own], dtype=torch.float64)
        L = replace(split, turns=tuple(turns), rate=rate).matrix()
        out.append(L if L.ndim == 3 else L[None])
    return torch.stack(out, 1)


def _own(split: Split, width: int) -> list[int]:
    """The time that each column of rate reads where there is one for each block: channels, or pairs of them."""
    columns = split.rate.shape[-1] if split.rate is not None else 0
    if columns == width:
        return list(range(width))
    halves = bool(split.turns) and split.turns[0].pairing == "half"
    return [c % width if halves else c // 2 for c in range(columns)]


def _numbers(enc: Encoding) -> list[Tensor]:
    """All the numbers an encoding acts with, dense."""
    generator = enc.generator()
    out = [generator.matrix().detach(), *(turn.freq.detach().double() for turn in generator.split().turns)]
    for lift in enc.lifts():
        held = (lift.generator.matrix(), lift.query, lift.key, lift.query_map, lift.key_map)
        out += [x.detach().double() for x in held if x is not None]
    ones = torch.ones(1, enc.kv_heads or enc.heads, 5, enc.head_dim, dtype=torch.float64)
    acted = enc.read_in(ones.repeat_interleave(enc.heads // ones.shape[1], 1), ones)
    out += [x.detach() for x in acted if x is not ones]
    if enc.breaks and not isinstance(enc.clock, Cumulative):
        out.append(scores(ones.repeat_interleave(enc.heads // ones.shape[1], 1).cumsum(2), ones, enc, times=torch.arange(5)).detach())
    return out


def _same(law: str, where: str, got: Encoding, expected: Encoding) -> None:
    a, b = _numbers(got), _numbers(expected)
    holds(f"{law} (lifts)", where, len(a) == len(b), len(a), len(b))
    for x, y in zip(a, b, strict=True):
        close(law, where, x, y, 0.0)


def _check_specs(enc: Encoding, where: str) -> None:
    start = copy.deepcopy(enc)
    start.reset_parameters()  # a spec holds the start values
    ways = {"text": str(enc), "dict": enc.spec}
    try:
        ways["JSON"] = json.loads(json.dumps(enc.spec))
    except TypeError as error:
        raise LawError("the spec is plain data that JSON can carry", measured=str(error), limit="plain data", where=where) from None
    for kind, spec in ways.items():
        again = encoding(spec)
        holds(f"the {kind} spec builds an encoding with the same text", where, str(again) == str(start), str(again), str(start))
        _same(f"the {kind} spec builds the same numbers", where, again, start)
        holds(f"the {kind} spec keeps the clock", where, again.clock.spec() == enc.clock.spec(), again.clock.spec(), enc.clock.spec())
    try:
        with torch.device("meta"):
            built = encoding(enc.spec)
    except (NotImplementedError, RuntimeError) as error:
        law = "it can be built on the meta device (make numbers with device='cpu')"
        raise LawError(law, measured=str(error).splitlines()[0], limit="no error", where=where) from error
    _same("construction on the meta device leaves the numbers alone", where, built, start)


def _check_state(enc: Encoding, where: str) -> None:
    learned = {name for name, _ in enc.named_parameters()}
    held = set(enc.state_dict())
    holds("the state dict holds the learned numbers only", where, held == learned, sorted(held), sorted(learned))
    fresh = encoding(enc.spec)
    fresh.load_state_dict(enc.state_dict())
    _same("a state dict carries the numbers to a fresh encoding", where, fresh, enc)
    _same("a copy has the same numbers", where, copy.deepcopy(enc), enc)
    _same(".half() leaves the numbers alone", where, copy.deepcopy(enc).half(), enc)
    _same(".bfloat16() leaves the numbers alone", where, copy.deepcopy(enc).bfloat16(), enc)


# --- backends ----------------------------------------------------------------------------------------------------------------------


class Carried(NamedTuple):
    """What a backend carried and what it refused, with the reason, by the name of the case."""

    carried: tuple[str, ...]
    refused: dict[str, str]


def default_encodings() -> tuple[Encoding, ...]:
    """Small encodings of every kind of form, two heads of width 4, with learned numbers."""
    return (
        nope(4, heads=2),
        rope(4, heads=2, theta=50.0, learn=("freq",)),
        rope(4, heads=2, pairing="half"),
        decay(4, heads=2, half_life=3.0, learn=("rate",)),
        decay_bias(4, heads=2, half_life=(1.0, 9.0), learn=("rate",)),
        damped_rope(4, heads=2, half_life=(0.5, 9.0), learn=("freq", "rate")),
        alibi(4, heads=2, learn=("slope",)),
        rope(4, heads=2) * alibi(4, heads=2),
        rope(2, heads=2) + decay(2, heads=2, rate=0.1),
        two_sided(damped_rope(4, heads=2, half_life=5.0)),
    )


def _ways(n: int) -> dict[str, dict[str, Any]]:
    """Ways of calling, on ``n`` queries and keys."""
    index = torch.arange(n)
    return {
        "causal": {},
        "both directions": {"causal": False},
        "window": {"window": 4},
        "documents": {"documents": index // 6},
        "padding": {"mask": (index >= 3).expand(2, -1)},
        "per-row times": {"times": torch.stack([index * 0.7, index**1.5]).double()},
        "log-sum-exp": {"return_lse": True},
        "decode": {"queries": 3},
    }


def check_backend(
    backend: Backend | str,
    *,
    encodings: Sequence[Encoding] | None = None,
    dtypes: Sequence[torch.dtype] = (torch.float64, torch.float32),
    length: int = 19,
    atol: float = 1e-10,
) -> Carried:
    """A backend against the reference: outputs and gradients equal wherever it claims a call, a reason in words wherever it refuses.

    Every encoding is tried in every way of calling (causal or not, windows, documents, padding, times per row, log-sum-exp, a decode step)
    in each dtype. Gradients are those of q, k, v, the times and every learned number.

    Args:
        backend: the value, or its name in ``BACKENDS``.
        atol: the limit in float64; narrower dtypes get 2000 times their rounding step.
    Returns: what was carried and what was refused, so that a caller can say what must be carried.
    Raises: LawError; also where nothing at all is carried.

    >>> sorted(check_backend("reference", dtypes=(torch.float64,), length=5).refused)
    []
    """
    chosen = BACKENDS[backend] if isinstance(backend, str) else backend
    carried, refused = [], {}
    for enc in default_encodings() if encodings is None else encodings:
        for way, options in _ways(length).items():
            if options.get("causal") is False and not _both_ways(enc):
                continue  # a decay towards the future is refused before any backend is asked
            for dtype in dtypes:
                name = f"{enc}, {way}, {str(dtype).removeprefix('torch.')}"
                limit = atol if dtype == torch.float64 else 2000 * torch.finfo(dtype).eps
                reason = _compare(chosen, enc, options, dtype, length, limit, f"{chosen.summary!r} on {name}")
                if reason is None:
                    carried.append(name)
                else:
                    refused[name] = reason
    holds("a backend carries something", chosen.summary, bool(carried), "nothing", "at least one case")
    return Carried(tuple(carried), refused)


def _compare(backend: Backend, enc: Encoding, options: dict[str, Any], dtype: torch.dtype, n: int, atol: float, where: str) -> str | None:
    """None where the backend carries the case (and is right), else its reason."""
    random = torch.Generator().manual_seed(0)
    queries = options.get("queries", n)
    q, k, v = (torch.randn(2, enc.heads, m, enc.head_dim, generator=random).to(dtype).requires_grad_() for m in (queries, n, n))
    times = options.get("times")
    leaves = {"q": q, "k": k, "v": v, **dict(enc.named_parameters())}
    if times is not None:
        times = leaves["times"] = times.clone().requires_grad_()

    want_lse = options.get("return_lse", False)

    def run(which: Backend) -> tuple[str | None, list[Tensor]]:
        problem = build(
            q, k, v, enc, times=times, key_times=None, x=None, key_x=None, causal=options.get("causal", True), window=options.get("window"),
            documents=options.get("documents"), mask=options.get("mask"), scale=None, want_lse=want_lse,
        )  # fmt: skip
        reason = which.refuses(problem)
        if reason is not None:
            holds("a refusal is a reason in words", where, isinstance(reason, str) and len(reason.split()) > 1, reason, "a few words")
            return reason, []
        out, lse = which.run(problem)
        got, wanted = (tuple(out.shape), out.dtype), (tuple(q.shape), dtype)
        holds("the output has the shape of q and the dtype of q", where, got == wanted, got, wanted)
        parts = [out]
        if want_lse:
            if lse is None:
                raise LawError("the log-sum-exp is returned where it was asked for", measured=None, limit="(B, H, T)", where=where)
            parts.append(lse)
        total = sum((part.masked_fill(part == -math.inf, 0.0).double().sin().sum() for part in parts), torch.zeros((), dtype=torch.float64))
        grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
        return None, parts + [torch.zeros_like(x) if g is None else g for g, x in zip(grads, leaves.values(), strict=True)]

    reason, got = run(backend)
    if reason is not None:
        return reason
    expected = run(BACKENDS["reference"])[1]
    names = ["the output", *(["the log-sum-exp"] if want_lse else []), *(f"the gradient to {name}" for name in leaves)]
    for name, a, b in zip(names, got, expected, strict=True):
        close(f"{name} is that of the reference", where, a, b, atol)
    return None
