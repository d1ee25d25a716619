"""Heads that are all treated alike: a few of them are measured, and the report speaks of all."""

from typing import Any

import torch

from eigenclock.attention import scores
from eigenclock.encodings import Encoding, encoding
from eigenclock.errors import EigenclockError

ALIKE = 2
"""How many heads are measured where all are treated alike: one more than one, for what a rule compares between heads."""


def resized(enc: Encoding, heads: int, kv_heads: int | None = None) -> Encoding | None:
    """The same recipe for another number of heads; None where its numbers stand head by head.

    >>> import eigenclock as ec
    >>> str(resized(ec.rope(8, theta=100.0), 4)), resized(ec.alibi(8, heads=2, slopes=[0.5, 0.1]), 4)
    ('rope(head_dim=8, heads=4, theta=100.0)', None)
    """
    try:
        made = encoding(_sized(enc.spec, heads, kv_heads))
    except (EigenclockError, TypeError):
        return None
    return made if made.heads == heads else None


def fewer(enc: Encoding, length: int) -> Encoding | None:
    """An encoding with ALIKE heads that stands for one with more, where every head scores the same; else None."""
    if enc.heads <= ALIKE or enc.clock.sums or enc.weighs or enc.clock.width > 1:
        return None
    small = resized(enc, ALIKE)
    if small is None:
        return None
    random = torch.Generator().manual_seed(11)
    q, k = (torch.randn(1, 1, 5, enc.head_dim, dtype=torch.float64, generator=random) for _ in range(2))
    times = torch.linspace(0, length - 1, 5, dtype=torch.float64).round()

    def of(one: Encoding) -> torch.Tensor:
        keys = k.expand(-1, one.kv_heads or one.heads, -1, -1)
        return scores(q.expand(-1, one.heads, -1, -1), keys, one, times=times, scale=1.0)[0]

    with torch.no_grad():
        many, few = of(enc), of(small)
    rounding = 1e-13 * float(many.abs().nan_to_num(posinf=0.0, neginf=0.0).max())
    same = (torch.allclose(x, few[:1].expand_as(x), rtol=0.0, atol=rounding, equal_nan=True) for x in (many, few))
    return small if all(same) else None


def _sized(tree: Any, heads: int, kv_heads: int | None) -> Any:
    if "op" in tree:
        return {"op": tree["op"], "parts": [_sized(part, heads, kv_heads) for part in tree["parts"]]}
    out = {key: value for key, value in tree.items() if key not in ("heads", "kv_heads")}
    return out | {"heads": heads} | ({} if kv_heads is None or kv_heads == heads else {"kv_heads": kv_heads})
