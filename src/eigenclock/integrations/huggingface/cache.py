"""Cache layers that keep the time of every key beside it, so that keys are stored as the model made them and stay valid."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from eigenclock.errors import UnsupportedError


class Kept(NamedTuple):
    """What a cache layer knows of the time of its keys: float64 ticks (B|1, H|1, S, ...) with their origin, the stamps that were given
    (B|1, S) in their own exact dtype, and whether they were given."""

    ticks: Tensor
    origin: Tensor | None
    stamps: Tensor | None


def joined(old: Tensor | None, new: Tensor, dim: int) -> Tensor:
    """Both along ``dim``; a row that serves all rows of the batch is repeated where the other has one each."""
    if old is None:
        return new
    lead = torch.broadcast_shapes(old.shape[:dim], new.shape[:dim])
    return torch.cat([old.expand(*lead, *old.shape[dim:]), new.expand(*lead, *new.shape[dim:])], dim)


class Timed:
    """What is added to a cache layer of transformers: times follow the keys through every reordering and crop."""

    kept: Kept | None = None

    def keep(self, ticks: Tensor, origin: Tensor | None, stamps: Tensor | None, length: int) -> Tensor:
        """Add the times of new keys, and return those of the ``length`` keys that the update gave back."""
        old = self.kept
        ticks = joined(None if old is None else old.ticks, ticks, 2)
        if stamps is not None:
            stamps = joined(None if old is None else old.stamps, stamps, 1)
        kept = self.keys.shape[-2]  # type: ignore[attr-defined]
        self.kept = Kept(ticks[:, :, ticks.shape[2] - kept :], origin, None if stamps is None else stamps[:, stamps.shape[1] - kept :])
        return ticks[:, :, ticks.shape[2] - length :]

    def _rows(self, change: Any) -> None:
        if self.kept is not None:
            ticks, origin, stamps = (x if x is None or x.shape[0] == 1 else change(x) for x in self.kept)
            assert ticks is not None  # only the other two may be missing
            self.kept = Kept(ticks, origin, stamps)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)  # type: ignore[misc]
        self._rows(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)  # type: ignore[misc]
        self._rows(lambda x: x.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)  # type: ignore[misc]
        self._rows(lambda x: x[indices])

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)  # type: ignore[misc]
        if self.kept is not None:
            stop = self.kept.ticks.shape[2] - abs(tokens_to_remove)
            part = slice(max(0, stop - self.keys.shape[-2]), stop)  # type: ignore[attr-defined]
            ticks, origin, stamps = self.kept
            self.kept = Kept(ticks[:, :, part], origin, None if stamps is None else stamps[:, part])

    def reset(self) -> None:
        super().reset()  # type: ignore[misc]
        self.kept = None


TWINS: dict[type, type] = {}
"""The cache layers of transformers that can keep times, each with its timed twin; filled once transformers is imported."""


def make_twins() -> None:
    """Fill ``TWINS``: ahead of any call, since a compiled one makes no classes."""
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    class TimedLayer(Timed, DynamicLayer): ...

    class TimedSlidingWindowLayer(Timed, DynamicSlidingWindowLayer): ...

    if not TWINS:
        TWINS.update({DynamicLayer: TimedLayer, DynamicSlidingWindowLayer: TimedSlidingWindowLayer})


def with_times(cache: Any, config: Any) -> Any:
    """The cache with layers that keep times; a new one where there is none.

    Raises: UnsupportedError for a cache of another kind, or one that was filled without times.
    """
    from transformers import DynamicCache

    cache = DynamicCache(config=config) if cache is None else cache
    for i, layer in enumerate(cache.layers):
        if isinstance(layer, Timed):
            continue
        if type(layer) not in TWINS:
            raise UnsupportedError(
                f"got a cache with {type(layer).__name__}; expected a DynamicCache, whose keys stay as they are and can keep their times"
            )
        if layer.is_initialized and layer.keys.numel():
            raise UnsupportedError("got a cache that was filled before the encoding was installed; expected an empty one")
        timed = cache.layers[i] = TWINS[type(layer)](**({"sliding_window": layer.sliding_window} if layer.is_sliding else {}))
        if layer.is_sliding:
            timed.record_past = layer.record_past  # whether it must be able to roll back
    if cache.layer_class_to_replicate is not None and not issubclass(cache.layer_class_to_replicate, Timed):
        twin = TWINS.get(cache.layer_class_to_replicate)
        if twin is None:
            raise UnsupportedError(f"got a cache of {cache.layer_class_to_replicate.__name__}; expected a DynamicCache")
        cache.layer_class_to_replicate = twin
    return cache
