"""What is added to the logit, as recipes: linear, bell-shaped, a sum of cosines, or sinusoids that the query reads."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenclock.audit.recovery.lags import Lags
from eigenclock.audit.recovery.match import ROUNDED, affine_of
from eigenclock.audit.report import Block, Measured
from eigenclock.encodings import Encoding, alibi, gaussian_bias, sandwich, transformer_xl
from eigenclock.schedules import geometric

NOTHING = Measured(0.0, 0.0)


@dataclass(frozen=True)
class Bias:
    """The recipe of a bias; encoding is None where there is none of ours, or no bias at all where ``absent``.

    ``nearest`` is the published recipe whose numbers it has as near as float32 keeps them, where they are not its numbers exactly.
    """

    encoding: Encoding | None
    blocks: tuple[Block, ...] = ()
    absent: bool = False
    nearest: Encoding | None = None


def bias_of(lags: Lags) -> Bias:
    """The bias of every head from the scores of zero vectors, and what queries and keys add to it alone."""
    marks = [0.0, *lags.ladder]
    values = torch.stack([lags.at(u).bias for u in marks])  # (lags, heads)
    alone = torch.stack([torch.cat([lags.at(u).of_query, lags.at(u).of_key], -1) for u in marks])
    size = float(values.abs().max())
    if float(alone.abs().max()) > 1e-11 * max(1.0, size) * (lags.eps / 2.0**-52) ** 0.5:
        return _read_by_query(lags, marks)
    if size <= 64 * lags.eps:
        return Bias(None, absent=True)
    times = torch.tensor(marks, dtype=torch.float64)
    for made in (_linear, _bell, _cosines):
        found = made(lags, times, values)
        if found is not None:
            return found
    return Bias(None)


def _sizes(lags: Lags) -> tuple[int, int, int | None]:
    probe = lags.probe
    return probe.head_dim, probe.heads, probe.kv_heads if probe.kv_heads != probe.heads else None


def _close(lags: Lags, times: Tensor, got: Tensor, wanted: Tensor) -> bool:
    noise = torch.tensor([max(1e-10, 16 * lags.noise(float(u))) for u in times], dtype=torch.float64)[:, None]
    return bool(((got - wanted).abs() <= noise * wanted.abs().amax(0).clamp_min(1e-300)).all())


def _linear(lags: Lags, times: Tensor, values: Tensor) -> Bias | None:
    slope = -values[-1] / times[-1]
    if not _close(lags, times, -times[:, None] * slope, values) or bool((slope < 0).any()):
        return None
    d, heads, keys = _sizes(lags)
    published = alibi(d, heads=heads, kv_heads=keys)
    own = published.lifts()[0].slope
    off = torch.inf if own is None else float(((own - slope).abs() / own).max())
    alike = off <= 1e-9 + 16 * lags.eps
    nearest = published if off <= ROUNDED else None
    enc = published if alike else alibi(d, heads=heads, kv_heads=keys, slopes=slope.tolist())
    blocks = tuple(Block("Z", 2, 1, h, NOTHING, NOTHING, "bias") for h in range(1 if alike else heads))
    return Bias(enc, blocks, nearest=nearest)


def _bell(lags: Lags, times: Tensor, values: Tensor) -> Bias | None:
    curve = values[-1] / times[-1] ** 2
    if bool((curve >= 0).any()) or not _close(lags, times, times[:, None] ** 2 * curve, values):
        return None
    d, heads, keys = _sizes(lags)
    enc = gaussian_bias(d, heads=heads, kv_heads=keys, sigma=(-1 / (2 * curve)).sqrt().tolist())
    return Bias(enc, (Block("Z", 3, 1, 0, NOTHING, NOTHING, "bias"),))


def _cosines(lags: Lags, times: Tensor, values: Tensor) -> Bias | None:
    """Sandwich: on the published base over widths in use, else on any base and width that give the fall at the first lags."""
    if bool((values.abs() > values[0] * (1 + 1e-9)).any()):
        return None
    d = lags.probe.head_dim
    usual = ((width, None) for width in dict.fromkeys((128, d, 64, 256, 32, 16, 512)) if width % 2 == 0)
    for width, theta in (*usual, *_bases(lags, times, values)):
        found = _sandwich(lags, times, values, width, theta)
        if found is not None:
            return found
    return None


def _sandwich(lags: Lags, times: Tensor, values: Tensor, width: int, theta: float | None) -> Bias | None:
    d, heads, keys = _sizes(lags)
    amplitude = values[0] / (width // 2)
    options = {"width": None if width == 128 else width, "theta": theta}
    published = sandwich(d, heads=heads, kv_heads=keys, **options)
    own = published.lifts()[0].bias(torch.zeros(1, 1, 1, dtype=torch.float64)).reshape(-1) / (width // 2)
    alike = bool(((own - amplitude).abs() <= (1e-9 + 16 * lags.eps) * own.abs()).all())
    enc = published if alike else sandwich(d, heads=heads, kv_heads=keys, amplitude=amplitude.tolist(), **options)
    got = enc.lifts()[0].bias(times.expand(heads, 1, -1))[:, 0].mT
    if not _close(lags, times, got, values):
        return None
    freq = [float(f) for f in enc.lifts()[0].generator.split().turns[0].freq.flatten()]
    return Bias(enc, tuple(Block("R", 1, 1, 0, NOTHING, Measured(f, lags.eps), "bias") for f in freq))


WIDEST = 1024


def _bases(lags: Lags, times: Tensor, values: Tensor) -> Iterator[tuple[int, float]]:
    """(width, base) of sums of cosines that fall at one lag as the bias does, by bisection for each width, and fit at another one."""
    fall = values[:, 0] / values[0, 0]
    near, other = (next((i for i, u in enumerate(times.tolist()) if u >= least), -1) for least in (0.5, 4.0))
    found = []
    for width in range(2, WIDEST + 1, 2):
        steps = torch.arange(1, width // 2 + 1, dtype=torch.float64) * (2 / width)

        def mean(log: float, place: int, steps: Tensor = steps) -> float:
            return float(((-log * steps).exp() * times[place]).cos().mean())

        low, high = 0.0, 40.0  # of the natural logarithm of the base: a larger one turns less
        if not mean(low, near) <= float(fall[near]) <= mean(high, near):
            continue
        while high - low > 1e-15 * high:
            middle = (low + high) / 2
            if middle in (low, high):
                break
            low, high = (middle, high) if mean(middle, near) < float(fall[near]) else (low, middle)
        found.append((abs(mean(low, other) - float(fall[other])), width, math.exp(low)))
    for off, width, theta in sorted(found)[:4]:
        plain = float(f"{theta:.9g}")
        yield width, plain if off < 1e-6 and abs(plain - theta) < 1e-8 * theta else theta


def _read_by_query(lags: Lags, marks: list[float]) -> Bias:
    """Transformer-XL on the published base: (q + position) . W r(u) + content . k, with W by least squares over the lags."""
    d, heads, keys = _sizes(lags)
    first = lags.at(0.0).of_key
    if any(float((lags.at(u).of_key - first).abs().max()) > 1e-9 * max(1.0, float(first.abs().max())) + lags.noise(u) for u in marks):
        return Bias(None)
    steps = max(7, 4 * d // len(marks))  # between two marks, for more readings than there are waves
    between = (u * (1 + i / steps) for u in marks for i in range(1, steps))
    tried = (u if lags.probe.fractional else float(round(u)) for u in between)
    more = sorted({*marks, *(u for u in tried if u < lags.probe.length)})
    for width in dict.fromkeys((d, 2 * d, 64, 128)):
        if width % 2:
            continue
        freq = geometric(10000.0)(width // 2).values
        angle = torch.tensor(more, dtype=torch.float64)[:, None] * freq
        waves = torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)  # (lags, width)
        readings = torch.stack([lags.at(u).of_query for u in more])  # (lags, heads, d)
        weight = torch.linalg.lstsq(waves, readings.flatten(1), driver="gelsd").solution.reshape(width, heads, d).permute(1, 2, 0)
        biases = torch.stack([lags.at(u).bias for u in more]).mT[..., None]  # position . W r(u), of which W r(u) is what queries read
        position = torch.linalg.lstsq(readings.transpose(0, 1), biases, driver="gelsd").solution[..., 0]
        content = first if keys is None else first.unflatten(0, (keys, -1))[:, 0]
        numbers = {"weight": weight.tolist(), "content": content.tolist(), "position": position.tolist()}
        enc = transformer_xl(d, heads=heads, kv_heads=keys, sinusoids=None if width == d else width, learn=(), **numbers)
        gaps = [
            float((a.of_query - b.of_query).abs().max() + (a.bias - b.bias).abs().max())
            for u in lags.ladder
            for a, b in [(affine_of(enc, u), lags.at(u))]
        ]
        if max(gaps) <= 1e-8 * float(readings.abs().max()) + lags.noise(lags.ladder[-1]):
            return Bias(enc, tuple(Block("R", 1, 1, 0, NOTHING, Measured(float(f), lags.eps), "bias") for f in freq))
    return Bias(None)
