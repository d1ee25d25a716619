"""Keys and values of a sequence so far, as a value: each stored once and valid for every later step."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eigenclock.attention.bands import Span
from eigenclock.attention.cache.law import law_of
from eigenclock.attention.cache.piece import Piece, read_piece
from eigenclock.attention.cache.store import Store, build_store
from eigenclock.attention.kept import row_numbers
from eigenclock.attention.state import text_of
from eigenclock.clocks import exact_duration, is_duration
from eigenclock.clocks.clock import carried, first_real
from eigenclock.clocks.units import Lapse
from eigenclock.encodings import Encoding
from eigenclock.errors import ConfigError, ShapeError

TENSORS = ("last", "origin", "count", "since", "home_keys", "home_at", "home_times")


@dataclass(frozen=True, eq=False)
class KVCache:
    """Keys and values of all tokens so far, stored once: no later step touches a key again, at any length.

    Keys are turned at their own exact time (float64 angles, origin removed). Those that decay or shear stand, in closed chunks of 256
    tokens, at the time of the last one of their chunk: exp((c - s) L) k, factors <= 1, and a query looks through exp((t - c) L), <= 1
    too. So nothing overflows, and what underflows is that small for every later query. Biases are read from the exact times. Memory
    grows by doubling and is shared: appending costs what is new, and no call changes what a holder of a cache sees; keeping it is a
    fork already. Gradients flow through it until :meth:`detach`.

    Args:
        store: the tokens, see ``attention/cache/store.py``.
        last: the last real time of each row, float64 less the origin, (B|1, heads|1, 1), with a last axis where there are several times.
        origin: what the clock subtracts from the next piece, in its own exact dtype.
        count: real tokens read so far, padding left out, (B|1,); dropped ones count.
        since: the last given time of a learned clock as it arrived, else None.
        given: whether times were given; a clock's own count goes on only without them.
        value_width: the width of values.
        spec: the encoding as text, to refuse another one.
        value_spec: what values are turned by, as text, empty where they are as they came.
        unit: the unit of its clock, None where it counts steps. resolution: what one count of a stamp is in it, exactly.
        frame: how far :meth:`moved` has moved a count as a whole.
        home_keys, home_at, home_times: after :meth:`moved`, the oldest keys as they were stored first, and the times they had then:
            every move starts from those, so that rounding does not add up.
    Units: last in the unit of the clock, origin and since as times arrive.

    >>> import eigenclock as ec
    >>> q = torch.randn(1, 2, 6, 4)
    >>> enc = ec.damped_rope(4, half_life=8)
    >>> _, cache = ec.cached_attention(q[:, :, :5], q[:, :, :5], q[:, :, :5], enc)
    >>> out, cache = ec.cached_attention(q[:, :, 5:], q[:, :, 5:], q[:, :, 5:], enc, cache=cache)
    >>> torch.allclose(out, ec.attention(q, q, q, enc)[:, :, 5:], atol=1e-6), len(cache)
    (True, 6)
    """

    store: Store
    last: Float[Tensor, "batch heads 1 *width"]
    origin: Tensor | None
    count: Int[Tensor, "batch"]
    since: Tensor | None
    given: bool
    value_width: int
    spec: str
    value_spec: str = ""
    unit: str | None = None
    resolution: Fraction | None = None
    frame: int | float = 0
    home_keys: Tensor | None = None
    home_at: Tensor | None = None
    home_times: Tensor | None = None

    @classmethod
    def of(
        cls,
        k: Float[Tensor, "B G T D"],
        v: Float[Tensor, "B G T V"],
        encoding: Encoding,
        *,
        times: Any = None,
        x: Tensor | None = None,
        mask: Tensor | None = None,
        value_encoding: Encoding | None = None,
    ) -> "KVCache":
        """A cache of these tokens, without queries.

        Raises: as :func:`eigenclock.cached_attention`.
        """
        piece = read_piece(None, None, k, v, encoding, times=times, x=x, mask=mask, value_encoding=value_encoding)
        return grown(None, piece, encoding, times is not None, value_encoding)

    def append(
        self,
        k: Float[Tensor, "B G T D"],
        v: Float[Tensor, "B G T V"],
        encoding: Encoding,
        *,
        times: Any = None,
        x: Tensor | None = None,
        mask: Tensor | None = None,
        value_encoding: Encoding | None = None,
    ) -> "KVCache":
        """The cache with more tokens at its end, without queries.

        Raises: as :func:`eigenclock.cached_attention`.
        """
        check_cache(self, encoding, k, v, times is not None, value_encoding)
        piece = read_piece(self, None, k, v, encoding, times=times, x=x, mask=mask, value_encoding=value_encoding)
        check_dtype(self, piece)
        return grown(self, piece, encoding, times is not None, value_encoding)

    def __len__(self) -> int:
        """Tokens that are stored, padding included."""
        return len(self.store) - self.store.first

    @property
    def batch(self) -> int:
        """Rows of the batch."""
        return self.store.keys.tensor.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the tokens are."""
        return self.store.keys.tensor.device

    def _each(self, change: Callable[[Tensor], Tensor]) -> "KVCache":
        own = {name: change(x) for name in TENSORS if (x := getattr(self, name)) is not None}
        return replace(self, store=self.store.each(change), **own)

    def fork(self) -> "KVCache":
        """A copy that shares no memory; gradients still flow to the original."""
        return self._each(torch.clone)

    def detach(self) -> "KVCache":
        """The same numbers without their history, for training over one piece at a time."""
        return self._each(torch.Tensor.detach)

    def to(self, device: torch.device | str) -> "KVCache":
        """The same cache on another device."""
        return self._each(lambda x: x.to(device))

    def select(self, rows: Int[Tensor, "n"] | list[int]) -> "KVCache":
        """The chosen rows of the batch, in this order and as often as named: one step of a beam search.

        Raises: ShapeError where ``rows`` are no list of row numbers below the batch size.
        """
        batch = self.batch
        index = row_numbers(rows, batch, self.device, "cache")
        own = {name: x[index] if x.shape[0] == batch else x for name in TENSORS if (x := getattr(self, name)) is not None}
        return replace(self, store=self.store.rows(index, batch), **own)

    def evict(self, keep: int | Lapse) -> "KVCache":
        """Without the oldest tokens: all but the last ``keep`` of every row, padding left out, or those that no row's window of that
        duration reaches any more.

        What stays keeps its time, and so does the next token: evicting changes no result of calls with ``window=keep``. It costs nothing;
        memory is given back when it next grows.

        Raises: ConfigError where ``keep`` is no number of tokens, or a duration that the clock does not know.
        """
        if is_duration(keep):
            counted = self.store.counts is not None
            count = self._beyond(Span.of(exact_duration(keep, self.unit), self.resolution if counted else None))
        else:
            if isinstance(keep, bool) or not isinstance(keep, int) or keep < 0:
                raise ConfigError(f"got keep={keep!r}; expected a number of tokens, at least 0, or a duration such as '30min'")
            store = self.store
            count = max(0, store.place_of(store.before(len(store)) - keep) - store.first)
        home = {name: x[:, :, count:] for name, x in self._homes().items()}
        return replace(self, store=self.store.dropped(count), **home) if count else self

    def _beyond(self, span: Span) -> int:
        """Tokens at the start that lie a span or more before the last real one of every row."""
        store = self.store
        ticks = (store.ticks if store.counts is None else store.counts).tensor[:, :, store.first :]
        if not ticks.shape[-1]:
            return 0
        last, real = ticks[..., -1:], None if store.real is None else store.real.tensor[:, store.first :]
        if real is not None:
            last = carried(ticks, first_real(ticks, real), real)[..., -1:]
        reached = span.holds(last, ticks)
        reached = (reached if real is None else reached & real[:, None]).flatten(0, 1).any(0)
        return int(reached.long().argmax()) if bool(reached.any()) else len(self)

    def _homes(self) -> dict[str, Tensor]:
        return {name: x for name in TENSORS if name.startswith("home") and (x := getattr(self, name)) is not None}

    def drop(self, tokens: slice, encoding: Encoding) -> "KVCache":
        """Without the tokens of a slice, counted from the oldest one stored. The others keep their times, and so does the next token.

        :meth:`moved` closes the gap in time. Tokens at the start are better evicted; others cost one pass over the keys.

        Raises: ConfigError where ``tokens`` is no slice.
        """
        check_spec(self, encoding)
        if not isinstance(tokens, slice):
            raise ConfigError(f"got {tokens!r}; expected the tokens to drop as a slice, such as slice(4, 100)")
        index = torch.arange(len(self), device=self.device)
        kept = torch.ones_like(index, dtype=torch.bool)
        kept[index[tokens] if (tokens.step or 1) > 0 else index.flip(0)[tokens]] = False
        chosen = index[kept]
        home = {name: x[:, :, chosen[chosen < x.shape[2]]] for name, x in self._homes().items()}
        law = law_of(encoding, self.store.open_keys.tensor, self.value_width)[1]
        return replace(self, store=build_store(self.store.tokens().pick(chosen), law), **home)

    def moved(self, encoding: Encoding, *, by: int | float | None = None, to: Any = None) -> "KVCache":
        """The same tokens at other times: exp of the difference acts on the stored keys, once, and the next token goes on from there.

        ``by`` moves all of them, which is a change of origin and touches no key; a clock's own count goes along. ``to`` gives each
        stored token its time: (N,) or (B, N); a clock's own count goes on after the last of them. Constants on either side of the
        group (an amplitude) are in the stored keys and are not applied again.

        Raises: UnsupportedError where the law does not allow it: a learned clock, several axes, frequencies that depend on the length, an
            encoding outside the group; or where keys decayed too far in their chunk to be brought back.

        >>> import eigenclock as ec
        >>> k = torch.randn(1, 1, 8, 4)
        >>> cache = ec.KVCache.of(k, k, ec.rope(4)).drop(slice(2, 5), ec.rope(4))
        >>> len(cache), cache.moved(ec.rope(4), to=torch.arange(5)).next_count.tolist()
        (5, [5])
        """
        from eigenclock.attention.cache.move import move

        check_spec(self, encoding)
        return move(self, encoding, by, to)

    def joined(self, other: "KVCache", encoding: Encoding) -> "KVCache":
        """These tokens and those of another cache after them, at the times they have there: two prompts as one.

        Move the other one first where its tokens should follow: ``other.moved(encoding, by=len(self))``. The next token goes on from its
        last.

        Raises: as :meth:`moved`; ShapeError where the caches do not fit; ClockError where tokens would go back in time.
        """
        from eigenclock.attention.cache.move import join

        check_spec(self, encoding)
        check_spec(other, encoding)
        return join(self, other, encoding)

    @property
    def next_count(self) -> Int[Tensor, "batch"]:
        """The time of the next token by the clock's own count, (B|1,): the true one, whatever was dropped.

        Raises: ConfigError where times were given, or the clock counts nothing.
        """
        if self.given or self.origin is None or self.origin.is_floating_point():
            raise ConfigError(f"got a cache of {self.spec} without a count of its own; expected times= for the next tokens")
        return int(self.frame) - self.origin.flatten(1)[:, 0]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the cache as a safetensors file, whole or not at all.

        Raises: UnsupportedError without the package safetensors; EigenclockError where the file cannot be written.
        """
        from eigenclock.attention.cache.files import save

        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "KVCache":
        """Read a cache written by :meth:`save`, onto the CPU.

        Raises: UnsupportedError without the package safetensors; ConfigError where the file is no cache; EigenclockError where it cannot
            be read.
        """
        from eigenclock.attention.cache.files import load

        return load(path)


def grown(cache: KVCache | None, piece: Piece, encoding: Encoding, given: bool, value_encoding: Encoding | None = None) -> KVCache:
    """The cache with the tokens of a piece at its end."""
    store = (Store.empty(piece.tokens) if cache is None else cache.store).append(piece.tokens, piece.law)
    facts = {"last": piece.last, "origin": piece.origin, "count": piece.count, "since": piece.since}
    if cache is not None:
        return replace(cache, store=store, **facts)
    return KVCache(
        store=store, given=given, value_width=piece.problem.v.shape[-1], spec=text_of(encoding),
        value_spec="" if value_encoding is None else text_of(value_encoding), unit=encoding.clock.unit,
        resolution=encoding.clock.resolution, **facts,
    )  # fmt: skip


def check_spec(cache: KVCache, encoding: Encoding) -> None:
    """Refuse a cache of another encoding."""
    if not isinstance(cache, KVCache):
        raise ConfigError(f"got {type(cache).__name__} as cache; expected the KVCache that cached_attention returned")
    if not isinstance(encoding, Encoding):
        raise ConfigError(f"got {type(encoding).__name__} as encoding; expected the Encoding the cache was made with")
    if cache.spec != text_of(encoding):
        raise ConfigError(f"got a cache of {cache.spec} with the encoding {encoding}; expected the encoding it was made with")


def check_cache(cache: KVCache, encoding: Encoding, k: Tensor, v: Tensor, given: bool, value_encoding: Encoding | None) -> None:
    """Refuse a cache of another encoding, shape, device or way of calling."""
    check_spec(cache, encoding)
    if cache.value_spec != ("" if value_encoding is None else text_of(value_encoding)):
        raise ConfigError(
            f"got a cache with value_encoding={cache.value_spec or None} and value_encoding={value_encoding} now; expected the same for "
            "all pieces of a sequence"
        )
    batch, heads = cache.store.keys.tensor.shape[1:3]
    if k.ndim != 4 or v.ndim != 4:
        return  # said with the shapes that are expected when the piece is read
    if (k.shape[0], k.shape[1], v.shape[3]) != (batch, heads, cache.value_width):
        raise ShapeError(
            f"got a cache of {batch} rows, {heads} key heads and values of width {cache.value_width}, and tensors of {k.shape[0]}, "
            f"{k.shape[1]} and {v.shape[3]}; expected the same: cache.select(rows) picks rows of the batch"
        )
    if cache.device != k.device:
        raise ShapeError(f"got a cache on {cache.device} and tensors on {k.device}; expected one device: cache.to('{k.device}')")
    if given != cache.given:
        was, now = ("given times", "none") if cache.given else ("the clock's own count", "given times")
        raise ConfigError(
            f"got a cache made with {was} and {now} now; expected the same for all pieces of a sequence: "
            + ("pass times= again" if cache.given else "leave times out")
        )


def check_dtype(cache: KVCache, piece: Piece) -> None:
    """Refuse tokens of another dtype than the cache holds."""
    kept = cache.store.keys.tensor.dtype
    if kept != piece.law.dtype:
        raise ShapeError(f"got tensors that are stored in {piece.law.dtype} and a cache in {kept}; expected one dtype for all pieces")
