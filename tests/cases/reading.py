"""What tests of configs share: reading one without a word, and the frequencies of what was read."""

import warnings
from typing import Any

import torch

import eigenclock as ec


def read(config: Any, **keywords: Any) -> ec.Encodings:
    """The encodings of a config, warnings aside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ec.encodings(config, **keywords)


def frequencies(encoding: ec.Encoding) -> torch.Tensor:
    """Radians per token of each pair that turns."""
    return encoding.generator().split().turns[0].freq.reshape(-1)
