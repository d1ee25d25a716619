"""Weights: which channels of a head form pairs, by the rows of trained query and key projections, against those that turn together.

Training with rotations makes W_q W_k^T on a pair (a, b) a multiple of a rotation, [[x, -y], [y, x]]: M_ab and M_ba are opposite. On
channels that form no pair they are unrelated, or alike where W_q and W_k are. The equal diagonal says less: neighbours have nearly the
same frequency and so nearly the same diagonal, whether they form a pair or not; norms of rows deceive in the same way.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from eigenclock.audit.measure.claims import claims, trusted, turn_of
from eigenclock.audit.measure.pairs import read_pairs
from eigenclock.audit.measure.samples import best
from eigenclock.audit.probe import Probe
from eigenclock.audit.report import Finding
from eigenclock.audit.rules.rule import Rule

SOURCE = (
    "rotations of a pair commute with the [[x, -y], [y, x]] on it alone; measured on SmolLM2: 0.31 on its pairs, 0.06 and -0.12 on others"
)
UNITS = 96
"""As many key heads are read, over all layers evenly, as decide it."""
FEWEST = 24
SIGMAS = 6.0
OPPOSITE = 0.15
"""How far opposite M_ab and M_ba are, 1 where they are, 0 where they are unrelated: the least that counts as evidence."""


@dataclass(frozen=True)
class Evidence:
    """What the weights say: ``opposite`` of either layout for each key head (units,), and the layers looked at."""

    half: Float[Tensor, "units"]
    interleaved: Float[Tensor, "units"]
    layers: tuple[int, ...]

    def of(self, layout: str) -> Tensor:
        """By the name of the layout."""
        return self.half if layout == "half" else self.interleaved

    def against(self, claimed: str) -> tuple[float, float]:
        """How many standard errors the other layout lies above 0, and above the one claimed."""
        other = self.of(_other(claimed))
        return _sigmas(other), _sigmas(other - self.of(claimed))


def _other(layout: str) -> str:
    return "interleaved" if layout == "half" else "half"


def _sigmas(values: Tensor) -> float:
    """The mean in its standard errors."""
    return float(values.mean() / (values.std() / math.sqrt(values.numel())).clamp_min(1e-300))


def opposite(q: Float[Tensor, "heads D I"], k: Float[Tensor, "D I"], layout: str, turned: int) -> float:
    """How far M_ab and M_ba are opposite, -2 sum M_ab M_ba / sum (M_ab^2 + M_ba^2), over the pairs of a layout and the heads of a group.

    >>> round(opposite(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), torch.tensor([[0.0, 1.0], [-1.0, 0.0]]), "half", 2), 3)
    1.0
    """
    m = (q @ k.mT).double()
    i = torch.arange(turned // 2)
    a, b = (i, i + turned // 2) if layout == "half" else (2 * i, 2 * i + 1)
    ab, ba = m[:, a, b], m[:, b, a]
    return float(-2 * (ab * ba).sum() / (ab.square() + ba.square()).sum().clamp_min(1e-300))


def evidence(probe: Probe, turned: int) -> Evidence | None:
    """What the weights of a probe say; None where too few heads can be read to decide anything."""
    assert probe.projections is not None
    found: dict[str, list[float]] = {"half": [], "interleaved": []}
    layers: list[int] = []
    for layer, q, k in probe.projections(UNITS):
        layers.append(layer)
        groups = q.unflatten(0, (k.shape[0], -1))
        for of_queries, of_keys in zip(groups, k, strict=True):
            for layout, values in found.items():
                values.append(opposite(of_queries, of_keys, layout, turned))
    half, interleaved = (torch.tensor(found[name], dtype=torch.float64) for name in ("half", "interleaved"))
    return Evidence(half, interleaved, tuple(layers)) if half.numel() >= FEWEST and bool(torch.isfinite(half + interleaved).all()) else None


def _turned(probe: Probe) -> int | None:
    """How many channels turn, where all that is said of it agrees."""
    turns = [turn_of(enc) for enc in claims(probe).values()]
    widths = {2 * turn.freq.shape[-1] if turn.start == 0 else 0 for turn in turns if turn is not None}
    return widths.pop() or None if len(widths) == 1 else None


def _layout(probe: Probe) -> str | None:
    """The layout that turns: of a live model as measured, of a checkpoint as its own convention has it."""
    parts = (probe, *probe.layers.values())
    if probe.kind == "model":
        measured = [read_pairs(best(part), part) for part in parts if part.full is not None and part.scores is not None]
        named = {pairs.layout for pairs in measured if pairs is not None}
    else:
        named = {probe.encodings.conventions.pairing} if probe.encodings is not None and trusted(probe) else set()
    return named.pop() if len(named) == 1 else None


def _applies(probe: Probe) -> str | None:
    if probe.projections is None:
        return "it has no weights of queries and keys that can be read"
    return None if _turned(probe) and _layout(probe) else "nothing says which channels of its weights turn together"


def _check(probe: Probe) -> list[Finding]:
    turned, claimed = _turned(probe), _layout(probe)
    assert turned is not None
    assert claimed is not None
    found = evidence(probe, turned) if turned > 2 else None  # one pair is the same in both
    if found is None:
        return []
    other = _other(claimed)
    means = [float(found.of(name).mean()) for name in (other, claimed)]
    if min(found.against(claimed)) < SIGMAS or means[0] < OPPOSITE or means[1] > means[0] / 2:
        return []
    n, sure = found.half.numel(), int((found.of(other) > 0).sum())
    message = (
        f"the rows of W_q and W_k form {other} pairs, and {claimed} ones are turned: M = W_q W_k^T has M_ab opposite to M_ba on {other} "
        f"pairs in {sure} of {n} key heads (by {means[0]:.2g} in the mean, by {means[1]:.2g} on {claimed} pairs), at "
        f"{min(found.against(claimed)):.0f} sigma"
    )
    advice = f"permute the rows of both: ec.convert(weight, heads=.., to={claimed!r})"
    where = {"layers": f"{found.layers[0]} to {found.layers[-1]}", "key heads": n}
    return [Finding("weights", "fault", message, means[0], means[1], where, advice, SOURCE)]


RULE = Rule("weights", "do the rows of its weights form the pairs that turn", _applies, _check)
