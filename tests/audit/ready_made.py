"""Stand-ins of faults known in released packages, in the calling shape of each, with a sound twin; all are audited as they are."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from audit.stand_ins import Offsets, apply_rotary_emb, frequencies, neighbours
from audit.twins import ONE_SEQUENCE, PUBLISHED, rotate, softmax

D, H, LENGTH = 8, 2, 600


@dataclass(frozen=True)
class Example:
    """A fault of a package, the rule and severity it is found with, and the two subjects with what an audit is told of them.

    Of what is ``sealed`` no scores can be read: it makes queries, keys and values itself, and is not judged where it has no fault.
    """

    package: str
    fault: str
    rule: str
    faulty: Callable[[], Any]
    sound: Callable[[], Any]
    severity: str = "fault"
    told: dict[str, Any] = field(default_factory=dict)
    sealed: bool = False

    @property
    def options(self) -> dict[str, Any]:
        return {"head_dim": D, "length": LENGTH} | self.told


def angles(positions: Tensor, width: int = D) -> Tensor:
    return positions.double()[..., None] * frequencies(width).double()


# --- rotary-embedding-torch ----------------------------------------------------------------------------------------------------------


class Centred(Offsets):
    """xPos whose scales stand around the middle of the positions at hand: of the queries alone, where only they are at hand."""

    def __init__(self, width: int, whole: bool):
        super().__init__(width)
        self.use_xpos, self.whole = True, whole
        self.scale = nn.Buffer((torch.arange(0, width, 2) + 0.4 * width) / (1.4 * width))

    def get_seq_pos(self, n: int, device: Any = None, dtype: Any = None) -> Tensor:
        return torch.arange(n, device=device)

    def get_scale(self, t: Tensor, middle: int | None = None) -> Tensor:
        power = (t - (t.numel() // 2 if middle is None else middle)) / 64
        return (self.scale ** power[:, None]).repeat_interleave(2, -1)

    def rotate_queries_and_keys(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.rotate_queries_with_cached_keys(q, k)

    def rotate_queries_with_cached_keys(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        seq = self.get_seq_pos(k.shape[-2])
        own = seq[-q.shape[-2] :]
        scale = self.get_scale(own, seq.numel() // 2 if self.whole else None)
        return (
            apply_rotary_emb(self.forward(own), q, scale=scale),
            apply_rotary_emb(self.forward(seq), k, scale=self.get_scale(seq) ** -1),
        )


# --- x-transformers ------------------------------------------------------------------------------------------------------------------


class Layers(nn.Module):
    """One attention layer with a cache: layers(x, cache=.., return_hiddens=True), where x has all tokens so far and the last is new.

    Its bias is a running sum of gates; the faulty one sums over the tokens at hand. Or its base follows the length, and turned keys stay.
    """

    def __init__(self, gates: str = "", grows: bool = False):
        super().__init__()
        self.dim, self.causal, self.gates, self.grows = D, True, gates, grows
        random = torch.Generator().manual_seed(1)
        self.weights = nn.Parameter(torch.randn(3, D, D, generator=random) / D**0.5)
        self.to_gate = nn.Parameter(torch.randn(D, generator=random))

    def turned(self, x: Tensor, positions: Tensor) -> Tensor:
        n = int(positions[-1]) + 1
        base = 100.0 * max(2.0 * n / 16 - 1, 1.0) ** (D / (D - 2)) if self.grows else 100.0
        angle = positions.double()[:, None] * base ** (-torch.arange(0, D, 2).double() / D)
        return rotate(x, angle.cos().to(x.dtype), angle.sin().to(x.dtype))

    def forward(self, x: Tensor, *, cache: Any = None, return_hiddens: bool = False, seq_pos_offset: int | None = None) -> Any:
        start = 0 if cache is None else cache[0].shape[1]
        positions = torch.arange(start, x.shape[1])
        q, k, v = (x[:, start:] @ w for w in self.weights)
        gate = nn.functional.logsigmoid(x @ self.to_gate)
        q, k = self.turned(q, positions), self.turned(k, positions)
        if cache is not None:
            k, v = (torch.cat(both, 1) for both in zip(cache, (k, v), strict=True))
        z = q @ k.mT
        if self.gates == "of all":
            sums = gate.cumsum(-1)
            z = z + sums[:, start:, None] - sums[:, None]
        elif self.gates == "at hand":
            sums = gate[:, start:].cumsum(-1)
            z = z + (sums[:, :, None] - sums[:, None])  # with one new token: one number for every key
        out = softmax(z, v)
        return (out, (k, v)) if return_hiddens else out


# --- transformers --------------------------------------------------------------------------------------------------------------------


def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """(B, H, T, D) with tables (B, T, D), halves paired."""

    def turn(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat([-b, a], -1) * sin[:, None]

    return turn(q), turn(k)


def apply_to_both(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The same where keys take the inverse of a table that is not of size 1."""
    size = cos[..., :1].square() + sin[..., :1].square()
    return apply_rotary_pos_emb(q, k, cos, sin)[0], apply_rotary_pos_emb(q, k, cos / size, sin / size)[1]


class Table(nn.Module):
    """rotary_emb(x, position_ids) -> cos, sin: with a factor e^(-at) in it, or a base that follows the longest call."""

    def __init__(self, rate: float = 0.0, grows: bool = False):
        super().__init__()
        self.rate, self.grows, self.longest = rate, grows, 0
        self.inv_freq = nn.Buffer(frequencies(D))

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        if self.grows:
            self.longest = max(self.longest, int(position_ids.max()) + 1)
            base = 100.0 * max(2.0 * self.longest / 64 - 1, 1.0) ** (D / (D - 2))
            self.inv_freq = (base ** (-torch.arange(0, D, 2).double() / D)).float()
        angle = (position_ids.double()[..., None] * self.inv_freq).repeat(1, 1, 2)
        size = (-self.rate * position_ids.double()).exp()[..., None]
        return (size * angle.cos()).to(x.dtype), (size * angle.sin()).to(x.dtype)


class Yarn(nn.Module):
    """YaRN from a config with one section for each layer type. The faulty one looks for truncate beside the sections."""

    def __init__(self, nested: bool):
        super().__init__()
        section = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64, "truncate": False}
        self.config = {
            "model_type": "llama",
            "head_dim": D,
            "num_attention_heads": H,
            "num_hidden_layers": 2,
            "max_position_embeddings": 256,
            "layer_types": ["full_attention"] * 2,
            "rope_parameters": {"full_attention": section},
        }
        truncate = (section if nested else self.config).get("truncate", True)
        plain = 1e4 ** (-torch.arange(0, D, 2).double() / D)
        low, high = (D * math.log(64 / (2 * math.pi * turns)) / (2 * math.log(1e4)) for turns in (32, 1))
        low, high = (math.floor(low), math.ceil(high)) if truncate else (low, high)
        low, high = max(low, 0), min(high, D - 1)
        ramp = ((torch.arange(D // 2).double() - low) / (high - low)).clamp(0, 1)
        self.inv_freq = nn.Buffer((plain * (1 - ramp) + plain / 4 * ramp).float(), persistent=False)
        self.attention_scaling = 0.1 * math.log(4) + 1

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angle = (position_ids.double()[..., None] * self.inv_freq).repeat(1, 1, 2)
        return (angle.cos() * self.attention_scaling).to(x.dtype), (angle.sin() * self.attention_scaling).to(x.dtype)


def attention(guess: bool) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Causal attention by positions. The faulty one takes a step other than one for the start of a document."""

    def attend(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        cos, sin = (f(angles(positions)).to(q.dtype) for f in (torch.cos, torch.sin))
        z = rotate(q, cos, sin) @ rotate(k, cos, sin).mT
        step = positions.diff(prepend=positions[:1] - 1)
        document = (step != 1 if guess else step < 0).cumsum(0)
        return softmax(z.masked_fill(document[:, None] != document, -1e9), v)

    return attend


# --- Jordan-RoPE, GRAPE, equinox, attention-gym, PoPE, positional-encodings ----------------------------------------------------------


class Jordan(nn.Module):
    """apply(q, k, positions): a rotation and a shear, contragredient; its shear time may saturate, its exponents may be cut."""

    def __init__(self, bound: float = math.inf, limit: float = math.inf, rate: float = 0.0, shear: float = 0.01):
        super().__init__()
        self.bound, self.limit, self.rate, self.shear = bound, limit, rate, shear

    def moved(self, x: Tensor, positions: Tensor, side: int) -> Tensor:
        t = positions.double()
        time = t / (1 + t / self.bound) * self.shear
        size = (-side * self.rate * t).clamp(-self.limit, self.limit).exp()
        y, z = (neighbours(part.double(), *(f(angles(t, D // 2)) for f in (torch.cos, torch.sin))) for part in x.chunk(2, -1))
        if side > 0:
            y = y + time[:, None] * z
        else:
            z = z - time[:, None] * y
        return (torch.cat([y, z], -1) * size[:, None]).to(x.dtype)

    def apply(self, q: Tensor, k: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        at = torch.arange(q.shape[-2]) if positions is None else positions
        return self.moved(q, at, 1), self.moved(k, at, -1)


class Normed(nn.Module):
    """forward(q, k) on (B, T, H, D), rows counted from 0, turned by minus the angle; a norm with gains behind it, or before it."""

    def __init__(self, behind: bool):
        super().__init__()
        self.behind = behind
        self.gains = nn.Parameter(torch.linspace(0.5, 2.0, D))

    def side(self, x: Tensor) -> Tensor:
        def norm(y: Tensor) -> Tensor:
            return y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5) * self.gains

        angle = -angles(torch.arange(x.shape[1]))[:, None]
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        return norm(rotate(x, cos, sin)) if self.behind else rotate(norm(x), cos, sin)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.side(q), self.side(k)


class Counted(nn.Module):
    """module(x (T, D)) with a base of its own, and tables that all modules keep together: by width, or by width and base."""

    def __init__(self, theta: float, kept: dict[Any, Any], by_base: bool):
        super().__init__()
        self.embedding_size, self.theta, self.kept, self.by_base = D, theta, kept, by_base

    @staticmethod
    def precompute_freqs_cis(width: int, end: int, theta: float, dtype: Any = None) -> tuple[Tensor, Tensor]:
        angle = torch.arange(end).double()[:, None] * theta ** (-torch.arange(0, width, 2).double() / width)
        return angle.cos(), angle.sin()

    def forward(self, x: Tensor) -> Tensor:
        key = (self.embedding_size, self.theta) if self.by_base else self.embedding_size
        if key not in self.kept or self.kept[key][0].shape[0] < x.shape[0]:
            self.kept[key] = self.precompute_freqs_cis(self.embedding_size, x.shape[0], self.theta)
        cos, sin = (part[: x.shape[0]].to(x.dtype) for part in self.kept[key])
        return rotate(x, cos, sin)


def second_module(by_base: bool) -> Counted:
    """A module made after one of another base was used."""
    kept: dict[Any, Any] = {}
    Counted(1e2, kept, by_base)(torch.zeros(4096, D))
    return Counted(5e3, kept, by_base)


def score_mod(slopes: Tensor) -> Callable[..., Tensor]:
    def biased(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return score - slopes[h].to(score.dtype) * (q_idx - kv_idx)

    return biased


def magnitudes(size: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Each channel is a number of the plane: what ``size`` makes of it, turned by its position."""

    def turn(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        angle = angles(positions, 2 * D)
        cos, sin = angle.cos().to(q.dtype), angle.sin().to(q.dtype)
        a, b = (torch.cat([size(x) * cos, size(x) * sin], -1) for x in (q, k))
        return a, b

    return turn


class Sinusoids(nn.Module):
    """forward(x (B, T, D)): x and a sinusoid of its row, or x turned by it."""

    def __init__(self, turns: bool):
        super().__init__()
        self.turns = turns

    def forward(self, tensor: Tensor) -> Tensor:
        angle = angles(torch.arange(tensor.shape[-2]))
        cos, sin = angle.cos().to(tensor.dtype), angle.sin().to(tensor.dtype)
        return rotate(tensor, cos, sin) if self.turns else tensor + torch.cat([sin, cos], -1)


EXAMPLES = [
    Example(
        "rotary-embedding-torch",
        "positions in bfloat16",
        "precision",
        lambda: Offsets(D, exact=False),
        lambda: Offsets(D),
        told={"dtype": torch.bfloat16},
    ),
    Example("rotary-embedding-torch", "xPos with cached keys", "cache", lambda: Centred(D, False), lambda: Centred(D, True)),
    Example(
        "x-transformers",
        "data-dependent ALiBi under a cache",
        "cache",
        lambda: Layers(gates="at hand"),
        lambda: Layers(gates="of all"),
        told={"head_dim": None},
        sealed=True,
    ),
    Example("transformers", "float positions without a mask", "steps", lambda: attention(True), lambda: attention(False)),
    Example("transformers", "dynamic NTK under a cache", "cache", lambda: Layers(grows=True), Layers, told={"head_dim": None}, sealed=True),
    Example(
        "transformers",
        "dynamic NTK in a table",
        "history",
        lambda: (apply_rotary_pos_emb, Table(grows=True)),
        lambda: (apply_rotary_pos_emb, Table()),
    ),
    Example(
        "transformers", "truncate of YaRN in a nested section", "scaling", lambda: Yarn(False), lambda: Yarn(True), told={"head_dim": None}
    ),
    Example(
        "jordan_rope",
        "a bounded shear time",
        "shift_invariance",
        lambda: Jordan(bound=256.0, rate=1e-4).apply,
        lambda: Jordan(rate=1e-4).apply,
    ),
    Example(
        "jordan_rope",
        "exponents cut to +-30",
        "shift_invariance",
        lambda: Jordan(limit=30.0, rate=0.1, shear=0.0).apply,
        lambda: Jordan(limit=30.0, rate=0.01, shear=0.0).apply,
    ),
    Example("GRAPE", "a learned norm after the rotation", "norm_after", lambda: Normed(True), lambda: Normed(False)),
    Example("equinox", "a table kept for another base", "scaling", lambda: second_module(False), lambda: second_module(True)),
    Example(
        "attention-gym",
        "slopes of 12 heads in one sequence",
        "slopes",
        lambda: score_mod(ONE_SEQUENCE),
        lambda: score_mod(PUBLISHED),
        severity="risk",
        told={"heads": 12},
    ),
    Example(
        "PoPE",
        "magnitudes through a softplus",
        "linearity",
        lambda: magnitudes(nn.functional.softplus),
        lambda: magnitudes(torch.neg),
        severity="advice",
    ),
    Example("positional-encodings", "absolute sinusoids", "shift_invariance", lambda: Sinusoids(False), lambda: Sinusoids(True)),
    Example(
        "transformers",
        "e^(at) in the table both sides share",
        "contragredience",
        lambda: (apply_rotary_pos_emb, Table(rate=0.004)),
        lambda: (apply_to_both, Table(rate=0.004)),
    ),
]
