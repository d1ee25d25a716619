"""Models with the class and method structure of nanoGPT and nanochat, written for these tests."""

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class NanoAttention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.attn_dropout = self.resid_dropout = nn.Dropout(0.0)
        self.n_head, self.n_embd, self.dropout = heads, width, 0.0

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        return self.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))


class NanoBlock(nn.Module):
    def __init__(self, attn: nn.Module, width: int):
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(width), attn, nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    """The structure of nanoGPT: learned absolute positions, an optimiser that decays every tensor of two axes."""

    def __init__(self, width: int = 32, heads: int = 4, layers: int = 2, block_size: int = 64, vocabulary: int = 50):
        super().__init__()
        self.config = SimpleNamespace(block_size=block_size, n_layer=layers)
        blocks = nn.ModuleList([NanoBlock(NanoAttention(width, heads), width) for _ in range(layers)])
        tables = {"wte": nn.Embedding(vocabulary, width), "wpe": nn.Embedding(block_size, width)}
        self.transformer = nn.ModuleDict({**tables, "drop": nn.Dropout(0.0), "h": blocks, "ln_f": nn.LayerNorm(width)})
        self.lm_head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.transformer.wte(idx) + self.transformer.wpe(torch.arange(idx.shape[1]))
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss

    def get_num_params(self) -> int:
        return sum(p.numel() for p in self.parameters()) - self.transformer.wpe.weight.numel()

    def crop_block_size(self, block_size: int) -> None:
        self.config.block_size = block_size
        self.transformer.wpe.weight = nn.Parameter(self.transformer.wpe.weight[:block_size])

    def configure_optimizers(self, weight_decay: float, learning_rate: float) -> torch.optim.AdamW:
        decayed = [p for p in self.parameters() if p.dim() >= 2]
        others = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=learning_rate)


class ChatAttention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, layer_idx: int, gated: bool):
        super().__init__()
        d = width // heads
        self.layer_idx, self.n_head, self.n_kv_head, self.n_embd, self.head_dim = layer_idx, heads, kv_heads, width, d
        self.c_q, self.c_k, self.c_v = (nn.Linear(width, n * d, bias=False) for n in (heads, kv_heads, kv_heads))
        self.c_proj = nn.Linear(width, width, bias=False)
        self.ve_gate_channels = 12
        self.ve_gate = nn.Linear(12, kv_heads, bias=False) if gated else None

    def forward(self, x: Tensor, ve: Tensor | None, cos_sin: Any, window_size: tuple[int, int], kv_cache: Any) -> Tensor:
        assert kv_cache is None, "the model of the tests keeps no cache of turned keys"
        q, k, v = (project(x).unflatten(-1, (-1, self.head_dim)) for project in (self.c_q, self.c_k, self.c_v))
        if ve is not None:
            assert self.ve_gate is not None
            v = v + 3 * self.ve_gate(x[..., :12]).sigmoid()[..., None] * ve.view_as(v)
        cos, sin = cos_sin

        def turned(y: Tensor) -> Tensor:  # by minus the angle, in halves
            a, b = y.chunk(2, -1)
            return F.rms_norm(torch.cat([a * cos + b * sin, b * cos - a * sin], -1), (self.head_dim,)) * 1.2

        q, k, v = (y.transpose(1, 2) for y in (turned(q), turned(k), v))
        back = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        seen = (back >= 0) & ((back <= window_size[0]) if window_size[0] >= 0 else True)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return self.c_proj(out.transpose(1, 2).flatten(-2))


class ChatBlock(nn.Module):
    def __init__(self, attn: nn.Module, width: int):
        super().__init__()
        self.attn, self.mlp = attn, nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, ve: Tensor | None, cos_sin: Any, window_size: tuple[int, int], kv_cache: Any) -> Tensor:
        x = x + self.attn(F.rms_norm(x, x.shape[-1:]), ve, cos_sin, window_size, kv_cache)
        return x + self.mlp(F.rms_norm(x, x.shape[-1:]))


class NanoChat(nn.Module):
    """The structure of nanochat: rotary tables in halves turned by minus the angle, then a norm; value embeddings; windows by layer."""

    def __init__(self, width: int = 32, heads: int = 4, kv_heads: int = 2, layers: int = 2, vocabulary: int = 50):
        super().__init__()
        self.window_sizes = [(5, 0)] * (layers - 1) + [(1000, 0)]
        blocks = [ChatBlock(ChatAttention(width, heads, kv_heads, i, i == layers - 1), width) for i in range(layers)]
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(vocabulary, width), "h": nn.ModuleList(blocks)})
        self.value_embeds = nn.ModuleDict({str(layers - 1): nn.Embedding(vocabulary, kv_heads * width // heads)})
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.head_dim = width // heads

    def forward(self, idx: Tensor, targets: Tensor | None = None, kv_cache: Any = None) -> Tensor:
        start = 0 if kv_cache is None else kv_cache.get_pos()
        freq = 100000.0 ** (-torch.arange(0, self.head_dim, 2) / self.head_dim)
        angle = (torch.arange(start, start + idx.shape[1])[:, None] * freq)[None, :, None]
        x = F.rms_norm(self.transformer.wte(idx), (self.transformer.wte.embedding_dim,))
        for i, block in enumerate(self.transformer.h):
            ve = self.value_embeds[str(i)](idx) if str(i) in self.value_embeds else None
            x = block(x, ve, (angle.cos(), angle.sin()), self.window_sizes[i], kv_cache)
        logits = self.lm_head(F.rms_norm(x, x.shape[-1:]))
        return logits if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class ChatCache:
    """The structure of nanochat's cache: one buffer for all layers, one position."""

    def __init__(self, layers: int, rows: int, length: int, kv_heads: int, head_dim: int):
        self.n_layers, self.pos = layers, 0
        self.k = torch.zeros(layers, rows, length, kv_heads, head_dim)
        self.v = torch.zeros_like(self.k)

    def get_pos(self) -> int:
        return self.pos

    def get_layer_cache(self, layer_idx: int) -> tuple[Tensor, Tensor]:
        return self.k[layer_idx], self.v[layer_idx]

    def advance(self, tokens: int) -> None:
        self.pos += tokens


class MuonAdamW(torch.optim.Optimizer):
    """An optimiser whose groups say how they are treated, as nanochat's do; only what AdamW is given moves."""

    def __init__(self, groups: list[dict[str, Any]]):
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            if group["kind"] == "muon":
                for p in group["params"]:
                    assert p.dim() == 2 and min(p.shape) > 1, "Muon orthogonalises matrices"
            for p in group["params"]:
                p.sub_(group["lr"] * (p.grad.sign() if p.grad is not None else 0))
