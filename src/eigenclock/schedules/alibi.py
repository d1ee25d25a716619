"""The slopes of ALiBi, one per head, for any number of heads: two rules are in use."""

from dataclasses import dataclass

from eigenclock.errors import ConfigError
from eigenclock.registry import nearest
from eigenclock.schedules.spectrum import Spectrum
from eigenclock.theory.numbers import exact

RECIPES = ("published_code", "single_geometric_sequence")


@dataclass(frozen=True)
class alibi_slopes:
    """Slopes 2^(-8i/H) for head i = 1 .. H where H is a power of two; two rules are in use for other H.

    With p the largest power of two up to H:

        published_code              2^(-8i/p), i = 1..p, then every other slope of the 2p set (BLOOM, MPT, Hugging Face)
        single_geometric_sequence   2^(-8i/H), i = 1..H (the formula of the paper taken for any H)

    Args:
        recipe: one of the two names.
        shard: (first, total) where the n heads asked for are heads first .. first + n - 1 of a model with ``total`` heads.
    Units: logits per unit of the clock.
    Raises: ConfigError where the recipe is unknown or the shard asks for heads that are not there.
    Source: Press et al. (ALiBi), 2108.12409, section 3; the rule for other H is that of the authors' code.

    >>> alibi_slopes()(8).values[:3]
    tensor([0.5000, 0.2500, 0.1250], dtype=torch.float64)
    >>> alibi_slopes()(12).values[8:]
    tensor([0.7071, 0.3536, 0.1768, 0.0884], dtype=torch.float64)
    >>> alibi_slopes(shard=(8, 12))(4).values  # the last third of twelve heads
    tensor([0.7071, 0.3536, 0.1768, 0.0884], dtype=torch.float64)
    """

    recipe: str = "published_code"
    shard: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.recipe not in RECIPES:
            raise ConfigError(f"got recipe {self.recipe!r} for the slopes of ALiBi; {nearest(self.recipe, list(RECIPES))}")

    def __call__(self, n: int) -> Spectrum:
        first, total = self.shard or (0, n)
        if not 0 <= first <= first + n <= total:
            raise ConfigError(f"got heads {first} .. {first + n - 1} of {total}; expected shard=(first, total) with first + {n} <= total")
        p = total if self.recipe == "single_geometric_sequence" else 1 << (max(total, 1).bit_length() - 1)
        exponents = [-8 * i / p for i in range(1, p + 1)] + [-4 * (2 * i - 1) / p for i in range(1, total - p + 1)]
        return Spectrum(exact([2.0**e for e in exponents[first : first + n]]))
