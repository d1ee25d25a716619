"""The backends, in the order in which "auto" tries them."""

from eigenclock.attention.backends import reference, sdpa, tiled
from eigenclock.attention.capability import Backend

BACKENDS: dict[str, Backend] = {
    "sdpa": sdpa.backend,
    "tiled": tiled.backend,
    "reference": reference.backend,
}

__all__ = ["BACKENDS", "Backend"]
