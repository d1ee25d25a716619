"""Mamba-3 and RWKV-6 as their papers write them: one token after another, no generator, no clock, no code of the library."""

import math

import torch
from torch import Tensor, nn

import eigenclock as ec


def projected(encoding: ec.Encoding, x: Tensor) -> Tensor:
    """x W1 .. + b of the clock, (B, T, n)."""
    clock = encoding.clock
    assert isinstance(clock, ec.Cumulative)
    assert clock.weight is not None and clock.bias is not None
    for matrix in clock.weight:
        x = torch.einsum("btf,fn->btn", x, matrix.double())
    return x + clock.bias.double()


def elapsed(times: Tensor | None, documents: Tensor | None, mask: Tensor | None, rows: int, length: int) -> Tensor:
    """Time since the real token before, 0 at the first of a sequence or document; 1 where no times are given. (B, T)."""
    if times is None:
        return torch.ones(rows, length, dtype=torch.float64)
    out = []
    for b in range(rows):
        ids = None if documents is None else documents if documents.ndim == 1 else documents[b]
        last, steps = None, []
        for i in range(length):
            real = mask is None or bool(mask[b, i])
            same = real and last is not None and (ids is None or bool(ids[last] == ids[i]))
            steps.append(times[i] - times[last] if same else torch.zeros((), dtype=torch.float64))
            last = i if real else last
        out.append(torch.stack(steps))
    return torch.stack(out)


def mamba3(
    q: Tensor, k: Tensor, v: Tensor, encoding: ec.Encoding, x: Tensor, *, times: Tensor | None = None, documents: Tensor | None = None,
    mask: Tensor | None = None, normalize: bool = False, fraction: float = 0.5, half: bool = False,
) -> Tensor:  # fmt: skip
    """Lahoti et al. (Mamba-3), 2603.15569, with a complex state: h_t = a h_(t-1) + b B_(t-1) x_(t-1) + g B_t x_t, y = Re(C^H h), where
    a = e^(D A + i D theta), b = (1 - l) D a, g = l D; channels past the turning ones have theta = 0."""
    g, d = k.shape[1], k.shape[3]
    pairs = int(d * fraction) // 2
    first, second = (slice(0, pairs), slice(pairs, 2 * pairs)) if half else (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))
    z = projected(encoding, x)
    step = (1 + z[..., :g].exp()).log() * elapsed(times, documents, mask, *x.shape[:2])[..., None]
    heavy = torch.where(z[..., g : 2 * g] >= 0, 1 + z[..., g : 2 * g], 1 / (1 - z[..., g : 2 * g].clamp_max(0)))
    A = -torch.maximum(heavy, torch.tensor(1e-4))
    share = 1 / (1 + (-z[..., 2 * g : 3 * g]).exp())
    theta = math.pi * torch.tanh(z[..., 3 * g :])

    def states(one: Tensor) -> Tensor:
        """The channels as complex numbers: the pairs, then the others with imaginary part 0."""
        rest = one[..., 2 * pairs :]
        return torch.cat([torch.complex(one[..., first], one[..., second]), torch.complex(rest, torch.zeros_like(rest))], -1)

    if normalize:
        v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    rows = []
    for b in range(q.shape[0]):
        h = last = None
        out = []
        for i in range(q.shape[2]):
            if mask is not None and not mask[b, i]:
                out.append(torch.zeros(q.shape[1], v.shape[-1], dtype=torch.float64))
                continue
            ids = None if documents is None else documents if documents.ndim == 1 else documents[b]
            if last is None or (ids is not None and ids[last] != ids[i]):
                h, last = torch.zeros(g, d - pairs, v.shape[-1], dtype=torch.complex128), None
            phase = torch.cat([theta[b, i], torch.zeros(d - 2 * pairs, dtype=torch.float64)])
            a = torch.exp(torch.complex((step * A)[b, i, :, None].expand(-1, d - pairs), step[b, i, :, None] * phase))[..., None]
            weight = step[b, i, :, None, None]
            l = share[b, i, :, None, None]
            h = a * h
            if last is not None:
                h = h + (1 - l) * weight * a * states(k[b, :, last])[..., None] * v[b, :, last, None]
            h = h + l * weight * states(k[b, :, i])[..., None] * v[b, :, i, None]
            read = states(q[b, :, i])[..., None].conj() * h.repeat_interleave(q.shape[1] // g, 0)
            out.append(read.real.sum(1))
            last = i
        rows.append(torch.stack(out, 1))
    return divided(torch.stack(rows), normalize)


def rwkv6(
    q: Tensor, k: Tensor, v: Tensor, encoding: ec.Encoding, x: Tensor, *, times: Tensor | None = None, documents: Tensor | None = None,
    mask: Tensor | None = None, normalize: bool = False,
) -> Tensor:  # fmt: skip
    """Peng et al. (RWKV-6), 2404.05892: out = r (diag(u) k^T v + S), then S = diag(w) S + k^T v, w = exp(-exp(d))."""
    g, d = k.shape[1], k.shape[3]
    w = torch.exp(-projected(encoding, x).exp() * elapsed(times, documents, mask, *x.shape[:2])[..., None]).unflatten(-1, (g, d))
    u = bonus(encoding).double().expand(q.shape[1], d)
    if normalize:
        v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    rows = []
    for b in range(q.shape[0]):
        S, last, out = torch.zeros(g, d, v.shape[-1], dtype=torch.float64), None, []
        for i in range(q.shape[2]):
            if mask is not None and not mask[b, i]:
                out.append(torch.zeros(q.shape[1], v.shape[-1], dtype=torch.float64))
                continue
            ids = None if documents is None else documents if documents.ndim == 1 else documents[b]
            if last is not None and ids is not None and ids[last] != ids[i]:
                S = torch.zeros_like(S)
            written = k[b, :, i, :, None] * v[b, :, i, None]
            seen = S.repeat_interleave(q.shape[1] // g, 0) + u[..., None] * written.repeat_interleave(q.shape[1] // g, 0)
            out.append((q[b, :, i, :, None] * seen).sum(1))
            S, last = w[b, i, :, :, None] * S + written, i
        rows.append(torch.stack(out, 1))
    return divided(torch.stack(rows), normalize)


def bonus(encoding: ec.Encoding) -> Tensor:
    """u, learned or fixed."""
    values = encoding.get_submodule("values.bonus")
    assert isinstance(values, nn.Module)
    learned = values.raw
    return values.initial if learned is None else learned  # type: ignore[return-value]


def divided(out: Tensor, normalize: bool) -> Tensor:
    """Rows over their sums of scores, 0 where nothing was seen."""
    if not normalize:
        return out
    total = out[..., -1:]
    return torch.where(total == 0, 0.0, out[..., :-1] / torch.where(total == 0, 1.0, total))
