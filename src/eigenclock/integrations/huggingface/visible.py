"""Who sees whom in a transformers decoder: by index, whatever the times are, and as a mask of four axes says where one is given."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eigenclock.attention.problem import Problem
from eigenclock.attention.times import check_order
from eigenclock.errors import ShapeError, UnsupportedError


def read_masks(mask: Any, b: int, s: int) -> Any:
    """The attention mask of a call, checked: padding (B, S), or four axes as booleans, also one for each layer type.

    Raises: ShapeError or UnsupportedError for another mask.
    """
    if isinstance(mask, Mapping):
        return {kind: one if one is None else _four_axes(one) for kind, one in mask.items()}
    if mask is None or (isinstance(mask, Tensor) and mask.ndim == 2):
        if mask is not None and (mask.shape[0] not in (1, b) or mask.shape[1] != s):
            raise ShapeError(
                f"got an attention_mask of shape {tuple(mask.shape)}; expected ({b}, {s}), one number for every token so far, "
                "those in the cache included"
            )
        return mask
    return _four_axes(mask)


def _four_axes(mask: Any) -> Tensor:
    """A mask of four axes as booleans: True, or 0 in a mask that is added, may attend."""
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        what = f"of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else f"that is a {type(mask).__name__}"
        raise ShapeError(f"got an attention_mask {what}; expected padding (batch, keys), or a mask (batch, 1, queries, keys)")
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise UnsupportedError(f"got an attention_mask of four axes in {mask.dtype}; expected booleans (True may attend), or 0 and -inf")
    seen = mask == 0
    if not torch.compiler.is_compiling() and bool((~seen & (mask > torch.finfo(mask.dtype).min / 2)).any()):
        raise UnsupportedError(
            "got an attention_mask that adds other numbers than 0 and -inf; expected a mask: a bias on the logit is an encoding, "
            "such as alibi"
        )
    return seen


def as_transformers(problem: Problem, mask: Tensor | None, window: int | None) -> Problem:
    """The problem with what transformers lets each query see: a mask of four axes alone, else the keys up to its own index.

    Raises: UnsupportedError where an encoding that decays or has a direction would see later tokens; ClockError where it would look back
        at keys whose time is later.
    """
    t, s = problem.q.shape[2], problem.k.shape[2]
    seen = by_index(t, s, window, problem.q.device) if mask is None else mask
    directed = problem.ordered or any(part.directed for part in problem.outside)
    if not directed:  # times may go back: they say how far a rotation turns, and not who sees whom
        return replace(problem, causal=False, allowed=seen)
    if mask is not None and problem.encoding.sides == 1 and not torch.compiler.is_compiling() and bool(mask.triu(s - t + 1).any()):
        raise UnsupportedError(
            f"got an attention_mask that lets queries see later tokens, for {problem.encoding}, which has no law for them; expected a "
            "causal mask, or an encoding that only turns"
        )
    if problem.cross and not problem.continues:
        check_order(replace(problem, cross=False))
    return replace(problem, allowed=seen)


def by_index(t: int, s: int, window: int | None, device: torch.device) -> Tensor | None:
    """The keys (1, 1, T, S) that the last ``t`` of ``s`` tokens see, each itself and those before it; None where that is all of them."""
    if t == 1 and (window is None or s <= window):
        return None
    last = torch.arange(s - t, s, device=device)[:, None]
    index = torch.arange(s, device=device)
    seen = index <= last
    return (seen if window is None else seen & (index > last - window))[None, None]
