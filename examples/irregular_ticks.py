"""Attention over irregular trades: nanosecond stamps, a half-life in minutes, a window in minutes, and the next tick at inference.

    python examples/irregular_ticks.py

The times are int64 nanoseconds since 1970. Their differences are taken as integers, so that a gap of one nanosecond survives; float32
seconds since 1970 would be 128 s apart. Rates and frequencies are per second, the unit named by ``per``.
"""

import sys

import torch
from torch import Tensor

import eigenclock as ec

SECOND = 1_000_000_000
OPENING = 1_772_443_800 * SECOND  # Monday, 2 March 2026, 09:30 UTC


def trades(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Synthetic trades in bursts: stamps (T,) int64 nanoseconds, nondecreasing with ties, and standardised features (T, 3)."""
    random = torch.Generator().manual_seed(seed)
    rate = torch.rand(count, generator=random).pow(6) * 60 + 1e-3  # mean wait in seconds: mostly milliseconds, sometimes a minute
    wait = torch.empty(count, dtype=torch.float64).exponential_(1.0, generator=random) * rate
    wait[torch.rand(count, generator=random) < 0.1] = 0.0  # several fills of one order carry one stamp
    stamps = OPENING + (wait.cumsum(0) * SECOND).round().long()
    step = torch.randn(count, generator=random) * wait.float().clamp_min(1e-4).sqrt()
    size = torch.rand(count, generator=random).log().neg()
    features = torch.stack([step, size, wait.float().log1p()], -1)
    return stamps, (features - features.mean(0)) / features.std(0)


def encodings(heads: int = 4, width: int = 16) -> dict[str, ec.Encoding]:
    """Two answers to "old trades should matter less", over the same clock.

    gain: the inner product halves every 30 minutes, so that old keys become neutral. recency: the *weight* of a key halves at a
    time of its own in each head, from one second to 30 minutes; it multiplies a rotation whose periods are counted in seconds.
    """
    clock = ec.Timestamps("ns", per="s")
    bias = ec.decay_bias(width, heads=heads, half_life=("1s", "30min"), clock=clock)
    return {
        "gain": ec.damped_rope(width, heads=heads, theta=1e4, half_life="30min", clock=clock),
        "recency": ec.rope(width, heads=heads, theta=1e4, clock=clock) * bias,
    }


def project(features: Tensor, heads: int = 4, width: int = 16, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (1, H, T, D) from features (T, F) through random weights, in place of a trained layer."""
    weight = torch.randn(3, features.shape[-1], heads * width, generator=torch.Generator().manual_seed(seed)) / features.shape[-1] ** 0.5
    q, k, v = (features @ w for w in weight)
    return tuple(x.view(1, -1, heads, width).transpose(1, 2) for x in (q, k, v))  # type: ignore[return-value]


def attend(stamps: Tensor, features: Tensor, enc: ec.Encoding, window: str = "5min") -> Tensor:
    """Every trade attends to the trades of the last ``window`` up to itself."""
    return ec.attention(*project(features), enc, times=stamps, window=window)


def decode(stamps: Tensor, features: Tensor, enc: ec.Encoding, window: str = "5min") -> Tensor:
    """The last trade alone, against the keys that are there: one row, the same as the last row of ``attend``.

    The cache holds plain keys and values and the int64 stamps beside them; nothing in it depends on what comes later.
    """
    q, k, v = project(features)
    return ec.attention(q[:, :, -1:], k, v, enc, times=stamps[-1:], key_times=stamps, window=window)


def main() -> int:
    """Prints what the window and the half-life do to one row."""
    stamps, features = trades(2000)
    hours = (int(stamps[-1]) - int(stamps[0])) / SECOND / 3600
    print(f"{len(stamps)} trades over {hours:.1f} h, {int((stamps.diff() == 0).sum())} of them share the stamp of the one before")
    for name, enc in encodings().items():
        q, k, _ = project(features)
        weight = ec.scores(q[:, :, -1:], k, enc, times=stamps[-1:], key_times=stamps).softmax(-1)[0, :, 0]
        age = (stamps[-1] - stamps).double() / SECOND
        recent = weight[:, age < 60].sum(-1)
        gap = float((decode(stamps, features, enc) - attend(stamps, features, enc)[:, :, -1:]).abs().max())
        print(f"\n{name}: {enc!r}")
        print("  weight on the last minute, without a window, by head:", " ".join(f"{float(w):.3f}" for w in recent))
        print(f"  decode against the whole row, 5 min window: largest difference {gap:.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
