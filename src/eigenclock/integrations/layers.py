"""One encoding for each layer of a model, shared where it is fixed and copied where it learns."""

import copy
import functools
import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch

from eigenclock.attention import explain
from eigenclock.encodings import ENCODINGS, Encoding, encoding
from eigenclock.encodings.spec import tree_of
from eigenclock.errors import ClockError, ConfigError, ShapeError


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
        name = json.dumps(row, sort_keys=True) if isinstance(row, dict) else row if isinstance(row, str) else id(row)
        if name not in built:
            built[name] = _fitting(row, head_dim, heads, kv_heads)
        one = built[name]
        out.append(copy.deepcopy(one) if any(p.requires_grad for p in one.parameters()) else one)
    return tuple(out)


def _fitting(given: Any, head_dim: int, heads: int, kv_heads: int | None) -> Encoding:
    """An encoding, built from its text for these heads, or checked."""
    if isinstance(given, str | dict):
        given = encoding(given, head_dim=head_dim, heads=heads, kv_heads=kv_heads)
    if not isinstance(given, Encoding):
        raise ConfigError(f"got {type(given).__name__} as an encoding; expected an Encoding or its text, such as 'rope(theta=500000)'")
    if given.head_dim != head_dim or given.heads not in (1, heads):
        raise ShapeError(f"got {given} for a model with {heads} heads of {head_dim} channels; expected head_dim={head_dim}, heads={heads}")
    return given


def laid_out(text: str, own: Callable[[], Encoding | None]) -> dict[str, Any]:
    """A spec whose rotations have the layout of a model's ``own`` encoding (None: it has no rotation) unless they name theirs.

    The layout is what a trained model's projections are made for: how channels pair, and how many of a head turn. ``own`` is asked only
    where some part of the spec leaves it open.

    >>> import eigenclock as ec
    >>> laid_out("rope(theta=500000) * alibi", lambda: ec.rope(8, pairing="half"))["parts"]
    [{'name': 'rope', 'theta': 500000, 'pairing': 'half'}, {'name': 'alibi'}]
    """
    return _laid_out(tree_of(text), functools.cache(lambda: _layout(own())), True)


def _layout(own: Encoding | None) -> dict[str, Any]:
    """The options that say a layout: the pairing, and the number of turning channels where that is not the whole head."""
    turns = () if own is None else own.generator().split().turns
    if own is None or not turns:
        return {}
    width = sum(turn.width for turn in turns)
    return {"pairing": turns[0].pairing} | ({} if width == own.head_dim else {"rotary_dim": width})


def _laid_out(tree: Any, layout: Callable[[], dict[str, Any]], whole: bool) -> Any:
    """``whole``: whether a part acts on the whole head, as it does unless it stands beside others or names its width."""
    if not isinstance(tree, dict):
        return tree
    if "op" in tree:
        return tree | {"parts": [_laid_out(part, layout, whole and tree["op"] == "*") for part in tree["parts"]]}
    inside = {
        "args": [_laid_out(x, layout, whole) for x in tree.get("args", [])], "encoding": _laid_out(tree.get("encoding"), layout, whole),
    }  # fmt: skip
    tree = {key: inside.get(key, value) for key, value in tree.items()}
    recipe = ENCODINGS.get(tree.get("name", ""))
    options = () if recipe is None else inspect.signature(recipe).parameters
    if "pairing" not in options:
        return tree
    own_width = not whole or bool(tree.keys() & {"args", "head_dim"}) or isinstance(tree.get("freq"), list | tuple)
    taken = {key: value for key, value in layout().items() if key in options and not (key == "rotary_dim" and own_width)}
    return tree | {key: value for key, value in taken.items() if key not in tree}


def key_repeats(encoding: Encoding, heads: int, kv_heads: int, features: int) -> int:
    """How often keys and values are repeated before attention: not (1) where a group of query heads shares what touches its key, and once
    for each of them where every query head has rates, frequencies or a clock of its own.

    A call of two tokens is laid out for it, so that what no call could carry is refused at once.

    Args:
        features: channels of the activations that a learned clock is given.
    Raises: ShapeError, ConfigError, ClockError or UnsupportedError where the encoding does not fit the model or softmax attention.

    >>> import eigenclock as ec
    >>> key_repeats(ec.mamba2(16, heads=4, features=64), 4, 2, 64), key_repeats(ec.alibi(16, heads=4), 4, 2, 64)
    (2, 1)
    """
    device = next((x.device for x in (*encoding.parameters(), *encoding.buffers())), torch.device("cpu"))
    if device.type == "meta":
        return 1
    clock = encoding.clock
    if clock.width > 1 and not clock.sums:
        raise ClockError(
            f"got {encoding} on a clock of {clock.width} axes; expected one time for each token, which is all that the model has"
        )

    def lay_out(repeats: int) -> None:
        keys = torch.zeros(1, kv_heads * repeats, 2, encoding.head_dim, device=device)
        queries, x = keys.new_zeros(1, heads, 2, encoding.head_dim), keys.new_zeros(1, 2, features)
        explain(queries, keys, keys, encoding, times=torch.arange(2, device=device), x=x if clock.sums else None)

    try:
        lay_out(1)
    except ShapeError as error:
        if heads == kv_heads or encoding.kv_heads not in (None, heads):
            raise
        try:
            lay_out(heads // kv_heads)
        except ShapeError:
            raise error from None
        return heads // kv_heads
    return 1
