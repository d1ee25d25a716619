"""The one mechanism behind every registry: look a name up, or add one from outside.

A registry is a plain dict literal in the ``__init__`` of its folder. To add a thing to the project write one
file and one line in that dict; third parties call :func:`register`.
"""

import difflib
from collections.abc import Mapping, MutableMapping
from typing import TypeVar

from eigenclock.errors import ConfigError, UnknownNameError

T = TypeVar("T")


def nearest(name: str, known: Mapping[str, object] | list[str]) -> str:
    """A sentence that names the closest known spelling of ``name``, or all known ones.

    >>> nearest("roep", ["rope", "alibi"])
    "did you mean 'rope'? Known: alibi, rope."
    """
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    return (f"did you mean '{close[0]}'? " if close else "") + f"Known: {', '.join(names)}."


def lookup(registry: Mapping[str, T], name: str, kind: str) -> T:
    """The entry called ``name``; ``kind`` is the noun used in the message.

    Raises:
        UnknownNameError: the name is not registered; the message names the nearest known one.

    >>> lookup({"rope": 1}, "rope", "encoding")
    1
    """
    try:
        return registry[name]
    except KeyError:
        raise UnknownNameError(f"there is no {kind} called {name!r}; {nearest(name, registry)}") from None


def register(registry: MutableMapping[str, T], name: str, target: T) -> None:
    """Add ``target`` under ``name``, for code outside the project.

    Raises:
        ConfigError: the name is taken already.

    >>> table = {}; register(table, "mine", 3); table
    {'mine': 3}
    """
    if name in registry:
        raise ConfigError(f"{name!r} is registered already as {registry[name]!r}; choose another name")
    registry[name] = target
