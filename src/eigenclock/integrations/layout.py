"""Query and key projections between the layouts of rotary models: a permutation of rows, exact in every dtype."""

import torch
from jaxtyping import Shaped
from torch import Tensor

from eigenclock.errors import ConfigError, ShapeError
from eigenclock.registry import nearest

LAYOUTS = ("half", "interleaved", "half_minus", "interleaved_minus")


def convert(
    weight: Shaped[Tensor, "rows *rest"],
    *,
    heads: int,
    to: str,
    source: str | None = None,
    head_dim: int | None = None,
    rotary_dim: int | None = None,
    start: int = 0,
) -> Shaped[Tensor, "rows *rest"]:
    """The weight or bias of a query or key projection, its rows reordered within each head for another layout.

    Pair i of n turning pairs is (2i, 2i + 1) in "interleaved" and (i, i + n) in "half". A layout whose name ends in "_minus" belongs to
    models that turn both sides by minus the angle: R(-a) (x, y) is R(a) (y, x) read backwards, so its pairs change places. Where queries
    and keys are converted alike, every score stays the same. Values and outputs are not touched by rotations and need no conversion; a norm
    with a gain per channel between projection and rotation does (``heads=1`` where it is shared by all heads).

    Args:
        weight: rows are outputs, as in ``nn.Linear``: (heads * head_dim, inputs), or a bias (heads * head_dim,).
        heads: the heads of this projection: under grouped queries, those of the keys for keys.
        to: the layout to convert to, one of "half", "interleaved", "half_minus", "interleaved_minus".
        source: the layout the rows are in; left out, the other pairing with the same sign.
        head_dim: rows per head, checked where it is given.
        rotary_dim: the channels of a head that turn; left out, all from ``start`` on.
        start: channels before those that turn.
    Shape: as the weight.
    Raises: ShapeError where the rows do not divide into heads or the width is odd; ConfigError where a layout is unknown.

    >>> convert(torch.arange(8), heads=1, to="half")
    tensor([0, 2, 4, 6, 1, 3, 5, 7])
    >>> convert(torch.arange(8), heads=2, to="interleaved", rotary_dim=4, head_dim=4)
    tensor([0, 2, 1, 3, 4, 6, 5, 7])
    """
    order = rows_in_order(weight.shape[0], heads=heads, to=to, source=source, head_dim=head_dim, rotary_dim=rotary_dim, start=start)
    return weight[order.to(weight.device)]


def rows_in_order(
    rows: int,
    *,
    heads: int,
    to: str,
    source: str | None = None,
    head_dim: int | None = None,
    rotary_dim: int | None = None,
    start: int = 0,
) -> Tensor:
    """For each row of the converted weight, the row it comes from; the arguments are those of :func:`convert`.

    >>> rows_in_order(4, heads=1, to="half_minus", source="half").tolist()
    [2, 3, 0, 1]
    """
    source = other_pairing(to) if source is None else source
    for layout in (to, source):
        if layout not in LAYOUTS:
            raise ConfigError(f"got the layout {layout!r}; {nearest(layout, list(LAYOUTS))}")
    if heads < 1 or rows % heads or (head_dim is not None and rows != heads * head_dim):
        expected = "a multiple of them" if head_dim is None else f"{heads * head_dim} = {heads} * {head_dim}"
        raise ShapeError(f"got {rows} rows for {heads} heads; expected {expected}: keys may have fewer heads than queries")
    width = rows // heads
    turned = width - start if rotary_dim is None else rotary_dim
    if turned % 2 or not 0 < turned <= width - start:
        what = "head_dim" if rotary_dim is None else "rotary_dim"
        raise ShapeError(f"got {turned} turning channels ({what}) of {width}; expected an even number from 2 to {width - start}")
    order = torch.arange(width)
    order[_channels(to, turned) + start] = _channels(source, turned) + start
    return (torch.arange(heads)[:, None] * width + order).flatten()


def other_pairing(layout: str) -> str:
    """The other pairing with the same sign.

    >>> other_pairing("half_minus")
    'interleaved_minus'
    """
    return layout.replace("half", "interleaved") if layout.startswith("half") else layout.replace("interleaved", "half")


def _channels(layout: str, turned: int) -> Tensor:
    """The first channels of all pairs, then the second ones, where both sides turn by plus the angle."""
    pairs = torch.arange(turned // 2)
    first, second = (pairs, pairs + turned // 2) if layout.startswith("half") else (2 * pairs, 2 * pairs + 1)
    return torch.cat((second, first) if layout.endswith("_minus") else (first, second))
