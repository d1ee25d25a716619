"""Frequencies as numbers: those a subject turns with, their base, and what a narrow dtype or unwritten memory leaves in a table."""

import math

import torch
from torch import Tensor

from eigenclock.audit.measure.claims import claims, turn_of
from eigenclock.audit.measure.samples import step_of
from eigenclock.audit.probe import Probe


def frequencies(probe: Probe) -> dict[str, Tensor]:
    """Layer type -> frequencies of what turns there: of the table it builds, else of its config, else of the encoding it is."""
    if probe.tables:
        return {layer: table.inv_freq.detach().double().cpu().flatten().abs() for layer, table in probe.tables.items()}
    asked = claims(probe) or ({"": probe.encoding} if probe.encoding is not None else {})
    turns = {layer: turn_of(enc) for layer, enc in asked.items()}
    step = step_of(probe)
    return {layer: turn.freq.detach().double().cpu().abs() * step for layer, turn in turns.items() if turn is not None}


def base_of(freq: Tensor) -> float | None:
    """The base of a geometric table theta^(-i/n), None where the table is none.

    >>> round(base_of(10000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)))
    10000
    """
    n = freq.numel()
    if n < 3 or not bool((freq > 0).all()) or abs(float(freq[0]) - 1) > 1e-4:
        return None
    base = float(freq[1] ** -n)
    if not base > 1 + 1e-3:
        return None
    fits = torch.allclose(freq, base ** (-torch.arange(n, dtype=torch.float64) / n), rtol=1e-2, atol=0)
    return base if fits else None


SLOWEST = 1e-6
"""A table whose fastest pair turns more slowly than this tells no positions of any context apart."""


def uninitialised(freq: Tensor) -> str:
    """What shows that a table holds no frequencies, in words; empty where nothing does. All 0 is a table that does not turn.

    >>> uninitialised(torch.tensor([6.93e-18, 0.0, 0.0]))
    'its largest frequency is 6.93e-18'
    >>> uninitialised(torch.tensor([1.0, 0.01, 0.0]))
    ''
    """
    if not bool(torch.isfinite(freq).all()):
        return "it holds numbers that are not finite"
    top = float(freq.abs().max()) if freq.numel() else 0.0
    if 0 < top < SLOWEST:
        return f"its largest frequency is {top:.3g}"
    if top > 1e6:
        return f"its largest frequency is {top:.3g}"
    return ""


def unrounded(freq: Tensor, dtype: torch.dtype) -> tuple[Tensor, float] | None:
    """The geometric row of a round base that a table is in a dtype, up to a quarter of its pairs, and the base; None where it is of none.

    >>> row = 10000.0 ** (-torch.arange(8).double() / 8)
    >>> unrounded(row.bfloat16().double(), torch.bfloat16)[1]
    10000.0
    """
    n, values = freq.numel(), freq.double()
    if n < 3 or not bool((values > 0).all()):
        return None
    index = torch.arange(n, dtype=torch.float64)
    guesses = (values[1:].log() / -index[1:] * n).exp()  # the base that each pair would have alone
    fitted = math.exp(float(values.log() @ index) * -n / float(index.square().sum()))
    best: tuple[int, Tensor, float] | None = None
    tried = [float(f"{guess:.{digits}g}") for digits in (1, 2, 3) for guess in (fitted, *guesses.tolist()) if 1 < guess < 1e30]
    for theta in dict.fromkeys(tried):  # of those that fit alike, the one of the fewest digits
        row = theta ** (-index / n)
        fits = int(rounds_to(row, values, dtype).sum())
        if fits >= max(3, n - n // 4) and (best is None or fits > best[0]):
            best = fits, row, theta
    return None if best is None else best[1:]


def rounds_to(row: Tensor, freq: Tensor, dtype: torch.dtype) -> Tensor:
    """Which pairs (n,) of a table are those of a row in a dtype."""
    return (row.float().to(dtype).double() == freq.double()) | (row.to(dtype).double() == freq.double())


def rounded_to(freq: Tensor) -> torch.dtype | None:
    """The 16-bit dtype that holds all of at least three different frequencies that are no powers of two, which no formula gives.

    >>> rounded_to(torch.tensor([0.7, 0.3, 0.1, 0.05]).bfloat16()), rounded_to(torch.tensor([0.7, 0.3, 0.1, 0.05]))
    (torch.bfloat16, None)
    """
    values = freq.detach().double()
    mantissa = torch.frexp(values).mantissa
    telling = values[(values != 0) & (mantissa.abs() != 0.5)].unique()
    if telling.numel() < 3:
        return None
    eighths = telling * 256  # steps of a grid on purpose, such as linspace, have short digits too
    if bool((eighths == eighths.round()).all()):
        return None
    for dtype in (torch.bfloat16, torch.float16):
        if bool((telling.to(dtype).double() == telling).all()):
            return dtype
    return None
