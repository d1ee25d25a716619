"""Attention: the dense oracle, the backends and the choice between them."""

from eigenclock.attention.backends import BACKENDS
from eigenclock.attention.capability import Backend, Explanation
from eigenclock.attention.scores import scores
from eigenclock.attention.softmax import attention, explain

__all__ = ["BACKENDS", "Backend", "Explanation", "attention", "explain", "scores"]
