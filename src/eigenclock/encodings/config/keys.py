"""Reading keys of a config: aliases that must agree, numbers that must be numbers, and an account of what was found."""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eigenclock.errors import ConfigError
from eigenclock.registry import nearest


class Account:
    """How a config was read: notes that a reader may want, and warnings about what looks wrong or has no effect."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


def number(value: Any, key: str, *, least: float | None = None, above: float | None = None) -> float:
    """A finite number, kept as int or float; text, booleans and nothing are refused by the name of the key."""
    plain = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not plain or (least is not None and value < least) or (above is not None and value <= above):
        bound = f" of at least {least:g}" if least is not None else f" above {above:g}" if above is not None else ""
        raise ConfigError(f"got {key}={value!r}; expected a number{bound}" + (", not text" if isinstance(value, str) else ""))
    return value


_MOST = 1_000_000  # more than any size of a model; beyond it a key holds something else


def whole(value: Any, key: str) -> int:
    """A whole number from 1 to a million, such as a size."""
    if number(value, key, least=1) != int(value) or value > _MOST:
        raise ConfigError(f"got {key}={value!r}; expected a whole number from 1 to {_MOST}")
    return int(value)


def numbers(value: Any, key: str, *, least: float | None = None, above: float | None = None) -> tuple[float, ...]:
    """A list of numbers."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ConfigError(f"got {key}={value!r}; expected a list of numbers")
    return tuple(number(v, f"{key}[{i}]", least=least, above=above) for i, v in enumerate(value))


def first_of(config: Mapping[str, Any], names: Iterable[str]) -> tuple[str, Any] | None:
    """The value that goes under any of several names, with the name used; None where none is there.

    Raises: ConfigError where two names are there and disagree.

    >>> first_of({"n_head": 8, "n_embd": 64}, ("num_attention_heads", "n_head"))
    ('n_head', 8)
    """
    given = [(name, config[name]) for name in names if config.get(name) is not None]
    for name, value in given[1:]:
        if value != given[0][1]:
            raise ConfigError(f"got {given[0][0]}={given[0][1]!r} and {name}={value!r}, two names of one number; expected them equal")
    return given[0] if given else None


def longest_of(config: Mapping[str, Any], names: Iterable[str], others: Iterable[str], account: Account) -> tuple[str, Any] | None:
    """The longest context a config names, with its key; a note where another length stands beside it.

    Raises: ConfigError where two names of it disagree.
    """
    found = first_of(config, names)
    beside = [(name, config[name]) for name in others if config.get(name) is not None]
    if found is None:
        found, beside = (beside[0], beside[1:]) if beside else (None, [])
    for name, value in beside:
        if found is not None and value != found[1]:
            account.note(f"{name}={value!r} stands beside {found[0]}={found[1]!r}: one is trained, one is served; {found[0]} is used")
    return found


def misspelt(key: str, known: Iterable[str], cutoff: float = 0.8) -> str | None:
    """The known key that a key is most likely a misspelling of, or None."""
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=cutoff)
    return close[0] if close else None


def unknown(key: str, value: Any, where: str, known: Iterable[str]) -> ConfigError:
    """The error for a key that means nothing here, with the nearest known one."""
    return ConfigError(f"got the key {key!r} ({value!r}) in {where}, which is unknown; {nearest(key, list(known))}")


def check_dialect(config: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    """Refuses rotary keys that a dialect does not have, and those that look like a misspelling of one it has.

    Raises: ConfigError with the nearest known key.
    """
    for key, value in config.items():
        if key not in known and (any(word in key.lower() for word in ("rope", "rotary")) or misspelt(key, known, 0.9)):
            raise unknown(key, value, where, known)
