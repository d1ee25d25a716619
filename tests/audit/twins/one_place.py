"""More pairs of stand-ins: faults in one head, pair, row or sign alone, found where most of the subject is sound. Part of ``TWINS``."""

from dataclasses import replace

import torch
from torch import Tensor, nn

import eigenclock as ec
from audit.twins.attending import PUBLISHED, anchored, biased, with_cache
from audit.twins.configs import LLAMA, rotary_table
from audit.twins.kinds import LENGTH, D, H, Side, Twin
from audit.twins.maps import base, by_maps, decayed, referenced, rotate, sound_rotary, turner, whole_positions
from eigenclock.audit.probe import Probe


def at_times(change: Side) -> Side:
    """The sound rotation at times that are changed first."""
    return lambda x, t: turner()(x, change(x, t))


def last_head(other: Side, usual: Side | None = None) -> Side:
    """The last head by another map than the rest."""
    usual = turner() if usual is None else usual
    return lambda x, t: torch.cat([usual(x, t)[:-1], other(x, t)[-1:]])


def one_slow_pair(x: Tensor, t: Tensor) -> Tensor:
    freq = base(1e4)
    return turner(torch.cat([freq[:-1], freq[-1:] * 1.05]))(x, t)


def told(maps: Side, config: bool = True) -> Probe:
    """A subject whose table holds the frequencies of base 10000, whatever its scores do."""
    more = {"config": LLAMA} if config else {}
    return by_maps(maps, maps, tables=rotary_table(base(1e4)), **more)


def exchanged(x: Tensor, t: Tensor) -> Tensor:
    angle = t.double()[:, None] * base(1e4)
    return rotate(x, angle.sin().to(x.dtype), angle.cos().to(x.dtype))


def bias_of_rounded(rounds: bool) -> Probe:
    """ALiBi beside inner products of 16 bits: positions in that dtype before the difference, or the difference in it."""
    slopes = PUBLISHED[:H]

    def scores(q: Tensor, k: Tensor, t: Tensor, s: Tensor) -> Tensor:
        lag = t.to(q.dtype)[:, None] - s.to(q.dtype) if rounds else (t[:, None] - s).to(q.dtype)
        return q @ k.mT - slopes[:, None, None].to(q.dtype) * lag

    return Probe("twin", "callable", D, H, H, LENGTH, torch.bfloat16, causal=True, scores=scores, exact=scores)


def with_values(turned: bool) -> Probe:
    """Attention that turns its values as well."""
    sound = with_cache(anchored(1), anchored(-1))
    full = sound.full
    assert full is not None
    moved = turner(None, "interleaved")
    return replace(sound, full=lambda q, k, v, t: full(q, k, moved(v, t), t), decode=None) if turned else sound


def ranked(x: Tensor, t: Tensor) -> Tensor:
    """Times become their ranks among the times of the call."""
    return turner()(x, torch.unique(t, return_inverse=True)[1] + t.min())


class Kept(nn.Module):
    """A table of frequencies in the state of a module, or beside it."""

    def __init__(self, persistent: bool):
        super().__init__()
        self.register_buffer("inv_freq", base(1e4).float(), persistent=persistent)
        self.log_freq = nn.Parameter(base(1e4).float().log())


def laid_out_by_head(last: str) -> Probe:
    maps = last_head(turner(base(1e4), last), turner(base(1e4), "half"))
    named = rotary_table(base(1e4))
    return by_maps(maps, maps, tables={"": replace(next(iter(named.values())), pairing="half")})


def declared(side: Side) -> Probe:
    """A rotation beside which its caller declares the base 10000."""
    return by_maps(side, side, declared=ec.rope(D, heads=H, theta=1e4, pairing="half"))


MORE: list[Twin] = [
    Twin(
        "one row of the table is that of another position",
        "shift_invariance",
        lambda: by_maps(*[at_times(lambda x, t: torch.where(t == 411, t + 1, t))] * 2),
        sound_rotary,
        says="(the law itself: not by rounding)",
    ),
    Twin(
        "the last positions are those of the first",
        "shift_invariance",
        lambda: by_maps(*[at_times(lambda x, t: torch.where(t >= LENGTH - 2, t - LENGTH + 2, t))] * 2),
        sound_rotary,
    ),
    Twin(
        "keys of the last head turned the other way",
        "shift_invariance",
        lambda: by_maps(turner(), last_head(turner(-base()))),
        sound_rotary,
        says="(the law itself: not by rounding)",
        where={"head": 1},
    ),
    Twin(
        "one slow pair of the keys off by a twentieth",
        "shift_invariance",
        lambda: by_maps(turner(base(1e4)), one_slow_pair),
        sound_rotary,
        says="(the law itself: not by rounding)",
    ),
    Twin(
        "a bias of rounded positions",
        "shift_invariance",
        lambda: bias_of_rounded(True),
        lambda: bias_of_rounded(False),
        says="in float64 the law holds, in bfloat16 it does not",
    ),
    Twin("a bias that merges positions beside large scores", "precision", lambda: bias_of_rounded(True), lambda: bias_of_rounded(False)),
    Twin(
        "one position alone is that before it",
        "precision",
        lambda: by_maps(*[at_times(lambda x, t: torch.where(t == 411, t - 1, t))] * 2),
        sound_rotary,
        where={"positions": [410.0, 411.0]},
    ),
    Twin(
        "lost between the last power of two and the end",
        "growth",
        lambda: by_maps(decayed(-1, 0.15), decayed(1, 0.15), causal=True),
        lambda: referenced(0.15),
    ),
    Twin(
        "positions stretched between table and scores",
        "scaling",
        lambda: told(turner(1.001 * base(1e4))),
        lambda: told(turner(base(1e4))),
        says="all pairs turn 1.001 times as fast",
    ),
    Twin(
        "another base than the table's",
        "scaling",
        lambda: told(turner(base(5e5)), False),
        lambda: told(turner(base(1e4)), False),
        says="its table holds 0.1",
        where={"pair": 1, "pairs off": 3},
    ),
    Twin("cos and sin exchanged", "scaling", lambda: told(exchanged), lambda: told(turner(base(1e4))), says="every pair turns backwards"),
    Twin(
        "the last head alone at another speed",
        "scaling",
        lambda: told(last_head(turner(1.01 * base(1e4)), turner(base(1e4)))),
        lambda: told(last_head(turner(base(1e4)), turner(base(1e4)))),
        says="1.01 times as fast",
        where={"head": 1},
    ),
    Twin(
        "the last head alone in the other layout",
        "layout",
        lambda: laid_out_by_head("interleaved"),
        lambda: laid_out_by_head("half"),
        says="the interleaved layout",
        where={"head": 1},
    ),
    Twin("values turned", "values", lambda: with_values(True), lambda: with_values(False)),
    Twin("slopes in reverse order", "slopes", lambda: biased(PUBLISHED.flip(0)), lambda: biased(PUBLISHED)),
    Twin("slopes divided by sqrt(head_dim)", "slopes", lambda: biased(PUBLISHED / D**0.5), lambda: biased(PUBLISHED)),
    Twin("a bias that rises with the lag", "slopes", lambda: biased(-PUBLISHED), lambda: biased(PUBLISHED)),
    Twin("ranks in place of times", "order", lambda: by_maps(ranked, ranked), sound_rotary),
    Twin(
        "positions cut to whole ones without a word",
        "continuity",
        lambda: by_maps(whole_positions, whole_positions, fractional=False),
        sound_rotary,
    ),
    Twin(
        "a table in the state of its module",
        "optimiser",
        lambda: Probe("twin", "module", D, H, H, LENGTH, module=Kept(True)),
        lambda: Probe("twin", "module", D, H, H, LENGTH, module=Kept(False)),
    ),
    Twin("another base than the one declared", "declared", lambda: declared(turner(base(5e5))), lambda: declared(turner(base(1e4)))),
    Twin(
        "one position alone is wrong, and it was asked for",
        "asked",
        lambda: by_maps(*[at_times(lambda x, t: torch.where(t == 411, t + 1, t))] * 2, asked=((411.0, 7.0), (412.0, 7.0))),
        lambda: by_maps(turner(), turner(), asked=((411.0, 7.0), (412.0, 7.0))),
    ),
]
