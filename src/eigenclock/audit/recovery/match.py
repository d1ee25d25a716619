"""Known recipes held against what was measured: by their scores at the lags that were probed, not by their names."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from eigenclock.attention import scores
from eigenclock.audit.recovery.lags import Affine, Lags, Stretch
from eigenclock.encodings import Encoding, encoding
from eigenclock.encodings.spec import to_text
from eigenclock.errors import EigenclockError

USUAL = (1e4, 1e5, 5e5, 1e6, 1e7)
"""Bases in use: the first pairs of a geometric row are one themselves, so that the base alone tells p-RoPE from partial rotary."""


def affine_of(enc: Encoding, lag: float) -> Affine:
    """The scores of an encoding at one lag, as :func:`eigenclock.audit.recovery.lags.affine` measures them."""
    d, g = enc.head_dim, enc.kv_heads or enc.heads
    basis = torch.cat([torch.zeros(1, d, dtype=torch.float64), torch.eye(d, dtype=torch.float64)])
    q, k = basis.expand(1, enc.heads, -1, -1), basis.expand(1, g, -1, -1)
    at, of = (torch.full((d + 1,), t, dtype=torch.float64) for t in (max(lag, 0.0), max(-lag, 0.0)))
    z = scores(q, k, enc, times=at, key_times=of, causal=lag >= 0, scale=1.0)[0]
    zero, row, column = z[:, 0, 0], z[:, 0, 1:], z[:, 1:, 0]
    content = z[:, 1:, 1:] - column[:, :, None] - row[:, None, :] + zero[:, None, None]
    return Affine(content, column - zero[:, None], row - zero[:, None], zero)


def content_of(enc: Encoding, lag: float) -> Tensor:
    """What multiplies the inner product at one lag, (heads, D, D): exp(uL) between what each side reads in."""
    eye = torch.eye(enc.head_dim, dtype=torch.float64)[None]
    q, k = enc.read_in(eye.expand(1, enc.heads, -1, -1), eye.expand(1, enc.kv_heads or enc.heads, -1, -1))
    matrix = enc.generator().matrix(lag)
    if matrix.ndim == 3 and 1 < matrix.shape[0] < enc.heads:
        matrix = matrix.repeat_interleave(enc.heads // matrix.shape[0], 0)
    return q[0] @ matrix @ k[0].repeat_interleave(enc.heads // k.shape[1], 0).mT


ROUNDED = 2.0**-22
"""How far a frequency may be from a recipe's, relative, for the recipe to be called the nearest: a table kept in float32 is as far."""


def known(lags: Lags, found: Encoding, start: int) -> tuple[Encoding | None, bool]:
    """The published recipe, with its own numbers, that gives the content of an encoding that was found, and whether it does so exactly.

    It is held against the scores that were measured; where its numbers are only as near as float32 keeps them it is named, not used.
    """
    wanted = {u: lags.at(u).content[:, start : start + found.head_dim, start : start + found.head_dim] for u in lags.ladder}
    nearest = None
    for candidate in _candidates(found):
        off = {u: float((content_of(candidate, u) - a).abs().max() / a.abs().max().clamp_min(1e-30)) for u, a in wanted.items()}
        if all(gap <= 1e-7 + 8 * lags.noise(u) for u, gap in off.items()):
            return candidate, True
        if nearest is None and all(gap <= 1e-6 + ROUNDED * u + 8 * lags.noise(u) for u, gap in off.items()):
            nearest = candidate
    return nearest, False


def partial(lags: Lags, parts: list[Stretch]) -> tuple[Encoding, str] | None:
    """A head of which the first channels turn and the rest stands still, as one recipe, and its name: partial rotary or p-RoPE."""
    if len(parts) != 2 or any(part.encoding is None for part in parts):
        return None
    turned, rest = (part.encoding for part in parts)
    if turned is None or rest is None or turned.spec.get("name") != "rope" or rest.spec.get("name") != "nope":
        return None
    d, row = lags.probe.head_dim, turned.spec["freq"]
    sizes = {"heads": turned.heads, "kv_heads": turned.kv_heads, "pairing": turned.spec.get("pairing")}

    def whole(part: Encoding) -> Encoding:
        options = {k: v for k, v in part.spec.items() if k not in ("head_dim", "heads", "kv_heads", "pairing", "name")}
        return _build({"name": "rope", "head_dim": d, "rotary_dim": parts[0].width, **options, **sizes})

    published, exactly = known(lags, turned, 0)
    enc = whole(published if published is not None and exactly else turned)
    flat = isinstance(row, list) and not isinstance(row[0], list) and d % 2 == 0
    base = base_of(row, d // 2) if flat else None
    if base in USUAL and base_of(row) not in USUAL:
        p_rope = _build(
            {"name": "rope", "head_dim": d, "freq": {"name": "proportional", "share": 2 * len(row) / d, "theta": base}, **sizes}
        )
        if _gives(lags, p_rope):  # channels i and i + rotary_dim / 2 turn together in partial rotary, i and i + d / 2 in p-RoPE
            return (p_rope if exactly else enc), short(p_rope)
    return enc, short(whole(published or turned))


def _gives(lags: Lags, enc: Encoding) -> bool:
    """Whether an encoding gives the content that was measured, as near as float32 keeps frequencies."""
    wanted = {u: lags.at(u).content for u in lags.ladder}
    off = {u: float((content_of(enc, u) - a).abs().max() / a.abs().max().clamp_min(1e-30)) for u, a in wanted.items()}
    return all(gap <= 1e-6 + ROUNDED * u + 8 * lags.noise(u) for u, gap in off.items())


def _candidates(found: Encoding) -> Iterator[Encoding]:
    """Recipes of the kind of what was found, the plainest first."""
    spec: dict[str, Any] = dict(found.spec)
    name, d = spec.get("name"), found.head_dim
    layout = {"pairing": spec["pairing"]} if "pairing" in spec else {}
    numbers = spec.get("freq")
    row = numbers if isinstance(numbers, list) and numbers and not isinstance(numbers[0], list) else None
    base = base_of(row) if row else None
    theta = {} if base in (None, 10000.0) else {"theta": base}
    tried: list[tuple[str, dict[str, Any]]] = []
    if name == "rope" and row:
        tried += [("rope", theta)] if base is not None else []
        live = sum(f != 0 for f in row)
        if 0 < live < len(row):
            share = base_of(row[:live], len(row))
            tried += [("rope", {"freq": {"name": "proportional", "share": live / len(row), "theta": share}})] if share else []
        factor = 1 / row[0] if row[0] else 0.0
        slow = base_of([f * factor for f in row]) if factor else None
        tried += [("rope", {"freq": {"name": "linear", "factor": float(f"{factor:.9g}"), "theta": slow}})] if slow and base is None else []
    if name == "damped_rope":
        tried += [("xpos", {} if base in (None, 10000.0) else {"theta": base}), ("retnet", {}), ("damped_rope", theta)]
        tried += [("damped_rope", {**theta, "rate": spec["rate"]})] if base is not None else []
    if name == "decay":
        tried += [("lightning", {}), ("minimax", {})]
    if name == "jordan_rope":
        more = {"order": spec["order"]} if "order" in spec else {}
        tried += [("jordan_rope", more), *([("jordan_rope", {**more, "eta": spec["eta"], "rate": spec["rate"]})])]
    if name == "hyperbolic":
        tried += [("hyperbolic", {})]
    for other, options in tried:
        try:
            yield _build({"name": other, "head_dim": d, "heads": found.heads, "kv_heads": found.kv_heads, **layout, **options})
        except (EigenclockError, TypeError):
            continue


def _build(tree: dict[str, Any]) -> Encoding:
    return encoding({key: value for key, value in tree.items() if value is not None})


def base_of(freq: list[float], pairs: int | None = None) -> float | None:
    """theta where the numbers are theta^(-i/pairs), rounded to what they can tell; None where they are not.

    >>> base_of([1.0, 0.1]), base_of([1.0, 0.3, 0.2])
    (100.0, None)
    """
    n = pairs or len(freq)
    if len(freq) < 2 or min(freq) <= 0 or abs(freq[0] - 1) > 1e-5:
        return None
    theta = freq[-1] ** (-n / (len(freq) - 1))
    for digits in (2, 4, 6, 9, 12):
        rounded = float(f"{theta:.{digits}g}")
        if (
            rounded > 0
            and all(abs(f - rounded ** (-i / n)) <= 1e-5 * f for i, f in enumerate(freq))
            and abs(rounded - theta) <= 1e-4 * theta
        ):
            return rounded
    return None


def short(enc: Encoding) -> str:
    """A recipe without its sizes, in words short enough for a report.

    >>> import eigenclock as ec
    >>> short(ec.rope(8, theta=100.0)), short(ec.rope(4) + ec.nope(4))
    ('rope(theta=100)', 'rope + nope')
    """
    return to_text(_bare(enc.spec)).replace("'..'", "..").replace("()", "")


def _bare(tree: Any) -> Any:
    if isinstance(tree, dict) and "op" in tree:
        return {"op": tree["op"], "parts": [_bare(part) for part in tree["parts"]]}
    if isinstance(tree, dict):
        kept = {k: v for k, v in tree.items() if k not in ("head_dim", "heads", "kv_heads", "learn")}
        return {k: _bare(v) if isinstance(v, dict) else ".." if isinstance(v, list) else _whole(v) for k, v in kept.items()}
    return tree


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value


__all__ = ["affine_of", "base_of", "content_of", "known", "short"]
