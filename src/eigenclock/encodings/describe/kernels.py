"""Lag kernels as a figure: what is left of the content, block by block, and what a bias adds, over the lag."""

import math
import textwrap
from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.encodings.describe.blocks import Blocks, read_blocks
from eigenclock.encodings.describe.findings import Setting, number
from eigenclock.encodings.outside import Outside
from eigenclock.present import Figure, Line, Panel
from eigenclock.theory import JordanBlock, Lift, Zero

POINTS, SAMPLES, SHOWN = 200, 40, 4
Kernel = Callable[[Float[Tensor, "u"]], Float[Tensor, "lines u"]]


def lags(setting: Setting) -> Float[Tensor, "points samples"]:
    """Lags spread over the decades up to the context, each with a sample of those between it and the next one.

    Where time is counted in steps, the lags are whole. The sample is irregular, so that it resonates with no wavelength, and fixed.
    """
    steps = setting.unit is None and not setting.learned
    low = 1.0 if steps else setting.context / 65536
    edges = torch.logspace(0, 1, POINTS + 1, base=setting.context / low, dtype=torch.float64) * low
    if steps:
        edges = edges.round().unique()
    edges = edges if edges.numel() > 1 else torch.cat([edges, edges + 1])
    share = torch.rand(POINTS, SAMPLES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)[: edges.numel() - 1]
    share[:, 0] = 0
    inner = edges[:-1, None] + (edges[1:] - edges[:-1])[:, None] * share
    return inner.floor() if steps else inner


def few(n: int) -> list[int]:
    """At most SHOWN of n, from the first to the last.

    >>> few(3), few(8)
    ([0, 1, 2], [0, 2, 5, 7])
    """
    return list(range(n)) if n <= SHOWN else [round(i * (n - 1) / (SHOWN - 1)) for i in range(SHOWN)]


def _lines(kernel: Kernel, labels: list[str], setting: Setting, single: bool = False) -> list[Line]:
    """One line for each row of the kernel: the mean of neighbouring lags, with a band from the smallest to the largest of them.

    single: the row is one wave; its line is the value itself, and a band alone stands where neighbouring lags cover half of its range.
    """
    grid = lags(setting)
    values = kernel(grid.flatten()).reshape(len(labels), *grid.shape)
    x = grid[:, 0].tolist()
    size = max(float(values.abs().max()), 1e-300)
    out = []
    for label, rows in zip(labels, values, strict=True):
        low, high = rows.amin(-1), rows.amax(-1)
        y = rows.mean(-1)
        if single:
            wild = ((high - low) > size).nonzero().flatten()
            wild = wild[wild > 8]
            y = rows[:, 0].clone()
            if wild.numel():
                y[wild[0] : wild[-1] + 1] = math.nan
            low, high = (torch.where(y.isnan(), edge, math.nan) for edge in (low, high))
        wide = bool(((high - low) > 0.02 * size).any())
        band = (low.tolist(), high.tolist()) if wide else (None, None)
        out.append(Line(label, x, y.tolist(), *band))
    return out


def _heads(n: int) -> tuple[list[int], list[str]]:
    chosen = few(n)
    return chosen, ["all heads"] if n == 1 else [f"head {h}" for h in chosen]


def _axis_name(setting: Setting, axis: int | None) -> str:
    return "" if axis is None else f" along {setting.axes[axis]}"


def _mean_panel(blocks: Blocks, title: str, setting: Setting, axis: int | None) -> Panel:
    chosen, labels = _heads(blocks.heads)
    lines = _lines(lambda u: blocks.mean(u, axis)[chosen], labels, setting)
    return _panel(lines, title + _axis_name(setting, axis), "tr exp(uL) / D", setting)


def _block_panel(blocks: Blocks, title: str, setting: Setting, axis: int | None) -> Panel | None:
    """The first to the last of the different blocks of one head."""
    freq = blocks.freq.sum(1) if axis is None else blocks.freq[:, axis]
    numbers = torch.stack([blocks.rate[0], freq[0]], -1)
    first = {tuple(row): i for i, row in reversed(list(enumerate(numbers.tolist())))}
    members = sorted(i for row, i in first.items() if any(row))
    if len(first) < 2 or not members:
        return None
    chosen = [members[i] for i in few(len(members))]
    lines = _lines(lambda u: blocks.each(u, axis)[0, :, chosen].T, [_name(blocks, i, freq) for i in chosen], setting, True)
    head = "" if blocks.heads == 1 else ", head 0"
    return _panel(lines, f"{title}{head}{_axis_name(setting, axis)}", "exp(-rate u) cos(freq u)", setting)


def _growth_panel(blocks: Blocks, setting: Setting) -> Panel:
    """The highest power of the lag in blocks of order above 1, with the turn taken out: its envelope."""
    members = [i for i, block in enumerate(blocks.jordan) if block.order > 1]
    chosen, labels = _heads(blocks.heads)
    lines = _lines(lambda u: blocks.growth(u)[chosen][:, :, members].amax(-1), labels, setting)
    order = max(block.order for block in blocks.jordan)
    power = "u" if order == 2 else f"u^{order - 1}"
    return _panel(lines, f"blocks of order {order}: how large they grow", f"{power} exp(-rate u), scaled", setting)


def _name(blocks: Blocks, i: int, freq: Tensor) -> str:
    """A block of head 0 by its wavelength and its half-life."""
    numbers = [f"wavelength {number(2 * math.pi / abs(float(freq[0, i])))}"] if freq[0, i] else []
    numbers += [f"half-life {number(math.log(2) / float(blocks.rate[0, i]))}"] if blocks.rate[0, i] else []
    return ",\n".join(numbers)


def _panel(lines: list[Line], title: str, y_label: str, setting: Setting) -> Panel:
    return Panel(lines, f"lag u ({setting.units})", y_label, title, log_x=True)


def _bias_panel(bias: Kernel, name: str, setting: Setting) -> Panel:
    """What a bias does to the weight, exp(bias); the bias itself where it rewards a lag by much."""
    top = float(bias(lags(setting)[:, 0]).max())
    chosen, labels = _heads(bias(torch.zeros(1, dtype=torch.float64)).shape[0])
    if top > math.log(4):
        return _panel(_lines(lambda u: bias(u)[chosen], labels, setting), name, "bias (logits)", setting)
    lines = _lines(lambda u: bias(u)[chosen].exp(), labels, setting)
    return _panel(lines, f"{name}: factor on the softmax weight", "exp(bias)", setting)


def kernels(text: str, content: Blocks, lifts: tuple[Lift, ...], setting: Setting, outside: tuple[Outside, ...] = ()) -> Figure:
    """The figure of an encoding: the content (one panel per axis), single blocks, how far they grow, and each bias."""
    panels: list[Panel | None] = []
    shown = [lift for lift in lifts if not isinstance(lift.generator, Zero)]
    still = not bool(content.rate.any()) and not bool(content.freq.any())
    for axis in [] if still else list(range(content.axes)) if content.axes > 1 else [None]:
        panels.append(_mean_panel(content, "content: mean over the channels", setting, axis))
        panels.append(_block_panel(content, "content: single blocks", setting, axis))
    if any(block.order > 1 for block in content.jordan):
        panels.append(_growth_panel(content, setting))
    for k, lift in enumerate(shown):
        name = f"bias {k + 1}" if len(shown) > 1 else "bias"
        if lift.reads_content:
            panels.append(_block_panel(read_blocks(lift.generator), f"{name} read from the content: single blocks", setting, None))
        else:
            panels.append(_bias_panel(lambda u, lift=lift: lift.bias(u[None, :, None]).detach().cpu()[..., 0], name, setting))
    for part in outside:
        curve = part.curve(setting.context)
        if curve is not None:
            panels.append(_bias_panel(curve, f"bias outside the group, at {number(setting.context)} {setting.units}", setting))
    found = [panel for panel in panels if panel is not None] or [_mean_panel(content, "content: mean over the channels", setting, None)]
    # A picture is looked at away from its page: the first panel names what is shown.
    found[0] = replace(found[0], title="\n".join([*textwrap.wrap(textwrap.shorten(text, 180, placeholder=" .."), 66), found[0].title]))
    note = f"Lags up to {number(setting.context)} {setting.units}. Bands: the smallest and largest value at neighbouring lags."
    return Figure(text, found, alt=f"Lag kernels of {text}", note=note, columns=min(2, len(found)))


def block_name(block: JordanBlock) -> str:
    """The letter of a block and what it stands for.

    >>> block_name(JordanBlock("S", 2))
    'S2 damped rotation'
    """
    from eigenclock.theory.form import KINDS

    return f"{block} {'nilpotent' if block.kind == 'Z' and block.order > 1 else KINDS[block.kind]}"


__all__ = ["block_name", "few", "kernels", "lags"]
