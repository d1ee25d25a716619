"""Where a config comes from: a dict, a file, a folder or an object, in the words of Hugging Face, Meta, nanochat or GGUF."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eigenclock.encodings.config.families import OUTSIDE, ROTARY_TOP
from eigenclock.encodings.config.keys import Account, check_dialect, number
from eigenclock.errors import ConfigError, UnsupportedError


@dataclass(frozen=True)
class Source:
    """A config in the words of Hugging Face, and what its own dialect settles.

    ``divisors`` divide the frequencies pair by pair; ``theta`` is the base its code turns with where no key names one;
    ``both_sides`` says that a bias falls with the size of the lag, as in encoders.
    """

    config: Mapping[str, Any]
    name: str = "huggingface"
    pairing: str | None = None
    sign: int | None = None
    divisors: tuple[float, ...] | None = None
    theta: float | None = None
    both_sides: bool = False


def load(config: Any) -> Mapping[str, Any]:
    """The config as a mapping, read from wherever it is.

    Raises: ConfigError where there is nothing to read, or no mapping in it.
    """
    if isinstance(config, Mapping):
        return config
    if isinstance(config, str | Path):
        return _read(Path(config))
    if callable(getattr(config, "to_dict", None)):
        return config.to_dict()
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return dataclasses.asdict(config)
    raise ConfigError(f"got a config of type {type(config).__name__}; expected a dict, a path, or an object with to_dict()")


def _read(path: Path) -> Mapping[str, Any]:
    if path.is_dir():
        found = [path / name for name in ("config.json", "params.json") if (path / name).is_file()]
        if not found:
            raise ConfigError(f"got the folder {path}; expected a config.json or params.json in it")
        path = found[0]
    if path.suffix == ".gguf":
        from eigenclock.encodings.config.gguf_file import read_gguf

        return read_gguf(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except OSError as error:
        raise ConfigError(f"got the config file {path}; it cannot be read ({error.strerror}): names are not downloaded") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"got the config file {path}; expected JSON, but {error}") from None
    if not isinstance(data, Mapping):
        raise ConfigError(f"got the config file {path} with a {type(data).__name__} in it; expected an object of keys and values")
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON whose keys say one thing each: of a key given twice, most parsers keep the last and say nothing."""
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out and out[key] != value:
            raise ConfigError(f"got the key {key!r} twice in one file, as {out[key]!r} and {value!r}; expected it once")
        out[key] = value
    return out


def understand(config: Mapping[str, Any], account: Account) -> Source:
    """The config in the words of Hugging Face, whatever dialect it is in.

    Raises: ConfigError or UnsupportedError where the dialect is one whose positions are outside the group.
    """
    if "general.architecture" in config:
        from eigenclock.encodings.config.gguf_keys import from_gguf

        return from_gguf(config, account)
    if "_class_name" in config:
        keys = [key for key in config if "rope" in str(key).lower() or "pos_embed" in str(key).lower()]
        named = "".join(f", with {key}={config[key]!r}" for key in keys)
        raise UnsupportedError(
            f"got a config of diffusers ({config['_class_name']!r}{named}), whose positions are no keys of Hugging Face's language models; "
            "expected the config of a language model, or ec.axial_rope and its kin by hand"
        )
    if "model_type" not in config:
        if "dim" in config and ("n_heads" in config or "n_layers" in config):
            from eigenclock.encodings.config.native import from_params

            return from_params(config, account)
        if "block_size" in config and "n_embd" in config:
            raise UnsupportedError(
                f"got a nanoGPT config: it has {OUTSIDE['nanogpt']}, outside the group; expected an encoding in its place, such as ec.rope"
            )
        if "sequence_len" in config and "n_embd" in config:
            return _nanochat(config, account)
    text = config.get("text_config")
    if isinstance(text, Mapping):
        _refuse_beside(config, text)
        account.note("the encodings are those of text_config")
        return Source(text)
    if config.get("alibi_starting_size") is not None or (
        config.get("model_type") == "bert" and config.get("position_embedding_type") == "alibi"
    ):
        account.note("a BERT with ALiBi, as MosaicBERT, DNABERT-2 and jina-bert-v2 have it")
        return Source({**config, "model_type": "bert_alibi"}, both_sides=True)
    return Source(_lifted(config, account))


def _lifted(config: Mapping[str, Any], account: Account) -> Mapping[str, Any]:
    """DBRX: what stands in attn_config, in the words of other models."""
    inner = config.get("attn_config")
    if config.get("model_type") != "dbrx" or not isinstance(inner, Mapping):
        return config
    section, base, out = config.get("rope_parameters"), inner.get("rope_theta"), dict(config)
    if isinstance(section, Mapping) and section.get("rope_theta") is not None:
        if base not in (None, section["rope_theta"]):
            account.warn(
                f"attn_config.rope_theta={base!r} stands beside {section['rope_theta']!r} in rope_parameters, which the dbrx class of "
                "transformers 5 turns by, and which is used: it does not carry the base of released files over"
            )
    elif base is not None:
        out.setdefault("rope_theta", base)
        if base != 10000:
            account.warn(f"attn_config.rope_theta={base!r} is used; the dbrx class of transformers 5 turns by 10000 whatever it says")
    if inner.get("kv_n_heads") is not None:
        out.setdefault("num_key_value_heads", inner["kv_n_heads"])
    return out


def _refuse_beside(config: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    for key in ROTARY_TOP:
        if config.get(key) is not None and config[key] != text.get(key):
            raise ConfigError(
                f"got {key}={config[key]!r} beside text_config, where it is {text.get(key)!r}; expected it in text_config only"
            )


def _nanochat(config: Mapping[str, Any], account: Account) -> Source:
    """nanochat: half pairing, both sides turn by minus the angle, base 100000 in its code."""
    check_dialect(config, ("rope_theta", *ROTARY_TOP), "a nanochat config")
    account.note("nanochat multiplies queries and keys by a constant after its norm; that is not part of the encoding")
    return Source(config, "nanochat", "half", -1, theta=100000.0)


def uniform(value: Any, key: str) -> Any:
    """A number that a file may give once or per layer.

    Raises: UnsupportedError where layers differ.
    """
    if isinstance(value, list | tuple):
        if len(set(value)) != 1:
            raise UnsupportedError(f"got {key} that differs between layers: {sorted(set(value))}; expected one number for all of them")
        value = value[0]
    return number(value, key, least=0)
