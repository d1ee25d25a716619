"""The position mechanism of transformers decoders, replaced by any encoding or extended to longer contexts."""

from eigenclock.integrations.huggingface.checkpoint import from_gguf
from eigenclock.integrations.huggingface.extend import METHODS, Extended, extend
from eigenclock.integrations.huggingface.install import install
from eigenclock.integrations.huggingface.installed import Installed, installed
from eigenclock.integrations.huggingface.saving import load
from eigenclock.integrations.huggingface.seams import MODEL_TYPES

__all__ = ["METHODS", "MODEL_TYPES", "Extended", "Installed", "extend", "from_gguf", "install", "installed", "load"]
