"""Linear attention under any generator and clock: check, lower, choose a form, carry the state."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eigenclock.attention.documents import Boundaries, read_ids
from eigenclock.attention.forms import FORMS, Task
from eigenclock.attention.forms.task import work_dtype
from eigenclock.attention.lower import Lowered, lower
from eigenclock.attention.precision import warn_of_growth
from eigenclock.attention.problem import Problem, build, check_tensors, read_mask
from eigenclock.attention.rotate import ROWS
from eigenclock.attention.state import State, check_pending, check_state, text_of
from eigenclock.attention.times import Times, given_origin, tokens_at
from eigenclock.attention.weighing import Weighed, weigh
from eigenclock.clocks.clock import Reading, with_heads
from eigenclock.encodings import Encoding
from eigenclock.errors import ClockError, ConfigError, ShapeError, UnsupportedError
from eigenclock.registry import lookup

TINY = 8
"""Up to so many tokens are a decode step, taken one after another."""


def linear_attention(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B G T D"],
    v: Float[Tensor, "B G T V"],
    encoding: Encoding,
    *,
    times: Any = None,
    x: Tensor | None = None,
    documents: Int[Tensor, "*batch T"] | Boundaries | None = None,
    mask: Tensor | None = None,
    scale: float | None = None,
    normalize: bool = False,
    feature_map: Callable[[Tensor], Tensor] | None = None,
    state: State | None = None,
    form: str = "auto",
    chunk_size: int | None = None,
) -> tuple[Float[Tensor, "B H T V"], State]:
    """Linear attention: out_t = scale * sum over s <= t of (q_t^T exp((tau_t - tau_s) L) k_s) v_s, and the state to go on from.

    Causal by index. Time and memory grow with T, not with T x T. One call, calls on pieces of any size, and one token at a time give
    the same numbers: pass the state that each returns to the next. Differentiable in q, k, v, the times, activations, every learned
    number of the encoding and the state. Where tokens have weights of their own (``mamba3``, ``rwkv6``; see :class:`Weights`) they are
    factors of the scores, the current token apart from those before it; ``scores`` holds them.

    Args:
        times: (T,), (B, T) or (B, H, T), told apart by rank; None is the clock's own count, which a state continues. A gate on elapsed
            time counts what has passed since the last token of the state.
        x: activations (B, T, features), for clocks that are learned from them.
        documents: integer ids (T,) or (B, T) of packed documents, or without a state :class:`Boundaries`; S starts from 0 in each. A piece
            that begins with the id ``state.document`` goes on with that document. Left out, all of the piece belongs to it.
        mask: key padding (B, T), True = a real token. Padding adds nothing, and stops the index clock; its own rows are computed at the
            last real token before them. Its document ids are not read.
        scale: 1/sqrt(D) of the head as given.
        normalize: divide each row by the sum of its scores. A sum of exactly 0 (nothing was seen) gives zeros; a negative one divides
            as it is, so weights still sum to 1, and one close to 0 makes a large row: use a positive ``feature_map``.
        feature_map: a function such as ``lambda x: torch.nn.functional.elu(x) + 1``, applied to q and k before the action; it
            returns the width of the encoding.
        state: what an earlier piece returned.
        form: "chunked", "recurrent", "parallel", or "auto" (chunked, recurrent for up to 8 tokens).
        chunk_size: tokens of a chunk, for the forms that have chunks; None takes 64, less where decays are fast.
    Shape: q (B, H, T, D), k (B, G, T, D), v (B, G, T, V) with H a multiple of G; the output has the dtype of q, the state float32
        (float64 for float64).
    Units: times in the unit of the clock.
    Raises: ShapeError, ClockError (times that go back where something decays, NaN increments, no activations for a learned clock),
        ConfigError (a state of another encoding or way of calling, or one that lacks what the encoding continues from), UnsupportedError
        (a bias on the logit, which linear attention does not have; a two-sided encoding), UnknownNameError.
    Stability: sums in float32 or better, 16-bit tensors are widened first. Exponents are at most 0 from chunk to chunk and bounded
        inside; a chunk that breaks the bound weighs its pairs in blocks. No double backward. Under ``torch.compile`` the call runs outside
        the graph, which breaks there (``fullgraph=True`` refuses it).
    Source: chunks after Sun et al. (RetNet), 2307.08621, and Yang et al. (GLA), 2312.06635; a pending token in the state after Lahoti et
        al. (Mamba-3), 2603.15569.

    >>> import eigenclock as ec
    >>> q = torch.randn(1, 8, 100, 64)
    >>> out, state = ec.linear_attention(q, q, q, ec.retnet(64, heads=8))
    >>> out.shape, state.S.shape
    (torch.Size([1, 8, 100, 64]), torch.Size([1, 8, 64, 64]))
    """
    attend: Any = _attend
    if torch.compiler.is_compiling():  # plans and checks depend on the data: the graph ends here and goes on behind the call
        attend = torch.compiler.disable(_attend)
    return attend(q, k, v, encoding, times, x, documents, mask, scale, normalize, feature_map, state, form, chunk_size)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, encoding: Encoding, times: Any, x: Tensor | None, documents: Tensor | Boundaries | None,
    mask: Tensor | None, scale: float | None, normalize: bool, feature_map: Callable[[Tensor], Tensor] | None, state: State | None,
    form: str, chunk_size: int | None,
) -> tuple[Tensor, State]:  # fmt: skip
    """The body of :func:`linear_attention`."""
    if feature_map is not None:
        q, k = feature_map(q), feature_map(k)
    check_tensors(q, k, v, encoding)
    _check_encoding(encoding)
    if feature_map is not None and any(part.query_vectors is not None for part in encoding.outside()):
        raise UnsupportedError(
            f"got feature_map= with {encoding}, which adds vectors to q and k before anything else; expected no feature_map, or the map "
            "and the vectors applied to q and k by the caller"
        )
    b, h, t, _ = q.shape
    if state is not None and isinstance(documents, Boundaries):
        raise ConfigError(
            "got documents by boundaries beside a state, which do not say whether the first one goes on; expected ids: "
            "documents=Boundaries(..).ids(T) plus a number that tells"
        )
    documents = read_ids(documents, t, q.device)
    if k.shape[2] != t:
        raise ShapeError(f"got {t} queries and {k.shape[2]} keys; expected as many: a state carries the keys before")
    key_mask, block = read_mask(mask, b, h, t, t)
    if mask is not None and block is not None:
        raise ShapeError(f"got a mask of shape {tuple(mask.shape)}; expected key padding ({b}, {t}): a state is one for all queries")
    if state is not None:
        check_state(state, encoding, k, v, normalize=normalize, given=times is not None, documents=documents)
    name = _form(form, chunk_size, t)
    last_real = None if key_mask is None else torch.where(key_mask, torch.arange(t, device=q.device), -1).cummax(-1).values
    ids = _documents(documents, last_real, state, t)
    origin, since = (None, None) if state is None else (state.origin, state.since)
    reading = encoding.clock(times, length=t, origin=origin, documents=ids, mask=key_mask, x=x, since=since, device=q.device)
    ticks = with_heads(reading.ticks, encoding.clock.width)
    if ticks.shape[2] != t:
        raise ShapeError(f"got times for {ticks.shape[2]} tokens; expected {t}, the length of q, k and v")
    continues = None if ids is None or state is None or state.document is None or not t else ids[:, 0] == state.document
    problem = build(
        q, k, v, encoding, times=times, key_times=None, x=x, key_x=None, causal=True, window=None, documents=ids, mask=key_mask,
        scale=scale, read=Times(ticks, ticks, given_origin(encoding.clock, reading, times)), before=None if state is None else state.tick,
        opens=None if continues is None else _opens(ids, key_mask, state),
    )  # fmt: skip
    ahead = problem.weights is not None and problem.weights.ahead is not None
    if state is not None:
        check_pending(state, encoding, ahead)
    if problem.split.nilpotent is not None:  # powers of the lag may outgrow the dtype that sums are kept in
        warn_of_growth(replace(problem, q=problem.q[:, :, :0].to(work_dtype(q.dtype))))
    k, v = _masked(problem, normalize)
    past = None if state is None else _full(state).to(k.dtype)
    call = weigh(replace(problem, q=problem.q.to(k.dtype), k=k), v, past, _pending(state, normalize, k.dtype), continues)
    task = _task(call, state, last_real, continues)
    chosen = FORMS[name]
    reason = chosen.refuses(task)
    if reason is not None:
        raise UnsupportedError(f"got form={form!r} for {encoding}: {reason}; expected form='auto', or another of {', '.join(FORMS)}")
    out, S = chosen.run(replace(task, chunk=chunk_size))
    out = call.output(out)
    tick = _last_tick(problem.key_vectors, last_real, state)
    S, z = _at_own_time(problem, S, tick), None
    if normalize:
        total, out = out[..., -1:], out[..., :-1]
        S, z = S[..., :-1], S[..., -1]
        out = torch.where(total == 0, 0.0, out / torch.where(total == 0, 1.0, total))
    # The reading with its axes of rows and heads, so that those of the origin are plain as well.
    if t:
        origin = encoding.clock.continued(Reading(problem.key_vectors, reading.origin), times is not None)
    new = State(
        S, z, tick, None if origin is None else with_heads(origin, encoding.clock.width), _count(key_mask, t, state, q.device),
        None if ids is None else ids[:, -1] if t else state.document if state is not None else None, times is not None, text_of(encoding),
        None if reading.last is None else with_heads(reading.last, 1 if encoding.clock.sums else encoding.clock.width),
        *(_last_token(k, v[..., : problem.v.shape[-1]], last_real, state) if ahead else ()),
    )  # fmt: skip
    return out.to(q.dtype), new


def _opens(ids: Tensor | None, key_mask: Tensor | None, state: State | None) -> Tensor:
    """Whether the first real token of each row begins a document, (B|1,): padding before it has the id of the state's."""
    assert ids is not None and state is not None and state.document is not None  # asked for a state with documents only
    if key_mask is None:
        return ids[:, 0] != state.document
    first = key_mask.long().argmax(-1, keepdim=True)
    return ids.expand(first.shape[0], -1).gather(-1, first)[:, 0] != state.document


def _check_encoding(encoding: Encoding) -> None:
    if encoding.sides == 2:
        raise UnsupportedError(
            f"got {encoding}; expected a one-sided encoding: linear attention carries a state from the past, and sees no later key"
        )
    if encoding.lifts() or any(part.bias is not None for part in encoding.outside()):
        raise UnsupportedError(
            f"got {encoding}, which adds a bias to the logit; linear attention has none, since its weights are the scores themselves. "
            "Expected the gain twin, which multiplies them: decay (or retnet), with the slope as rate"
        )


def _form(form: str, chunk_size: int | None, t: int) -> str:
    if chunk_size is not None and (isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1):
        raise ConfigError(f"got chunk_size={chunk_size!r}; expected a whole number of tokens, at least 1")
    if form == "auto":
        return "recurrent" if t <= TINY and chunk_size is None else "chunked"
    if not lookup(FORMS, form, "form").chunks and chunk_size is not None:
        chunked = ", ".join(name for name, one in FORMS.items() if one.chunks)
        raise ConfigError(
            f"got chunk_size={chunk_size} with form={form!r}, which has no chunks; expected form={chunked!r}, or no chunk_size"
        )
    return form


def _documents(documents: Tensor | None, last_real: Tensor | None, state: State | None, t: int) -> Tensor | None:
    """Document ids (B|1, T), those of padding taken from the real token before it; the state's where none are given."""
    opened = None if state is None else state.document
    if documents is None:
        return None if opened is None else opened[:, None].expand(-1, t)
    if documents.ndim not in (1, 2) or documents.shape[-1] != t or last_real is None or not t:
        return documents if documents.ndim == 2 else documents[None] if documents.ndim == 1 else documents  # the shape is checked later
    ids = documents if documents.ndim == 2 else documents[None]
    first = ids.expand(last_real.shape[0], t).gather(-1, (last_real >= 0).long().argmax(-1, keepdim=True))
    before = first if opened is None else opened[:, None].expand(first.shape).to(ids.dtype)
    return torch.cat([before, ids.expand(before.shape[0], t)], -1).gather(-1, last_real + 1)


# --- the task: turned queries and keys, times since the state, documents counted from the open one ----------------------------------


def _masked(problem: Problem, normalize: bool) -> tuple[Tensor, Tensor]:
    """Keys and values in the dtype of the sums, 0 where padded; one column of ones more where the sums of scores are wanted."""
    work = work_dtype(problem.q.dtype)
    k, v = problem.k.to(work), problem.v.to(work)
    if normalize:
        v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    if problem.key_mask is not None:
        padded = ~problem.key_mask[:, None, :, None]
        k, v = k.masked_fill(padded, 0.0), v.masked_fill(padded, 0.0)
    return k, v


def _task(call: Weighed, state: State | None, last_real: Tensor | None, continues: Tensor | None) -> Task:
    """The lowered call."""
    problem, v = call.problem, call.v
    low = lower(problem)
    start = before = None
    if state is not None and call.start is not None:
        moved = _lowered_at(problem, call.start.mT, state.tick)
        start, before = moved.k.mT, moved.key_times[:, :, :1]
    runs = problem.documents
    if runs is not None and continues is not None:
        runs = runs + (~continues).long()[:, None]
    rate = None if low.rate is None else _per_channel(low.rate, low)
    width = low.q.shape[-1]
    times, origin = low.key_times.new_zeros(1, 1, problem.q.shape[2], 1), low.key_times.new_zeros(1, 1, 1, 1)
    if rate is not None or low.nilpotent is not None:
        seen = None if state is None else state.count > 0
        times, origin = (_per_channel(x, low) for x in _in_order(problem, low.key_times, before, seen, last_real, runs))
        if rate is not None and rate.shape[-1] == 1 and times.shape[-1] > 1:
            rate = rate.expand(-1, width)
        elif rate is not None and times.shape[-1] == 1 and not rate.requires_grad and bool((rate == rate[:, :1]).all()):
            rate = rate[:, :1]  # one rate for all channels: decay moves from the vectors to their products
    return Task(low.q, low.k, v, times, origin, problem.scale, rate, low.nilpotent, low.order, runs, start)


def _per_channel(x: Tensor, low: Lowered) -> Tensor:
    """Columns of rate as channels; a single one stays."""
    columns = x.shape[-1]
    if columns in (1, low.width):
        return x
    return x.repeat_interleave(2, -1) if low.paired else x.repeat(*(1,) * (x.ndim - 1), low.width // columns)


def _in_order(
    problem: Problem, ticks: Tensor, before: Tensor | None, seen: Tensor | None, last_real: Tensor | None, runs: Tensor | None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Times (B|1, G|1, T, W) in order and the one before them, which is the state's or the first: padding stands at the real token
    before it, and the step into a new document is 0."""
    if not ticks.shape[2]:
        before = ticks.new_zeros(*ticks.shape[:2], 1, ticks.shape[3]) if before is None else before
        rows = torch.broadcast_shapes(before.shape[:2], ticks.shape[:2])
        return ticks.expand(*rows, -1, -1), before.expand(*rows, -1, -1)
    first = ticks[:, :, :1] if last_real is None else tokens_at(ticks, (last_real >= 0).long().argmax(-1, keepdim=True))
    if before is None:
        before = first
    elif seen is not None:
        before = torch.where(seen[:, None, None, None], before, first)
    if last_real is not None:
        rows = torch.broadcast_shapes(before.shape[:2], ticks.shape[:2])
        ticks = tokens_at(torch.cat([before.expand(*rows, -1, -1), ticks.expand(*rows, -1, -1)], 2), last_real + 1)
    shape = torch.broadcast_shapes(before.shape[:2], ticks.shape[:2])
    before, ticks = before.expand(*shape, -1, -1), ticks.expand(*shape, -1, -1)
    steps = ticks.diff(dim=2, prepend=before)
    if runs is not None:
        same = torch.cat([runs[:, :1] == 0, runs[:, 1:] == runs[:, :-1]], 1)
        steps = torch.where(same[:, None, :, None], steps, 0.0)
    if bool((steps.detach() < 0).any()):
        row, _, token, _ = (steps < 0).nonzero()[0].tolist()
        where = "from the last token of the state on, " if not token else ""
        raise ClockError(
            f"got times that go back at token {token} (row {row}): by {-float(steps[row, :, token].detach().min()):.6g}; "
            f"expected nondecreasing times {where}in the order of the tokens, since {problem.encoding} decays with time: "
            "linear attention does not sort"
        )
    return (steps.cumsum(2), torch.zeros_like(steps[:, :, :1])) if runs is not None else (ticks, before)


# --- the state: what it holds, and its frame: S stands at its last token, sums inside a call in the frame of the turned keys --------


def _full(state: State) -> Tensor:
    """S, with the normaliser as one more column of values."""
    return state.S if state.z is None else torch.cat([state.S, state.z[..., None]], -1)


def _pending(state: State | None, normalize: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
    """Key and value of the last token, with a one for the normaliser."""
    if state is None or state.pending is None:
        return None
    key, value = (x.to(dtype) for x in state.pending)
    return key, torch.cat([value, torch.ones_like(value[..., :1])], -1) if normalize else value


def _last_token(k: Tensor, v: Tensor, last_real: Tensor | None, state: State | None) -> tuple[Tensor, Tensor]:
    """Key and value of the last real token of each row; the state's where a row has none, else 0. Copies, to let go of k and v."""
    kept = (None, None) if state is None or state.pending is None else state.pending
    out = []
    for x, before in zip((k, v), kept, strict=True):
        old = x.new_zeros(*x.shape[:2], x.shape[3]) if before is None else before.to(x.dtype)
        if x.shape[2] and last_real is None:
            old = x[:, :, -1].clone()
        elif x.shape[2] and last_real is not None:
            last = last_real[:, -1:]
            old = torch.where((last >= 0)[..., None], tokens_at(x, last.clamp_min(0))[:, :, 0], old)
        out.append(old)
    return out[0], out[1]


def _lowered_at(problem: Problem, rows: Tensor, tick: Tensor) -> Lowered:
    """Vectors (B, G, n, D), all of one time, turned as keys are."""
    if rows.shape[2] > ROWS:  # below, one row of angles serves all
        tick = tick.expand(-1, -1, rows.shape[2], *tick.shape[3:])
    scalar = tick if tick.ndim == 3 else tick[..., 0]
    return lower(
        replace(
            problem, q=rows[:, :, :0], k=rows,
            query_vectors=tick[:, :, :0], key_vectors=tick, query_times=scalar[:, :, :0], key_times=scalar,
        )
    )  # fmt: skip


def _at_own_time(problem: Problem, S: Tensor, tick: Tensor) -> Tensor:
    """The state moved from the frame of the turned keys to its last token: rotations undone, the basis put back."""
    split = problem.split
    if split.turns:
        S = _lowered_at(replace(problem, split=replace(split, basis=None, inverse=None)), S.mT, -tick).k.mT
    return S if split.basis is None else split.basis.to(S.dtype) @ S


def _last_tick(vectors: Tensor, last_real: Tensor | None, state: State | None) -> Tensor:
    """The time of the last real token of each row, (B|1, H|1, 1, ...); the state's where a row has none."""
    before = vectors[:, :, :1] if state is None else state.tick
    if not vectors.shape[2]:
        return vectors.new_zeros(*vectors.shape[:2], 1, *vectors.shape[3:]) if state is None else before
    if last_real is None:
        return vectors[:, :, -1:]
    shape = torch.broadcast_shapes(before.shape[:2], vectors.shape[:2])
    both = torch.cat([before.expand(*shape, *before.shape[2:]), vectors.expand(*shape, *vectors.shape[2:])], 2)
    return tokens_at(both, last_real[:, -1:] + 1)


def _count(key_mask: Tensor | None, t: int, state: State | None, device: torch.device) -> Tensor:
    """Real tokens so far, (B|1,)."""
    new = torch.full((1,), t, device=device) if key_mask is None else key_mask.long().sum(-1)
    return new if state is None else state.count + new
