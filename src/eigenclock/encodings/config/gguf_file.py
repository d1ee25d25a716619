"""The metadata of a GGUF file, with the few tensors that belong to its positions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eigenclock.encodings.config.gguf_keys import DIVISORS, LONG, SHORT
from eigenclock.errors import ConfigError, UnsupportedError


def open_gguf(path: Path) -> Any:
    """A GGUF file, its keys and tensors read when they are asked for.

    Raises: UnsupportedError where the gguf package is not there; ConfigError where the file is none.
    """
    try:
        from gguf import GGUFReader
    except ImportError:
        raise UnsupportedError("reading GGUF needs the gguf package; install it with: pip install 'eigenclock[hf]'") from None
    try:
        return GGUFReader(str(path))
    except OSError as error:
        raise ConfigError(f"got the GGUF file {path}; it cannot be read ({error.strerror or error})") from None
    except (ValueError, IndexError, KeyError, UnicodeDecodeError) as error:
        raise ConfigError(f"got {path}, which is no GGUF file ({error})") from None


def read_gguf(path: Path) -> Mapping[str, Any]:
    """The keys of a GGUF file as plain numbers and text, long tables such as vocabularies left out.

    Raises: as :func:`open_gguf`.
    """
    reader = open_gguf(path)
    tensors = {t.name: t.data.astype("float64").tolist() for t in reader.tensors if t.name in (DIVISORS, LONG, SHORT)}
    return keys_of(reader) | tensors


def keys_of(reader: Any) -> dict[str, Any]:
    """The keys of an open file but for its tokenizer's."""
    return {name: field.contents() for name, field in reader.fields.items() if not name.startswith(("tokenizer.", "GGUF."))}


__all__ = ["keys_of", "open_gguf", "read_gguf"]
