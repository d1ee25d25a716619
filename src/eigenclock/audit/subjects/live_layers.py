"""The attention layers of a live model of transformers: vectors put in, alone, in a batch and through the cache."""

from typing import Any

import torch
from torch import Tensor, nn

from eigenclock.audit.subjects.live import Live, Seen, allowed
from eigenclock.audit.subjects.places import Place, Sizes, places
from eigenclock.errors import UnsupportedError


class Layer:
    """One attention layer of a live model into which vectors are put.

    Args:
        live: the model.
        module: the attention module.
        sizes: its heads and widths.
        place: where vectors are put in.

    ``turns`` says whether its action depends on the position, once that is measured.
    """

    def __init__(self, live: Live, module: Any, sizes: Sizes, place: Place):
        self.live, self.module, self.sizes, self.place = live, module, sizes, place
        self.turns = False
        self.before = _before(live.decoder, module)

    def _run(self, vectors: tuple[Tensor, Tensor, Tensor], attend: bool = True, **given: Any) -> Seen:
        b, _, t, _ = vectors[0].shape
        skip = () if attend else self.before  # no cache is filled then
        return self.live.run((b, t), at=self.module, put=lambda: self.place.hooks(self.module, vectors), attend=attend, skip=skip, **given)[
            0
        ]

    def act(self, q: Tensor, k: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (H, T, D) and keys (G, T, D) after the model's own action."""
        v = k.new_zeros(self.sizes.kv_heads, k.shape[1], self.sizes.value_width)
        got = self._run((q[None], k[None], v[None]), attend=False, **_placed(times[None]))
        return got.query[0], got.key[0]

    def first(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The same with each token first in a row of its own, which is position 0 however a model counts."""
        rows = [x.transpose(0, 1)[:, :, None] for x in (q, k, k.new_zeros(*k.shape[:2], self.sizes.value_width))]
        got = self._run((rows[0], rows[1], rows[2]), attend=False, **_placed(torch.zeros(q.shape[1], 1)))
        return got.query[:, :, 0].transpose(0, 1), got.key[:, :, 0].transpose(0, 1)

    def full(self, q: Tensor, k: Tensor, v: Tensor, times: Tensor) -> Tensor:
        """The output (H, T, V) of its attention over the whole sequence, in a model that was not called before."""
        self.live.refresh()
        return _out(self._run((q[None], k[None], v[None]), **_placed(times[None])))[0]

    def unmasked(self, q: Tensor, k: Tensor, v: Tensor, times: Tensor) -> Tensor:
        """The same for a caller who gives positions and no mask."""
        return _out(self._run((q[None], k[None], v[None]), position_ids=_ids(times[None])))[0]

    def decode(self, q: Tensor, k: Tensor, v: Tensor, times: Tensor, cuts: tuple[int, ...]) -> Tensor:
        """The same in pieces, through the model's own cache."""
        self.live.refresh()
        mask = torch.ones(1, q.shape[1], dtype=torch.long)
        return self._pieces((q[None], k[None], v[None]), times[None], mask, cuts)[0]

    def batch(self, q: Tensor, k: Tensor, v: Tensor, times: Tensor | None, mask: Tensor | None, documents: Tensor | None) -> Tensor:
        """Attention of a batch (B, H, T, V), as the model is used: rows of their own positions, padding by a mask and the last third of the
        tokens through the cache, documents by positions that start again.

        Raises: UnsupportedError where packed documents see each other, because the model's masks do not follow its positions.
        """
        vectors, t = (q, k, v), q.shape[2]
        if documents is not None:
            return self._packed(vectors, documents)
        if mask is not None:
            cuts = tuple(range(t - t // 3, t)) if self.caches else ()
            return self._pieces(vectors, times, mask.long(), cuts)
        return _out(self._run(vectors, **({} if times is None else _placed(times))))

    @property
    def caches(self) -> bool:
        """Whether it can go on from a cache."""
        return bool({"past_key_values", "cache"} & self.live.takes) and getattr(self.module, "is_causal", True)

    def _pieces(self, vectors: tuple[Tensor, Tensor, Tensor], times: Tensor | None, mask: Tensor, cuts: tuple[int, ...]) -> Tensor:
        cache, out, start = self.live.cache() if cuts else None, [], 0
        for stop in (*cuts, vectors[0].shape[2]):
            if stop > start:
                q, k, v = (x[:, :, start:stop] for x in vectors)
                at: dict[str, Any] = {} if times is None else {"position_ids": _ids(times[:, start:stop])}
                out.append(_out(self._run((q, k, v), mask=mask[:, :stop], cache=cache, **at)))
            start = max(start, stop)
        return torch.cat(out, 2)

    def _packed(self, vectors: tuple[Tensor, Tensor, Tensor], documents: Tensor) -> Tensor:
        t = documents.shape[1]
        new = torch.cat([torch.ones_like(documents[:, :1], dtype=torch.bool), documents.diff(dim=1) != 0], 1)
        places = torch.arange(t).expand_as(documents)
        starts = torch.where(new, places, 0).cummax(1).values
        got = self._run(vectors, position_ids=places - starts)
        apart = documents[0][:, None] != documents[0]
        if got.mask is None or bool((allowed(got.mask)[0, 0].cpu() & apart).tril().any()):
            raise UnsupportedError(
                f"got two documents in one row of {type(self.live.model).__name__}, their positions starting again; expected masks that "
                "keep them apart, and its masks do not: give a mask of one's own"
            )
        return _out(got)


def _ids(times: Tensor) -> Tensor:
    """Whole positions as models count them."""
    whole = not times.is_floating_point() or bool((times == times.round()).all())
    return times.long() if whole else times


def _placed(times: Tensor) -> dict[str, Any]:
    """Positions with a mask of ones: without it steps of time other than 1 are taken for packed documents."""
    return {"position_ids": _ids(times), "mask": torch.ones(times.shape, dtype=torch.long)}


def _out(got: Seen) -> Tensor:
    assert got.out is not None
    return got.out.transpose(1, 2)


def _before(decoder: nn.Module, module: nn.Module) -> tuple[nn.Module, ...]:
    """The layers of the list that an attention module stands in which come before its own."""
    path = next((name for name, m in decoder.named_modules() if m is module), "")
    parts = path.split(".")
    for i, part in enumerate(parts):
        held = decoder.get_submodule(".".join(parts[:i]))
        if isinstance(held, nn.ModuleList) and part.isdigit():
            return tuple(list(held)[: int(part)])
    return ()


def layers(live: Live) -> list[Layer]:
    """Each attention layer with the place where vectors go in, those that do not turn among them; empty where none can be read."""
    try:
        seen = live.run((1, 3))
    except Exception:
        return []
    found = []
    for one in {id(s.module): s for s in seen}.values():
        sizes = Sizes(one.query.shape[1], one.key.shape[1], one.query.shape[-1], one.value.shape[-1])
        for place in places(one.module, sizes):
            layer = Layer(live, one.module, sizes, place)
            if _arrives(layer):
                found.append(layer)
                break
    return found


def _arrives(layer: Layer) -> bool:
    """Whether the vectors put in arrive where attention is called; notes whether they turn with their positions."""
    n, sizes = layer.sizes.heads + 2, layer.sizes
    random = torch.Generator().manual_seed(0)
    q, k = (torch.randn(h, n, sizes.width, generator=random) for h in (sizes.heads, sizes.kv_heads))
    try:
        near, far = layer.first(q, k), layer.act(q, k, torch.arange(n) * 7)
        q[0, 1], k[0, 1] = -2 * q[0, 1], -2 * k[0, 1]
        other = layer.act(q, k, torch.arange(n) * 7)
        q[0, 1], k[0, 1] = q[0, 1] / -2, k[0, 1] / -2
    except Exception:
        if not layer.before:
            return False
        layer.before = ()  # layers that hand on more than one tensor cannot be left out
        return _arrives(layer)
    if near[0].shape != q.shape or near[1].shape != k.shape:
        return False
    rest = torch.arange(n) != 1
    for a, b in zip(far, other, strict=True):  # heads and tokens are where they should be: one token changed, and no other with it
        if not torch.equal(a[:, rest], b[:, rest]) or torch.allclose(a[0, 1], b[0, 1]):
            return False
    layer.turns = not torch.allclose(near[0], far[0], rtol=1e-3, atol=1e-3)
    return layer.place.arrives(q, near[0]) and layer.place.arrives(k, near[1])
