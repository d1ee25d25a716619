"""Configs of real models: read into encodings, written back where Hugging Face has words for them."""

from eigenclock.encodings.config.read import encodings
from eigenclock.encodings.config.result import Conventions, Encodings
from eigenclock.encodings.config.write import to_config

__all__ = ["Conventions", "Encodings", "encodings", "to_config"]
