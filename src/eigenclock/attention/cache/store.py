"""The memory of a cache: closed chunks of keys that stand at the time of their last token, and the open chunk as it came."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from eigenclock.attention.cache.law import Law
from eigenclock.attention.cache.tape import Run

CHUNK = 256
"""Tokens of a closed chunk."""

_ROWS = {"keys": 1, "values": 1, "anchors": 1, "open_keys": 0, "open_values": 0, "open_at": 0, "ticks": 0, "real": 0, "counts": 0}
_GROWS = {"keys": 0, "values": 0, "anchors": 0, "open_keys": 2, "open_values": 2, "open_at": 2, "ticks": 2, "real": 1, "counts": 2}


@dataclass(frozen=True, eq=False)
class Tokens:
    """Keys that were turned, and where they stand: keys and values (B, G, N, D), at (B|1, X|1, N, W) the times that the parts of each key
    stand at (its own, or later: None where nothing decays), ticks (B|1, X|1, N), real (B|1, N), counts (B|1, X|1, N): what a window in
    time compares, None where the ticks are as good."""

    keys: Tensor
    values: Tensor
    at: Tensor | None
    ticks: Tensor
    real: Tensor | None
    counts: Tensor | None = None

    def __len__(self) -> int:
        return self.keys.shape[2]

    def pick(self, index: Tensor) -> "Tokens":
        """Some tokens by number, the same in all rows."""
        return Tokens(
            self.keys[:, :, index], self.values[:, :, index], None if self.at is None else self.at[:, :, index],
            self.ticks[:, :, index], None if self.real is None else self.real[:, index],
            None if self.counts is None else self.counts[:, :, index],
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Store:
    """Turned keys and their values, append-only.

    A closed chunk of 256 tokens stands at the time of its last real token, the anchor: its keys are exp((anchor - s) L) k with factors
    <= 1, and a query at t looks at them through exp((t - anchor) L), <= 1 as well. Nothing overflows at any rate, what underflows is
    that small for every later query too, and no key is touched again.

    Args:
        keys, values: (C, B, G, 256, D), chunks first, so that a row of chunks is one batch of a kernel.
        anchors: (C, B|1, X|1, 1, W), None where nothing decays or shears.
        open_keys, open_values: (B, G, n, D); open_at (B|1, X|1, n, W): what the keys of the open chunk stand at.
        ticks: (B|1, X|1, N): the time of every token, for biases. real (B|1, N): False is padding. counts: as in Tokens.
        first: tokens at the start of the oldest chunk that were dropped with whole chunks before it.
    """

    keys: Run
    values: Run
    anchors: Run | None
    open_keys: Run
    open_values: Run
    open_at: Run | None
    ticks: Run
    real: Run | None
    first: int = 0
    counts: Run | None = None

    @classmethod
    def empty(cls, like: Tokens) -> "Store":
        """A store without tokens."""

        def none(x: Tensor, axis: int) -> Run:
            return Run.of(x.new_zeros([*x.shape[:axis], 0, *x.shape[axis + 1 :]]), axis)

        def chunk(x: Tensor) -> Run:
            return Run.of(x.new_zeros(0, *x.shape[:2], CHUNK, x.shape[3]), 0)

        at = like.at
        return cls(
            chunk(like.keys), chunk(like.values), None if at is None else Run.of(at.new_zeros(0, *at.shape[:2], 1, at.shape[3]), 0),
            none(like.keys, 2), none(like.values, 2), None if at is None else none(at, 2), none(like.ticks, 2),
            None if like.real is None else none(like.real, 1), counts=None if like.counts is None else none(like.counts, 2),
        )  # fmt: skip

    @property
    def closed(self) -> int:
        """Tokens in closed chunks, dropped ones included."""
        return len(self.keys) * CHUNK

    def __len__(self) -> int:
        """Tokens stored, those dropped at the start of the oldest chunk included."""
        return self.closed + len(self.open_keys)

    def counted(self, low: int, high: int) -> Tensor:
        """How many real tokens there are up to each of the places low .. high, itself included, (B|1, n); hidden ones count."""
        if self.real is None:
            return torch.arange(low + 1, high + 1, device=self.ticks.tensor.device)[None]
        return self.real.tensor.long().cumsum(-1)[:, low:high]

    def before(self, place: int) -> Tensor:
        """How many real tokens stand before a place, (B|1,)."""
        if self.real is None:
            return torch.full((1,), place, device=self.ticks.tensor.device)
        return self.real.tensor[:, :place].sum(-1)

    def place_of(self, count: Tensor) -> int:
        """The first place that some row reaches behind so many of its real tokens, (B|1,)."""
        count = count.clamp_min(0)
        return int(count.min()) if self.real is None else int((self.counted(0, len(self)) <= count[:, None]).all(0).sum())

    def runs(self) -> dict[str, Run]:
        """The parts by name."""
        return {f.name: run for f in fields(self) if isinstance(run := getattr(self, f.name), Run)}

    def each(self, change: Callable[[Tensor], Tensor]) -> "Store":
        """Every tensor changed."""
        return replace(self, **{name: run.map(change) for name, run in self.runs().items()})

    def rows(self, index: Tensor, batch: int) -> "Store":
        """Some rows of the batch."""

        def pick(name: str, run: Run) -> Run:
            axis = _ROWS[name]
            return run if run.tensor.shape[axis] != batch else run.map(lambda x: x.index_select(axis, index))

        return replace(self, **{name: pick(name, run) for name, run in self.runs().items()})

    def append(self, new: Tokens, law: Law) -> "Store":
        """The tokens at the end; chunks that become full are closed."""
        count, real = len(self), self.real
        if new.real is not None and real is None:
            real = Run.of(torch.ones(1, count, dtype=torch.bool, device=new.keys.device), 1)
        if real is not None:
            rows = new.real if new.real is not None else torch.ones(1, len(new), dtype=torch.bool, device=new.keys.device)
            real = real.append(rows)
        opened = replace(
            self, ticks=self.ticks.append(new.ticks), real=real, counts=_counts(self.counts, new.counts),
            open_keys=self.open_keys.append(new.keys, CHUNK),
            open_values=self.open_values.append(new.values, CHUNK),
            open_at=None if self.open_at is None or new.at is None else self.open_at.append(new.at, CHUNK),
        )  # fmt: skip
        return opened._close(law) if len(opened.open_keys) >= CHUNK else opened

    def _close(self, law: Law) -> "Store":
        count, total = len(self.open_keys) // CHUNK, len(self.open_keys)
        full = count * CHUNK
        keys, values = (_chunks(run.tensor[:, :, :full]) for run in (self.open_keys, self.open_values))
        anchors, open_at = self.anchors, self.open_at
        if anchors is not None and open_at is not None:
            at = _chunks(open_at.tensor[:, :, :full])
            anchor = _anchor(at, None if self.real is None else self.real.tensor[:, self.closed : self.closed + full])
            keys = law.keys(keys, (anchor - at).clamp_min(0.0))
            anchors = anchors.append(anchor)
            open_at = Run.of(open_at.tensor[:, :, full:].clone(), 2)
        rest = [Run.of(run.tensor[:, :, full:total].clone(), 2) for run in (self.open_keys, self.open_values)]
        return replace(
            self, keys=self.keys.append(keys), values=self.values.append(values), anchors=anchors, open_keys=rest[0], open_values=rest[1],
            open_at=open_at,
        )  # fmt: skip

    def dropped(self, count: int) -> "Store":
        """Without the oldest tokens: whole chunks are let go, the start of the next is only hidden. Costs nothing."""
        low = self.first + count
        chunks = min(low // CHUNK, len(self.keys))
        gone, names = chunks * CHUNK, ("keys", "values", "anchors")
        shorter = {name: run.part(chunks, len(run)) for name, run in self.runs().items() if name in names}
        rest = low - gone
        if chunks == len(self.keys):  # the open chunk has no place for hidden tokens
            shorter |= {name: run.part(rest, len(run)) for name, run in self.runs().items() if name.startswith("open")}
            gone, rest = gone + rest, 0
        shorter |= {name: run.part(gone, len(run)) for name, run in self.runs().items() if name in ("ticks", "real", "counts")}
        return replace(self, first=rest, **shorter)

    def tokens(self) -> Tokens:
        """All tokens in one row, without those dropped."""
        at = None
        if self.anchors is not None and self.open_at is not None:
            anchors = self.anchors.tensor
            at = _joined(_flat(anchors.expand(*anchors.shape[:3], CHUNK, -1)), self.open_at.tensor)
        keys, values = (_joined(_flat(a.tensor), b.tensor) for a, b in ((self.keys, self.open_keys), (self.values, self.open_values)))
        real, counts = (None if run is None else run.tensor for run in (self.real, self.counts))
        whole = Tokens(keys, values, at, self.ticks.tensor, real, counts)
        return whole.pick(torch.arange(self.first, len(self), device=keys.device)) if self.first else whole


def build_store(tokens: Tokens, law: Law) -> Store:
    """A store of these tokens, chunks closed anew: a key that stands at an earlier anchor moves on to the later one."""
    return Store.empty(tokens).append(tokens, law)


def part_names() -> tuple[str, ...]:
    """The names of the parts of a store."""
    return tuple(_GROWS)


def axis_of(name: str) -> int:
    """Along which axis a part of a store grows."""
    return _GROWS[name]


def _chunks(x: Tensor) -> Tensor:
    """(B, X, C 256, W) as (C, B, X, 256, W)."""
    return x.unflatten(2, (-1, CHUNK)).permute(2, 0, 1, 3, 4)


def _flat(x: Tensor) -> Tensor:
    """(C, B, X, 256, W) as (B, X, C 256, W)."""
    return x.permute(1, 2, 0, 3, 4).flatten(2, 3)


def _counts(old: Run | None, new: Tensor | None) -> Run | None:
    """The counts of all tokens; none where a piece brought none."""
    if old is None or new is None:
        return None
    if old.tensor.dtype != new.dtype:  # whole stamps before floating ones, or the other way round
        old, new = old.map(torch.Tensor.double), new.double()
    return old.append(new)


def _joined(a: Tensor, b: Tensor) -> Tensor:
    shape = torch.broadcast_shapes(a.shape[:2], b.shape[:2])
    return torch.cat([x.expand(*shape, *x.shape[2:]) for x in (a, b)], 2)


def _anchor(at: Tensor, real: Tensor | None) -> Tensor:
    """The latest time that a real key of each chunk (C, B|1, X|1, 256, W) stands at; any where no key is real."""
    at = at.detach()
    if real is None:
        return at.amax(-2, keepdim=True)
    seen = real.unflatten(1, (-1, CHUNK)).transpose(0, 1)[:, :, None, :, None]  # (C, B|1, 1, 256, 1)
    top = torch.where(seen, at, -torch.inf).amax(-2, keepdim=True)
    return torch.where(top == -torch.inf, at[..., -1:, :], top)
