"""The Jordan form of a generator as structure without numbers, in a short text form."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from eigenclock.errors import ConfigError

KINDS = {"D": "decay", "R": "rotation", "S": "damped rotation", "Z": "zero"}
_TERM = re.compile(r"^(\d*)([DRSZ])(\d*)$")


@dataclass(frozen=True, order=True)
class JordanBlock:
    """One real Jordan block: its kind (Z zero, D decay, R rotation, S damped rotation) and its order.

    >>> JordanBlock("S", 2).dim
    4
    """

    kind: str
    order: int = 1

    @property
    def dim(self) -> int:
        """Real dimensions of the block: the order, twice that where the eigenvalues are a complex pair."""
        return self.order * (2 if self.kind in "RS" else 1)

    def __str__(self) -> str:
        return self.kind + (str(self.order) if self.order > 1 else "")


class JordanForm:
    """Which blocks a generator has and how many, with no numbers: ``"28R + 4S + 1Z2"``.

    The letter is the kind of eigenvalue (Z: 0, D: -a, R: +-iw, S: -a +- iw), the suffix the order of the block
    (1 is left out), the prefix how many. Two forms are equal when they hold the same blocks; order does not matter.

    Raises:
        ConfigError: the text is not a sum of such terms.

    >>> JordanForm("1Z2 + 28R + 4S")
    JordanForm('28R + 4S + 1Z2')
    >>> JordanForm("28R + 4S + 1Z2").dim
    66
    """

    __slots__ = ("_counts",)

    def __init__(self, blocks: "str | Iterable[JordanBlock]" = ()):
        if isinstance(blocks, str):
            blocks = _parse(blocks)
        self._counts = tuple(sorted(Counter(blocks).items()))

    @property
    def dim(self) -> int:
        """The real dimension of the whole form."""
        return sum(block.dim * n for block, n in self._counts)

    @property
    def kinds(self) -> frozenset[str]:
        """The letters that occur, for quick questions such as ``"D" in form.kinds``."""
        return frozenset(block.kind for block, _ in self._counts)

    @property
    def order(self) -> int:
        """The largest order of any block (0 for the empty form)."""
        return max((block.order for block, _ in self._counts), default=0)

    def __iter__(self) -> Iterator[tuple[JordanBlock, int]]:
        return iter(self._counts)

    def __add__(self, other: "JordanForm") -> "JordanForm":
        counts = Counter(dict(self._counts)) + Counter(dict(other._counts))
        return JordanForm(counts.elements())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JordanForm) and self._counts == other._counts

    def __hash__(self) -> int:
        return hash(self._counts)

    def __str__(self) -> str:
        return " + ".join(f"{n}{block}" for block, n in self._counts) or "0"

    def __repr__(self) -> str:
        return f"JordanForm({str(self)!r})"


def _parse(text: str) -> Iterator[JordanBlock]:
    if text.strip() == "0":
        return
    for term in text.split("+"):
        match = _TERM.match(term.strip())
        if not match or match[1] == "0" or match[3] == "0":
            raise ConfigError(
                f"got {term.strip()!r} in the Jordan form {text!r}; expected terms such as '28R', '4S' or '1Z2' "
                f"(count, then one of {', '.join(f'{k} {v}' for k, v in KINDS.items())}, then the order) joined by '+'"
            )
        yield from [JordanBlock(match[2], int(match[3] or 1))] * int(match[1] or 1)
