"""Our own encodings, as objects or as text."""

from typing import Any

import torch
from torch import Tensor

from eigenclock.attention import attention, cached_attention, scores
from eigenclock.audit.probe import Probe
from eigenclock.audit.subjects.options import Options
from eigenclock.clocks import Axes, Clock, Index, duration
from eigenclock.clocks.units import seconds
from eigenclock.encodings import ENCODINGS, Encoding, encoding
from eigenclock.encodings.cite import spec_tree
from eigenclock.encodings.outside import Outside
from eigenclock.errors import ConfigError, EigenclockError
from eigenclock.theory import Generator, Lift

HEAD_DIM, HEADS = 64, 8  # where neither the spec nor the options say


def read(subject: Any, options: Options) -> Probe | None:
    """An Encoding. A clock that learns from activations is set aside: what it drives is measured with times that are given."""
    if not isinstance(subject, Encoding):
        return None
    if options.head_dim not in (None, subject.head_dim) or options.heads not in (None, subject.heads):
        raise ConfigError(
            f"got head_dim={options.head_dim} and heads={options.heads} for {subject}; expected its own sizes: leave them out"
        )
    return probe_of(subject, options, str(subject), "encoding")


def read_spec(subject: Any, options: Options) -> Probe | None:
    """The text or tree of an encoding, or a JSON file of one."""
    if isinstance(subject, dict):
        named = subject.get("name") in ENCODINGS or subject.get("op") in ("+", "*")
    else:
        named = isinstance(subject, str) and ":" not in subject.split("(")[0]
    if not named:
        return None
    tree = spec_tree(subject)
    try:
        built = encoding(tree, head_dim=options.head_dim, heads=options.heads)
    except (TypeError, EigenclockError) as error:
        try:
            built = encoding(tree, head_dim=options.head_dim or HEAD_DIM, heads=options.heads or HEADS)
        except EigenclockError:
            raise error from None
    return probe_of(built, options, str(built), "spec")


def probe_of(subject: Encoding, options: Options, name: str, kind: str) -> Probe:
    """What is measured of an encoding: its scores through the public calls, and its cache."""
    notes: list[str] = []
    enc = subject
    if enc.clock.sums or enc.weighs:
        enc = _given_times(subject)
        notes.append(
            f"{type(subject.clock).__name__} learns from activations: the law that it drives is measured, with times that are given"
        )
    if enc.clock.width > 1:
        notes.append(f"{enc.clock.width} times for each token: all of them move alike here")
    dtype = options.dtype or torch.float64
    whole = any(part.length is not None for part in enc.outside())
    length = min(options.length, *(part.length for part in enc.outside() if part.length is not None)) if whole else options.length
    both = enc.sides == 2 or _both_ways(enc)
    step, note = _step(enc.clock, options.step)
    notes += [note] if note else []
    measure = _Measured(enc, dtype, not both, step)
    return Probe(
        name,
        kind,
        enc.head_dim,
        enc.heads,
        enc.kv_heads or enc.heads,
        length,
        dtype,
        causal=not both,
        fractional=not whole,
        scores=measure.scores,
        exact=measure.exact,
        full=None if enc.clock.width > 1 else measure.full,
        decode=None if enc.clock.width > 1 or enc.sides == 2 else measure.decode,
        encoding=subject,
        module=subject,
        outside=f"{enc.breaks} breaks" if enc.breaks else "",
        notes=tuple(notes),
    )


class _Law(Encoding):
    """The law of an encoding on times that are given, without the clock and the weights that it learns from activations."""

    def __init__(self, inner: Encoding, clock: Clock):
        super().__init__()
        self.inner, self.clock, self.sides = inner, clock, inner.sides
        self.head_dim, self.heads, self.kv_heads = inner.head_dim, inner.heads, inner.kv_heads

    def generator(self, device: torch.device | None = None) -> Generator:
        return self.inner.generator(device)

    def lifts(self, device: torch.device | None = None) -> tuple[Lift, ...]:
        return self.inner.lifts(device)

    def outside(self, device: torch.device | None = None) -> tuple[Outside, ...]:
        return self.inner.outside(device)

    def read_in(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner.read_in(q, k)

    @property
    def width(self) -> int:
        return self.inner.width

    @property
    def spec(self) -> dict[str, Any]:
        return self.inner.spec


def _given_times(subject: Encoding) -> Encoding:
    """The law with one time for all blocks, or with one for each where it must."""
    enc, width = _Law(subject, Index()), subject.clock.width
    x = torch.zeros(1, enc.heads, 1, enc.head_dim, dtype=torch.float64)
    try:
        scores(x, x[:, : enc.kv_heads or enc.heads], enc)
    except ConfigError:
        return _Law(subject, Axes(tuple(f"block{i}" for i in range(width)), order="block0"))
    return enc


def _both_ways(enc: Encoding) -> bool:
    """Whether scores are defined for keys after the query too."""
    x = torch.zeros(1, enc.heads, 1, enc.head_dim, dtype=torch.float64)
    k = x[:, : enc.kv_heads or enc.heads]
    try:
        scores(x, k, enc, times=_spread(torch.zeros(1), enc), key_times=_spread(torch.ones(1), enc), causal=False)
    except EigenclockError:
        return False
    return True


def _spread(times: Tensor, enc: Encoding) -> Tensor:
    return times if enc.clock.width == 1 else times[..., None].expand(*times.shape, enc.clock.width)


def _step(clock: Clock, step: str | None) -> tuple[int | float, str]:
    """What one position is in the stamps of a clock, and a note of it.

    Raises: ConfigError where the clock counts no stamps of a unit, or the step is none of that.
    """
    unit = clock.stamp_unit
    if step is None and (unit is None or clock.unit is None):
        return 1, ""
    if step is None:  # in nanoseconds a whole context would be one time to rates per second
        step = f"1{unit if seconds(str(unit)) > seconds(str(clock.unit)) else clock.unit}"
    if unit is None:
        raise ConfigError(f"got step={step!r} for {clock!r}, whose times have no unit; expected it for Timestamps or Sessions alone")
    stamps = duration(step, unit)
    if not stamps > 0:
        raise ConfigError(f"got step={step!r}; expected a duration above 0, such as '1ms'")
    return int(stamps) if stamps == int(stamps) else stamps, f"one position is {step} of the clock, and rates are for each of those"


class _Measured:
    """The calls of a probe, bound to one encoding and dtype; ``step`` is what one position is in the stamps of its clock."""

    def __init__(self, enc: Encoding, dtype: torch.dtype, causal: bool, step: int | float):
        self.enc, self.dtype, self.causal, self.step = enc, dtype, causal, step

    def exact(self, q: Tensor, k: Tensor, query_times: Tensor, key_times: Tensor) -> Tensor:
        """Unscaled logits of the dense oracle."""
        at, of = _spread(query_times * self.step, self.enc), _spread(key_times * self.step, self.enc)
        return scores(q[None], k[None], self.enc, times=at, key_times=of, causal=self.causal, scale=1.0)[0]

    def scores(self, q: Tensor, k: Tensor, query_times: Tensor, key_times: Tensor) -> Tensor:
        """The same in the dtype of the probe: the log-sum-exp of attention to one key is its logit."""
        if self.dtype == torch.float64 or self.enc.clock.width > 1:
            return self.exact(q, k, query_times, key_times).to(self.dtype)
        s, t = k.shape[1], q.shape[1]
        queries = q.to(self.dtype).expand(s, *q.shape)
        keys = k.to(self.dtype).transpose(0, 1)[:, :, None]  # one row of the batch for each key
        at, of = (query_times * self.step).expand(s, t), (key_times * self.step)[:, None]
        _, lse = attention(queries, keys, keys, self.enc, times=at, key_times=of, causal=self.causal, scale=1.0, return_lse=True)
        return lse.permute(1, 2, 0)

    def full(self, q: Tensor, k: Tensor, v: Tensor, times: Tensor) -> Tensor:
        """Attention over the whole sequence."""
        return attention(q[None], k[None], v[None], self.enc, times=times * self.step)[0]

    def decode(self, q: Tensor, k: Tensor, v: Tensor, times: Tensor, cuts: tuple[int, ...]) -> Tensor:
        """The same through a cache, in pieces that end at the cuts."""
        out, cache, start = [], None, 0
        for stop in (*cuts, q.shape[1]):
            if stop > start:
                q1, k1, v1 = (x[None, :, start:stop] for x in (q, k, v))
                got, cache = cached_attention(q1, k1, v1, self.enc, cache=cache, times=times[start:stop] * self.step)
                out.append(got[0])
            start = max(start, stop)
        return torch.cat(out, 1)


__all__ = ["probe_of", "read", "read_spec"]
