"""Configs of models that were saved with an encoding installed: the specs of their layers stand in a key of our own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eigenclock.encodings.base import Encoding
from eigenclock.encodings.config.result import Encodings
from eigenclock.encodings.spec import encoding
from eigenclock.errors import ConfigError

KEY = "eigenclock"
"""The key of a config that holds {"specs": one for each layer, "rope_parameters": those that the model had}."""
ROPE_TYPE = "eigenclock (pip install eigenclock, then eigenclock.integrations.huggingface.load)"
"""The rope type of a saved model: transformers looks it up when it builds the model, and its KeyError says what to do."""


def stored(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a config says of an installed encoding; None where it says nothing.

    Raises: ConfigError where it is not what ``install`` wrote.
    """
    given = config.get(KEY)
    if given is None:
        return None
    if not isinstance(given, Mapping) or not isinstance(given.get("specs"), list | tuple) or "rope_parameters" not in given:
        raise ConfigError(f"got {KEY}={given!r} in a config; expected what install wrote: specs of the layers, and rope_parameters")
    return given


def without(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The config that the model had before."""
    before = {"rope_parameters": given["rope_parameters"]} if given["rope_parameters"] is not None else {}
    return {key: value for key, value in config.items() if key not in (KEY, "rope_parameters")} | before


def installed(given: Mapping[str, Any], own: Encodings) -> Encodings:
    """The encodings of the specs, under the layer types of the model's ``own``; a type whose layers differ has one for each law.

    Raises: ConfigError where there are more or fewer specs than layers.
    """
    specs = given["specs"]
    if len(specs) != len(own.layers):
        raise ConfigError(f"got {len(specs)} encodings installed for {len(own.layers)} layers; expected one for each")
    rows = [encoding(spec) for spec in specs]
    laws: dict[str, list[str]] = {}
    for kind, one in zip(own.layers, rows, strict=True):
        laws.setdefault(kind, []).append(str(one))
    names = [_name(kind, laws[kind], str(one)) for kind, one in zip(own.layers, rows, strict=True)]
    found: dict[str, Encoding] = {}
    for name, one in zip(names, rows, strict=True):
        found.setdefault(name, one)
    turns = [turn for one in found.values() for turn in one.generator().split().turns]
    said = replace(own.conventions, pairing=turns[0].pairing if turns else None, sign=1, amplitude=None, bias=None)
    notes = ["an encoding is installed in place of the model's own: these are the specs of its layers"]
    if any(p.requires_grad for one in rows for p in one.parameters()):
        notes.append("what it has learned is in the weights: here it has its start values")
    return Encodings(found, said, tuple(names), tuple(notes), ())


def _name(kind: str, laws: list[str], law: str) -> str:
    """The layer type, numbered from its second law on."""
    place = list(dict.fromkeys(laws)).index(law)
    return kind if not place else f"{kind}_{place + 1}"
