"""DroPE: the rotation of a trained model removed, every frequency 0."""

from dataclasses import dataclass

from eigenclock.schedules.spectrum import Spectrum
from eigenclock.theory.numbers import exact


@dataclass(frozen=True)
class drope:
    """w_i = 0 for every pair, from the moment it takes the place of the schedule a model was trained with. Experimental.

    The recipe has three steps: train with ``rope(d, theta=...)``, put ``rope(d, freq=drope())`` in its place (no weight changes its shape),
    and train on for a small part of the budget at the original length, so that the model finds its positions from the causal mask alone.
    Without that last step a trained model is damaged, since nothing it learned about distances holds any more. What is claimed is
    retrieval beyond the trained length; how a given model fares has to be measured.

    Units: radians per unit of the clock, all 0.
    Source: Gelberg et al. (DroPE), 2512.12167.

    >>> drope()(4).values
    tensor([0., 0., 0., 0.], dtype=torch.float64)
    """

    def __call__(self, n: int) -> Spectrum:
        return Spectrum(exact([0.0] * n))
