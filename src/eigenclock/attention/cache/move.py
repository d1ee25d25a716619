"""Stored keys at other times: the group acts on them once, by the difference."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.attention.cache.law import Law, law_of
from eigenclock.attention.cache.store import Store, Tokens, build_store
from eigenclock.attention.cache.value import KVCache
from eigenclock.attention.rotate import make_table, rotate
from eigenclock.attention.times import counts_of
from eigenclock.clocks import Clock
from eigenclock.clocks.clock import carried, first_real, with_heads
from eigenclock.clocks.stamps import as_times
from eigenclock.encodings import Encoding
from eigenclock.errors import ClockError, ConfigError, GrowthError, ShapeError, UnsupportedError
from eigenclock.theory import Split
from eigenclock.theory.tiles import EXPONENT_BOUND, FACTOR_FLOOR


def moved_keys(keys: Float[Tensor, "B G N D"], encoding: Encoding, *, stored_at: Any, move_to: Any) -> Float[Tensor, "B G N D"]:
    """Keys stored elsewhere, turned at the times ``stored_at``, as they are at the times ``move_to``: exp((old - new) L) on each.

    One action of the group, rounded once, wherever the keys come from: exp(-s L) k at the old time becomes exp(-s' L) k. What stands on
    either side of the group (an amplitude on rotated channels) is in the stored keys and is not applied again.

    Args:
        stored_at, move_to: times (N,), (B, N) or (B, G, N) as the clock of the encoding reads them.
    Units: times in the unit of the clock.
    Raises: UnsupportedError where the law does not allow it: a learned clock, several axes, frequencies that depend on the length, an
        encoding outside the group; ShapeError; GrowthError where keys that decay would grow too far.
    Stability: the angle is a float64 product of the exact difference of times, reduced and rounded once.
    Source: Su et al. (RoFormer), 2104.09864, eq. 34: rotations compose.

    >>> import torch
    >>> import eigenclock as ec
    >>> enc, k = ec.rope(4), torch.randn(1, 1, 3, 4, dtype=torch.float64)
    >>> turned = ec.moved_keys(k, enc, stored_at=torch.zeros(3), move_to=torch.tensor([5, 6, 7]))
    >>> back = ec.moved_keys(turned, enc, stored_at=torch.tensor([5, 6, 7]), move_to=torch.zeros(3))
    >>> torch.allclose(back, k)
    True
    """
    check_moves(encoding)
    if keys.ndim != 4 or not keys.is_floating_point() or keys.shape[-1] != encoding.width:
        raise ShapeError(f"got keys of shape {tuple(keys.shape)}, {keys.dtype}; expected a floating tensor (B, G, N, {encoding.width})")
    if encoding.kv_heads is not None and encoding.kv_heads != keys.shape[1]:
        raise ShapeError(f"got {keys.shape[1]} key heads for {encoding}; expected kv_heads={encoding.kv_heads}")
    clock = encoding.clock
    old = clock(stored_at, device=keys.device)
    new = clock(move_to, origin=old.origin, device=keys.device)
    lag = with_heads(old.ticks) - with_heads(new.ticks)
    if lag.shape[2] != keys.shape[2] or lag.shape[0] not in (1, keys.shape[0]) or lag.shape[1] not in (1, keys.shape[1]):
        raise ShapeError(f"got times of shape {tuple(lag.shape)} for keys {tuple(keys.shape)}; expected one for each of them")
    split = encoding.generator(keys.device).split()
    if split.rate is not None:
        _check_growth(split.rate, lag, encoding)
    return encoding.generator(keys.device).act(keys, lag)


def check_moves(encoding: Encoding) -> None:
    """Refuse an encoding whose stored keys have no law of moving."""
    if not isinstance(encoding, Encoding):
        raise ConfigError(f"got {type(encoding).__name__} as encoding; expected the Encoding the keys were turned with")
    clock = encoding.clock
    reason = (
        f"is outside the group: it breaks {encoding.breaks}" if encoding.breaks
        else "chooses its frequencies by the length of the sequence, so that keys turned for one length do not match another"
        if encoding.length_dependent
        else "turns by a learned clock, whose time is a sum over the tokens before and not a place to move to" if clock.sums
        else f"has {clock.width} numbers for the place of a token; one index does not say where to move it" if clock.width > 1
        else None
    )  # fmt: skip
    if reason is not None:
        raise UnsupportedError(
            f"got {encoding}, which {reason}; moving stored keys is not valid here: compute them again at their new times"
        )


def _check_values(cache: KVCache) -> None:
    if cache.value_spec:
        raise UnsupportedError(
            f"got a cache whose values are turned by {cache.value_spec}; expected values as they are: moving stored tokens moves keys alone"
        )


def _check_growth(rate: Tensor, lag: Tensor, encoding: Encoding) -> None:
    back = float(lag.max()) if lag.numel() else 0.0
    largest = float((-lag).max() * rate.detach().max()) if lag.numel() else 0.0
    if largest > EXPONENT_BOUND:
        raise GrowthError(
            f"got moves to later times under {encoding} that would multiply keys by e^{largest:.3g}; expected at most "
            f"e^{EXPONENT_BOUND:g}: move all tokens to earlier times (by {back:.3g} more), or let a KVCache hold them"
        )


def move(cache: KVCache, encoding: Encoding, by: int | float | None, to: Any) -> KVCache:
    """The body of :meth:`KVCache.moved`."""
    _check_values(cache)
    check_moves(encoding)
    if (by is None) == (to is None):
        raise ConfigError("got moved() with " + ("neither by= nor to=" if by is None else "both by= and to=") + "; expected one of them")
    if to is None:
        return _shifted(cache, encoding.clock, by)
    origin = cache.origin
    if not cache.given and origin is not None:  # counts begin at 0, less the moves of all tokens at once
        origin = torch.full_like(origin, cache.frame)
    times = as_times(to, encoding.clock.stamp_unit, cache.device)
    reading = encoding.clock(times, origin=origin, device=cache.device)
    ticks, counts = with_heads(reading.ticks), None if cache.store.counts is None else counts_of(encoding.clock, reading)
    old = cache.store.tokens()
    if ticks.shape[2] != len(old):
        raise ShapeError(f"got {ticks.shape[2]} times for {len(old)} stored tokens; expected one for each: (N,) or (B, N)")
    home_keys, home_at, home_times = _home(cache, old)
    split, law = law_of(encoding, home_keys, cache.value_width)
    turned = _turned(home_keys, ticks - home_times, split, law)
    new = _standing(turned, home_at, home_times, ticks, replace(old, counts=counts), law, encoding)
    last = _last(ticks, old.real)
    if not cache.given and origin is not None:
        origin = -(last.to(origin.dtype) + 1)
    return replace(
        cache, store=build_store(new, law), last=last, origin=origin, home_keys=home_keys, home_at=home_at, home_times=home_times
    )


def _shifted(cache: KVCache, clock: Clock, by: int | float | None) -> KVCache:
    """All tokens moved alike: only differences reach a score, so it is the origin that moves."""
    if isinstance(by, bool) or not isinstance(by, int | float):
        raise ConfigError(f"got by={by!r}; expected a number, in the counts that times are given in")
    origin = cache.origin
    if not cache.given or origin is None:
        return replace(cache, frame=cache.frame + by)
    if not origin.is_floating_point() and by != int(by):
        origin = origin.double()
    new = origin + (by if origin.is_floating_point() else int(by))
    return replace(cache, origin=new, store=_recounted(cache.store, clock, (origin, origin), (new, new)))


def _recounted(store: Store, clock: Clock, old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> Store:
    """Stored counts that were read at a stamp under an origin, as those of another stamp under another origin."""
    if store.counts is None:
        return store
    before, after = (counts_of(clock, clock(stamp, origin=origin, device=stamp.device)) for stamp, origin in (old, new))
    assert before is not None and after is not None  # what a clock has counted once it counts again
    return replace(store, counts=store.counts.map(lambda counts: counts + (after - before)))


def join(cache: KVCache, other: KVCache, encoding: Encoding) -> KVCache:
    """The body of :meth:`KVCache.joined`."""
    _check_values(cache)
    _check_values(other)
    check_moves(encoding)
    if (cache.batch, cache.value_width, cache.device, cache.given) != (other.batch, other.value_width, other.device, other.given):
        kinds = ("given" if one.given else "counted" for one in (cache, other))
        raise ShapeError(
            f"got caches of {cache.batch} and {other.batch} rows, values of width {cache.value_width} and {other.value_width}, on "
            f"{cache.device} and {other.device}, with times {' and '.join(kinds)}; expected the same for both"
        )
    store = other.store
    if other.origin is not None and cache.origin is not None:
        store = _recounted(store, encoding.clock, (other.origin, other.origin), (other.origin, cache.origin))
    tokens = store.tokens()
    keys, at, times = _home(other, tokens)
    split, law = law_of(encoding, keys, other.value_width)
    apart = _apart(cache, other, encoding)
    ticks, last = tokens.ticks + apart, torch.where((other.count > 0)[:, None, None], other.last + apart, cache.last)
    turned = _turned(keys, ticks - times, split, law)
    new = _standing(turned, at, times, ticks, tokens, law, encoding)
    if not law.still or law.slope is not None:
        _check_after(cache, new, encoding)
    origin, count = cache.origin, cache.count + other.count
    if not cache.given and origin is not None:
        origin = -(last.to(origin.dtype) + 1)
    return replace(cache, store=cache.store.append(new, law), last=last, origin=origin, count=count)


def _apart(cache: KVCache, other: KVCache, encoding: Encoding) -> Tensor | float:
    """What is added to the times of the other cache to count from the origin of this one, exact."""
    if not cache.given:
        return float(other.frame - cache.frame)
    if cache.origin is None or other.origin is None:
        return 0.0
    return with_heads(encoding.clock(other.origin, origin=cache.origin, device=cache.device).ticks)


def _check_after(cache: KVCache, new: Tokens, encoding: Encoding) -> None:
    first = new.ticks if new.real is None else torch.where(new.real[:, None], new.ticks, torch.inf)
    if len(new) and bool(((first.amin(-1, keepdim=True) < cache.last) & (cache.count > 0)[:, None, None]).any()):
        raise ClockError(
            f"got a cache whose tokens begin before the end of the one they join; expected later ones, since {encoding} looks back: "
            "move them first, other.moved(encoding, by=..)"
        )


def _home(cache: KVCache, old: Tokens) -> tuple[Tensor, Tensor | None, Tensor]:
    """All keys as they were stored first, what they stood at, and their times then."""
    if cache.home_keys is None or cache.home_times is None:
        return old.keys, old.at, old.ticks
    n = cache.home_keys.shape[2]
    at = None if old.at is None or cache.home_at is None else _behind(cache.home_at, old.at[:, :, n:])
    return _behind(cache.home_keys, old.keys[:, :, n:]), at, _behind(cache.home_times, old.ticks[:, :, n:])


def _behind(a: Tensor, b: Tensor) -> Tensor:
    rows = torch.broadcast_shapes(a.shape[:2], b.shape[:2])
    return torch.cat([x.expand(*rows, *x.shape[2:]) for x in (a, b)], 2)


def _turned(keys: Tensor, away: Tensor, split: Split, law: Law) -> Tensor:
    """Stored keys turned by how far each moved; what decays or shears is the business of where they stand."""
    k = keys[..., : law.width]
    for turn in split.turns:
        k = rotate(k, make_table(away, turn, k.dtype))
    return law.pad(k)


def _standing(
    keys: Tensor, at: Tensor | None, before: Tensor, ticks: Tensor, old: Tokens, law: Law, encoding: Encoding
) -> Tokens:  # fmt: skip
    """The moved tokens, standing no later than the last of them: a later query may look from there."""
    if law.still or at is None:
        return Tokens(keys, old.values, None, ticks, old.real, old.counts)
    real = old.real
    steps = ticks.diff(dim=-1) if real is None else ticks.diff(dim=-1).masked_fill(~(real[:, None, 1:] & real[:, None, :-1]), 0.0)
    if bool((steps < 0).any()):
        raise ClockError(f"got times that go back, to move to; expected them in the order of the tokens, since {encoding} decays with time")
    there = at + (ticks - before)[..., None]
    limit = _last(ticks, real)[..., None]
    back = (there - limit).clamp_min(0.0)  # how far a key has to be brought back from the end of its chunk
    back = back if real is None else back.masked_fill(~real[:, None, :, None], 0.0)
    if bool((back > 0).any()):
        _check_back(at - before[..., None], back, law, encoding)
        keys = law.keys(keys, -back)
    return Tokens(keys, old.values, torch.minimum(there, limit), ticks, real, old.counts)


def _check_back(stood: Tensor, back: Tensor, law: Law, encoding: Encoding) -> None:
    """Refuse to undo a decay that has taken the digits of a key with it."""
    bound = {torch.float16: 8.0, torch.float64: 300.0}.get(law.dtype, FACTOR_FLOOR)
    rate = 0.0 if law.rate is None else float(law.rate.detach().max())
    worst = float(torch.where(back > 0, stood, 0.0).max()) * rate
    if worst >= bound or law.nilpotent is not None:
        raise UnsupportedError(
            f"got a move that brings keys closer to the tokens after them than {encoding} lets stored keys come: they stand at the end of "
            f"their chunk, decayed by e^-{worst:.3g}; expected gaps that grow, or keys computed again at their new times"
        )


def _last(ticks: Tensor, real: Tensor | None) -> Tensor:
    """The last real time of each row, (B|1, X|1, 1)."""
    if real is None:
        return ticks[..., -1:]
    return carried(ticks, first_real(ticks, real), real)[..., -1:]
