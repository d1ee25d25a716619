"""The metadata of a GGUF file, with the few tensors that belong to its positions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eigenclock.encodings.config.gguf_keys import DIVISORS, LONG, SHORT
from eigenclock.errors import ConfigError, UnsupportedError


def read_gguf(path: Path) -> Mapping[str, Any]:
    """The keys of a GGUF file as plain numbers and text, long tables such as vocabularies left out.

    Raises: UnsupportedError where the gguf package is not there; ConfigError where the file is none.
    """
    try:
        from gguf import GGUFReader
    except ImportError:
        raise UnsupportedError("reading GGUF needs the gguf package; install it with: pip install 'eigenclock[hf]'") from None
    try:
        reader = GGUFReader(str(path))
    except OSError as error:
        raise ConfigError(f"got the GGUF file {path}; it cannot be read ({error.strerror or error})") from None
    except (ValueError, IndexError, KeyError, UnicodeDecodeError) as error:
        raise ConfigError(f"got {path}, which is no GGUF file ({error})") from None
    keys = {name: field.contents() for name, field in reader.fields.items() if not name.startswith(("tokenizer.", "GGUF."))}
    tensors = {t.name: t.data.astype("float64").tolist() for t in reader.tensors if t.name in (DIVISORS, LONG, SHORT)}
    return keys | tensors


__all__ = ["read_gguf"]
