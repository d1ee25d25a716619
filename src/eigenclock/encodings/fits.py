"""What fits together: sizes of a recipe, and which encodings stand in a sum or a product."""

from typing import TYPE_CHECKING

import torch

from eigenclock.errors import ShapeError, UnsupportedError
from eigenclock.theory import Zero

if TYPE_CHECKING:
    from eigenclock.encodings.base import Encoding


def check_equal_tokens(*parts: "Encoding") -> None:
    for part in parts:
        if part.weighs:
            raise UnsupportedError(f"got {part}, which weighs {part.weighs}, as part of another encoding; expected it alone")


def check_not_alone(*parts: "Encoding") -> None:
    for part in parts:
        if any(outside.alone for outside in part.outside()):
            raise UnsupportedError(f"got {part} as part of another encoding; expected it alone: it reads the logits q . k themselves")


def check_widths(one: "Encoding", other: "Encoding") -> None:
    """Refuse a factor that acts on the channels of a head where the other one acts on more."""
    if one.width != one.head_dim and not (isinstance(other.generator(), Zero) and all(not lift.reads_content for lift in other.lifts())):
        raise UnsupportedError(
            f"got {one} times {other}: one acts on {one.width} channels that it makes of the {one.head_dim} given, the other on those "
            "given; expected a factor that only adds a bias, such as alibi, or '+' to put them side by side"
        )


def check_read_in(one: "Encoding", other: "Encoding") -> None:
    """Refuse a factor that changes queries and keys for a bias of the other one that is made of them."""
    probe = torch.ones(1, 1, 1, one.head_dim, device="cpu")
    if any(lift.reads_content for lift in other.lifts()) and one.read_in(probe, probe)[0] is not probe:
        raise UnsupportedError(
            f"got {one} times {other}: one puts an amplitude on queries and keys, and the other reads queries or keys for a bias that "
            "must not carry it; expected a schedule with attention_factor=1, or a bias of constants such as alibi"
        )


def agree(a: int | None, b: int | None, what: str, neutral: int | None) -> int | None:
    if a != b and neutral not in (a, b):
        raise ShapeError(f"got {what} {a} and {b}; expected the same number on both sides")
    return b if a == neutral else a


def check_sizes(head_dim: int, heads: int, kv_heads: int | None) -> None:
    for name, value in (("head_dim", head_dim), ("heads", heads), ("kv_heads", kv_heads if kv_heads is not None else 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ShapeError(f"got {name}={value!r}; expected a whole number of at least 1")
    if kv_heads is not None and heads % kv_heads:
        raise ShapeError(f"got heads={heads} and kv_heads={kv_heads}; expected heads to be a multiple of kv_heads")
