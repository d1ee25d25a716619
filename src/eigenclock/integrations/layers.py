"""One encoding for each layer of a model, shared where it is fixed and copied where it learns."""

import copy
from collections.abc import Sequence
from typing import Any

from eigenclock.encodings import Encoding, encoding
from eigenclock.errors import ConfigError, ShapeError


def for_layers(given: Any, layers: int, *, head_dim: int, heads: int, kv_heads: int | None) -> tuple[Encoding, ...]:
    """The encoding of each layer from one, or from one for each.

    Raises: ConfigError where there are more or fewer than layers, or it is no encoding; ShapeError where one does not fit the heads.
    """
    rows = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given] * layers
    if len(rows) != layers:
        raise ConfigError(f"got {len(rows)} encodings for {layers} layers; expected one, or one per layer")
    built: dict[Any, Encoding] = {}
    out = []
    for row in rows:
        name = row if isinstance(row, str) else id(row)
        if name not in built:
            built[name] = _fitting(row, head_dim, heads, kv_heads)
        one = built[name]
        out.append(copy.deepcopy(one) if any(p.requires_grad for p in one.parameters()) else one)
    return tuple(out)


def _fitting(given: Any, head_dim: int, heads: int, kv_heads: int | None) -> Encoding:
    """An encoding, built from its text for these heads, or checked."""
    if isinstance(given, str):
        given = encoding(given, head_dim=head_dim, heads=heads, kv_heads=kv_heads)
    if not isinstance(given, Encoding):
        raise ConfigError(f"got {type(given).__name__} as an encoding; expected an Encoding or its text, such as 'rope(theta=500000)'")
    if given.head_dim != head_dim or given.heads not in (1, heads):
        raise ShapeError(f"got {given} for a model with {heads} heads of {head_dim} channels; expected head_dim={head_dim}, heads={heads}")
    return given
