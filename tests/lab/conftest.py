"""A comparison small enough to run in a second."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from eigenclock.lab.settings import Settings

TINY = Settings(
    encodings=("nope", "rope", "decay_bias(half_life=(2, 8), learn='rate')"),
    steps=12, batch=4, length=8, layers=1, width=16, heads=2, eval_tokens=256, save_every=5, threads=1,
)  # fmt: skip


def words(count: int) -> bytes:
    """Text with something to learn: words drawn from a short list."""
    rng = np.random.default_rng(0)
    return " ".join(rng.choice(["clock", "decay", "turn", "phase", "rate", "of", "the"], count)).encode()


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_bytes(words(900))
    return path


@pytest.fixture
def tiny(text: Path) -> Settings:
    return dataclasses.replace(TINY, text=text)


@pytest.fixture
def options(text: Path) -> list[str]:
    """The same as command-line options, with two encodings."""
    values = f"--text {text} --steps 12 --batch 4 --length 8 --layers 1 --width 16 --heads 2 --eval-tokens 256 --save-every 5 --threads 1"
    return ["compare", *values.split(), "--encodings", "nope", "rope"]
