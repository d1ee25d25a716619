"""From a rotary section that was understood to an encoding."""

import math
from typing import Any

import numpy as np

from eigenclock.encodings.base import Encoding
from eigenclock.encodings.config.families import ORIGINAL
from eigenclock.encodings.config.keys import Account, number
from eigenclock.encodings.config.layers import Sizes
from eigenclock.encodings.config.section import Section
from eigenclock.encodings.config.source import Source
from eigenclock.encodings.m_rope import m_rope
from eigenclock.encodings.nope import nope
from eigenclock.encodings.rope import rope
from eigenclock.errors import ConfigError, UnsupportedError
from eigenclock.registry import lookup
from eigenclock.schedules import SCHEDULES, Schedule, geometric, proportional

# The keys of Hugging Face that a schedule has under another name.
RENAMED = {ORIGINAL: "original_length"}
ON_COS_AND_SIN = ("yarn", "longrope")


def rotary(
    section: Section,
    size: Sizes,
    source: Source,
    rotary_dim: int | None,
    longest: tuple[str, Any] | None,
    length: float | None,
    account: Account,
) -> Encoding:
    """The encoding of one layer type.

    Raises: ConfigError where a width or a list does not fit the head; UnsupportedError where the law has no encoding here.
    """
    head = size.head_dim - size.fixed
    width = _width(section, size, rotary_dim)
    sizes = {"heads": size.heads, "kv_heads": size.kv_heads}
    if section.sections is not None:
        turned = _beside(_axes(section, width, source, sizes, account), size, head - width)
        return nope(size.fixed, **sizes) + turned if size.fixed else turned
    schedule = schedule_of(section, width // 2, longest, length, account)
    freq: Any = schedule
    if source.divisors is not None or source.sign == -1:
        freq = _by_hand(section, schedule, width // 2, source)
    options: dict[str, Any] = {"theta": section.theta} if freq is None else {"freq": freq}
    if width != head:
        options["rotary_dim"] = width
    turned = rope(head, pairing=str(source.pairing), **sizes, **options)
    return nope(size.fixed, **sizes) + turned if size.fixed else turned


def _width(section: Section, size: Sizes, rotary_dim: int | None) -> int:
    head = size.head_dim - size.fixed
    if section.rope_type == "proportional":
        return _even(head, "head_dim")
    width = int(head * section.share)
    if section.share != 1 and int(size.head_dim * section.share) == head:  # the share that latent attention turns of its whole head
        return _even(head, "head_dim")
    if rotary_dim is not None:
        if section.share != 1 and width != rotary_dim:
            raise ConfigError(
                f"got rotary_dim={rotary_dim} and partial_rotary_factor={section.share:g} of {head} channels; expected one width"
            )
        width = rotary_dim
    if not 0 < width <= head:
        raise ConfigError(
            f"got a rotary width of {width} for head_dim={head}; expected 2 to {head}: check partial_rotary_factor or rotary_dim"
        )
    return _even(width, "head_dim" if width == head else "partial_rotary_factor" if rotary_dim is None else "rotary_dim")


def _even(width: int, key: str) -> int:
    if width % 2:
        raise ConfigError(f"got a rotary width of {width} (from {key}); expected an even width: rotations act on pairs of channels")
    return width


def _axes(section: Section, width: int, source: Source, sizes: dict[str, Any], account: Account) -> Encoding:
    sections = tuple(section.sections or ())
    if section.rope_type != "default" or source.sign == -1:
        raise UnsupportedError(
            f"got mrope_section with rope_type={section.rope_type!r}; expected 'default': schedules on axes are not read"
        )
    if len(sections) != 3:
        raise UnsupportedError(f"got mrope_section={list(sections)}; expected three sections: time, height, width")
    if section.assignment == "interleaved" and sum(sections) != width // 2:
        sections = _counts(sections, width // 2)
        account.note(f"mrope_section={list(section.sections or ())} bounds interleaved writes: the axes get {list(sections)} pairs")
    if sum(sections) != width // 2:
        raise ConfigError(f"got mrope_section={list(sections)}, {sum(sections)} pairs in all; expected {width // 2}, half the rotary width")
    return m_rope(width, sections=sections, assignment=section.assignment, theta=section.theta, pairing=str(source.pairing), **sizes)


def _counts(sections: tuple[int, ...], pairs: int) -> tuple[int, ...]:
    """How many pairs each axis gets from interleaved writes that were declared for another number of pairs.

    >>> _counts((24, 20, 20), 32)
    (11, 11, 10)
    """
    axes = len(sections)
    later = [min(count, len(range(axis, pairs, axes))) for axis, count in enumerate(sections) if axis]
    return (pairs - sum(later), *later)


def _beside(turned: Encoding, size: Sizes, rest: int) -> Encoding:
    return turned + nope(rest, heads=size.heads, kv_heads=size.kv_heads) if rest else turned


def schedule_of(section: Section, pairs: int, longest: tuple[str, Any] | None, length: float | None, account: Account) -> Schedule | None:
    """The schedule of a section for so many pairs; None for the plain base."""
    kind, values = section.rope_type, dict(section.values)
    if kind == "default":
        return None
    if kind == "proportional":
        kept = proportional(section.share, section.theta)
        return kept if values.get("factor", 1) == 1 else lookup(SCHEDULES, "linear", "schedule")(values["factor"], kept)
    for key in ("short_factor", "long_factor"):
        if key in values and len(values[key]) != pairs:
            raise ConfigError(f"got {key} with {len(values[key])} numbers; expected {pairs}, one per pair that turns")
    if kind == "longrope" and "factor" not in values:
        if longest is None:
            raise ConfigError("got rope_type='longrope' without factor and max_position_embeddings; expected one of them")
        values["factor"] = max(number(longest[1], longest[0], above=0) / values[ORIGINAL], 1.0)
    if kind == "yarn" and ("attention_factor" in values or not (values.get("mscale") and values.get("mscale_all_dim"))):
        values = {key: value for key, value in values.items() if key not in ("mscale", "mscale_all_dim")}
    if kind == "llama3" and values["low_freq_factor"] == values["high_freq_factor"]:
        account.note("low_freq_factor equals high_freq_factor: the blend of llama3 is a step there")
        values["high_freq_factor"] = math.nextafter(values["high_freq_factor"], math.inf)
    made = lookup(SCHEDULES, kind, "schedule")(**{RENAMED.get(k, k): v for k, v in values.items()}, theta=section.theta)
    if getattr(made, "length_dependent", False):
        if length is None:
            account.warn(
                f"rope_type={kind!r} depends on the length of the sequence: it is frozen at {values[ORIGINAL]}; give length= for another"
            )
        made = made.at(values[ORIGINAL] if length is None else number(length, "length", above=0))
    return made


def _by_hand(section: Section, schedule: Schedule | None, pairs: int, source: Source) -> tuple[float, ...]:
    """Frequencies written out, where a file divides them pair by pair or both sides turn backwards."""
    spectrum = (schedule or geometric(section.theta))(pairs)
    if spectrum.attention_scale != 1:
        raise UnsupportedError(
            f"got rope_type={section.rope_type!r}, which has an amplitude, with frequencies written out; expected one without"
        )
    values = spectrum.values.numpy()
    if source.divisors is not None:
        if len(source.divisors) != pairs:
            raise ConfigError(f"got {len(source.divisors)} divisors of frequencies (rope_freqs); expected {pairs}, one per pair that turns")
        values = values / np.asarray(source.divisors)
    return tuple((values * (source.sign or 1)).tolist())


def amplitude_of(read: list[Section], scaled: bool) -> str | None:
    """Where the factor of the schedules stands: on cos and sin it counts twice in a score, and only on channels that turn.

    ``scaled``: the model multiplies its scale by the factor of ``mscale_all_dim`` (latent attention).
    """
    if not any(section.rope_type in ON_COS_AND_SIN for section in read):
        return None
    return "cos, sin and the scale" if scaled and any(section.values.get("mscale_all_dim") for section in read) else "cos and sin"


__all__ = ["RENAMED", "amplitude_of", "rotary", "schedule_of"]
