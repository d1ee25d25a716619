"""Corpora: the text every CPython carries, any file read as bytes, or nanoGPT's two files of uint16 tokens."""

import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from eigenclock.errors import ConfigError
from eigenclock.lab.settings import MULTIPLES, Settings

BLOCK = 1 << 24  # items hashed at a time: a file of tokens may be larger than memory


@dataclass(frozen=True)
class Corpus:
    """Text as numbers: a part to train on and a part that no run sees before it is evaluated.

    Shape: ``train`` and ``held_out`` are (N,), uint8 for bytes and uint16 for tokens.
    Units: ``unit`` is "byte" or "token"; losses are bits per unit.
    """

    name: str
    unit: str
    vocabulary: int
    train: np.ndarray
    held_out: np.ndarray
    sha256: str

    def describe(self) -> dict[str, str | int]:
        """What a run folder records about the corpus."""
        return {
            "name": self.name,
            "unit": self.unit,
            "vocabulary": self.vocabulary,
            "train": len(self.train),
            "held_out": len(self.held_out),
            "sha256": self.sha256,
        }


def english() -> bytes:
    """The documentation topics of the running CPython, sorted by title: 0.4 MB of technical English.

    Topics quote each other at length; a paragraph is taken where it comes first and left out afterwards, else a twelfth of
    the held-out text would stand word for word in the training text. The text differs between CPython versions, which is
    why its sha256 goes into every run folder.
    """
    from pydoc_data.topics import topics

    seen: set[str] = set()
    parts: list[str] = []
    for title in sorted(topics):
        parts.append(title)
        for paragraph in topics[title].split("\n\n"):
            plain = " ".join(paragraph.split())
            if plain not in seen:
                seen.add(plain)
                parts.append(paragraph.strip("\n"))
    return "\n\n".join(parts).encode()


def load(settings: Settings) -> Corpus:
    """The corpus that ``settings`` asks for, split by position: the held-out part is one stretch at the end.

    Raises:
        ConfigError: a file is missing, unreadable, empty, of odd size, or too short for windows of 8 x length.
    """
    if settings.bin:
        train, held_out = settings.bin
        return _tokens(train, held_out, settings.length)
    if settings.text is None:
        return _bytes(f"pydoc_data.topics of CPython {platform.python_version()}", english(), settings.length)
    return _bytes(settings.text.name, _read(settings.text, "--text"), settings.length)


def batch(tokens: np.ndarray, *, seed: int, step: int, size: int, length: int) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """Inputs and next-unit targets of one step; they depend on (seed, step) alone, so a resumed run sees the same ones.

    Shape: both (size, length), int64.

    >>> first = batch(np.arange(50), seed=0, step=3, size=2, length=4)
    >>> again = batch(np.arange(50), seed=0, step=3, size=2, length=4)
    >>> torch.equal(first[0], again[0]), torch.equal(first[0] + 1, first[1])
    (True, True)
    """
    starts = np.random.default_rng([seed, step]).integers(0, len(tokens) - length, size)
    rows = tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64)
    return torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())


def _bytes(name: str, text: bytes, length: int) -> Corpus:
    items = np.frombuffer(text, np.uint8)
    window = MULTIPLES[-1] * length + 1  # one more than the longest window: its last byte needs a target
    if len(items) < 2 * window:
        raise ConfigError(
            f"{name} has {len(items)} bytes; --length {length} needs at least {2 * window} "
            f"(train and held-out text of {MULTIPLES[-1]} x length each); use a longer text or a shorter --length"
        )
    cut = len(items) - max(len(items) // 10, window)
    return Corpus(name, "byte", 256, items[:cut], items[cut:], hashlib.sha256(text).hexdigest())


def _tokens(train: Path, held_out: Path, length: int) -> Corpus:
    digest, parts, largest = hashlib.sha256(), [], 0
    for path in (train, held_out):
        items = _map(path)
        need = MULTIPLES[-1] * length + 1 if path is held_out else length + 1
        if len(items) < need:
            raise ConfigError(f"{path} has {len(items)} tokens; --length {length} needs {need}; use more tokens or a shorter --length")
        for start in range(0, len(items), BLOCK):
            block = items[start : start + BLOCK]
            digest.update(block.tobytes())
            largest = max(largest, int(block.max()))
        parts.append(items)
    return Corpus(f"{train.name} + {held_out.name}", "token", largest + 1, parts[0], parts[1], digest.hexdigest())


def _read(path: Path, option: str) -> bytes:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be read ({error.strerror}); give the path of a readable file") from None
    if not text:
        raise ConfigError(f"{option} {path} is empty; give a file with text in it")
    return text


def _map(path: Path) -> np.ndarray:
    try:
        size = path.stat().st_size
        if size and size % 2 == 0:
            return np.memmap(path, dtype=np.uint16, mode="r")
    except OSError as error:
        raise ConfigError(f"--bin {path} cannot be read ({error.strerror}); give two files of uint16 tokens, train.bin val.bin") from None
    what = "is empty" if not size else f"has {size} bytes, an odd number"
    raise ConfigError(f"--bin {path} {what}; uint16 tokens take two bytes each; give the files that nanoGPT's prepare.py writes")
