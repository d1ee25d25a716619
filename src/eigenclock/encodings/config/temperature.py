"""Factors on queries by their own position, which models have beside their encoding to keep attention sharp over long contexts."""

from collections.abc import Mapping
from typing import Any

from eigenclock.encodings.config.families import ORIGINAL
from eigenclock.encodings.config.keys import Account, number
from eigenclock.errors import ConfigError

SECTION_BETA = frozenset(("ministral3", "mistral4"))  # model types that read llama_4_scaling_beta in a rotary section
_STILL = "queries of layers without position"


def by_position(
    config: Mapping[str, Any], model_type: str, sections: Mapping[str, Mapping[str, Any] | None], account: Account
) -> str | None:
    """The temperature of a config in words, with a note that names its key; None where it has none.

    Raises: ConfigError where its numbers are none.
    """
    found = _of_config(config, sections, model_type)
    if found is None:
        return None
    key, text = found
    say = account.warn if key == "use_logn_attn" else account.note  # a switch of older code, which others leave out
    say(f"{key}: {text}; it stands beside the encoding and is not part of it")
    return text


def _of_config(config: Mapping[str, Any], sections: Mapping[str, Mapping[str, Any] | None], model_type: str) -> tuple[str, str] | None:
    if (given := config.get("llama_4_scaling")) is not None:
        if not isinstance(given, Mapping):
            raise ConfigError(f"got llama_4_scaling={given!r}; expected an object with beta and {ORIGINAL}")
        return "llama_4_scaling", _steps("queries", given.get("beta"), given.get(ORIGINAL), "llama_4_scaling.", "t")
    if model_type == "llama4_text" and config.get("attn_temperature_tuning", True):
        beta, length = config.get("attn_scale", 0.1), config.get("floor_scale", 8192)
        return "attn_temperature_tuning", _steps(_STILL, beta, length, "", "(t + 1)", ("attn_scale", "floor_scale"))
    if model_type == "beam":
        return "beam", f"{_STILL} times (1 + (t + 1) / 2048)^0.1"
    if model_type == "qwen" and config.get("use_logn_attn") and config.get("seq_length") is not None:
        length = number(config["seq_length"], "seq_length", above=1)
        return "use_logn_attn", f"queries beyond {length:.12g} tokens times ln(t + 1) / ln({length:.12g})"
    section = next((part for part in sections.values() if part and part.get("llama_4_scaling_beta") is not None), None)
    if model_type in SECTION_BETA and section is not None:
        length = section.get(ORIGINAL, config.get(ORIGINAL, config.get("max_position_embeddings")))
        return "llama_4_scaling_beta", _steps("queries", section["llama_4_scaling_beta"], length, "rope_parameters.", "t")
    return None


def _steps(what: str, beta: Any, length: Any, where: str, time: str, names: tuple[str, str] = ("beta", ORIGINAL)) -> str:
    slope, every = number(beta, where + names[0]), number(length, where + names[1], above=0)
    return f"{what} times 1 + {slope:g} ln(1 + floor({time} / {every:.12g}))"


__all__ = ["SECTION_BETA", "by_position"]
