"""What states and caches share: rows of their batch, and safetensors files, written whole or not at all."""

import os
from collections.abc import Mapping, Set
from typing import Any

import torch
from torch import Tensor

from eigenclock.errors import ConfigError, ShapeError, UnsupportedError
from eigenclock.present.files import file_error, write_whole


def row_numbers(rows: Any, batch: int, device: torch.device, what: str) -> Tensor:
    """The numbers of rows to pick, checked.

    Raises: ShapeError where they are no list of row numbers below the batch size.
    """
    index = torch.as_tensor(rows, device=device)
    if index.ndim != 1 or index.is_floating_point() or index.dtype == torch.bool:
        raise ShapeError(f"got rows of shape {tuple(index.shape)}, {index.dtype}; expected a list of row numbers")
    if index.numel() and not (int(index.min()) >= 0 and int(index.max()) < batch):
        raise ShapeError(f"got rows {index.tolist()} of a {what} with {batch} rows; expected numbers from 0 to {batch - 1}")
    return index


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor | None], about: dict[str, str]) -> None:
    """Write the tensors that are there with their metadata.

    Raises: UnsupportedError without the package safetensors; EigenclockError where the file cannot be written.
    """
    present = {name: x.detach().contiguous().cpu() for name, x in tensors.items() if x is not None}
    write_whole(path, _safetensors().save(present, metadata=about))


def read_tensors(
    path: str | os.PathLike[str], kind: str, needed: Set[str], known: Set[str], expected: str
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a file whose metadata name its format.

    Raises: UnsupportedError without the package safetensors; ConfigError where the file is of another kind; EigenclockError where it
        cannot be read.
    """
    _safetensors()
    from safetensors import SafetensorError, safe_open

    try:
        os.stat(path)  # safetensors reports a missing file without saying why
        with safe_open(os.fspath(path), framework="pt") as file:
            about: dict[str, str] = file.metadata() or {}
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except OSError as error:
        raise file_error("read", path, error) from error
    except SafetensorError as error:
        raise ConfigError(f"got {os.fspath(path)}, which is no safetensors file ({error}); expected {expected}") from None
    if about.get("format") != kind or not needed <= tensors.keys() <= known:
        raise ConfigError(f"got {os.fspath(path)}, which holds {sorted(tensors)}; expected {expected}")
    return tensors, about


def _safetensors() -> Any:
    try:
        import safetensors.torch as package
    except ImportError:
        raise UnsupportedError(
            "states and caches are saved with safetensors, which is not installed; install it with: pip install safetensors"
        ) from None
    return package
