"""A key-value cache for softmax attention under any encoding."""

from eigenclock.attention.cache.move import moved_keys
from eigenclock.attention.cache.step import cached_attention
from eigenclock.attention.cache.value import KVCache

__all__ = ["KVCache", "cached_attention", "moved_keys"]
