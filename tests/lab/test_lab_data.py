"""Corpora: what is trained on, what is held out, what is refused."""

import hashlib

import numpy as np
import pytest
import torch

from eigenclock.errors import ConfigError
from eigenclock.lab import data
from eigenclock.lab.settings import Settings


def test_held_out_text_is_the_end_of_the_file_and_nothing_is_lost(tiny):
    corpus, whole = data.load(tiny), tiny.text.read_bytes()
    assert bytes(corpus.train) + bytes(corpus.held_out) == whole
    assert len(corpus.held_out) == len(whole) // 10
    assert corpus.sha256 == hashlib.sha256(whole).hexdigest()
    assert (corpus.unit, corpus.vocabulary) == ("byte", 256)


def test_a_short_text_still_leaves_one_longest_window_to_hold_out(tmp_path):
    path = tmp_path / "short.txt"
    path.write_bytes(bytes(range(130)))
    corpus = data.load(Settings(text=path, length=8))
    assert (len(corpus.train), len(corpus.held_out)) == (65, 65)
    path.write_bytes(bytes(range(129)))
    with pytest.raises(ConfigError, match=r"has 129 bytes; --length 8 needs at least 130"):
        data.load(Settings(text=path, length=8))


def test_built_in_text_is_english_and_long_enough_for_the_defaults():
    assert data.english() == data.english()
    corpus = data.load(Settings())
    assert b" the " in data.english()
    assert len(corpus.held_out) > 8 * Settings().length


def test_built_in_held_out_text_is_not_in_the_training_text():
    """Topics quote each other: without care, 8 % of all stretches of 64 held-out bytes stand in the training text too."""
    corpus = data.load(Settings())
    train, held_out = bytes(corpus.train), bytes(corpus.held_out)
    known = {train[i : i + 64] for i in range(len(train) - 63)}
    stretches = [held_out[i : i + 64] for i in range(0, len(held_out) - 63, 16)]
    assert sum(stretch in known for stretch in stretches) < 0.01 * len(stretches)


def test_batches_depend_on_seed_and_step_alone():
    tokens = np.arange(1000, dtype=np.uint16)

    def starts(seed: int, step: int) -> list[int]:
        return data.batch(tokens, seed=seed, step=step, size=6, length=5)[0][:, 0].tolist()

    assert starts(0, 3) == starts(0, 3)
    assert len({tuple(starts(seed, step)) for seed in (0, 1) for step in (0, 1, 2)}) == 6


def test_batches_are_stretches_of_the_text_with_their_successors_as_targets():
    tokens = np.arange(12, dtype=np.uint8)
    inputs, targets = data.batch(tokens, seed=0, step=0, size=500, length=10)
    assert torch.equal(targets, inputs + 1)
    assert torch.equal(inputs - inputs[:, :1], torch.arange(10).expand(500, 10))
    assert set(inputs[:, 0].tolist()) == {0, 1}  # both stretches that fit, and no other


def test_token_files_are_mapped_and_their_vocabulary_is_counted(tmp_path):
    train, held_out = tmp_path / "train.bin", tmp_path / "val.bin"
    np.arange(100, dtype=np.uint16).tofile(train)
    np.full(65, 50256, np.uint16).tofile(held_out)
    corpus = data.load(Settings(bin=(train, held_out), length=8))
    assert (corpus.unit, corpus.vocabulary, len(corpus.train), len(corpus.held_out)) == ("token", 50257, 100, 65)
    assert isinstance(corpus.train, np.memmap)
    assert corpus.sha256 == hashlib.sha256(train.read_bytes() + held_out.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("train", "held_out", "message"),
    [
        (b"", b"ab" * 100, "is empty"),
        (b"abc", b"ab" * 100, "has 3 bytes, an odd number"),
        (b"ab" * 100, b"ab" * 64, "has 64 tokens; --length 8 needs 65"),
        (b"ab" * 8, b"ab" * 100, "has 8 tokens; --length 8 needs 9"),
        (None, b"ab" * 100, "cannot be read"),
    ],
)
def test_bad_token_files_are_refused_in_words(tmp_path, train, held_out, message):
    paths = tmp_path / "train.bin", tmp_path / "val.bin"
    for path, content in zip(paths, (train, held_out), strict=True):
        if content is not None:
            path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        data.load(Settings(bin=paths, length=8))
