"""Blocks that mix many channels: the logarithm of the shortest lag, its Jordan form, and planes where nothing decays."""

from typing import Any

import torch
from torch import Tensor

from eigenclock.audit.recovery.lags import Lags, Stretch
from eigenclock.audit.report import Block, Measured
from eigenclock.encodings import Encoding, grape_m
from eigenclock.theory import classify
from eigenclock.theory.modes import modes

TERMS = 24


def logarithm(matrix: Tensor) -> Tensor:
    """The principal logarithm of real matrices near enough to 1: square roots until they are close, then the series of atanh.

    >>> float(logarithm(torch.tensor([[2.0]], dtype=torch.float64))[0, 0].exp())
    2.0
    """
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype)
    x, halved = matrix, 0
    while float(torch.linalg.matrix_norm(x - eye, 2).max()) > 0.25 and halved < 40:
        y, z = x, eye.expand_as(x)
        for _ in range(30):  # Denman and Beavers: y becomes the root of x
            y, z = (y + torch.linalg.inv(z)) / 2, (z + torch.linalg.inv(y)) / 2
        x, halved = y, halved + 1
    w = torch.linalg.solve(x + eye, x - eye)
    power, total = w, w.clone()
    for k in range(1, TERMS):
        power = power @ w @ w
        total = total + power / (2 * k + 1)
    return 2.0 ** (halved + 1) * total


def generator_of(lags: Lags, start: int, width: int) -> Tensor:
    """L on some channels, (heads, width, width), from A(u) A(0)^-1 at the shortest lag."""
    cut = slice(start, start + width)
    zero = lags.at(0.0).content[:, cut, cut]
    return logarithm(lags.at(lags.step).content[:, cut, cut] @ torch.linalg.inv(zero)) / lags.step


def dense(lags: Lags, start: int, width: int) -> Stretch:
    """Channels that all see each other: planes in a basis of their own where nothing decays, else no recipe."""
    L = generator_of(lags, start, width)
    blocks = _blocks(L, lags.eps / lags.step)
    sizes: dict[str, Any] = {
        "heads": lags.probe.heads,
        "kv_heads": lags.probe.kv_heads if lags.probe.kv_heads != lags.probe.heads else None,
    }
    skew = bool(torch.isfinite(L).all()) and float((L + L.mT).abs().max()) <= (1e-9 + 1e3 * lags.eps) * float(L.abs().max())
    return Stretch(start, width, _planes((L - L.mT) / 2, sizes) if skew else None, blocks)


def _planes(L: Tensor, sizes: dict[str, Any]) -> Encoding | None:
    """Skew-symmetric matrices (heads, n, n) as multiplicative GRAPE; None where heads have different numbers of planes."""
    keys = sizes["kv_heads"] or sizes["heads"]
    if bool((L.unflatten(0, (keys, -1)) == L.unflatten(0, (keys, -1))[:, :1]).all()):
        L = L.unflatten(0, (keys, -1))[:, 0]
    found = [modes(one) for one in (L[:1] if bool((L[:1] == L).all()) else L)]
    if len({one.pairs for one in found}) != 1 or not found[0].pairs:
        return None
    if found[0].pairs == 1:
        a, b = (torch.stack([one.basis[:, i] for one in found]).tolist() for i in (0, 1))
        return grape_m(L.shape[-1], planes=1, freq=[one.freq.tolist() for one in found], a=a, b=b, **sizes)
    rows = torch.triu_indices(L.shape[-1], L.shape[-1], 1)
    freqs, bases = zip(*(_cayley_of(one.basis, one.freq) for one in found), strict=True)
    basis = torch.stack(bases)[:, rows[0], rows[1]]
    return grape_m(L.shape[-1], planes=found[0].pairs, freq=torch.stack(freqs).tolist(), basis=basis.tolist(), **sizes)


def _cayley_of(Q: Tensor, freq: Tensor) -> tuple[Tensor, Tensor]:
    """Frequencies and S with Q = (1 - S)(1 + S)^-1, up to a turn inside each plane, which no score sees; it is chosen for a small S."""
    pairs, freq = freq.shape[0], freq.clone()
    if torch.linalg.det(Q) < 0:  # the Cayley map reaches turns only: a plane changes its orientation, and its frequency its sign
        Q = Q.clone()
        Q[:, [0, 1]] = Q[:, [1, 0]]
        freq[0] = -freq[0]
    random, eye = torch.Generator().manual_seed(0), torch.eye(Q.shape[-1], dtype=Q.dtype)
    best = torch.full_like(Q, torch.inf)
    for _ in range(20):
        angle = 2 * torch.pi * torch.rand(pairs, dtype=Q.dtype, generator=random)
        turned, a, b = Q.clone(), Q[:, 0 : 2 * pairs : 2], Q[:, 1 : 2 * pairs : 2]
        turned[:, 0 : 2 * pairs : 2], turned[:, 1 : 2 * pairs : 2] = a * angle.cos() + b * angle.sin(), b * angle.cos() - a * angle.sin()
        S = torch.linalg.solve(eye + turned, eye - turned)
        if float(S.abs().max()) < float(best.abs().max()):
            best = (S - S.mT) / 2
    return freq, best


def _blocks(L: Tensor, eps: float) -> tuple[Block, ...]:
    """The Jordan blocks of a measured L, head by head."""
    out = []
    for h, one in enumerate(L):
        if h and bool(((one - L[0]).abs() <= 1e3 * eps).all()):
            continue
        for block in classify(one, tolerance=min(0.5, 100 * eps)).blocks:
            numbers = (Measured(block.rate, block.error), Measured(block.freq, block.error))
            out.append(Block(block.kind, block.order, block.count, h, *numbers))
    return tuple(out)
