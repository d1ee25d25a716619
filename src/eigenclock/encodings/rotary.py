"""A recipe whose schedule may ask for an amplitude on the channels that turn."""

from typing import Any

import torch
from torch import Tensor

from eigenclock.encodings.base import Recipe


class Rotary(Recipe):
    """A recipe whose first ``turned`` channels carry an amplitude a on queries and on keys: a^2 on their part of the logit.

    Channels that do not turn and biases know nothing of it (YaRN, LongRoPE). It stands before the group and is no part of it, so turning
    a stored key on by A(dt) does not multiply it again.
    """

    def __init__(self, *recipe: Any, amplitude: float, turned: int):
        super().__init__(*recipe)
        self.amplitude, self.turned = amplitude, turned

    def read_in(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return (q, k) if self.amplitude == 1 else (self._amplify(q), self._amplify(k))

    def _amplify(self, x: Tensor) -> Tensor:
        if self.turned == x.shape[-1]:
            return x * self.amplitude
        return torch.cat([x[..., : self.turned] * self.amplitude, x[..., self.turned :]], -1)

    def __repr__(self) -> str:
        return super().__repr__() + (f", amplitude {self.amplitude:.6g} on q and k" if self.amplitude != 1 else "")
