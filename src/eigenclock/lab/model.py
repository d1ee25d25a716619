"""A small GPT in which position enters through the encoding alone: no position embedding, no other trace of order."""

import math
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from eigenclock.attention import attention
from eigenclock.encodings import Encoding, Parameter, encoding


class Block(nn.Module):
    """Attention and a hidden layer, each normalised before and added after.

    Shape: (B, T, width) to (B, T, width).
    """

    def __init__(self, width: int, heads: int, position: Encoding) -> None:
        super().__init__()
        self.heads = heads
        self.position = position
        self.before_attention = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.before_hidden = nn.RMSNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Float[Tensor, "B T W"]) -> Float[Tensor, "B T W"]:
        """One block."""
        rows, time, width = x.shape
        read = self.before_attention(x)
        parts = self.qkv(read).view(rows, time, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        activations = read if self.position.clock.sums else None  # a learned clock reads its time from them
        mixed = cast(Tensor, attention(q, k, v, self.position, x=activations))
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, time, width))
        return x + self.down(F.gelu(self.up(self.before_hidden(x))))


class SmallGPT(nn.Module):
    """A decoder for ``vocabulary`` symbols; the embedding also reads out.

    Every weight outside the encodings is drawn from ``seed`` alone, so models that differ in their encoding start equal. What an
    encoding draws from torch's own generator depends on ``seed`` too, and leaves that generator as it was.

    Shape: (B, T) integers to (B, T, vocabulary) logits.

    >>> sizes = dict(vocabulary=7, layers=1, width=8, heads=2, seed=0)
    >>> a, b = SmallGPT("nope", **sizes), SmallGPT("rope", **sizes)
    >>> torch.equal(a.embed.weight, b.embed.weight), tuple(a(torch.zeros(1, 3, dtype=torch.long)).shape)
    (True, (1, 3, 7))
    """

    def __init__(self, spec: str, *, vocabulary: int, layers: int, width: int, heads: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            # one encoding per block, so that learned ones may differ between blocks
            own_positions = [encoding(spec, head_dim=width // heads, heads=heads) for _ in range(layers)]
            self.embed = nn.Embedding(vocabulary, width)
            self.blocks = nn.ModuleList(Block(width, heads, position) for position in own_positions)
        self.last_norm = nn.RMSNorm(width)
        source = torch.Generator().manual_seed(seed)
        own = {id(p) for p in self.position_parameters()}
        for name, weight in self.named_parameters():
            if id(weight) not in own and weight.dim() == 2:  # norms start at one
                shrink = math.sqrt(2 * layers) if name.endswith(("out.weight", "down.weight")) else 1.0
                std = 0.02 if weight is self.embed.weight else 1 / math.sqrt(weight.shape[1])
                nn.init.normal_(weight, std=std / shrink, generator=source)

    def positions(self) -> list[Encoding]:
        """The encodings, block by block."""
        return [cast(Block, block).position for block in self.blocks]

    def position_parameters(self) -> list[nn.Parameter]:
        """What the encodings learn, in all blocks."""
        return [weight for position in self.positions() for weight in position.parameters()]

    def is_finite(self) -> bool:
        """Whether every number that an encoding has learned is still finite, as it is kept and as it is read."""
        kept = (weight.detach() for weight in self.position_parameters())
        read = (module.value().detach() for module in self.modules() if isinstance(module, Parameter) and module.learned)
        return all(bool(numbers.isfinite().all()) for numbers in (*kept, *read))

    def hidden(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T W"]:
        """What the read-out reads, (B, T, width)."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.last_norm(x)

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T N"]:
        """Logits of the next symbol at every position."""
        return F.linear(self.hidden(tokens), self.embed.weight)
