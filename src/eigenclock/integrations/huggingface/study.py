"""Ways of extending one model compared on long texts: loss along the text, kept after every run so that a stopped study goes on."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eigenclock.errors import ConfigError
from eigenclock.integrations.huggingface.evaluate import PIECE, block_losses
from eigenclock.integrations.huggingface.extend import METHODS, extend
from eigenclock.present.files import write_whole
from eigenclock.present.table import Table
from eigenclock.registry import nearest

PLAIN = "plain"
"""The model as it is."""


@dataclass
class Study:
    """Losses by text and method, one for each block; what they were measured on.

    settings: the length extended to, tokens read, the block, the dtype, and the sha256 of each text's tokens.
    """

    settings: dict[str, Any]
    losses: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def tables(self) -> list[Table]:
        """One table for each text: a row for each method, a column for each block."""
        block = self.settings["block"]
        out = []
        for text, rows in self.losses.items():
            count = max(len(row) for row in rows.values())
            columns = ("method", *(f"{i * block}-{(i + 1) * block}" for i in range(count)))
            out.append(Table(f"Loss in nats per token: {text}", columns, tuple((name, *row) for name, row in rows.items())))
        return out


def run_study(
    load: Callable[[], Any],
    texts: Mapping[str, Tensor],
    *,
    to: int,
    methods: Sequence[str] = (PLAIN, "linear", "yarn", "damped", "recency"),
    tokens: int = 12288,
    block: int = 2048,
    piece: int = PIECE,
    results: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Study:
    """The loss of every block of every text under every method.

    Args:
        load: makes the model afresh, since an extension changes it.
        texts: token ids (T,) of each text, by name.
        to: the length that the methods extend to.
        methods: "plain" and names of ``METHODS``.
        tokens: how many tokens of each text are read.
        piece: tokens of one forward.
        results: a JSON file that keeps what is done; a study stopped in between goes on from it, and one with other settings is refused.
    Raises: ConfigError where a method is unknown, a text is too short, or the file holds another study.
    """
    for method in methods:
        if method != PLAIN and method not in METHODS:
            raise ConfigError(f"got the method {method!r}; {nearest(method, [PLAIN, *METHODS])}")
    for name, ids in texts.items():
        if len(ids) < block:
            raise ConfigError(f"got the text {name} of {len(ids)} tokens; expected at least one block of {block}")
    rows = {name: ids[: tokens + 1] for name, ids in texts.items()}
    sha = {name: hashlib.sha256(ids.to(torch.int64).numpy().tobytes()).hexdigest() for name, ids in rows.items()}
    study = _started({"to": to, "tokens": tokens, "block": block, "texts": sha}, results)
    for method in methods:
        left = [name for name in rows if method not in study.losses.get(name, {})]
        if not left:
            continue
        model = load()
        if method != PLAIN:
            extend(model, to=to, method=method)
        for name in left:
            progress(f"{method} on {name}")
            study.losses.setdefault(name, {})[method] = block_losses(model, rows[name], block=block, piece=piece)
            if results is not None:
                write_whole(results, json.dumps({"settings": study.settings, "losses": study.losses}, indent=1).encode())
    return study


def _started(settings: dict[str, Any], results: str | os.PathLike[str] | None) -> Study:
    """What the file holds of this study, or a new one."""
    if results is None or not Path(results).exists():
        return Study(settings)
    try:
        kept = json.loads(Path(results).read_text())
        before, losses = kept["settings"], kept["losses"]
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"got {os.fspath(results)}, which holds no study; expected a file that a study wrote, or none") from None
    if before != settings:
        raise ConfigError(
            f"got {os.fspath(results)} of a study with {before}; expected one with {settings}: name another file, or remove it"
        )
    return Study(settings, losses)
