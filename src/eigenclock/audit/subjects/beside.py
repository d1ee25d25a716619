"""What the caller says of a subject beside its sizes: what it is meant to be, and where the law is to be measured."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from eigenclock.audit.measure.samples import rounding
from eigenclock.audit.probe import Probe
from eigenclock.audit.recovery.lags import lags_of
from eigenclock.audit.recovery.recover import limit_of, verified
from eigenclock.audit.subjects.several_axes import ALL_AXES
from eigenclock.encodings import ENCODINGS, Encoding, encoding, rope
from eigenclock.encodings.config import encodings
from eigenclock.errors import ConfigError, ShapeError

Declared = Encoding | str | float | Mapping[str, Any] | Path | None


def beside(probe: Probe, declared: Declared) -> Probe:
    """The probe, and each of its layers, with what it was declared to be.

    Raises: ConfigError where the subject says that itself, or the declaration has other sizes or several layer types.
    """
    if declared is None:
        return probe
    if probe.encoding is not None or probe.config is not None:
        raise ConfigError(f"got declared= for {probe.name}, which says itself what it is; expected it for a function or module alone")
    several = probe.layers.get(ALL_AXES)
    enc = _read(declared, several or probe)
    sizes = (enc.head_dim, enc.heads, enc.kv_heads or enc.heads)
    if sizes != (probe.head_dim, probe.heads, probe.kv_heads):
        raise ShapeError(
            f"got declared={enc} for {probe.name}, measured with head_dim={probe.head_dim}, heads={probe.heads}; expected the same sizes: "
            "give head_dim= and heads="
        )
    if several is not None:  # the law of one axis alone is not what is declared
        if enc.clock.width != len(probe.layers) - 1:
            raise ConfigError(
                f"got declared={enc} for {probe.name} with axes={len(probe.layers) - 1}; expected an encoding of so many axes, such as "
                "axial_rope"
            )
        return replace(probe, layers={**probe.layers, ALL_AXES: replace(several, declared=enc)})
    layers = {name: replace(part, declared=enc) for name, part in probe.layers.items()}
    return replace(probe, declared=enc, layers=layers)


def _read(declared: Any, probe: Probe) -> Encoding:
    if isinstance(declared, Encoding):
        return declared
    base = _number(declared)
    if base is not None:
        return _nearest_of_base(base, probe)
    spec = isinstance(declared, str) and not Path(declared).exists()
    if spec or (isinstance(declared, Mapping) and (declared.get("name") in ENCODINGS or declared.get("op") in ("+", "*"))):
        return encoding(declared, head_dim=probe.head_dim, heads=probe.heads)  # type: ignore[arg-type]
    found = encodings(declared, head_dim=probe.head_dim)
    if len(set(map(str, found.values()))) != 1:
        raise ConfigError(f"got declared= with {len(found)} layer types, {', '.join(found)}; expected one: give ec.encodings(config)[name]")
    return _on_heads(next(iter(found.values())), probe)


def _number(declared: Any) -> float | None:
    """The base that is declared, as a number or in digits; None for anything else."""
    try:
        return float(declared) if isinstance(declared, int | float | str) and not isinstance(declared, bool) else None
    except ValueError:
        return None


def _nearest_of_base(base: float, probe: Probe) -> Encoding:
    """RoPE of a base: of the ways to pair channels and of the shares that turn, the first whose scores are those measured; where none is,
    all channels turn."""
    width = probe.head_dim
    sizes = {"heads": probe.heads, "kv_heads": None if probe.kv_heads == probe.heads else probe.kv_heads}
    widths = [n for n in (width, width // 2, width // 4) if n and n % 2 == 0]
    made = [
        rope(width, theta=base, rotary_dim=None if n == width else n, pairing=pairing, **sizes)
        for n in widths
        for pairing in ("half", "interleaved")
    ]
    if not made:
        raise ConfigError(f"got declared={base:g}, the base of a rotation, for {probe.name} of width {width}; expected an even width")
    if probe.scores is None:
        return made[0]
    lags = lags_of(probe)
    gaps = [verified(probe, enc, lags) for enc in made]
    limit = max(limit_of(lags), rounding(probe, probe.length))
    fits = [enc for enc, gap in zip(made, gaps, strict=True) if gap <= limit]
    return fits[0] if fits else made[gaps.index(min(gaps[:2]))]


def _on_heads(enc: Encoding, probe: Probe) -> Encoding:
    """The encoding of a config on as many heads as are measured, where all its heads are alike."""
    from eigenclock.audit.heads import resized

    if (enc.heads, enc.kv_heads or enc.heads) == (probe.heads, probe.kv_heads):
        return enc
    return resized(enc, probe.heads, probe.kv_heads) or enc


def asked_at(probe: Probe, pairs: Iterable[tuple[float, float]]) -> Probe:
    """The probe, and each of its layers, with the pairs of times (t, s) at which the law is to be measured.

    Raises: ShapeError for what is no pair of times, a key after the query where only those before it have a score, or times between whole
        ones where only those are taken.
    """
    asked = []
    for pair in pairs:
        try:
            t, s = (float(x) for x in pair)
        except (TypeError, ValueError):
            raise ShapeError(f"got at={pair!r}; expected pairs of times (t, s), such as at=[(1000, 990)]") from None
        if not min(t, s) >= 0 or max(t, s) == float("inf"):
            raise ShapeError(f"got at=({t:g}, {s:g}); expected finite times of at least 0")
        if probe.causal and s > t:
            raise ShapeError(f"got at=({t:g}, {s:g}), a key after the query, which has no score in {probe.name}; expected s <= t")
        if not probe.fractional and (t, s) != (round(t), round(s)):
            raise ShapeError(f"got at=({t:g}, {s:g}) for {probe.name}, which takes whole positions; expected whole ones")
        asked.append((t, s))
    if not asked:
        return probe
    return replace(probe, asked=tuple(asked), layers={name: replace(part, asked=tuple(asked)) for name, part in probe.layers.items()})


__all__ = ["Declared", "asked_at", "beside"]
