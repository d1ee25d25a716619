"""The chunked form's arithmetic: states from chunk to chunk, pairs inside, and the backward in closed form."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from eigenclock.attention.forms.chunks import Run, Tables, make_tables, runs
from eigenclock.attention.forms.decays import decayed_scores
from eigenclock.attention.job import Workspace

BLOCK = 1 << 18
"""Numbers of q, k or v that are worked on at a time, so that what is written is read again while it is in cache."""

LEAST = 4
"""Chunks worked on at a time, at least: fewer would spend the time on calls."""


@dataclass(frozen=True)
class Call:
    """A call with rows and key heads as one axis N.

    q (M, N, H/G, T, D), one for each order; k (N, T, D), v (N, T, V); times (N|1, T, W) and before (N|1, 1, W) float64; rate (N|1, R);
    nilpotent (N|1, D, D); documents (N|1, T); start (N, D, V). See Task.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    times: Tensor
    before: Tensor
    rate: Tensor | None
    nilpotent: Tensor | None
    documents: Tensor | None
    start: Tensor | None
    scale: float
    chunk: int
    workspace: Workspace = field(default_factory=Workspace, compare=False)

    @property
    def orders(self) -> int:
        return self.q.shape[0]

    @property
    def runs(self) -> list[Run]:
        d = max(self.k.shape[-1], self.v.shape[-1], 1)
        return runs(self.k.shape[1], self.chunk, max(LEAST, BLOCK // (max(1, self.k.shape[0]) * self.chunk * d)))

    @property
    def heads(self) -> list[slice]:
        """The key heads in slices that fit the cache."""
        n, d = self.k.shape[0], max(self.k.shape[-1], self.v.shape[-1], 1)
        most = max(1, BLOCK // (LEAST * self.chunk * d))
        return [slice(i, min(i + most, n)) for i in range(0, n, most)]

    def tables(self, run: Run, heads: slice) -> Tables:
        """The tables of a run for some heads."""

        def of(x: Tensor | None) -> Tensor | None:
            return x if x is None or x.shape[0] == 1 else x[heads]

        def chunks(x: Tensor) -> Tensor:
            return x[:, run.tokens].unflatten(1, (run.count, run.length))

        times, documents = of(self.times), of(self.documents)
        before = of(self.before) if not run.first or times is None else times[:, run.first - 1 : run.first]
        assert times is not None and before is not None
        opened = None
        if documents is not None:
            opened = documents[:, run.first - 1] if run.first else torch.zeros_like(documents[:, 0])
            opened = opened[:, None, None]
        return make_tables(
            chunks(times), before[:, None], of(self.rate), self.orders, None if documents is None else chunks(documents), opened,
            self.scale, heads.stop - heads.start, self.k.dtype,
        )  # fmt: skip

    def take(self, x: Tensor, run: Run, name: str, factor: Tensor | None = None) -> Tensor:
        """Some tokens of (h, T, D), times a factor (h|1, n|1, C, D|1), as (h, n, C, D) in memory of its own."""
        view = x[:, run.tokens].unflatten(1, (run.count, run.length))
        out = self.workspace.take(name, tuple(view.shape), x.dtype, x.device)
        return out.copy_(view) if factor is None else torch.mul(view, factor, out=out)


def flat(x: Tensor) -> Tensor:
    """Heads and chunks as one axis."""
    return x.flatten(0, 1)


# --- forward -----------------------------------------------------------------------------------------------------------------------


def forward(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """The output (N, H/G, T, V), the moments of the last state (M, N, D, V), and the moments before each run (runs, M, N, D, V)."""
    n, t, v = call.v.shape
    out = call.v.new_empty(n, call.q.shape[2], t, v)
    state = call.v.new_zeros(call.orders, n, call.k.shape[-1], v)
    if call.start is not None:
        state[0] = call.start
    saved = state.new_empty(len(call.runs), *state.shape)
    for i, run in enumerate(call.runs):
        saved[i] = state
        for heads in call.heads:
            tables = call.tables(run, heads)
            k, values = call.take(call.k[heads], run, "keys", tables.key), call.take(call.v[heads], run, "values")
            states, state[:, heads] = _states(call, tables, k, values, state[:, heads])
            raw = k if tables.inside or tables.key is None else call.take(call.k[heads], run, "raw keys")
            states.mul_(tables.read.unsqueeze(2))
            for j in range(call.q.shape[2]):
                pairs, own = _pairs(call, tables, run, heads, j, raw)
                part = torch.bmm(flat(pairs), flat(values))
                for r, reader in enumerate(_readers(call, tables, own)):
                    part.baddbmm_(flat(reader), flat(states)[:, r])
                out[heads, j, run.tokens] = part.view(states.shape[0], run.count * run.length, v)
    return out, state, saved


def _states(call: Call, tables: Tables, k: Tensor, v: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The moments before each chunk of a run, (h, n, M, D, V), and after the last, (M, h, D, V)."""
    h, n = k.shape[:2]
    states = call.workspace.take("states", (h, n, call.orders, k.shape[-1], v.shape[-1]), v.dtype, v.device)
    for r, weight in enumerate(tables.write_weights):
        written = k if weight is None else torch.mul(k, weight, out=call.workspace.take("written", tuple(k.shape), k.dtype, k.device))
        if call.orders == 1:
            torch.bmm(flat(written).mT, flat(v), out=flat(states)[:, 0])
        else:
            flat(states)[:, r] = torch.bmm(flat(written).mT, flat(v))
    if tables.write is not None:
        states.mul_(tables.write.unsqueeze(2))
    for i in range(n):
        kept = state * tables.keep[:, i]
        moved = kept
        if call.orders > 1:
            moved = kept.clone()
            for r in range(1, call.orders):
                moved[r:] += tables.moves[r - 1][:, i] * kept[: call.orders - r]
        moved += states[:, i].transpose(0, 1)
        states[:, i] = state.transpose(0, 1)
        state = moved
    return states, state


def _pairs(call: Call, tables: Tables, run: Run, heads: slice, j: int, raw: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The weight of each pair inside its chunk, (h, n, C, C), and the queries that make it, of each order, (h, n, C, D)."""
    pairs, own = None, []
    for r in range(call.orders):
        own.append(call.take(call.q[r, heads, j], run, f"queries {r}", tables.query if tables.inside else None))
        part = _scores(call, tables, run, heads, j, r, own[r], raw).mul_(tables.pairs[r])
        pairs = part if pairs is None else pairs.add_(part)
    assert pairs is not None
    return pairs, own


def _readers(call: Call, tables: Tables, own: list[Tensor]) -> list[Tensor]:
    """The queries that read each moment of the state: moment a later is the sum over r of lag^(r - a) / (r - a)! times moment a now."""
    out = []
    for a in range(call.orders):
        total = None
        for r in range(a, call.orders):
            factor = _factor(None if tables.inside else tables.query, tables.read_weights[r - a])
            part = own[r]
            if factor is not None:
                buffer = call.workspace.take(f"reader {a} {r}", tuple(part.shape), part.dtype, part.device)
                part = torch.mul(part, factor, out=buffer)
            total = part if total is None else total + part
        assert total is not None
        out.append(total)
    return out


def _factor(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a * b


def _scores(call: Call, tables: Tables, run: Run, heads: slice, j: int, r: int, own: Tensor, raw: Tensor) -> Tensor:
    """q . k of the pairs of each chunk, decays included where they are in the factors."""
    h, n, c, _ = own.shape
    out = call.workspace.take(f"pairs {r}", (h, n, c, c), own.dtype, own.device)
    torch.bmm(flat(own), flat(raw).mT, out=flat(out))
    if tables.hot is not None and tables.hot_times is not None and tables.hot_rate is not None:
        q, k = (_hot(x, tables.hot, run) for x in (call.q[r, heads, j], call.k[heads]))
        (careful,) = decayed_scores([q], k, tables.hot_times, tables.hot_rate)
        flat(out)[tables.hot] = careful * call.scale
    return out


def _hot(x: Tensor, hot: Tensor, run: Run) -> Tensor:
    """The hot chunks of (h, T, D), (K, C, D)."""
    return x[:, run.tokens].unflatten(1, (run.count, run.length))[hot // run.count, hot % run.count]


# --- backward ----------------------------------------------------------------------------------------------------------------------


@dataclass
class Gradients:
    """As the tensors of a call; the small ones are None where nobody asked."""

    q: Tensor
    k: Tensor
    v: Tensor
    start: Tensor  # (M, N, D, V), of which moment 0 is the state's
    times: Tensor | None = None  # (N, T, W)
    rate: Tensor | None = None  # (N, R)


def backward(call: Call, g: Tensor, g_end: Tensor, end: Tensor, saved: Tensor, clock: bool, rates: bool) -> Gradients:
    """Gradients from those of the output and of the last moments (M, N, D, V). ``clock``, ``rates``: whether those are asked for."""
    n, t, _ = call.k.shape
    d_state = g_end.clone()
    grads = Gradients(torch.empty_like(call.q), torch.empty_like(call.k), torch.empty_like(call.v), d_state)
    if clock:
        grads.times = call.times.new_zeros(n, t, call.times.shape[-1])
        if t:
            grads.times[:, -1] += _end_of_time(call, end, g_end)
    if rates and call.rate is not None:
        grads.rate = call.times.new_zeros(n, call.rate.shape[-1])
    for i, run in reversed(list(enumerate(call.runs))):
        for heads in call.heads:
            _backward_run(call, run, heads, saved[i][:, heads], g, grads)
    return grads


def _end_of_time(call: Call, end: Tensor, g_end: Tensor) -> Tensor:
    """How the last state depends on the last time, (N, W): the rest of it is in the gradients of q and k."""
    total = torch.zeros_like(call.times[:, 0]).expand(call.k.shape[0], -1)
    if call.rate is not None:
        energy = (end * g_end).sum((0, -1)).double()
        total = total - _by_time(energy * call.rate, call.times.shape[-1])
    if call.orders > 1:
        total = total + (end[:-1] * g_end[1:]).sum((0, 2, 3)).double()[:, None]
    return total


def _by_time(x: Tensor, width: int) -> Tensor:
    """Channels summed where one time drives them all."""
    return x.sum(-1, keepdim=True) if width == 1 else x


def _backward_run(call: Call, run: Run, heads: slice, state: Tensor, g: Tensor, grads: Gradients) -> None:
    tables = call.tables(run, heads)
    k, v = call.take(call.k[heads], run, "keys", tables.key), call.take(call.v[heads], run, "values")
    states, _ = _states(call, tables, k, v, state)
    raw = k if tables.inside or tables.key is None else call.take(call.k[heads], run, "raw keys")
    flux = states.clone() if grads.rate is not None else None  # the states before they are scaled for reading
    states.mul_(tables.read.unsqueeze(2))
    h, n = k.shape[:2]
    d_states, dv, dk_pairs = torch.zeros_like(states), torch.zeros_like(v), torch.zeros_like(k)
    dk = torch.zeros_like(k)  # of the keys as given, where pairs see them so
    energy = torch.zeros_like(k) if grads.rate is not None or grads.times is not None else None  # minus q dq, summed over query heads
    shear = k.new_zeros(h, n, run.length) if grads.times is not None and call.orders > 1 else None
    for j in range(call.q.shape[2]):
        do = call.take(g[heads, j], run, "output gradient")
        pairs, own = _pairs(call, tables, run, heads, j, raw)
        flat(dv).baddbmm_(flat(pairs).mT, flat(do))
        d_pairs = torch.bmm(flat(do), flat(v).mT, out=call.workspace.take("pairs' gradient", tuple(flat(pairs).shape), v.dtype, v.device))
        d_pairs = d_pairs.view_as(pairs)
        d_readers = _backward_readers(call, tables, own, do, states, d_states)
        dqs = []
        for r in range(call.orders):
            dq = _backward_order(call, tables, run, heads, j, r, own[r], raw, d_pairs, d_readers, dk_pairs, dk)
            grads.q[r, heads, j, run.tokens] = dq.flatten(1, 2)
            dqs.append(dq)
            if energy is not None:
                energy.addcmul_(dq, call.take(call.q[r, heads, j], run, "queries again"), value=-1)
        if shear is not None:
            for r in range(1, call.orders):
                shear += (call.take(call.q[r, heads, j], run, "queries again") * dqs[r - 1]).sum(-1)
    after = _backward_states(call, tables, d_states, grads, heads)  # d_states now holds the gradient of what each chunk wrote
    if flux is not None and after is not None:
        _rate_from_states(call, run, heads, flux, after, grads)
    for r, weight in enumerate(tables.write_weights):
        d_written = flat(d_states)[:, r]
        part = torch.bmm(flat(v), d_written.mT).view_as(k)
        dk_pairs += part if weight is None else part.mul_(weight)
        written = k if weight is None else k * weight
        flat(dv).baddbmm_(flat(written), d_written)
    dk += dk_pairs if tables.key is None else dk_pairs.mul_(tables.key)
    grads.k[heads, run.tokens], grads.v[heads, run.tokens] = dk.flatten(1, 2), dv.flatten(1, 2)
    if energy is not None:
        _small(call, run, heads, dk, energy, shear, grads)


def _backward_readers(call: Call, tables: Tables, own: list[Tensor], do: Tensor, states: Tensor, d_states: Tensor) -> list[Tensor]:
    """Adds to the gradients of the states, returns those of the queries that read them."""
    out = []
    for a, reader in enumerate(_readers(call, tables, own)):
        if call.orders == 1:
            flat(d_states)[:, 0].baddbmm_(flat(reader).mT, flat(do))
        else:
            flat(d_states)[:, a] += torch.bmm(flat(reader).mT, flat(do))
        out.append(torch.bmm(flat(do), flat(states)[:, a].mT).view_as(reader))
    return out


def _backward_order(
    call: Call, tables: Tables, run: Run, heads: slice, j: int, r: int, own: Tensor, raw: Tensor, d_pairs: Tensor,
    d_readers: list[Tensor], dk_inside: Tensor, dk: Tensor,
) -> Tensor:  # fmt: skip
    """One order's share: adds to the gradient of the keys, returns that of the queries as given."""
    d_score = d_pairs * tables.pairs[r]
    hot_q = None
    if tables.hot is not None and tables.hot_times is not None and tables.hot_rate is not None:
        hot_q, hot_k = _careful_backward(call, tables, run, heads, j, r, flat(d_score)[tables.hot])
        flat(d_score)[tables.hot] = 0.0
        flat(dk)[tables.hot] += hot_k
    dq = torch.bmm(flat(d_score), flat(raw)).view_as(own)
    flat(dk_inside if tables.inside else dk).baddbmm_(flat(d_score).mT, flat(own))
    for a in range(r + 1):
        factor = _factor(None if tables.inside else tables.query, tables.read_weights[r - a])
        if factor is None:
            dq += d_readers[a]
        else:
            dq.addcmul_(d_readers[a], factor)
    if tables.inside and tables.query is not None:
        dq *= tables.query
    if hot_q is not None:
        flat(dq)[tables.hot] += hot_q
    return dq


def _careful_backward(call: Call, tables: Tables, run: Run, heads: slice, j: int, r: int, d_score: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the pairs of hot chunks, through plain operations."""
    assert tables.hot is not None and tables.hot_times is not None and tables.hot_rate is not None
    with torch.enable_grad():
        q, k = (_hot(x, tables.hot, run).detach().requires_grad_() for x in (call.q[r, heads, j], call.k[heads]))
        (careful,) = decayed_scores([q], k, tables.hot_times, tables.hot_rate)
        dq, dk = torch.autograd.grad(careful, (q, k), d_score * call.scale)
    return dq, dk


def _backward_states(call: Call, tables: Tables, d_states: Tensor, grads: Gradients, heads: slice) -> Tensor | None:
    """Walk the states back. ``d_states`` (h, n, M, D, V) comes as what reading adds and leaves as the gradient of what chunks wrote.

    Returns the gradient of the state before each chunk where rates need it.
    """
    d_state = grads.start[:, heads].clone()
    before = torch.empty_like(d_states) if grads.rate is not None else None
    d_states.mul_(tables.read.unsqueeze(2))
    for i in reversed(range(d_states.shape[1])):
        read = d_states[:, i].transpose(0, 1)
        moved = d_state
        if call.orders > 1:
            moved = d_state.clone()
            for r in range(1, call.orders):
                moved[: call.orders - r] += tables.moves[r - 1][:, i] * d_state[r:]
        earlier = torch.addcmul(read, moved, tables.keep[:, i])
        d_states[:, i] = d_state.transpose(0, 1)
        d_state = earlier
        if before is not None:
            before[:, i] = d_state.transpose(0, 1)
    if tables.write is not None:
        d_states.mul_(tables.write.unsqueeze(2))
    grads.start[:, heads] = d_state
    return before


def _rate_from_states(call: Call, run: Run, heads: slice, states: Tensor, d_states: Tensor, grads: Gradients) -> None:
    """The rates' gradient from pairs that cross into a chunk: minus the chunk's length times what flows in."""
    assert grads.rate is not None
    times = call.times if call.times.shape[0] == 1 else call.times[heads]
    last = times[:, run.tokens].unflatten(1, (run.count, run.length))[:, :, -1]
    before = times[:, run.first - 1 : run.first] if run.first else call.before if call.before.shape[0] == 1 else call.before[heads]
    step = last.diff(dim=1, prepend=before)  # (h|1, n, W)
    flow = (states * d_states).sum((2, -1)).double()  # (h, n, D)
    total = -(flow * step).sum(1)
    grads.rate[heads] += total.sum(-1, keepdim=True) if grads.rate.shape[-1] == 1 else total


def _small(call: Call, run: Run, heads: slice, dk: Tensor, energy: Tensor, shear: Tensor | None, grads: Gradients) -> None:
    """Times and rates: d exponent = k dk - q dq of the final gradients, summed around each chunk's last time."""
    keys = call.take(call.k[heads], run, "keys again")
    energy.addcmul_(keys, dk)
    rate = None if call.rate is None else (call.rate if call.rate.shape[0] == 1 else call.rate[heads])
    if grads.rate is not None:
        times = call.times if call.times.shape[0] == 1 else call.times[heads]
        times = times[:, run.tokens].unflatten(1, (run.count, run.length))
        lag = (times - times[:, :, -1:]).to(energy.dtype)
        total = (energy * lag).sum((1, 2)).double()
        grads.rate[heads] += total.sum(-1, keepdim=True) if grads.rate.shape[-1] == 1 else total
    if grads.times is None:
        return
    width = call.times.shape[-1]
    if rate is not None:
        total = _by_time(energy * rate[:, None, None].to(energy.dtype), width)
        grads.times[heads, run.tokens] += total.flatten(1, 2).double()
    if shear is not None and call.nilpotent is not None:
        n = (call.nilpotent if call.nilpotent.shape[0] == 1 else call.nilpotent[heads]).to(keys.dtype)
        on_keys = ((keys.flatten(1, 2) @ n.mT) * dk.flatten(1, 2)).sum(-1)
        grads.times[heads, run.tokens] += (shear.flatten(1, 2) - on_keys).double()[..., None]
