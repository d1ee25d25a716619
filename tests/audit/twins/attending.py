"""Stand-ins of attention with a cache or a batch, and of biases."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import eigenclock as ec
from audit.twins.kinds import LENGTH, D, H
from audit.twins.maps import base, rotate, turner
from eigenclock.audit.probe import Probe


def softmax(z: Tensor, v: Tensor) -> Tensor:
    hidden = torch.ones(z.shape[-2:], dtype=torch.bool).tril(z.shape[-1] - z.shape[-2])
    return z.masked_fill(~hidden, -math.inf).softmax(-1) @ v


def with_cache(keys_at: Callable[[Tensor, Tensor, int], Tensor], queries_at: Callable[[Tensor, Tensor, int], Tensor], **more: Any) -> Probe:
    """Attention whose keys are transformed as they come, knowing how long the sequence is at that moment, and kept."""

    def full(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Tensor:
        n = int(t[-1]) + 1
        return softmax(queries_at(q, t, n) @ keys_at(k, t, n).mT, v)

    def decode(q: Tensor, k: Tensor, v: Tensor, t: Tensor, cuts: tuple[int, ...]) -> Tensor:
        kept, out, start = [], [], 0
        for stop in (*cuts, q.shape[1]):
            n = int(t[stop - 1]) + 1
            kept.append(keys_at(k[:, start:stop], t[start:stop], n))
            out.append(softmax(queries_at(q[:, start:stop], t[start:stop], n) @ torch.cat(kept, 1).mT, v[:, :stop]))
            start = stop
        return torch.cat(out, 1)

    return Probe("twin", "module", D, H, H, LENGTH, torch.float32, causal=True, full=full, decode=decode, **more)


def centred(sign: float) -> Callable[[Tensor, Tensor, int], Tensor]:
    """A decay around the middle of the sequence so far."""
    return lambda x, t, n: turner()(x, t) * (sign * 0.02 * (t.double() - n // 2))[:, None].exp().to(x.dtype)


def anchored(sign: float) -> Callable[[Tensor, Tensor, int], Tensor]:
    return lambda x, t, n: turner()(x, t) * (sign * 0.02 * t.double())[:, None].exp().to(x.dtype)


def dynamic(x: Tensor, t: Tensor, n: int) -> Tensor:
    """The base follows the length beyond 16 tokens."""
    grown = max(2.0 * n / 16 - 1, 1.0)
    return turner(base(100.0 * grown ** (D / (D - 2))))(x, t)


def by_gates(follow: bool) -> Probe:
    """A bias from the running sum of gates read from the keys; the faulty one sums over the slice of the call alone."""

    def gates(k: Tensor) -> Tensor:
        return nn.functional.logsigmoid(k.sum(-1)).cumsum(-1)

    def full(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Tensor:
        g = gates(k)
        return softmax(q @ k.mT + g[:, :, None] - g[:, None], v)

    def decode(q: Tensor, k: Tensor, v: Tensor, t: Tensor, cuts: tuple[int, ...]) -> Tensor:
        out, start, held = [], 0, []
        for stop in (*cuts, q.shape[1]):
            held.append(gates(k[:, start:stop]))
            own = gates(k[:, :stop]) if follow else torch.cat(held, 1)
            out.append(softmax(q[:, start:stop] @ k[:, :stop].mT + own[:, start:stop, None] - own[:, None], v[:, :stop]))
            start = stop
        return torch.cat(out, 1)

    return Probe("twin", "module", D, H, H, LENGTH, torch.float32, causal=True, full=full, decode=decode)


def guessed_documents(guess: bool) -> Probe:
    """Without a mask, positions that do not step by one are taken for the starts of documents; a cache knows better."""
    sound = with_cache(lambda x, t, n: turner()(x, t), lambda x, t, n: turner()(x, t))

    def full(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Tensor:
        document = (t.diff(prepend=t[:1] - 1) != 1).cumsum(0)
        z = turner()(q, t) @ turner()(k, t).mT
        return softmax(z.masked_fill(document[:, None] != document, -1e9), v)

    return replace(sound, full=full) if guess else sound


def unmasked(guess: bool) -> Probe:
    """The same as all that can be called: f(q, k, v, positions), without a mask and without a cache."""
    return replace(guessed_documents(guess), decode=None, fractional=True)


def batched(rows: bool = True, padding: bool = True, documents: bool = True, zeros: bool = True) -> Probe:
    """Attention over a batch, with one counter per row, the padding left out of it, and a restart with each document, or without.

    A decay by the absolute position makes what is counted show.
    """

    def batch(q: Tensor, k: Tensor, v: Tensor, times: Tensor | None, mask: Tensor | None, ids: Tensor | None) -> Tensor:
        b, _, n, _ = q.shape
        t = torch.arange(n).expand(b, n) if times is None else times if rows else times[:1].expand(b, n)
        seen = torch.ones(n, n, dtype=torch.bool).tril().expand(b, 1, n, n)
        if mask is not None:
            seen = seen & mask[:, None, None]
            t = mask.long().cumsum(-1) - 1 if padding else t
        if ids is not None and documents:
            seen = seen & (ids[:, None, :, None] == ids[:, None, None])
        warp = t.double() + 0.05 * t.double() ** 2 if not padding else t.double()
        angle = warp[:, None, :, None] * base()
        a, c = (rotate(x, angle.cos().to(x.dtype), angle.sin().to(x.dtype)) for x in (q, k))
        z = (a @ c.mT).masked_fill(~seen, -math.inf)
        return (z.softmax(-1).nan_to_num() if zeros else z.softmax(-1)) @ v

    return Probe("twin", "module", D, H, H, LENGTH, torch.float32, causal=True, batch=batch)


def biased(slopes: Tensor, config: dict[str, Any] | None = None, heads: int = 12) -> Probe:
    def scores(q: Tensor, k: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return q @ k.mT - slopes[:, None, None].to(q.dtype) * (t[:, None] - s).to(q.dtype)

    encodings = None if config is None else ec.encodings(config)
    return Probe(
        "twin",
        "callable",
        D,
        heads,
        heads,
        LENGTH,
        torch.float32,
        causal=True,
        fractional=True,
        scores=scores,
        encodings=encodings,
        config=config,
    )


BLOOM = {"model_type": "bloom", "n_head": 12, "hidden_size": 12 * D, "n_layer": 2}
ONE_SEQUENCE = 2.0 ** (-8 * torch.arange(1, 13, dtype=torch.float64) / 12)
PUBLISHED = torch.tensor([2.0**-i for i in range(1, 9)] + [2.0 ** -(i + 0.5) for i in range(4)], dtype=torch.float64)
