"""Longer contexts in transformers' own keys: the rope_parameters of a method, and the rotary modules of any model made anew from them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eigenclock.encodings import Encoding
from eigenclock.encodings.config.installed import KEY
from eigenclock.errors import ConfigError, UnsupportedError

PORTABLE = ("linear", "ntk", "yarn", "llama3")
"""The methods that are said in transformers' own keys."""


@dataclass(frozen=True)
class YarnNumbers:
    """What YaRN's ramp and temperature are set to.

    attention_factor: what queries and keys of turned channels are multiplied by each; the paper's is 0.1 ln(factor) + 1.
    beta_fast, beta_slow: turns within the original length from which a pair is kept, and below which it is divided by the factor.
    """

    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def __post_init__(self) -> None:
        for name in ("attention_factor", "beta_fast", "beta_slow"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise ConfigError(f"got {name}={value!r}; expected a positive number")
        if self.beta_fast <= self.beta_slow:
            raise ConfigError(f"got beta_fast={self.beta_fast:g} and beta_slow={self.beta_slow:g}; expected beta_fast to be the larger one")


def yarn_numbers(method: str, given: dict[str, float | None]) -> YarnNumbers:
    """The numbers that were given, the others as they are by default.

    Raises: ConfigError where some were given and the method is not yarn, or where they are no numbers for it.
    """
    said = {name: value for name, value in given.items() if value is not None}
    if said and method != "yarn":
        raise ConfigError(f"got {', '.join(said)} and method={method!r}; expected them with method='yarn' alone")
    return YarnNumbers(**said)


def text_config(model: nn.Module) -> Any:
    """The configuration of a model's decoder.

    Raises: UnsupportedError for what is no transformers model; ConfigError where an encoding is installed, or it names no length.
    """
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "get_text_config"):
        raise UnsupportedError(f"got {type(model).__name__}; expected a model of transformers")
    config = config.get_text_config(decoder=True)
    if getattr(config, KEY, None) is not None:
        raise ConfigError(
            "got a model with an encoding installed already; expected the original: uninstall() it, or extend what it was made of"
        )
    length = getattr(config, "max_position_embeddings", None)
    if isinstance(length, bool) or not isinstance(length, int) or length <= 0:
        raise ConfigError(f"got max_position_embeddings={length!r} in the model's config; expected the length that it was made for")
    return config


def kinds_of(config: Any) -> list[str]:
    """The layer types whose context is extended: those without a sliding window, or all where every layer has one."""
    types = list(dict.fromkeys(getattr(config, "layer_types", None) or ["full_attention"]))
    rope = getattr(config, "rope_parameters", None) or {}
    named = [kind for kind in types if isinstance(rope.get(kind), dict)] or types
    return [kind for kind in named if kind != "sliding_attention"] or named


def parameters_of(config: Any, kinds: list[str], method: str) -> tuple[dict[str, dict[str, Any]], bool]:
    """The rope_parameters of each layer type, and whether the configuration keeps one dictionary for each.

    Raises: ConfigError where there are none to extend, or they are scaled in a way that the method does not go on from.
    """
    given = getattr(config, "rope_parameters", None) or {}
    nested = all(isinstance(given.get(kind), dict) for kind in kinds)
    rows = {kind: dict(given[kind] if nested else given) for kind in kinds}
    for kind, row in rows.items():
        if "rope_theta" not in row:
            raise ConfigError(f"got rope_parameters={given} for {kind}; expected a rope_theta: the model has no rotary positions to extend")
        scaled = row.get("rope_type", "default")
        if scaled == "llama3" and method not in ("ntk", "llama3"):
            raise ConfigError(
                f"got a model whose rope_type is 'llama3' and method={method!r}, which transformers' keys cannot say together; "
                "expected method='llama3', which goes on from its factor, or 'ntk', which enlarges its base"
            )
        if scaled not in ("default", "llama3"):
            raise ConfigError(f"got a model whose rope_type is {scaled!r} already; expected 'default': extend the original model")
    return rows, nested


def scaled(method: str, row: dict[str, Any], factor: float, original: int, width: int, yarn: YarnNumbers) -> dict[str, Any]:
    """transformers' own words for a method; a model that llama3 has scaled keeps the length and the bounds of its ramp."""
    if method == "ntk":
        return row | {"rope_theta": row["rope_theta"] * factor ** (width / (width - 2))}
    if row.get("rope_type") == "llama3":
        return row | {"factor": row["factor"] * factor}
    new = row | {"rope_type": method, "factor": factor}
    if method == "yarn":
        numbers = {name: float(getattr(yarn, name)) for name in ("attention_factor", "beta_fast", "beta_slow")}
        new |= {"original_max_position_embeddings": original} | numbers
    if method == "llama3":
        new |= {"original_max_position_embeddings": original, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return new


def rewrite(model: nn.Module, config: Any, parameters: dict[str, Any], to: int) -> None:
    """The new keys in the configuration, and every rotary module that reads it made anew.

    Raises: UnsupportedError, with the model as it was, where no module of the model turns by the new keys.
    """
    found = [(parent, name, child) for parent in model.modules() for name, child in parent.named_children() if _reads(child, config)]
    before = {"rope_parameters": config.rope_parameters, "max_position_embeddings": config.max_position_embeddings}
    config.rope_parameters, config.max_position_embeddings = parameters, to
    made = {id(child): _anew(child, config) for *_, child in found}
    if not any(_differs(child, made[id(child)]) for *_, child in found):
        for key, value in before.items():
            setattr(config, key, value)
        raise UnsupportedError(
            f"got a model of type {config.model_type!r}, no module of which reads rope_parameters when it turns; "
            "expected one whose rotary module does: its own code decides its frequencies"
        )
    for parent, name, child in found:
        setattr(parent, name, made[id(child)])


def _reads(module: nn.Module, config: Any) -> bool:
    """Whether it is a rotary module that was made from this configuration."""
    return getattr(module, "config", None) is config and bool(_frequencies(module))


def _frequencies(module: nn.Module) -> dict[str, Tensor]:
    """The inverse frequencies that a rotary module keeps, one for each layer type where those differ."""
    return {name: buffer for name, buffer in module.named_buffers(recurse=False) if name.endswith("inv_freq")}


def _anew(module: nn.Module, config: Any) -> nn.Module:
    """A rotary module of the same class, on the same device."""
    device = next(iter(_frequencies(module).values())).device
    return type(module)(config).to(device)


def _differs(old: nn.Module, new: nn.Module) -> bool:
    """Whether any frequency is another one."""
    before, after = _frequencies(old), _frequencies(new)
    return any(name not in after or not torch.equal(after[name], before[name]) for name in before)


def rotary_width(encoding: Encoding) -> int:
    """How many channels of a head turn."""
    return sum(turn.width for turn in encoding.generator().split().turns)


def cache_bytes(model: nn.Module, config: Any, head_dim: int, to: int) -> int:
    """Bytes of keys and values of one row at the full length, sliding layers at their window."""
    layers = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    window = getattr(config, "sliding_window", None) or to
    tokens = sum(min(to, window) if kind == "sliding_attention" else to for kind in layers)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    latent = getattr(config, "qk_nope_head_dim", None)  # keys of latent attention: a part that turns beside one that does not
    keys = head_dim if latent is None else latent + config.qk_rope_head_dim
    values = getattr(config, "v_head_dim", None) or head_dim
    return int(tokens * heads * (keys + values) * next(model.parameters()).element_size())
