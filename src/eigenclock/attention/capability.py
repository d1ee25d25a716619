"""What a backend carries, and the choice between them."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from eigenclock.attention.problem import Problem


@dataclass(frozen=True)
class Backend:
    """A way to run attention: the function, one line on what it is, and a predicate that says why it cannot take a problem.

    refuses: returns None where the backend carries the problem exactly, else the reason in words.
    run: returns the output (B, H, T, V) and, where asked, the log-sum-exp (B, H, T).
    """

    summary: str
    refuses: Callable[[Problem], str | None]
    run: Callable[[Problem], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class Explanation:
    """Which backend takes a call, and why not the others.

    >>> print(Explanation("tiled", (("sdpa", "something decays"), ("tiled", None))))
    tiled
      sdpa: no, something decays
      tiled: yes
    """

    backend: str
    reasons: tuple[tuple[str, str | None], ...]

    def __str__(self) -> str:
        lines = [f"  {name}: {'yes' if reason is None else 'no, ' + reason}" for name, reason in self.reasons]
        return "\n".join([self.backend, *lines])
