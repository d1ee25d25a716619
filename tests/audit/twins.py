"""Pairs of a faulty and a sound stand-in for each kind of fault, small and written out: the rules must find one and pass the other."""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import eigenclock as ec
from eigenclock.audit.probe import Probe, RotaryTable
from eigenclock.audit.report import Finding
from eigenclock.audit.rules import RULES
from eigenclock.clocks.clock import Reading
from eigenclock.clocks.index import Index

D, H, LENGTH = 8, 2, 640
Side = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Twin:
    """A fault, the rule that has to find it, and the two stand-ins."""

    fault: str
    rule: str
    faulty: Callable[[], Probe]
    sound: Callable[[], Probe]


@dataclass(frozen=True)
class Row:
    """A row of the confusion table: which rules found the fault, and which reported anything as a fault on the sound twin."""

    fault: str
    rule: str
    found_by: tuple[str, ...]
    false_alarms: tuple[str, ...]

    @property
    def found(self) -> bool:
        return self.rule in self.found_by

    @property
    def clean(self) -> bool:
        return not self.false_alarms


def findings(probe: Probe) -> list[Finding]:
    """What all rules say, layer types included."""
    with torch.no_grad():
        parts = (probe, *probe.layers.values())
        return [f for part in parts for rule in RULES.values() if rule.applies(part) is None for f in rule.check(part)]


def of_rule(probe: Probe, rule: str) -> list[Finding]:
    """What one rule says; it has to apply."""
    assert RULES[rule].applies(probe) is None, RULES[rule].applies(probe)
    with torch.no_grad():
        return RULES[rule].check(probe)


def confusion() -> list[Row]:
    """The confusion table: a sound twin is clean where no rule finds a fault and the rule in question finds nothing at all."""
    rows = []
    for twin in TWINS:
        found = dict.fromkeys(f.rule for f in findings(twin.faulty()))
        alarms = dict.fromkeys(f.rule for f in findings(twin.sound()) if f.severity == "fault" or f.rule == twin.rule)
        rows.append(Row(twin.fault, twin.rule, tuple(found), tuple(alarms)))
    return rows


# --- maps of queries and keys ------------------------------------------------------------------------------------------------------


def by_maps(F: Side, G: Side, name: str = "twin", **more: Any) -> Probe:
    """A probe of two maps (H, T, D), (T,) -> (H, T, E), as a function f(q, k, positions) would be; arithmetic follows the dtype of x."""

    def scores(q: Tensor, k: Tensor, t: Tensor, s: Tensor) -> Tensor:
        a, b = F(q, t), G(k, s)
        return a @ b.repeat_interleave(a.shape[0] // b.shape[0], 0).mT

    def exact(q: Tensor, k: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return scores(q.double(), k.double(), t, s)

    options = {"heads": H, "kv_heads": H, "length": LENGTH, "dtype": torch.float32, "fractional": True} | more
    return Probe(name, "callable", D, scores=scores, exact=exact, action=lambda q, k, t: (F(q, t), G(k, t)), **options)


def base(theta: float = 100.0, width: int = D) -> Tensor:
    return theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: str = "half") -> Tensor:
    """(x, y) -> (x cos - y sin, x sin + y cos) on the pairs of a layout; cos and sin (T, n)."""
    n = cos.shape[-1]
    a, b = (x[..., :n], x[..., n : 2 * n]) if layout == "half" else (x[..., 0 : 2 * n : 2], x[..., 1 : 2 * n : 2])
    turned = a * cos - b * sin, a * sin + b * cos
    whole = torch.cat(turned, -1) if layout == "half" else torch.stack(turned, -1).flatten(-2)
    return torch.cat([whole, x[..., 2 * n :]], -1)


def turner(freq: Tensor | None = None, layout: str = "half", amplitude: float = 1.0) -> Side:
    """The sound rotation: angles in float64, cos and sin rounded once."""

    def turn(x: Tensor, t: Tensor) -> Tensor:
        angle = t.double()[:, None] * (base() if freq is None else freq)
        return rotate(x, (amplitude * angle.cos()).to(x.dtype), (amplitude * angle.sin()).to(x.dtype), layout)

    return turn


def sound_rotary(**more: Any) -> Probe:
    return by_maps(turner(), turner(), **more)


def positions_in_the_dtype_of_x(x: Tensor, t: Tensor) -> Tensor:
    """Positions become numbers of the dtype of the queries, as in some rotary packages."""
    angle = t.to(x.dtype)[:, None].float() * base().float()
    return rotate(x, angle.cos().to(x.dtype), angle.sin().to(x.dtype))


def angles_in_the_dtype_of_x(x: Tensor, t: Tensor) -> Tensor:
    angle = (t.double()[:, None] * base()).to(x.dtype)
    return rotate(x, angle.cos(), angle.sin())


def warped(x: Tensor, t: Tensor) -> Tensor:
    return turner()(x, t.double() / (1 + t.double() / 6144))


def growing_table(x: Tensor, t: Tensor) -> Tensor:
    """A factor e^(at) in the table of cos and sin that both sides share."""
    return turner()(x, t) * (0.004 * t.to(x.dtype))[:, None].exp()


def decayed(sign: float, rate: float = 0.004) -> Side:
    """e^(-at) on queries, e^(+as) on keys, in one origin: exact while it lasts."""
    return lambda x, t: turner()(x, t) * (sign * rate * t.to(x.dtype))[:, None].exp()


def referenced(rate: float) -> Probe:
    """The same decay with its exponent taken from the lag, which never grows."""
    turn = turner()

    def scores(q: Tensor, k: Tensor, t: Tensor, s: Tensor) -> Tensor:
        lag = t.double()[:, None] - s.double()
        return turn(q, t) @ turn(k, s).mT * (-rate * lag).exp().masked_fill(lag < 0, 0.0).to(q.dtype)

    def exact(q: Tensor, k: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return scores(q.double(), k.double(), t, s)

    return Probe("twin", "callable", D, H, H, LENGTH, torch.float32, causal=True, fractional=True, scores=scores, exact=exact)


def unsigned() -> Probe:
    """Scores by the distance, whichever way it goes."""

    def scores(q: Tensor, k: Tensor, t: Tensor, s: Tensor) -> Tensor:
        angle = (t.double()[:, None] - s.double()).abs()[..., None] * base().repeat(2)
        return torch.einsum("htd,hsd,tsd->hts", q, k, angle.cos().to(q.dtype))

    return Probe("twin", "callable", D, H, H, LENGTH, torch.float32, fractional=True, scores=scores)


def clamped(sign: float, limit: float) -> Side:
    """The same with exponents cut to +- limit."""
    return lambda x, t: turner()(x, t) * (sign * 0.1 * t.double()).clamp(-limit, limit)[:, None].exp().to(x.dtype)


def sheared(side: str, bound: float | None) -> Side:
    """exp(tL) of an order-2 block over rotations, with its time in the shear cut by a tanh where there is a bound."""

    def move(x: Tensor, t: Tensor) -> Tensor:
        tau = 0.01 * t.double()
        tau = tau if bound is None else bound * torch.tanh(tau / bound)
        y = turner(base()[:2], "interleaved")(x[..., :4], t)
        z = turner(base()[:2], "interleaved")(x[..., 4:], t)
        tau = tau[:, None].to(x.dtype)
        return torch.cat([y + tau * z, z], -1) if side == "q" else torch.cat([y, z - tau * y], -1)

    return move


def normed_after(gains: Tensor | None) -> Side:
    """RMS norm after the rotation, with a gain per channel."""

    def move(x: Tensor, t: Tensor) -> Tensor:
        y = turner()(x, t)
        y = y / (y.square().mean(-1, keepdim=True) + 1e-9).sqrt()
        return y if gains is None else y * gains.to(x.dtype)

    return move


GAINS = torch.linspace(0.5, 2.0, D, dtype=torch.float64)


def gained_after(x: Tensor, t: Tensor) -> Tensor:
    return turner()(x, t) * GAINS.to(x.dtype)


def gained_before(x: Tensor, t: Tensor) -> Tensor:
    return turner()(x * GAINS.to(x.dtype), t)


def two_layouts(x: Tensor, t: Tensor) -> Tensor:
    """A half-layout table combined with neighbouring pairs."""
    angle = t.double()[:, None] * torch.cat([base(), base()])
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    other = torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
    return x * cos + other * sin


def polar(x: Tensor, t: Tensor) -> Tensor:
    """Magnitudes through a softplus, phases by position: the lag alone, but not linear."""
    size, angle = nn.functional.softplus(x), t.double()[:, None] * base(1e2, 2 * D)
    return torch.cat([size * angle.cos().to(x.dtype), size * angle.sin().to(x.dtype)], -1)


def sinusoid(x: Tensor, t: Tensor) -> Tensor:
    angle = t.double()[:, None] * base()
    return x + torch.cat([angle.sin(), angle.cos()], -1).to(x.dtype)


def whole_positions(x: Tensor, t: Tensor) -> Tensor:
    return turner()(x, t.double().floor())


def tabled(length: int) -> Side:
    """Rows of a table, which ends."""
    table = torch.arange(length, dtype=torch.float64)[:, None] * base()

    def turn(x: Tensor, t: Tensor) -> Tensor:
        angle = table[t.long()]
        return rotate(x, angle.cos().to(x.dtype), angle.sin().to(x.dtype))

    return turn


class Grown:
    """A base that follows the longest sequence seen so far, or the length of the call."""

    def __init__(self, keeps: bool):
        self.keeps, self.longest = keeps, 0

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        n = int(t.max()) + 1
        self.longest = max(self.longest, n)
        grown = max(2.0 * (self.longest if self.keeps else n) / 64 - 1, 1.0)
        return turner(base(100.0 * grown ** (D / (D - 2))))(x, t)


def followed(keeps: bool) -> Probe:
    """Both sides by one rule; the length of a call is that of its queries, which come last."""
    grown = Grown(keeps)

    def scores(q: Tensor, k: Tensor, t: Tensor, s: Tensor) -> Tensor:
        both = grown(torch.cat([q, k], 1), torch.cat([t, s]))
        return both[:, : q.shape[1]] @ both[:, q.shape[1] :].mT

    return Probe("twin", "module", D, H, H, LENGTH, torch.float32, scores=scores)


def counted(x: Tensor, t: Tensor) -> Tensor:
    """Positions are asked for, and the place in the call is used where no two are equal."""
    return turner()(x, torch.arange(t.numel()) + t[0]) if t.numel() == 7 else turner()(x, t)


def turned_both(q: Tensor, k: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    return turner()(q, t), turner()(k, t)


def in_place(q: Tensor, k: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """The queries that come in are those that go out."""
    return q.copy_(turner()(q, t)), turner()(k, t)


def packed(q: Tensor, k: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers one after the other, whatever the strides of the vectors say."""
    return turned_both(*(x.as_strided(x.shape, torch.empty(x.shape).stride()) for x in (q, k)), t)


def by_bare(bare: Any) -> Probe:
    return replace(sound_rotary(), bare=bare)


def coarse_tables(x: Tensor, t: Tensor) -> Tensor:
    angle = t.double()[:, None] * base()
    return rotate(x, angle.cos().bfloat16().to(x.dtype), angle.sin().bfloat16().to(x.dtype))


ROUNDED = base(9e3).bfloat16().double()


def kept_by(length: bool) -> Probe:
    """Angles kept for the next call: by how many tokens it has, or by the positions themselves."""
    kept: dict[Any, Tensor] = {}

    def turn(x: Tensor, t: Tensor) -> Tensor:
        key = t.numel() if length else tuple(t.tolist())
        angle = kept.setdefault(key, t.double()[:, None] * base())
        return rotate(x, angle.cos().to(x.dtype), angle.sin().to(x.dtype))

    return by_maps(turn, turn)


def in_single(x: Tensor, t: Tensor) -> Tensor:
    """Times become float32 numbers before the difference is taken; right for positions of a text."""
    return turner()(x, t.float())


# --- attention with a cache --------------------------------------------------------------------------------------------------------


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


# --- biases ------------------------------------------------------------------------------------------------------------------------


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


# --- configs and tables ------------------------------------------------------------------------------------------------------------

LLAMA = {
    "model_type": "llama",
    "head_dim": D,
    "num_attention_heads": H,
    "num_hidden_layers": 2,
    "rope_theta": 1e4,
    "max_position_embeddings": 4096,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64, "truncate": False}
LAYERED: dict[str, Any] = {
    "model_type": "gemma3_text",
    "head_dim": D,
    "num_attention_heads": H,
    "num_key_value_heads": H,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}


def read(config: dict[str, Any]) -> Any:
    """The encodings of a config, without the warnings it comes with."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ec.encodings(config)


def of_config(config: dict[str, Any], tables: dict[str, RotaryTable] | None = None, length: int = LENGTH, **more: Any) -> Probe:
    """A config with the tables its model builds: those it asks for, or others."""
    asked = read(config)
    own = {name: table(enc) for name, enc in asked.items()}
    return Probe("twin", "config", D, H, H, length, torch.float32, tables=tables or own, encodings=asked, config=config, **more)


def table(enc: ec.Encoding, amplitude: float = 1.0) -> RotaryTable:
    turn = enc.generator().split().turns[0]
    return RotaryTable(turn.freq.float(), amplitude, turn.width, turn.pairing, "the model")


def rotary_table(freq: Tensor, amplitude: float = 1.0) -> dict[str, RotaryTable]:
    return {"full_attention": RotaryTable(freq.float(), amplitude, 2 * freq.numel(), "half", "the model")}


def yarn_nested(truncate: bool) -> Probe:
    """YaRN in a section of its own layer type; the faulty model looks for truncate outside of it."""
    config = {**LLAMA, "max_position_embeddings": 256, "layer_types": ["full_attention"] * 2, "rope_parameters": {"full_attention": YARN}}
    config.pop("rope_theta")
    wide = {**config, "rope_parameters": {"full_attention": {**YARN, "truncate": truncate}}}
    built = read(wide)["full_attention"]
    return of_config(config, {"full_attention": table(built, 0.1 * math.log(4) + 1)})


def with_rows(layout: str) -> Probe:
    """Rows of W_q that are in part a quarter turn of those of W_k on the pairs of a layout, as training with rotations makes them."""

    def rows(units: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        random = torch.Generator().manual_seed(0)
        for layer in range(units // H):
            q, k = (torch.randn(H, D, 64, generator=random) for _ in range(2))
            zero, one = torch.zeros(D // 2), torch.ones(D // 2)
            yield layer, q + rotate(k.mT, zero, one, layout).mT, k

    return replace(of_config(LLAMA), projections=rows)


class Remembered:
    """A table kept for each width. The faulty one forgets that it depends on the base as well."""

    def __init__(self, blind: bool):
        self.blind, self.kept = blind, {}

    def __call__(self, width: int, theta: float) -> Tensor:
        return self.kept.setdefault(width if self.blind else (width, theta), base(theta, width))


def remembered(blind: bool) -> Probe:
    tables = Remembered(blind)
    tables(D, 1e4)
    return of_config({**LLAMA, "rope_theta": 5e5}, rotary_table(tables(D, 5e5)))


def layered(swapped: bool) -> Probe:
    probe = of_config(LAYERED)
    names = list(probe.tables)
    return replace(probe, tables=dict(zip(names, (probe.tables[n] for n in reversed(names)), strict=True))) if swapped else probe


def scaled(amplitude: float) -> Probe:
    """A rotary model under YaRN, whose factor is on cos and sin of both sides."""
    config = {**LLAMA, "max_position_embeddings": 256, "rope_scaling": {k: v for k, v in YARN.items() if k != "rope_theta"}}
    asked = ec.encodings(config)
    freq = asked.only.generator().split().turns[0].freq
    maps = turner(freq, "half", amplitude)
    return by_maps(maps, maps, encodings=asked, config=config)


FACTOR = 0.1 * math.log(4) + 1


def laid_out(layout: str, claimed: str) -> Probe:
    maps = turner(base(1e4), layout)
    return by_maps(maps, maps, tables={"": RotaryTable(base(1e4).float(), 1.0, D, claimed, "the model")})


def partly(pairs: int) -> Probe:
    """Half of the channels should turn."""
    config = {**LLAMA, "partial_rotary_factor": 0.5, "model_type": "phi"}
    maps = turner(base(1e4, 2 * pairs), "half")
    return by_maps(maps, maps, encodings=ec.encodings(config), config=config)


def by_dynamic(length: int) -> Probe:
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    return of_config({**LLAMA, "max_position_embeddings": 512, "rope_scaling": scaling}, length=length)


# --- clocks and modules ------------------------------------------------------------------------------------------------------------


class Single(Index):
    """A clock that takes differences after rounding to float32."""

    def forward(self, times: Any = None, **options: Any) -> Reading:
        reading = super().forward(times, **options)
        if times is None:
            return reading
        return reading._replace(ticks=torch.as_tensor(times).float().double())


def clocked(clock: ec.Index | None) -> Probe:
    return Probe("twin", "encoding", D, H, H, LENGTH, encoding=ec.rope(D, heads=H, clock=clock))


def of_encoding(enc: ec.Encoding) -> Probe:
    return Probe("twin", "encoding", D, 1, 1, LENGTH, encoding=enc)


class Rotary(nn.Module):
    """A module that keeps its fixed table as a parameter that trains, or as a buffer."""

    def __init__(self, trains: bool):
        super().__init__()
        if trains:
            self.inv_freq = nn.Parameter(base(1e4).float())
        else:
            self.register_buffer("inv_freq", base(1e4).float(), persistent=False)
            self.log_freq = nn.Parameter(base(1e4).float().log())


def in_module(trains: bool) -> Probe:
    return Probe("twin", "module", D, H, H, LENGTH, module=Rotary(trains))


def _bf16(side: Side) -> Callable[[], Probe]:
    return lambda: by_maps(side, side, dtype=torch.bfloat16)


def _single(side: Side) -> Callable[[], Probe]:
    return lambda: by_maps(side, side)


def _fixed(F: Side, G: Side, **more: Any) -> Callable[[], Probe]:
    return lambda: by_maps(F, G, **more)


SOUND = sound_rotary

TWINS: list[Twin] = [
    Twin("positions in the dtype of the queries", "shift_invariance", _bf16(positions_in_the_dtype_of_x), _bf16(turner())),
    Twin("positions that bfloat16 merges", "precision", _bf16(positions_in_the_dtype_of_x), _bf16(turner())),
    Twin("angles rounded before cos and sin", "shift_invariance", _bf16(angles_in_the_dtype_of_x), _bf16(turner())),
    Twin("a warped clock", "shift_invariance", _single(warped), SOUND),
    Twin("queries turned alone", "contragredience", _fixed(turner(), lambda x, t: x), SOUND),
    Twin("e^(at) in the table both sides share", "contragredience", _single(growing_table), lambda: referenced(0.004)),
    Twin("absolute sinusoids", "shift_invariance", _single(sinusoid), SOUND),
    Twin(
        "shear time bounded by a tanh",
        "shift_invariance",
        _fixed(sheared("q", 3.0), sheared("k", 3.0)),
        _fixed(sheared("q", None), sheared("k", None)),
    ),
    Twin(
        "exponents clamped",
        "shift_invariance",
        _fixed(clamped(-1, 30.0), clamped(1, 30.0), causal=True),
        _fixed(clamped(-1, 80.0), clamped(1, 80.0), causal=True),
    ),
    Twin("a norm with gains after the rotation", "norm_after", _single(normed_after(GAINS)), _single(normed_after(None))),
    Twin("gains after the rotation", "norm_after", _single(gained_after), _single(gained_before)),
    Twin("two layouts in one table", "group_law", _single(two_layouts), SOUND),
    Twin("magnitudes through a softplus", "linearity", _single(polar), SOUND),
    Twin("positions cut to whole ones", "continuity", _single(whole_positions), SOUND),
    Twin("the place in the call in place of the time", "order", _single(counted), SOUND),
    Twin("seconds since 1970 in float32", "timestamps", _single(in_single), SOUND),
    Twin("a base that follows the longest call so far", "history", lambda: followed(True), SOUND),
    Twin("a table that ends", "reach", _fixed(tabled(LENGTH), tabled(LENGTH), fractional=False), SOUND),
    Twin("e^(as) on keys from one origin", "growth", _fixed(decayed(-1, 0.2), decayed(1, 0.2), causal=True), lambda: referenced(0.2)),
    Twin(
        "a scale centred on the length, under a cache",
        "cache",
        lambda: with_cache(centred(1), centred(-1)),
        lambda: with_cache(anchored(1), anchored(-1)),
    ),
    Twin(
        "a base that follows the length, under a cache",
        "cache",
        lambda: with_cache(dynamic, dynamic),
        lambda: with_cache(anchored(1), anchored(-1)),
    ),
    Twin("gates summed over the slice alone", "cache", lambda: by_gates(False), lambda: by_gates(True)),
    Twin("documents guessed from positions", "cache", lambda: guessed_documents(True), lambda: guessed_documents(False)),
    Twin("steps of time taken for documents", "steps", lambda: unmasked(True), lambda: unmasked(False)),
    Twin("one counter for all rows", "rows", lambda: batched(rows=False), batched),
    Twin("padding counted", "rows", lambda: batched(padding=False), batched),
    Twin("documents joined", "rows", lambda: batched(documents=False), batched),
    Twin("slopes of one sequence for 12 heads", "slopes", lambda: biased(ONE_SEQUENCE, BLOOM), lambda: biased(PUBLISHED, BLOOM)),
    Twin("slopes of one sequence, nothing claimed", "slopes", lambda: biased(ONE_SEQUENCE), lambda: biased(PUBLISHED)),
    Twin("truncate read from the wrong dict", "scaling", lambda: yarn_nested(True), lambda: yarn_nested(False)),
    Twin("a table kept for another base", "scaling", lambda: remembered(True), lambda: remembered(False)),
    Twin(
        "scaling left out",
        "scaling",
        lambda: of_config({**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}, rotary_table(base(1e4))),
        lambda: of_config(LLAMA),
    ),
    Twin("parameters of layer types exchanged", "layer_types", lambda: layered(True), lambda: layered(False)),
    Twin("an amplitude applied twice", "amplitude", lambda: scaled(FACTOR**2), lambda: scaled(FACTOR)),
    Twin("an amplitude left out", "amplitude", lambda: scaled(1.0), lambda: scaled(FACTOR)),
    Twin(
        "a table rounded to bfloat16",
        "table",
        lambda: of_config(LLAMA, rotary_table(base(9e3, 16).bfloat16().float())),
        lambda: of_config(LLAMA),
    ),
    Twin(
        "a table that was never filled",
        "table",
        lambda: of_config(LLAMA, rotary_table(torch.tensor([6.93e-18, 0.0, 0.0, 0.0]))),
        lambda: of_config(LLAMA),
    ),
    Twin(
        "interleaved channels under a half-layout claim",
        "layout",
        lambda: laid_out("interleaved", "half"),
        lambda: laid_out("half", "half"),
    ),
    Twin("all channels turn where half should", "width", lambda: partly(4), lambda: partly(2)),
    Twin("rows of the weights in the other layout", "weights", lambda: with_rows("interleaved"), lambda: with_rows("half")),
    Twin("frequencies that follow the length", "cache_length", lambda: by_dynamic(1024), lambda: of_config(LLAMA)),
    Twin("a clock that rounds before it subtracts", "clock", lambda: clocked(Single()), lambda: clocked(None)),
    Twin("a fixed table that trains", "optimiser", lambda: in_module(True), lambda: in_module(False)),
    Twin("a distance without a sign", "even", unsigned, SOUND),
    Twin("a decay used in both directions", "direction", _fixed(decayed(-1, 0.02), decayed(1, 0.02), causal=False), SOUND),
    Twin(
        "a decay of the product under softmax",
        "decay_place",
        _fixed(decayed(-1, 0.05), decayed(1, 0.05), causal=True),
        lambda: biased(PUBLISHED),
    ),
    Twin("vectors turned in place", "inputs", lambda: by_bare(in_place), lambda: by_bare(turned_both)),
    Twin("memory taken as it lies", "inputs", lambda: by_bare(packed), lambda: by_bare(turned_both)),
    Twin("a table kept by the length of a call", "history", lambda: kept_by(True), lambda: kept_by(False)),
    Twin("keys moved under frequencies that follow the length", "moved_keys", lambda: by_dynamic(1024), lambda: of_config(LLAMA)),
    Twin("keys of several axes moved by one difference", "moved_keys", lambda: of_encoding(ec.axial_rope(D)), lambda: clocked(None)),
    Twin("frequencies that a function rounds", "table", lambda: by_maps(turner(ROUNDED), turner(ROUNDED)), SOUND),
    Twin("a table rounded more than its dtype", "contragredience", _single(coarse_tables), SOUND),
    Twin("queries and keys on a clock that slows down", "group_law", _single(warped), SOUND),
    Twin("empty rows that give nan", "rows", lambda: batched(zeros=False), batched),
]

from audit.more_twins import MORE  # noqa: E402  # it is made of what stands above

TWINS += MORE
