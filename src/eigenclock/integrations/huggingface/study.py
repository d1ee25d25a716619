"""Ways of extending one model compared: loss along long texts and short answers, kept after every block so that a stopped study goes on."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eigenclock.errors import ConfigError
from eigenclock.integrations.huggingface.answers import QUESTIONS, answers, right
from eigenclock.integrations.huggingface.evaluate import PIECE, block_losses
from eigenclock.integrations.huggingface.extend import METHODS, extend
from eigenclock.integrations.huggingface.scaling import yarn_numbers
from eigenclock.present.files import write_whole
from eigenclock.present.table import Table
from eigenclock.registry import nearest

PLAIN = "plain"
"""The model as it is."""


@dataclass
class Study:
    """Losses by text and method, one for each block; answers to short questions by method; what they were measured on.

    settings: the length extended to, tokens read, the block, YaRN's numbers, and of each text the sha256 of its tokens and their number.
    unfinished: [text, method] where the run was stopped: its losses are those of the blocks so far.
    """

    settings: dict[str, Any]
    losses: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    answers: dict[str, dict[str, str]] = field(default_factory=dict)
    unfinished: list[str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {"settings": self.settings, "losses": self.losses, "answers": self.answers, "unfinished": self.unfinished}

    def tables(self) -> list[Table]:
        """One table for each text: a row for each method, a column for each block; and one of the answers."""
        block = self.settings["block"]
        out = []
        for text, rows in self.losses.items():
            count, end = max(len(row) for row in rows.values()), self.settings["read"][text]
            columns = ("method", *(f"{i * block}-{min((i + 1) * block, end)}" for i in range(count)))
            cells = tuple((name, *row, *[""] * (count - len(row))) for name, row in rows.items())
            out.append(Table(f"Loss in nats per token: {text}", columns, cells))
        if self.answers:
            out.append(self._answers())
        return out

    def _answers(self) -> Table:
        """How many answers have the word that a right one has, and every answer that is another one than the first method's."""
        first = next(iter(self.answers))
        rows = []
        for method, said in self.answers.items():
            rows.append((method, f"{sum(right(q, a) for q, a in said.items())} of {len(said)} right", "", ""))
            shown = [(q, a) for q, a in said.items() if method == first or a != self.answers[first][q]]
            rows += [("", q, a, "right" if right(q, a) else "WRONG") for q, a in shown]
        return Table(f"Greedy answers (those that differ from {first})", ("method", "question", "answer", ""), tuple(rows))


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
    tokenizer: Any = None,
    attention_factor: float | None = None,
    beta_fast: float | None = None,
    beta_slow: float | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Study:
    """The loss of every block of every text under every method, and what each answers to ten short questions.

    A loss alone misleads: YaRN with the paper's attention factor has the lowest one on SmolLM2 and answers the first question with
    nonsense.

    Args:
        load: makes the model afresh, since an extension changes it.
        texts: token ids (T,) of each text, by name.
        to: the length that the methods extend to.
        methods: "plain" and names of ``METHODS``.
        tokens: how many tokens of each text are read.
        piece: tokens of one forward.
        results: a JSON file that keeps what is done, after every block; a study stopped in between goes on from it (a text it was in the
            middle of is read again), and one with other settings is refused.
        tokenizer: the model's, for the ten questions; without it none are asked.
        attention_factor, beta_fast, beta_slow: for the method yarn, as in :func:`extend`.
        progress: called with a line after every block.
    Raises: ConfigError where a method is unknown, a text is too short, or the file holds another study.
    """
    for method in methods:
        if method != PLAIN and method not in METHODS:
            raise ConfigError(f"got the method {method!r}; {nearest(method, [PLAIN, *METHODS])}")
    for name, ids in texts.items():
        if len(ids) < 2:
            raise ConfigError(f"got the text {name} of {len(ids)} tokens; expected at least two")
    given: dict[str, float | None] = {"attention_factor": attention_factor, "beta_fast": beta_fast, "beta_slow": beta_slow}
    yarn = yarn_numbers("yarn", given)
    rows = {name: ids[: tokens + 1] for name, ids in texts.items()}
    sha = {name: hashlib.sha256(ids.to(torch.int64).numpy().tobytes()).hexdigest() for name, ids in rows.items()}
    read = {name: len(ids) - 1 for name, ids in rows.items()}
    study = _started({"to": to, "tokens": tokens, "block": block, "yarn": asdict(yarn), "texts": sha, "read": read}, results)

    def keep() -> None:
        if results is not None:
            write_whole(results, json.dumps(study.to_dict(), indent=1).encode())

    for method in methods:
        left = [name for name in rows if method not in study.losses.get(name, {}) or study.unfinished == [name, method]]
        asks = tokenizer is not None and study.answers.get(method, {}).keys() != QUESTIONS.keys()
        if not left and not asks:
            continue
        model = load()
        if method != PLAIN:
            extend(model, to=to, method=method, **(given if method == "yarn" else {}))
        if asks:
            study.answers[method] = answers(model, tokenizer)
            keep()
            progress(f"{method}: {sum(right(q, a) for q, a in study.answers[method].items())} of {len(QUESTIONS)} answers right")
        for name in left:
            of_text = study.losses.setdefault(name, {})

            def note(
                losses: list[float], done: int, name: str = name, method: str = method, of_text: dict[str, list[float]] = of_text
            ) -> None:
                of_text[method], study.unfinished = losses, [name, method]
                keep()
                progress(f"{method} on {name}: block {len(losses)}, {done} of {read[name]} tokens, loss {losses[-1]:.3f}")

            of_text[method] = block_losses(model, rows[name], block=block, piece=piece, progress=note)
            study.unfinished = None
            keep()
    return study


def _started(settings: dict[str, Any], results: str | os.PathLike[str] | None) -> Study:
    """What the file holds of this study, or a new one."""
    if results is None or not Path(results).exists():
        return Study(settings)
    try:
        kept = json.loads(Path(results).read_text())
        study = Study(kept["settings"], kept["losses"], kept["answers"], kept["unfinished"])
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"got {os.fspath(results)}, which holds no study; expected a file that a study wrote, or none") from None
    if study.settings != settings:
        raise ConfigError(
            f"got {os.fspath(results)} of a study with {study.settings}; expected one with {settings}: name another file, or remove it"
        )
    return study
