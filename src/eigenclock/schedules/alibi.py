"""The slopes of ALiBi, one per head, for any number of heads."""

from dataclasses import dataclass

from eigenclock.schedules.spectrum import Spectrum, exact


@dataclass(frozen=True)
class alibi_slopes:
    """With p the largest power of two up to the number of heads H: 2^(-8i/p), i = 1..p, then every other slope of the 2p set.

    Units: logits per unit of the clock.
    Source: Press et al. (ALiBi), 2108.12409, section 3; the rule for other H is that of the authors' code.

    >>> alibi_slopes()(8).values[:3]
    tensor([0.5000, 0.2500, 0.1250], dtype=torch.float64)
    >>> alibi_slopes()(12).values[8:]
    tensor([0.7071, 0.3536, 0.1768, 0.0884], dtype=torch.float64)
    """

    def __call__(self, n: int) -> Spectrum:
        p = 1 << (max(n, 1).bit_length() - 1)
        exponents = [-8 * i / p for i in range(1, p + 1)] + [-4 * (2 * i - 1) / p for i in range(1, n - p + 1)]
        return Spectrum(exact([2.0**e for e in exponents[:n]]))
