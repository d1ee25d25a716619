"""What multiplies the inner product, as recipes on stretches of channels: every block is recognised by its pattern and measured."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from eigenclock.audit.recovery.dense import dense
from eigenclock.audit.recovery.lags import Lags, Stretch
from eigenclock.audit.recovery.match import content_of
from eigenclock.audit.recovery.modes import Modes, climb
from eigenclock.audit.report import Block, Measured
from eigenclock.encodings import Encoding, decay, hyperbolic, jordan_rope, nope, rope
from eigenclock.encodings.damped_rope import damped_rope
from eigenclock.schedules import Schedule, geometric, longrope

SAME = 1e-9  # of the largest number: patterns agree that are nearer than this, or than the noise


def stretches(lags: Lags, groups: list[list[int]]) -> list[Stretch]:
    """The recipes on all channels, from left to right."""
    out: list[Stretch] = []
    for start, width, kind, inner in _cut(groups, lags.probe.head_dim):
        out.append(_singles(lags, start, width) if kind == "single" else _turning(lags, start, width, inner, kind))
    return out


def _cut(groups: list[list[int]], d: int) -> list[tuple[int, int, str, list[list[int]]]]:
    """Contiguous stretches (start, width, kind, groups in them): single channels, pairs of one layout, anything else."""
    spans: list[tuple[int, int, str, list[list[int]]]] = []
    at = 0
    by_first = {group[0]: group for group in groups}
    owner = {channel: group for group in groups for channel in group}
    while at < d:
        stop, inner, reach = at + 1, [], max(owner[at])
        while stop <= reach:
            reach = max(reach, max(owner[stop]))
            stop += 1
        inner = [by_first[c] for c in range(at, stop) if c in by_first]
        several = [group for group in inner if len(group) > 1]
        offsets = {group[1] - group[0] for group in several}
        if not several:
            kind = "single"
        elif all(len(group) == 2 for group in several) and len(offsets) == 1:
            apart = offsets.pop()
            kind = "interleaved" if apart == 1 else "half"
            wanted = at + 2 * apart  # pairs that stand still couple no channels: they fill the stretch up
            while kind == "half" and stop < min(wanted, d) and len(owner[stop]) == 1:
                inner.append(owner[stop])
                stop += 1
            kind = kind if stop == wanted or kind == "interleaved" else "other"
        else:
            kind = "other"
        if spans and kind == spans[-1][2] and kind in ("single", "interleaved"):
            start, width, _, before = spans.pop()
            spans.append((start, width + stop - at, kind, before + inner))
        else:
            spans.append((at, stop - at, kind, inner))
        at = stop
    return spans


def _rows(lags: Lags, numbers: Tensor, errors: Tensor | None = None) -> float | list[float] | list[list[float]]:
    """Numbers (heads, n) as a recipe takes them: one row where heads agree within their errors, one per key head where groups do."""
    sure = torch.zeros_like(numbers) if errors is None else errors.nan_to_num(posinf=0.0)
    one = _agreed(numbers[None], sure[None])
    if one is not None:
        return one[0].tolist()
    keys = _agreed(*(x.unflatten(0, (lags.probe.kv_heads, -1)) for x in (numbers, sure)))
    return numbers.tolist() if keys is None else keys.tolist()


def _agreed(numbers: Tensor, errors: Tensor) -> Tensor | None:
    """The surest of the numbers (groups, m, n) in each group, None where some disagree."""
    place = errors.argmin(1, keepdim=True)
    best, doubt = numbers.gather(1, place), errors.gather(1, place)
    alike = bool(((numbers - best).abs() <= 1e-12 * best.abs() + 4 * (errors + doubt)).all())
    return best[:, 0] if alike else None


def _sizes(lags: Lags) -> dict[str, Any]:
    probe = lags.probe
    return {"heads": probe.heads, "kv_heads": probe.kv_heads if probe.kv_heads != probe.heads else None}


def _climbed(lags: Lags, read: Callable[[Tensor], Tensor]) -> Modes:
    marks = [0.0, *lags.ladder]
    return climb(marks, [read(lags.at(u).content) for u in marks], [lags.floor(u) for u in marks], lags.eps).settled()


def _singles(lags: Lags, start: int, width: int) -> Stretch:
    channels = torch.arange(start, start + width)
    found = _climbed(lags, lambda a: torch.complex(a[:, channels, channels], torch.zeros_like(a[:, channels, channels])))
    still = not bool(found.rate.any())
    grows = bool((found.rate < 0).any())
    sizes = _sizes(lags)
    enc = None if grows else nope(width, **sizes) if still else decay(width, rate=_rows(lags, found.rate, found.rate_error), **sizes)
    return Stretch(start, width, enc, _blocks(found, ("Z", "D")))


def _turning(lags: Lags, start: int, width: int, inner: list[list[int]], kind: str) -> Stretch:
    pairs = width // 2
    if kind in ("interleaved", "half"):
        first = start + (2 * torch.arange(pairs) if kind == "interleaved" else torch.arange(pairs))
        found = _pairs(lags, first, first + (1 if kind == "interleaved" else pairs), kind, start, width)
        if found is not None:
            return found
    order = _jordan_order(inner, start, width)
    if order:
        for pairing in ("interleaved", "half"):
            found = _jordan(lags, start, width, order, pairing)
            if found is not None:
                return found
    return dense(lags, start, width)


def _pairs(lags: Lags, x: Tensor, y: Tensor, pairing: str, start: int, width: int) -> Stretch | None:
    """Rotations, damped ones, or boosts, on pairs (x, y) of one layout."""

    def turn(a: Tensor) -> Tensor:
        return torch.complex(a[:, x, x] + a[:, y, y], a[:, x, y] - a[:, y, x]) / 2

    def boost(a: Tensor) -> Tensor:
        return torch.complex(a[:, x, x] - a[:, y, y], a[:, x, y] + a[:, y, x]) / 2

    most = [(float(turn(m).abs().max()), float(boost(m).abs().max()), u) for u in [0.0, *lags.ladder] for m in [lags.at(u).content]]
    size = max(t for t, _, _ in most)
    options: dict[str, Any] = {"pairing": pairing, **_sizes(lags)}
    if all(b <= (SAME + lags.noise(u)) * size for _, b, u in most):
        found = _climbed(lags, turn)
        if bool((found.rate < 0).any()):
            return Stretch(start, width, None, _blocks(found, ("R", "S")))
        made = rope if not bool(found.rate.any()) else damped_rope
        amplitude = turn(lags.at(0.0).content).real
        freq: Any = _rows(lags, found.freq, found.freq_error)
        if bool(((amplitude - 1).abs() > SAME + lags.noise(0.0)).any()):
            freq = _scaled(freq, amplitude)
        rates = {} if made is rope else {"rate": _rows(lags, found.rate, found.rate_error)}
        enc = made(width, freq=freq, **rates, **options) if freq is not None else None
        return Stretch(start, width, enc, _blocks(found, ("R", "S")))
    sums = _climbed(lags, lambda a: torch.complex(a[:, x, x] + a[:, x, y], torch.zeros_like(a[:, x, y])))
    differences = _climbed(lags, lambda a: torch.complex(a[:, x, x] - a[:, x, y], torch.zeros_like(a[:, x, y])))
    rate, boosts = (differences.rate + sums.rate) / 2, (differences.rate - sums.rate) / 2
    if bool((rate < boosts.abs()).any()) or not _mirrored(lags, x, y):
        return None
    enc = hyperbolic(width, boost=_rows(lags, boosts), rate=_rows(lags, rate), **options)
    blocks = (*_blocks(sums, ("Z", "D")), *_blocks(differences, ("Z", "D")))
    return Stretch(start, width, enc, blocks)


def _scaled(freq: Any, amplitude: Tensor) -> Schedule | None:
    """Frequencies that turn with an amplitude, which counts twice in a score; None where channels or heads have several."""
    first = float(amplitude.flatten()[0])
    if first <= 0 or bool(((amplitude - first).abs() > 1e-6 * first).any()) or not isinstance(freq, list) or isinstance(freq[0], list):
        return None
    if min(freq) <= 0:
        return None
    divisors = [f / g for f, g in zip(geometric()(len(freq)).values.tolist(), freq, strict=True)]
    return longrope(divisors, divisors, original_length=1, attention_factor=first**0.5, use="short")


def _mirrored(lags: Lags, x: Tensor, y: Tensor) -> bool:
    """Whether both channels of each pair are alike: a boost."""
    return all(
        float((a[:, x, x] - a[:, y, y]).abs().max() + (a[:, x, y] - a[:, y, x]).abs().max()) <= SAME * float(a.abs().max()) + lags.noise(u)
        for u in lags.ladder
        for a in [lags.at(u).content]
    )


def _jordan_order(inner: list[list[int]], start: int, width: int) -> int:
    """The order of blocks whose channels lie in levels of equal width, two of each block in every level; 0 where they do not."""
    size = len(inner[0])
    if size % 2 or size < 4 or any(len(group) != size for group in inner) or size * len(inner) != width:
        return 0
    level = 2 * width // size
    fits = all(sum(start + r * level <= c < start + (r + 1) * level for c in group) == 2 for group in inner for r in range(size // 2))
    return size // 2 if fits else 0


def _jordan(lags: Lags, start: int, width: int, order: int, pairing: str) -> Stretch | None:
    level, n = width // order, width // order // 2
    x = start + (2 * torch.arange(n) if pairing == "interleaved" else torch.arange(n))
    y = x + (1 if pairing == "interleaved" else n)
    found = _climbed(lags, lambda a: torch.complex(a[:, x, x] + a[:, y, y], a[:, x, y] - a[:, y, x]) / 2)
    lag = max((u for u in lags.ladder if u <= 64), default=lags.step)
    a = lags.at(lag).content
    turned = torch.complex(a[:, x, x], a[:, x, y])
    sheared = torch.complex(a[:, x, x + level], a[:, x, y + level])
    eta = (sheared / turned).real / lag
    if bool((found.rate < 0).any()) or not bool(torch.isfinite(eta).all()):
        return None
    freq, rate = _rows(lags, found.freq, found.freq_error), _rows(lags, found.rate, found.rate_error)
    numbers: dict[str, Any] = {"freq": freq, "rate": rate, "eta": _rows(lags, eta)}
    enc = jordan_rope(width, order=order, pairing=pairing, **numbers, **_sizes(lags))
    if not agrees(lags, enc, start):
        return None
    return Stretch(start, width, enc, _blocks(found, ("R", "S"), order))


def agrees(lags: Lags, enc: Encoding, start: int, limit: float = 1e-6) -> bool:
    """Whether an encoding gives the content that was measured on its channels, at the lags of the ladder."""
    stop = start + enc.head_dim
    for u in lags.ladder:
        wanted = lags.at(u).content[:, start:stop, start:stop]
        scale = float(lags.at(0.0).content[:, start:stop, start:stop].abs().max().clamp_min(float(wanted.abs().max())))
        if float((content_of(enc, u) - wanted).abs().max()) > (limit + 8 * lags.noise(u)) * scale:
            return False
    return True


def _blocks(found: Modes, letters: tuple[str, str], order: int = 1) -> tuple[Block, ...]:
    """Each measured mode of each head as a block; heads that agree with head 0 are left out."""
    out = []
    for h in range(found.rate.shape[0]):
        if h and bool((found.rate[h] == found.rate[0]).all()) and bool((found.freq[h] == found.freq[0]).all()):
            continue
        for i in range(found.rate.shape[1]):
            rate, freq = float(found.rate[h, i]), float(found.freq[h, i])
            kind = ("S" if rate else "R") if freq else ("D" if rate else "Z")
            many = 2 if letters[0] == "R" and not freq else 1
            numbers = (
                Measured(rate, float(found.rate_error[h, i])),
                Measured(freq, float(found.freq_error[h, i]) if letters[0] == "R" else 0.0),
            )
            out.append(Block(kind, order, many, h, *numbers))
    return tuple(out)
