"""A run folder: settings, metrics, checkpoints and results, written so that a kill at any moment loses little.

::

    config.json        settings, versions, sha256 of the corpus, specs of the encodings
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
from eigenclock.present.files import write_whole


class RunFolder:
    """Reads and writes one run folder.

    Raises:
        ConfigError: the folder holds something else, or what it holds cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def start(cls, path: Path, config: dict[str, Any]) -> "RunFolder":
        """A new folder, or one whose settings are the same.

        Raises:
            ConfigError: the folder has other settings, other contents, or cannot be written.
        """
        folder = cls(path)
        try:
            used = path.exists() and (not path.is_dir() or any(path.iterdir()))
            if used and not folder.file("config.json").is_file():
                raise ConfigError(f"--out {path} exists and is no run folder; choose a name that does not exist yet")
            if used:
                folder.agree(config)
                return folder
            for part in (path, path / "checkpoints", path / "runs"):
                part.mkdir(parents=True, exist_ok=True)
            folder.write_json("config.json", config)
        except OSError as error:
            raise ConfigError(f"--out {path} cannot be written ({error.strerror}); choose another folder or make room; nothing was run") from None
        return folder

    @classmethod
    def resume(cls, path: Path) -> "RunFolder":
        """A folder that :meth:`start` made.

        Raises:
            ConfigError: there is no readable config.json in it.
        """
        if not (path / "config.json").is_file():
            raise ConfigError(f"--resume {path} has no config.json; give a folder that an earlier comparison wrote")
        return cls(path)

    def agree(self, config: dict[str, Any]) -> None:
        """Refuses when what ``config`` fixes differs from what the folder was begun with."""
        stored = self.config()
        for part in ("settings", "specs", "corpus"):
            mine, theirs = config[part], stored.get(part)
            if mine == theirs:
                continue
            names = part
            if isinstance(mine, dict) and isinstance(theirs, dict):
                names = ", ".join(key for key in {**theirs, **mine} if theirs.get(key) != mine.get(key))
            raise ConfigError(
                f"{self.path} was begun with other {part if names == part else f'{part} ({names})'}; "
                f"choose another --out, or continue it as it was begun: eigenclock compare --resume {self.path}"
            )

    def file(self, name: str) -> Path:
        """Path of one file of the folder."""
        return self.path / name

    def config(self) -> dict[str, Any]:
        """What config.json holds."""
        found = self.read_json("config.json")
        if not isinstance(found, dict) or not {"settings", "specs", "corpus"} <= set(found):
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

    def append(self, lines: list[dict[str, Any]]) -> None:
        """Adds lines to metrics.jsonl; they are on their way to the disk when this returns."""
        with self.file("metrics.jsonl").open("a") as stream:
            stream.write("".join(json.dumps(line, allow_nan=False) + "\n" for line in lines))

    def metrics(self) -> list[dict[str, Any]]:
        """Lines of metrics.jsonl; a last line that a kill cut short is dropped."""
        if not self.file("metrics.jsonl").exists():
            return []
        lines = []
        for line in self.file("metrics.jsonl").read_text().splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                continue
        return lines

    def rewind(self, encoding: str, seed: int, step: int) -> None:
        """Forgets metrics of a run after ``step``: they will be written again."""
        lines = self.metrics()
        kept = [line for line in lines if (line["encoding"], line["seed"]) != (encoding, seed) or (line["step"] <= step and "length" not in line)]
        if kept != lines or self._ragged():
            write_whole(self.file("metrics.jsonl"), "".join(json.dumps(line) + "\n" for line in kept))

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
            raise ConfigError(f"{path} cannot be read ({str(error).splitlines()[0]}); delete it to train this run again") from None

    def _ragged(self) -> bool:
        path = self.file("metrics.jsonl")
        return path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")


def run_name(spec: str, seed: int) -> str:
    """File name of a run: readable, and different for different specs.

    >>> run_name("rope * alibi", 3)[:14]
    'rope-alibi-s3-'
    """
    words = "-".join("".join(c if c.isalnum() else " " for c in spec).split())[:40]
    return f"{words}-s{seed}-{hashlib.sha256(spec.encode()).hexdigest()[:6]}"
