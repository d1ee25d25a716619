"""The popular ten-line damped rotary snippet, line by line beside its exact replacement.

Run it: it prints the snippet's largest error, and ours, as the sequence grows.

    python examples/damped_rope_snippet.py

What circulates is one helper, used on both sides with alpha of opposite sign:

    snippet                                          here
    -------                                          ----
    q = damped_rope(q, t, omega, alpha)              enc = ec.damped_rope(head_dim, freq=omega, rate=-alpha)
    k = damped_rope(k, t, omega, -alpha)             (nothing: keys take the inverse action by construction)
    z = q @ k.mT / sqrt(d), z[future] = -inf         z = ec.scores(q, k, enc, times=t)             float64, to check with
    o = softmax(z) @ v                               o = ec.attention(q, k, v, enc, times=t)       to train and run with

Both turn queries and keys by +omega t, so they agree in sign: in the generator L that is -omega J, with J = [[0, -1], [1, 0]]. They
differ in three ways.

1. Size. The snippet multiplies keys by exp(-alpha s) = exp(|alpha| s), which leaves float32 and bfloat16 once |alpha| s > 88, and float16
   once |alpha| s > 11; queries underflow at the same time, and 0 * inf is NaN. Here exp() is only taken of minus a part of the lag.
2. Precision. The snippet's angle omega t is rounded to float32 before the cosine: at t = 1e6 it is off by up to 0.03 radians. Here it is
   a float64 product, reduced by whole turns.
3. Reach. One alpha, one omega grid and one row of times for all heads and all rows of a batch; here each may differ.

One thing is the same in both, and often misread: a decay that multiplies q . k inside a softmax sends far *logits* to 0, where a key gets
the weight e^0, which is neutral. For recency, multiply by an encoding that acts on the weight: ec.damped_rope(...) * ec.alibi(...).
"""

import math
import sys

import torch
from torch import Tensor

import eigenclock as ec


def damped_rope(x: Tensor, t: Tensor, omega: Tensor, alpha: float | Tensor) -> Tensor:
    """The snippet: exp(alpha t) R(omega t) x on interleaved pairs, x (..., T, D), t (T,), omega (D/2,), alpha <= 0 for queries."""
    angle = t[:, None].to(x.dtype) * omega.to(x.dtype)
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., 0::2], x[..., 1::2]
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
    return torch.exp(alpha * t.to(x.dtype))[:, None] * turned


def snippet_scores(q: Tensor, k: Tensor, t: Tensor, omega: Tensor, alpha: float) -> Tensor:
    """How the snippet is used: the helper on both sides, the sign of alpha flipped for keys, then the causal mask."""
    z = damped_rope(q, t, omega, alpha) @ damped_rope(k, t, omega, -alpha).mT / math.sqrt(q.shape[-1])
    future = torch.ones(t.numel(), t.numel(), dtype=torch.bool).triu(1)
    return z.masked_fill(future, -math.inf)


def snippet_attention(q: Tensor, k: Tensor, v: Tensor, t: Tensor, omega: Tensor, alpha: float) -> Tensor:
    """Softmax attention with the snippet."""
    return snippet_scores(q, k, t, omega, alpha).softmax(-1) @ v


def damped_attention(q: Tensor, k: Tensor, v: Tensor, t: Tensor, omega: Tensor, alpha: float) -> Tensor:
    """The drop-in replacement of ``snippet_attention``: same arguments, any length, any |alpha|, gradients to q, k, v and t.

    Shape: q, k and v (B, H, T, D); t (T,), (B, T) or (B, H, T); omega (D/2,) or (H, D/2).
    """
    return ec.attention(q, k, v, ec.damped_rope(q.shape[-1], heads=q.shape[1], freq=omega, rate=-alpha), times=t)


def error(got: Tensor, expected: Tensor) -> float:
    """The largest difference; NaN where anything is not finite."""
    return float((got.double() - expected.double()).abs().max())


def compare(length: int, alpha: float = -0.5, width: int = 16) -> tuple[float, float]:
    """Largest error of the output in float32, the snippet's and ours, against float64 scores, at one length."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, length, width)
    t = torch.arange(length, dtype=torch.float64)
    omega = ec.geometric(10000.0)(width // 2).values
    exact = ec.scores(q, k, ec.damped_rope(width, freq=omega, rate=-alpha), times=t).softmax(-1) @ v.double()
    return error(snippet_attention(q, k, v, t, omega, alpha), exact), error(damped_attention(q, k, v, t, omega, alpha), exact)


def special_cases(length: int = 12, width: int = 8) -> dict[str, float]:
    """Largest difference between the snippet and the encoding that each special case should be, in float64."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, length, width, dtype=torch.float64)
    t = torch.rand(length, dtype=torch.float64).cumsum(0)  # irregular
    omega = ec.geometric(100.0)(width // 2).values
    zero = torch.zeros_like(omega)
    cases = {
        "alpha = 0: RoPE": (omega, 0.0, ec.rope(width, freq=omega)),
        "omega = 0: decay": (zero, -0.5, ec.decay(width, rate=0.5)),
        "both 0: NoPE": (zero, 0.0, ec.nope(width)),
    }
    return {
        name: max(
            error(snippet_attention(q, k, v, t, w, alpha), ec.attention(q, k, v, enc, times=t)),
            error(damped_attention(q, k, v, t, w, alpha), ec.attention(q, k, v, enc, times=t)),
        )
        for name, (w, alpha, enc) in cases.items()
    }


def main() -> int:
    """Prints the special cases and the table."""
    print("largest difference from the encoding it should be (float64, 12 irregular times)")
    for name, gap in special_cases().items():
        print(f"  {name:<18} {gap:.1e}")
    print("\nlargest error of the output in float32, alpha = -0.5, against float64 scores")
    print(f"  {'length':>6}  {'|alpha| t':>9}  {'snippet':>9}  {'here':>9}")
    for length in (16, 64, 128, 178, 256, 1024):
        theirs, ours = compare(length)
        print(f"  {length:>6}  {0.5 * (length - 1):>9.1f}  {theirs:>9.1e}  {ours:>9.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
