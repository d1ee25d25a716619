"""Which layers of a hybrid attend: lists of their numbers, periods and letters, as each family writes them."""

from collections.abc import Mapping, Sequence
from typing import Any

from eigenclock.encodings.config.keys import number, whole
from eigenclock.encodings.config.per_layer import FULL, LINEAR
from eigenclock.errors import ConfigError

CROSS = "cross_attention"
# Lists of the numbers of layers: what these layers are, and what the others are.
_NUMBERED: Mapping[str, tuple[str, str]] = {
    "attn_layer_indices": (FULL, LINEAR),  # Bamba
    "attn_layer_idxs": (FULL, "conv"),  # StripedHyena
    "full_attn_idxs": (FULL, "conv"),  # LFM2
    "cross_attention_layers": (CROSS, FULL),  # Llama's vision models: keys are those of a picture there
}


def kinds_of(config: Mapping[str, Any], model_type: str, count: int) -> tuple[str, ...] | None:
    """The type of every layer as the keys of a hybrid tell it; None where there is no such key.

    Raises: ConfigError where a key is no list of numbers or names.

    >>> kinds_of({"attn_layer_indices": [1, 3]}, "bamba", 4)
    ('linear_attention', 'full_attention', 'linear_attention', 'full_attention')
    """
    for key, (named, others) in _NUMBERED.items():
        if config.get(key) is not None:
            chosen = _numbers(config[key], key)
            return tuple(named if i in chosen else others for i in range(count))
    inner = config.get("linear_attn_config")
    if isinstance(inner, Mapping) and inner.get("full_attn_layers") is not None:  # Kimi Linear counts from 1
        chosen = _numbers(inner["full_attn_layers"], "linear_attn_config.full_attn_layers")
        return tuple(FULL if i + 1 in chosen else LINEAR for i in range(count))
    if (blocks := config.get("block_types")) is not None:  # Griffin: a few names, repeated over all layers
        if not _listed(blocks) or not blocks or not all(isinstance(name, str) for name in blocks):
            raise ConfigError(f"got block_types={blocks!r}; expected a list of names, repeated over the layers")
        return tuple(FULL if (name := blocks[i % len(blocks)]) == "attention" else name for i in range(count))
    if (period := config.get("attn_layer_period")) is not None:
        return _periodic(config, model_type, whole(period, "attn_layer_period"), count)
    letters = config.get("hybrid_override_pattern")
    if isinstance(letters, str) and len(letters) == count:  # Nemotron-H: * is attention, M a recurrence
        return tuple({"*": FULL, "M": "mamba"}.get(letter, "mlp") for letter in letters)
    return None


def _periodic(config: Mapping[str, Any], model_type: str, period: int, count: int) -> tuple[str, ...]:
    """Attention in one layer of a period, a recurrence in the others; Zamba counts from its fourth layer, and its third attends too."""
    offset = int(number(config.get("attn_layer_offset", 0), "attn_layer_offset", least=0))
    late = 3 if model_type == "zamba" else 0
    return tuple(FULL if i == late - 1 or (i >= late and (i - late) % period == offset) else "mamba" for i in range(count))


def _numbers(given: Any, key: str) -> frozenset[int]:
    if not _listed(given):
        raise ConfigError(f"got {key}={given!r}; expected a list of the numbers of layers")
    return frozenset(0 if one == 0 else whole(one, f"{key}[{i}]") for i, one in enumerate(given))


def _listed(given: Any) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, str)


__all__ = ["CROSS", "kinds_of"]
