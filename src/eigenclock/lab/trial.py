"""One pass of every encoding before any training: what cannot run is refused while nothing is lost yet."""

import shlex
from collections.abc import Iterable

import torch

from eigenclock.clocks import Cumulative
from eigenclock.errors import ConfigError, EigenclockError
from eigenclock.lab.settings import Settings
from eigenclock.lab.train import build

SYMBOLS = 2  # position does not depend on the vocabulary
SHORT = 8  # most of what cannot run at all cannot run here either


def refuse_what_cannot_run(specs: Iterable[str], settings: Settings) -> None:
    """Runs each encoding once: forward and backward at a short length, then one window as long as the longest that is evaluated.

    Raises:
        ConfigError: one or more of them failed; the message names each with its reason.
    """
    failed = [(spec, reason) for spec in specs if (reason := _trial(spec, settings))]
    if failed:
        each = "; ".join(f"{shlex.quote(spec)}: {reason}" for spec, reason in failed)
        raise ConfigError(f"--encodings that cannot run in this comparison: {each}; leave them out, nothing was trained")


def what_failed(error: Exception) -> str:
    """An error in one line; one that is not ours also with its class.

    >>> what_failed(ConfigError("got 3")), what_failed(IndexError("out of range"))
    ('got 3', 'IndexError: out of range')
    """
    text = " ".join(str(error).split())
    return text if isinstance(error, EigenclockError) else f"{type(error).__name__}: {text}"


def _trial(spec: str, settings: Settings) -> str:
    hint = ""
    try:
        model = build(spec, settings.seed, settings, SYMBOLS)
        clock = model.positions()[0].clock
        if isinstance(clock, Cumulative) and clock.features != settings.width:
            hint = f" (the activations here are {settings.width} wide: try features={settings.width})"
        model(_tokens(min(SHORT, settings.length))).sum().backward()
        with torch.no_grad():
            model(_tokens(settings.lengths[-1]))
    except Exception as error:  # an encoding from outside may raise anything
        return what_failed(error) + hint
    return ""


def _tokens(length: int) -> torch.Tensor:
    return (torch.arange(length) % SYMBOLS)[None]
