"""The document clock: the count restarts in every packed document."""

from typing import Any

import torch
from torch import Tensor

from eigenclock.clocks.clock import Clock, Reading, after_count, exact_difference
from eigenclock.clocks.index import Index
from eigenclock.errors import ClockError


class Documents(Clock):
    """The index inside each packed document: ids (7, 7, 9, 9, 9) give times 0, 1, 0, 1, 2.

    Only differences inside a document reach a score, so this equals the running index for every encoding of the group; it matters
    where absolute times are shown, cached or given to something outside the group.

    Shape: documents (T,) or (B, T); neighbours with equal ids are one document.
    Raises: ClockError where no documents are given.

    >>> Documents()(documents=torch.tensor([7, 7, 9, 9, 9])).ticks
    tensor([0., 1., 0., 1., 2.], dtype=torch.float64)
    """

    def continued(self, reading: Reading, given: bool) -> Tensor | None:
        return after_count(reading, given)

    def forward(
        self,
        times: Any = None,
        *,
        length: int | None = None,
        origin: Tensor | None = None,
        documents: Tensor | None = None,
        mask: Tensor | None = None,
        x: Tensor | None = None,
        since: Tensor | None = None,
        device: torch.device | None = None,
    ) -> Reading:
        if times is not None:
            return Index()(times, origin=origin, mask=mask, since=since, device=device)
        if documents is None:
            raise ClockError(
                "got no documents; the Documents clock restarts at each one: pass documents=ids of shape (T,) or (B, T), or use Index()"
            )
        index = torch.arange(documents.shape[-1], device=documents.device).expand(documents.shape)
        starts = torch.ones_like(documents, dtype=torch.bool)
        starts[..., 1:] = documents[..., 1:] != documents[..., :-1]
        return exact_difference(index - (index * starts).cummax(-1).values, origin)._replace(last=None)
