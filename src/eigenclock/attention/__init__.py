"""Attention: the dense oracle, the backends and the choice between them."""

from eigenclock.attention.backends import BACKENDS
from eigenclock.attention.cache import KVCache, cached_attention, moved_keys
from eigenclock.attention.capability import Backend, Explanation
from eigenclock.attention.documents import Boundaries
from eigenclock.attention.forms import FORMS
from eigenclock.attention.linear import linear_attention
from eigenclock.attention.scores import scores
from eigenclock.attention.softmax import attention, explain
from eigenclock.attention.state import State

__all__ = [
    "BACKENDS",
    "FORMS",
    "Backend",
    "Boundaries",
    "Explanation",
    "KVCache",
    "State",
    "attention",
    "cached_attention",
    "explain",
    "linear_attention",
    "moved_keys",
    "scores",
]
