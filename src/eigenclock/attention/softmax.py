"""Softmax attention under any encoding: check, choose a backend, run it."""

from dataclasses import replace
from typing import Any, Literal, overload

from jaxtyping import Float, Int
from torch import Tensor

from eigenclock.attention.backends import BACKENDS
from eigenclock.attention.capability import Explanation
from eigenclock.attention.documents import Boundaries
from eigenclock.attention.problem import Problem, build
from eigenclock.attention.values import on_values
from eigenclock.clocks.units import Lapse
from eigenclock.encodings import Encoding
from eigenclock.errors import UnsupportedError
from eigenclock.registry import lookup


@overload
def attention(
    q: Float[Tensor, "B H T D"], k: Float[Tensor, "B G S D"], v: Float[Tensor, "B G S V"], encoding: Encoding, *, times: Any = None,
    key_times: Any = None, x: Tensor | None = None, key_x: Tensor | None = None, causal: bool = True, window: int | Lapse | None = None,
    documents: Int[Tensor, "*batch T"] | Boundaries | None = None, mask: Tensor | None = None, scale: float | None = None,
    backend: str = "auto", return_lse: Literal[False] = False, value_encoding: Encoding | None = None,
) -> Float[Tensor, "B H T V"]: ...  # fmt: skip


@overload
def attention(
    q: Float[Tensor, "B H T D"], k: Float[Tensor, "B G S D"], v: Float[Tensor, "B G S V"], encoding: Encoding, *, times: Any = None,
    key_times: Any = None, x: Tensor | None = None, key_x: Tensor | None = None, causal: bool = True, window: int | Lapse | None = None,
    documents: Int[Tensor, "*batch T"] | Boundaries | None = None, mask: Tensor | None = None, scale: float | None = None,
    backend: str = "auto", return_lse: Literal[True], value_encoding: Encoding | None = None,
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H T"]]: ...  # fmt: skip


def attention(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B G S D"],
    v: Float[Tensor, "B G S V"],
    encoding: Encoding,
    *,
    times: Any = None,
    key_times: Any = None,
    x: Tensor | None = None,
    key_x: Tensor | None = None,
    causal: bool = True,
    window: int | Lapse | None = None,
    documents: Int[Tensor, "*batch T"] | Boundaries | None = None,
    mask: Tensor | None = None,
    scale: float | None = None,
    backend: str = "auto",
    return_lse: bool = False,
    value_encoding: Encoding | None = None,
) -> Float[Tensor, "B H T V"] | tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H T"]]:
    """Softmax attention: out_t = sum_s softmax_s(scale * q_t^T exp((t - s) L) k_s + bias(t - s)) exp((t - s) L_v) v_s.

    Exact and differentiable in q, k, v, the times and every learned number of the encoding; no T x S tensor unless a mask of that
    size is given, or the encoding is outside the group and its bias is one (t5_bias, kerple_log, fire, cope).

    Args:
        times, key_times: (T,), (B, T) or (B, H, T), told apart by rank; None is the clock's own count. With fewer queries than keys
            and no times, the queries are the last real keys of their row (a decode step), wherever its padding stands.
        x, key_x: activations, for clocks that are learned from them.
        causal: by index in self-attention; key_time <= query_time where ``key_times`` is given or lengths differ.
        window: the query and the n - 1 keys before it, padding left out, or a duration such as "30min" where the clock has a unit: the
            keys with t - s < window, so that one exactly that old is out, decided in whole counts of the stamps.
        documents: integer ids (T,) or (B, T) of packed documents, or :class:`Boundaries`; attention stays inside a document.
        mask: True may attend; key padding (B, S), or 4 axes that broadcast to (B, H, T, S).
        scale: 1/sqrt(D) of the head as given (before any lift).
        backend: "auto", or a name, which never falls back.
        return_lse: also return the natural log of the softmax's denominator, differentiable.
        value_encoding: L_v, an encoding that only turns, on the times of ``encoding``; None (default) is L_v = 0, values as they are.
    Shape: q (B, H, T, D), k (B, G, S, D), v (B, G, S, V) with H a multiple of G; the output has the dtype of q. A row with nothing to
        attend to gives zeros (log-sum-exp -inf).
    Units: times in the unit of the clock.
    Raises: ShapeError, ClockError, GrowthError (a decay without ``causal``), UnsupportedError, UnknownNameError.
    Stability: see ``theory/tiles.py``. Below float64, weights proven to be under e^-30 of their row's sum are dropped; in 16 bits,
        gradients of learned clocks carry the rounding of dq and dk (a few percent for fast rates): give float32 q and
        k to train a clock precisely. Double backward, vmap and dropout are not supported.
    Source: tiles and references after Sun et al. (RetNet), 2307.08621, and Yang et al. (GLA), 2312.06635; log-sum-exp merging after
        Dao et al. (FlashAttention), 2205.14135. Values through the lag: DeepSeek-V4 (its released code turns outputs back).

    >>> import torch
    >>> import eigenclock as ec
    >>> q = torch.randn(1, 8, 128, 64)
    >>> ec.attention(q, q, q, ec.rope(64) * ec.alibi(64, heads=8)).shape
    torch.Size([1, 8, 128, 64])
    """
    problem = build(
        q, k, v, encoding, times=times, key_times=key_times, x=x, key_x=key_x, causal=causal, window=window,
        documents=documents, mask=mask, scale=scale, want_lse=return_lse,
    )  # fmt: skip
    problem, side = on_values(problem, value_encoding)
    out, lse = run(problem, backend)
    out = out if side is None else side.turned_back(out)
    return (out, lse) if lse is not None else out


def run(problem: Problem, backend: str = "auto") -> tuple[Tensor, Tensor | None]:
    """Output and log-sum-exp (where it is wanted) of a checked call."""
    restore = None
    if problem.encoding.clock.decreasing == "sort" and not problem.cross:
        problem, restore = _in_order(problem)
    out, lse = BACKENDS[_choose(problem, backend).backend].run(problem)
    if restore is not None:
        out = out.gather(2, restore[:, None, :, None].expand(*out.shape[:2], -1, out.shape[-1]))
        lse = None if lse is None else lse.gather(2, restore[:, None].expand(*lse.shape[:2], -1))
    return out, lse


def explain(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B G S D"],
    v: Float[Tensor, "B G S V"],
    encoding: Encoding,
    *,
    times: Any = None,
    key_times: Any = None,
    x: Tensor | None = None,
    key_x: Tensor | None = None,
    causal: bool = True,
    window: int | Lapse | None = None,
    documents: Int[Tensor, "*batch T"] | Boundaries | None = None,
    mask: Tensor | None = None,
    scale: float | None = None,
    backend: str = "auto",
    return_lse: bool = False,
    value_encoding: Encoding | None = None,
) -> Explanation:
    """Which backend :func:`attention` would take for this call, and why not the others.

    Raises: as :func:`attention`.

    >>> import torch
    >>> import eigenclock as ec
    >>> q = torch.randn(1, 1, 8, 4)
    >>> print(ec.explain(q, q, q, ec.damped_rope(4, half_life=16)))
    tiled
      sdpa: no, something decays or shears, which needs a reference time per tile
      tiled: yes
      reference: yes
    """
    problem = build(
        q, k, v, encoding, times=times, key_times=key_times, x=x, key_x=key_x, causal=causal, window=window,
        documents=documents, mask=mask, scale=scale, want_lse=return_lse,
    )  # fmt: skip
    return _choose(on_values(problem, value_encoding)[0], backend)


def _choose(problem: Problem, name: str) -> Explanation:
    if problem.weights is not None:
        raise UnsupportedError(
            f"got {problem.encoding} in softmax attention, whose weights are normalised: it weighs {problem.encoding.weighs}, which only "
            "linear_attention does; expected linear_attention, or an encoding whose tokens weigh alike, such as mamba2, gla or damped_rope"
        )
    if name != "auto":
        reason = lookup(BACKENDS, name, "backend").refuses(problem)
        if reason is not None:
            raise UnsupportedError(
                f"got backend={name!r} for {problem.encoding}: {reason}; expected backend='auto', or another of {', '.join(BACKENDS)}"
            )
        return Explanation(name, ((name, None),))
    reasons = tuple((n, b.refuses(problem)) for n, b in BACKENDS.items())
    chosen = next((n for n, reason in reasons if reason is None), None)
    if chosen is None:
        raise UnsupportedError(
            f"got {problem.encoding} with no backend to carry it: " + "; ".join(f"{n}: {reason}" for n, reason in reasons)
        )
    return Explanation(chosen, reasons)


def _in_order(problem: Problem) -> tuple[Problem, Tensor]:
    """The tokens in order of (document, time), ties by index, and the index that puts results back."""
    times = problem.key_times
    if times.shape[1] > 1:
        raise UnsupportedError("got times per head with decreasing='sort'; expected one clock for all heads, or times already in order")
    b, _, t = times.shape
    order = (times if problem.key_counts is None else problem.key_counts)[:, 0].detach().argsort(dim=-1, stable=True)
    if problem.documents is not None:
        runs = (
            problem.documents.expand(b, t).gather(-1, order)
            if b > 1 or problem.documents.shape[0] == 1
            else problem.documents.gather(-1, order.expand(problem.documents.shape))
        )
        order = order.expand(runs.shape).gather(-1, runs.argsort(dim=-1, stable=True))
    rows = problem.q.shape[0]
    full = order.expand(rows, t)

    def tokens(z: Tensor) -> Tensor:
        return z.gather(2, full[:, None, :, None].expand(*z.shape[:2], t, z.shape[-1]))

    def per_token(z: Tensor | None) -> Tensor | None:
        return None if z is None else z.expand(rows, t).gather(-1, full)

    allowed = problem.allowed
    if allowed is not None:
        allowed = allowed.expand(rows, *allowed.shape[1:])
        if allowed.shape[2] > 1:
            allowed = allowed.gather(2, full[:, None, :, None].expand(rows, allowed.shape[1], t, t))
        allowed = allowed.gather(3, full[:, None, None].expand(*allowed.shape[:3], t))
    sorted_times = times.expand(rows, 1, t).gather(-1, full[:, None])
    counts = None if problem.key_counts is None else problem.key_counts.expand(rows, 1, t).gather(-1, full[:, None])
    problem = replace(
        problem, q=tokens(problem.q), k=tokens(problem.k), v=tokens(problem.v), query_times=sorted_times, key_times=sorted_times,
        query_vectors=sorted_times, key_vectors=sorted_times, query_counts=counts, key_counts=counts,
        documents=per_token(problem.documents), key_mask=per_token(problem.key_mask), allowed=allowed,
    )  # fmt: skip
    return problem, full.argsort(-1)
