"""Rotary modules with the shape of five public packages, written for these tests: sound, in their own layout and way of calling."""

from types import SimpleNamespace

import torch
from torch import Tensor, nn

BASE = 100.0


def frequencies(width: int) -> Tensor:
    return BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width).float()


def neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def apply_rotary_emb(*given, scale=1.0):
    """rotary-embedding-torch calls it with (freqs, t), nanochat with (x, cos, sin), which turns by minus the angle."""
    if len(given) == 2:
        freqs, x = given
        cos, sin = (f(freqs[..., ::2]).to(x.dtype) for f in (torch.cos, torch.sin))
        return neighbours(x, cos, sin) * scale
    x, cos, sin = given
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos + b * sin, -a * sin + b * cos], -1)


def apply_rotary_pos_emb(x, freqs, scale=1.0):
    """x-transformers."""
    return neighbours(x, freqs[..., ::2].cos().to(x.dtype), freqs[..., ::2].sin().to(x.dtype)) * scale


class Offsets(nn.Module):
    """rotary-embedding-torch: rotate_queries_or_keys(t, offset=). Faulty where positions take the dtype of t."""

    def __init__(self, width: int, exact: bool = True):
        super().__init__()
        self.freqs, self.exact = nn.Parameter(frequencies(width), requires_grad=False), exact

    def forward(self, t: Tensor) -> Tensor:
        return (t.to(self.freqs.dtype)[:, None] * self.freqs).repeat_interleave(2, -1)

    def rotate_queries_or_keys(self, t: Tensor, offset: int = 0) -> Tensor:
        positions = torch.arange(t.shape[-2], dtype=torch.float32 if self.exact else t.dtype) + offset
        return apply_rotary_emb(self.forward(positions), t)


class Freqs(nn.Module):
    """x-transformers: forward(positions) -> (freqs, scale)."""

    def __init__(self, width: int, xpos: bool = False):
        super().__init__()
        self.inv_freq = nn.Buffer(frequencies(width))
        self.scale = nn.Buffer((torch.arange(0, width, 2) + 0.4 * width) / (1.4 * width)) if xpos else None

    def forward_from_seq_len(self, n: int):
        return self.forward(torch.arange(n))

    def forward(self, t: Tensor):
        freqs = (t.float()[:, None] * self.inv_freq).repeat_interleave(2, -1)
        if self.scale is None:
            return freqs, 1.0
        return freqs, (self.scale ** (t.float()[:, None] / 512)).repeat_interleave(2, -1)


class Cached(nn.Module):
    """torchtune: a cache of a fixed length, forward(x (B, T, H, D), *, input_pos)."""

    def __init__(self, dim: int, max_seq_len: int):
        super().__init__()
        self.dim, self.max_seq_len = dim, max_seq_len
        self.theta = nn.Buffer(frequencies(dim))
        self.build_rope_cache(max_seq_len)

    def build_rope_cache(self, n: int) -> None:
        angle = torch.arange(n).float()[:, None] * self.theta
        self.cache = nn.Buffer(torch.stack([angle.cos(), angle.sin()], -1))

    def forward(self, x: Tensor, *, input_pos: Tensor | None = None) -> Tensor:
        table = self.cache[: x.shape[1]][None] if input_pos is None else self.cache[input_pos]
        return neighbours(x, table[:, :, None, :, 0].to(x.dtype), table[:, :, None, :, 1].to(x.dtype))


class Flash(nn.Module):
    """flash-attn: cos and sin kept in the dtype of the input, the layout a flag."""

    def __init__(self, dim: int, interleaved: bool):
        super().__init__()
        self.interleaved, self.inv_freq = interleaved, nn.Buffer(frequencies(dim))

    def _update_cos_sin_cache(self, n: int, device=None, dtype=None) -> None:
        angle = torch.arange(n).float()[:, None] * self.inv_freq
        self._cos_cached, self._sin_cached = angle.cos().to(dtype), angle.sin().to(dtype)


class Nano(nn.Module):
    """nanochat: a model with tables (1, T, 1, n)."""

    def __init__(self, width: int, length: int):
        super().__init__()
        self.config = SimpleNamespace(sequence_len=length)
        angle = torch.arange(length).float()[:, None] * frequencies(width)
        self.cos, self.sin = nn.Buffer(angle.cos()[None, :, None]), nn.Buffer(angle.sin()[None, :, None])
