"""A run folder: settings, metrics, checkpoints and results, written so that a kill at any moment loses little.

::

    config.json        settings, versions, sha256 of the corpus, specs of the encodings
    speed.json         seconds of a training step under each encoding
    metrics.jsonl      one line per logged step and per evaluation
    checkpoints/       the last state of each run, replaced whole
    runs/              one record per finished run
    result.json        the comparison: whole or absent
    report.html        the same, to look at
"""

import hashlib
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

from eigenclock.errors import ConfigError
from eigenclock.present.files import append_line, file_error, write_whole


class RunFolder:
    """Reads and writes one run folder.

    Raises:
        ConfigError: the folder holds something else, or what it holds cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def start(cls, path: Path, config: dict[str, Any]) -> "RunFolder":
        """A new folder, or one that was begun with the same configuration.

        Raises:
            ConfigError: the folder was begun with another configuration, or is no run folder.
            EigenclockError: it cannot be written.
        """
        folder = cls(path)
        try:
            used = path.exists() and (not path.is_dir() or any(path.iterdir()))
        except OSError as error:
            raise file_error("write", path, error) from None
        if not used:
            folder.write_json("config.json", config)
            return folder
        if not (path / "config.json").is_file():
            raise ConfigError(f"--out {path} exists and is no run folder; choose a name that does not exist yet")
        if differences := folder.differences(config):
            raise ConfigError(
                f"--out {path} holds a comparison that differs in {', '.join(differences)}; "
                f"choose another folder, or continue that one: eigenclock compare --resume {path}"
            )
        return folder

    @classmethod
    def resume(cls, path: Path) -> "RunFolder":
        """A folder that :meth:`start` made.

        Raises:
            ConfigError: there is no config.json in it.
        """
        if not (path / "config.json").is_file():
            raise ConfigError(f"--resume {path} has no config.json; give a folder that an earlier comparison wrote")
        return cls(path)

    def differences(self, config: dict[str, Any]) -> list[str]:
        """Names of what ``config`` fixes otherwise than the configuration the folder was begun with."""
        stored = self.config()
        names = []
        for part in ("settings", "corpus"):
            mine, theirs = config[part], stored[part]
            names += [name if part == "settings" else f"corpus {name}" for name in mine if mine[name] != theirs.get(name)]
        return names or [part for part in ("specs",) if config[part] != stored[part]]

    def file(self, name: str) -> Path:
        """Path of one file of the folder."""
        return self.path / name

    def config(self) -> dict[str, Any]:
        """What config.json holds."""
        found = self.read_json("config.json")
        kinds = {"settings": dict, "specs": list, "corpus": dict}
        if not isinstance(found, dict) or not all(isinstance(found.get(key), kind) for key, kind in kinds.items()):
            raise ConfigError(f"{self.file('config.json')} is damaged or of another version; start a new run folder")
        return found

    def read_json(self, name: str) -> Any:
        """Contents of a JSON file of the folder; None when there is no such file."""
        try:
            return json.loads(self.file(name).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.file(name)} cannot be read ({error}); restore it or start a new run folder") from None

    def write_json(self, name: str, content: Any) -> None:
        """Writes a JSON file whole. NaN is refused: readers other than Python cannot parse it."""
        write_whole(self.file(name), json.dumps(content, indent=1, allow_nan=False) + "\n")

    def write_text(self, name: str, content: str) -> None:
        """Writes a text file whole."""
        write_whole(self.file(name), content)

    def append(self, line: dict[str, Any]) -> None:
        """Adds a line to metrics.jsonl."""
        append_line(self.file("metrics.jsonl"), json.dumps(line, allow_nan=False))

    def metrics(self) -> list[dict[str, Any]]:
        """Lines of metrics.jsonl, less one that a kill cut short."""
        try:
            text = self.file("metrics.jsonl").read_text()
        except FileNotFoundError:
            return []
        lines = []
        for line in text.splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                continue
        return lines

    def rewind(self, encoding: str, seed: int, step: int) -> None:
        """Forgets what metrics.jsonl says of a run after ``step`` and of its evaluation: both will be written again."""
        lines = self.metrics()
        kept = [
            line
            for line in lines
            if (line["encoding"], line["seed"]) != (encoding, seed) or ("length" not in line and line["step"] <= step)
        ]
        whole = "".join(json.dumps(line) + "\n" for line in kept)
        path = self.file("metrics.jsonl")
        if path.exists() and path.read_text() != whole:
            write_whole(path, whole)

    def save(self, run: str, state: dict[str, Any]) -> None:
        """Writes a checkpoint whole; the one before stays until the new one is complete."""
        import torch

        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_whole(self.file(f"checkpoints/{run}.pt"), buffer.getvalue())

    def load(self, run: str) -> dict[str, Any] | None:
        """The last checkpoint of a run, or None."""
        import torch

        path = self.file(f"checkpoints/{run}.pt")
        if not path.exists():
            return None
        try:
            return torch.load(path, weights_only=True)
        except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
            raise ConfigError(f"{path} cannot be read ({type(error).__name__}); delete it to train this run again") from None


def run_name(spec: str, seed: int) -> str:
    """File name of a run: readable, and different for different specs.

    >>> run_name("rope * alibi", 3)[:14]
    'rope-alibi-s3-'
    """
    words = "-".join("".join(c if c.isalnum() else " " for c in spec).split())[:40]
    return f"{words}-s{seed}-{hashlib.sha256(spec.encode()).hexdigest()[:6]}"
