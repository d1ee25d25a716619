"""What an encoding can and cannot tell apart over a context and in a dtype, in sentences with their numbers."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from eigenclock.encodings.describe.blocks import Blocks, read_blocks
from eigenclock.encodings.outside import Outside
from eigenclock.theory import Lift, Zero
from eigenclock.theory.numbers import spacing


@dataclass(frozen=True)
class Finding:
    """One sentence with the numbers behind it: ``count`` of ``total`` blocks (smallest and largest over the heads), or a value."""

    about: str
    text: str
    count: tuple[int, int] | None = None
    total: int | None = None
    value: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, object]:
        """Plain data that JSON can hold; what never happens is null."""
        numbers: dict[str, object] = {"count": self.count, "total": self.total, "value": self.value}
        return {"about": self.about, "text": self.text} | {
            k: [None if math.isinf(x) else x for x in v] if isinstance(v, tuple) else v for k, v in numbers.items() if v is not None
        }


@dataclass(frozen=True)
class Setting:
    """The context in the unit of the clock, that unit ("steps" where the clock counts tokens), the names of the axes, and the dtype.

    ``learned``: how the clock moves is learned from activations, so that its unit is no step and no second.
    """

    context: float
    unit: str | None
    dtype: torch.dtype
    axes: tuple[str, ...] = ()
    learned: bool = False

    @property
    def units(self) -> str:
        return "units of its time" if self.learned else self.unit or "steps"

    @property
    def step(self) -> str:
        return "unit of its time" if self.learned else self.unit or "step"

    @property
    def span(self) -> str:
        return f"{number(self.context)} {self.units}"

    @property
    def precision(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def rounding(self) -> float:
        """The largest relative error of one rounding."""
        return torch.finfo(self.dtype).eps / 2


def number(value: float) -> str:
    """A number short enough to read.

    >>> [number(v) for v in (4096.0, 0.0036067376, 62831.853, 1e9, math.inf)]
    ['4096', '0.003607', '62832', '1e+09', 'never']
    """
    if math.isinf(value):
        return "never"
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.4g}"


def between(values: tuple[float, ...] | list[float]) -> str:
    """One number, or the range of several.

    >>> between((2.0, 8.0, 4.0)), between((3.0, 3.0))
    ('2 to 8', '3')
    """
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


_LEARNED = (
    "The clock is learned: how far it moves at a token is what its gate makes of the activations, which is not known here. Rates, "
    "half-lives and wavelengths are in units of that time, and not in steps: a gate that gives 0.0005 at every token takes 2000 of them "
    "for one unit."
)


def findings(
    content: Blocks, lifts: tuple[Lift, ...], setting: Setting, sides: int = 1, outside: tuple[Outside, ...] = (), reads_in: str = ""
) -> list[Finding]:
    """All findings: what is outside the group, the content, the biases, the direction, and the positions themselves."""
    if setting.learned:  # what a token's step does is not known: nothing is said of steps, or of a context in them
        known = (
            _outside(outside, setting),
            [Finding("A(0)", f"A(0) is not the identity: {reads_in}.")] if reads_in else [],
            [Finding("learned clock", _LEARNED)],
            _still(content, lifts, outside),
            _direction(content, lifts, sides, outside),
        )
        return [finding for group in known for finding in group]
    found = (
        _outside(outside, setting),
        [Finding("A(0)", f"A(0) is not the identity: {reads_in}.")] if reads_in else [],
        _turning(content, setting),
        _fading(content, setting),
        _neighbours(content, setting),
        _still(content, lifts, outside),
        _growing(content, setting),
        _biases(lifts, setting),
        _direction(content, lifts, sides, outside),
        _positions(setting),
    )
    return [finding for group in found for finding in group]


def _count(flags: Tensor) -> tuple[int, int]:
    """How many blocks, the smallest and the largest number over the heads, of flags (heads, n)."""
    per_head = flags.sum(-1)
    return int(per_head.min()), int(per_head.max())


def _of(count: tuple[int, int], total: int, noun: str) -> str:
    low, high = count
    head = f"{high}" if low == high else f"{low} to {high} (by head)"
    return f"{head} of {total} {noun}" if (low, high) != (total, total) else f"All {total} {noun}"


def _verb(count: tuple[int, int], one: str, many: str) -> str:
    return one if count == (1, 1) else many


def _turning(blocks: Blocks, setting: Setting, pairs: str = "pairs") -> Iterator[Finding]:
    turning = torch.tensor([block.kind in "RS" for block in blocks.jordan])
    for axis in range(blocks.axes):
        freq = blocks.freq[:, axis, turning].abs()
        moving = freq[:, (freq != 0).any(0)]
        total = moving.shape[-1]
        if not total:
            continue
        where = f" along {setting.axes[axis]}" if blocks.axes > 1 else ""
        full = _count(moving * setting.context >= 2 * math.pi)
        rest = total - full[1], total - full[0]
        if full[1]:
            yield Finding(
                "turns",
                f"{_of(full, total, pairs)} {_verb(full, 'turns', 'turn')} fully within {setting.span}{where}: "
                "one of them alone repeats itself, several together tell lags apart.",
                full,
                total,
            )
        if rest[1]:
            yield Finding(
                "never completes a turn",
                f"{_of(rest, total, pairs)} never {_verb(rest, 'completes', 'complete')} a turn within {setting.span}{where}: "
                "each lag has an angle of its own there, and neighbours nearly the same one.",
                rest,
                total,
            )
        if setting.unit is None:
            fast = _count(moving > math.pi * (1 + 1e-12))
            if fast[1]:
                yield Finding(
                    "aliasing",
                    f"{_of(fast, total, pairs)}{where} {_verb(fast, 'has a wavelength', 'have wavelengths')} below 2 steps: at whole "
                    "steps that cannot be told from a slower turn (aliasing).",
                    fast,
                    total,
                )
        slow = _count(moving < setting.rounding)
        if slow[1]:
            yield Finding(
                "neighbours merge",
                f"{_of(slow, total, pairs)} {_verb(slow, 'turns', 'turn')} by less than one rounding of {setting.precision} "
                f"({number(setting.rounding)} rad) per {setting.step}{where}: turned vectors kept in {setting.precision} do not tell "
                "neighbours apart there.",
                slow,
                total,
            )


def _fading(blocks: Blocks, setting: Setting) -> Iterator[Finding]:
    decaying = (blocks.rate > 0).any(0)
    rate, total = blocks.rate[:, decaying], int(decaying.sum())
    if not total:
        return
    lasting = _count(rate * setting.context <= 0.1 * math.log(2))
    if lasting[1]:
        yield Finding(
            "does not decay here",
            f"{_of(lasting, total, 'decaying blocks')} {_verb(lasting, 'keeps', 'keep')} at least 93 % over {setting.span} "
            "(half-life above 10 times that): no decay to speak of here.",
            lasting,
            total,
        )
    if setting.unit is None:
        brief = _count(rate > math.log(2) * (1 + 1e-12))
        if brief[1]:
            yield Finding(
                "sees only itself",
                f"{_of(brief, total, 'decaying blocks')} {_verb(brief, 'loses', 'lose')} more than half within one step: "
                "a query sees little there but its own token.",
                brief,
                total,
            )
    if total == len(blocks.jordan):
        reach = -math.log(setting.rounding) / blocks.rate.amin(-1)
        if float(reach.min()) < setting.context:
            value = float(reach.min()), float(reach.max())
            yield Finding(
                "horizon of the score",
                f"Beyond a lag of {between(value)} {setting.units} nothing of q . k is left above one rounding of {setting.precision}: "
                "in softmax all keys out there weigh the same, in linear attention nothing.",
                value=value,
            )


def _outside(outside: tuple[Outside, ...], setting: Setting) -> Iterator[Finding]:
    for part in outside:
        axioms = " and ".join(part.breaks)
        yield Finding("outside the group", f"Outside the group, {axioms} {'breaks' if len(part.breaks) == 1 else 'break'}: {part.why}.")
        curve = part.curve(setting.context)
        if curve is not None:
            yield from _curved(curve, setting)


def _still(blocks: Blocks, lifts: tuple[Lift, ...], outside: tuple[Outside, ...]) -> Iterator[Finding]:
    if any(part.query_vectors is not None for part in outside):
        return
    still = [
        b.order == 1 and bool((blocks.rate[:, i] == 0).all()) and bool((blocks.freq[:, :, i] == 0).all())
        for i, b in enumerate(blocks.jordan)
    ]
    channels = sum(block.dim for block, zero in zip(blocks.jordan, still, strict=True) if zero)
    total = sum(block.dim for block in blocks.jordan)
    if all(still) and not lifts and not outside:
        text = "No lag is told from another: every pair scores by content alone, and order enters through the causal mask only."
        yield Finding("no position", text, (total, total), total)
    elif channels:
        text = f"{_of((channels, channels), total, 'channels')} {_verb((channels, channels), 'carries', 'carry')} no position: "
        yield Finding("no position", text + "they compare content at every lag alike.", (channels, channels), total)


def _neighbours(blocks: Blocks, setting: Setting) -> Iterator[Finding]:
    """Up to which lag u some block changes by more than one rounding from u to u + 1: |e^(-a + iw) - 1| e^(-au) > rounding."""
    if setting.unit is not None or blocks.axes > 1 or bool((blocks.order > 1).any()):
        return
    change = (torch.complex(-blocks.rate, blocks.freq[:, 0]).exp() - 1).abs()
    over = (change / setting.rounding).log()  # so many nats may be lost
    reach = torch.where(over > 0, torch.where(blocks.rate > 0, over / blocks.rate, math.inf), 0.0).amax(-1).clamp_max(setting.context)
    value = float(reach.min()), float(reach.max())
    if value[1] > 0:
        far = f"all over {setting.span}" if value[0] >= setting.context else f"up to a lag of {between(value)} steps"
        text = f"In scores of size 1 a lag differs from the next one by more than one rounding of {setting.precision} {far}."
        yield Finding("neighbours", text, value=value)


def _growing(blocks: Blocks, setting: Setting) -> Iterator[Finding]:
    higher = blocks.order > 1
    if not bool(higher.any()):
        return
    peak = blocks.peak(setting.context)[:, higher].amax(-1)
    value, count = (float(peak.min()), float(peak.max())), int(higher.sum())
    yield Finding(
        "grows",
        f"{_of((count, count), len(blocks.jordan), 'blocks')} of order {int(blocks.order.max())} reach {between(value)} times q . k within "
        f"{setting.span}; one rounding of that in {setting.precision} is {between([v * setting.rounding for v in value])} times q . k.",
        value=value,
    )


def _biases(lifts: tuple[Lift, ...], setting: Setting) -> Iterator[Finding]:
    for lift in lifts:
        slope = lift.slope
        if slope is not None:
            yield from _linear(slope.detach().double().cpu().reshape(-1), setting)
        elif lift.reads_content and isinstance(lift.generator, Zero):
            yield Finding("bias", "One bias is read from the content and is the same at every lag.")
        elif lift.reads_content:
            yield Finding("bias", "One bias is read from the content: how it depends on the lag is up to the query or the key.")
            yield from _turning(read_blocks(lift.generator), setting, "pairs of the bias")
        else:
            yield from _curved(lambda lag, lift=lift: lift.bias(lag[None, :, None]).detach().cpu()[..., 0], setting)


def _curved(curve: Callable[[Tensor], Tensor], setting: Setting) -> Iterator[Finding]:
    """A bias of any shape: its change over the context, and the first lag at which it has halved the weight."""
    lag = torch.cat([torch.zeros(1), torch.logspace(-4, 0, 4096)]).double() * setting.context
    bias = curve(lag)
    fall = bias - bias[:, :1]
    value = float(fall[:, -1].min()), float(fall[:, -1].max())
    text = f"The bias changes by {between(value)} logits from lag 0 to {setting.span}"
    halved = fall <= -math.log(2)
    if bool(halved.any(-1).all()):
        first = lag[halved.int().argmax(-1)]
        text += f"; it first halves the weight at a lag of {between(first.tolist())} {setting.units}"
    yield Finding("bias", f"{text}.", value=value)


def _linear(slopes: Tensor, setting: Setting) -> Iterator[Finding]:
    total, positive = slopes.numel(), slopes[slopes > 0]
    if positive.numel() < total:
        none = total - positive.numel()
        yield Finding(
            "no position", f"{_of((none, none), total, 'heads')} {_verb((none, none), 'has', 'have')} no bias.", (none, none), total
        )
    if not positive.numel():
        return
    reach = -math.log(setting.rounding) / positive
    value = float(reach.min()), float(reach.max())
    short = int((reach < setting.context).sum())
    yield Finding(
        "horizon of the weight",
        f"The bias takes a key's weight below one rounding of {setting.precision} at a lag of {between(value)} {setting.units}; "
        f"the far end of {setting.span} is out of reach for {_of((short, short), total, 'heads').replace('All', 'all')}.",
        (short, short),
        total,
        value,
    )
    lasting = int((positive * setting.context <= 0.1 * math.log(2)).sum())
    if lasting:
        yield Finding(
            "does not decay here",
            f"{_of((lasting, lasting), total, 'heads')} {_verb((lasting, lasting), 'keeps', 'keep')} at least 93 % of the weight "
            f"over {setting.span}: no recency to speak of here.",
            (lasting, lasting),
            total,
        )


def _direction(blocks: Blocks, lifts: tuple[Lift, ...], sides: int, outside: tuple[Outside, ...]) -> Iterator[Finding]:
    if sides == 2:
        yield Finding("direction", "Keys after the query are seen through the mirrored kernel: it works with and without a causal mask.")
    elif blocks.ordered or any(lift.directed for lift in lifts):
        yield Finding("direction", "It needs a direction: causal attention over times in order (two_sided offers the mirrored kernel).")
    elif any(part.directed for part in outside):
        yield Finding("direction", "It needs a direction: causal attention over times in order.")
    else:
        yield Finding("direction", "It needs no direction: keys after the query are as good as those before it.")


def _positions(setting: Setting) -> Iterator[Finding]:
    info = torch.finfo(setting.dtype)
    step = spacing(setting.context, setting.dtype)
    exact = 2 / info.eps
    if setting.unit is not None:
        yield Finding(
            "positions",
            f"Times rounded to {setting.precision} would be {number(step)} {setting.units} apart at {setting.span}, and closer ones "
            "merge. Here they stay exact until their differences are taken.",
            value=(step, step),
        )
    elif setting.context <= exact and setting.context <= info.max:
        yield Finding("positions", f"{setting.precision} holds every whole step of this context.", value=(1.0, 1.0))
    else:
        different = distinct(setting.context, setting.dtype)
        yield Finding(
            "positions",
            f"Positions rounded to {setting.precision} would merge beyond {number(exact)}: of {number(setting.context)}, "
            f"{number(different)} stay different. Here they stay exact until their differences are taken.",
            value=(float(different), float(different)),
        )


def distinct(count: float, dtype: torch.dtype) -> int:
    """How many of the whole numbers 0 .. count - 1 are different once they are rounded to a dtype (those beyond its range left out).

    >>> distinct(1024, torch.bfloat16)
    513
    """
    info = torch.finfo(dtype)
    last = min(math.ceil(count) - 1, int(info.max))
    digits = round(-math.log2(info.eps)) + 1
    if last < 1 << digits:
        return last + 1
    exponent = last.bit_length() - 1  # the last power of two that is reached; below it each doubling has 2^(digits - 1) values
    step = 1 << (exponent + 1 - digits)
    below = (1 << digits) + (exponent - digits) * (1 << (digits - 1))
    return below + round(Fraction(last - (1 << exponent), step)) + 1  # half to even, as in floating point


__all__ = ["Finding", "Setting", "between", "distinct", "findings", "number"]
