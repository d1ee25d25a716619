"""Vision towers of transformers, called on one picture of a few patches, with the coordinates that their rotary modules receive."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from config.real_attention import Watch, run, without_rotation
from config.shrunk import CannotRun, said

GRID = (4, 6)
GRIDS = {  # rows and columns of patches where a tower fixes or divides them
    **dict.fromkeys(("llama4_vision_model", "eomt_dinov3", "sam3_vit_model"), (4, 4)),
    "gemma4_vision": (3, 6),
}
COLUMN_FIRST = ("gemma4_vision", "muse_glimmer_vision", "muse_spark_vision", "sam3_vit_model")  # so are the ids of their rotary modules


def called(model: nn.Module, config: Any, axes: tuple[str, ...]) -> tuple[Watch, Watch, Tensor]:
    """What softmax received without and with rotation, and the times of the tokens in the order of the axes.

    Raises: CannotRun where no form of a picture fits.
    """
    problem: Exception | None = None
    grid = GRIDS.get(config.model_type, GRID)
    for inputs in _pictures(model, config, grid):
        for length in (grid[0] * grid[1] + more for more in (0, 1, 5, 9, 205)):  # with a class token, registers, queries
            places: list[Tensor] = []
            hooks = [
                part.register_forward_pre_hook(_take(places), with_kwargs=True)
                for part in model.modules()
                if "Rotary" in type(part).__name__
            ]
            try:
                with without_rotation(model):
                    still = run(model, inputs, length)
                real = run(model, inputs, length)
            except Exception as error:
                problem = error
                break
            finally:
                for hook in hooks:
                    hook.remove()
            if real.seen and len(still.seen) == len(real.seen):
                return still, real, _times(places, length, config.model_type, grid, axes)
    raise CannotRun(f"{type(model).__name__} cannot be called: {said(problem)}" if problem else "no softmax over the patches")


def _take(places: list[Tensor]) -> Any:
    def take(module: nn.Module, args: Any, kwargs: Any) -> None:
        found = kwargs.get("position_ids", args[1] if len(args) > 1 else None)
        if isinstance(found, Tensor):
            places.append(found)

    return take


def _times(places: list[Tensor], length: int, kind: str, grid: tuple[int, int], axes: tuple[str, ...]) -> Tensor:
    """The coordinates given to the rotary module, or those of its formula where it makes them itself."""
    given = [at.double().flatten(0, -2) for at in places if at.numel() == length * len(axes)]
    if given:
        return given[-1].flip(-1) if axes[0] == "width" and kind not in COLUMN_FIRST else given[-1]
    row, column = _patches(grid).double().unbind(-1)
    if kind == "llama4_vision_model":  # the class token is the last
        return torch.cat([torch.stack([column + 1, row + 1], -1), torch.zeros(1, 2)])
    at = torch.stack([(row + 0.5) / grid[0] * 2 - 1, (column + 0.5) / grid[1] * 2 - 1], -1)
    return torch.cat([torch.zeros(length - len(at), 2), at])


def _patches(grid: tuple[int, int]) -> Tensor:
    """The row and the column of every patch, (N, 2)."""
    return torch.stack(torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij"), -1).flatten(0, 1)


def _pictures(model: nn.Module, config: Any, grid: tuple[int, int]) -> list[dict[str, Any]]:
    """The forms in which a tower may take a picture of so many patches."""
    takes = list(inspect.signature(model.forward).parameters)
    rows, columns = grid
    size, count = config.patch_size, rows * columns
    channels = getattr(config, "in_channels", None) or getattr(config, "num_channels", None) or 3
    torch.manual_seed(0)
    whole = torch.randn(1, channels, rows * size, columns * size)
    frames = getattr(config, "temporal_patch_size", None) or getattr(config, "patch_size_t", None) or 1
    pieces = torch.randn(count, channels, size, size)
    flat, twice = (torch.randn(count, channels * n * size * size) for n in (frames, 2))
    rest: dict[str, Any] = {}
    if "grid_thw" in takes:
        rest["grid_thw"] = torch.tensor([[1, rows, columns]])
    if "merge_sizes" in takes:
        rest["merge_sizes"] = torch.tensor([1])
    if "image_sizes" in takes:
        rest["image_sizes"] = torch.tensor([[rows * size, columns * size]])
    if "pixel_position_ids" in takes:
        rest["pixel_position_ids"] = _patches(grid).flip(-1)[None]
    forms = [flat, pieces, pieces[None], flat[None], twice] if rest and "image_sizes" not in rest else [whole]
    if "image_grid_thw" in takes:  # in pieces of several patches
        merge = config.spatial_merge_size
        rest["image_grid_thw"] = torch.tensor([[1, rows // merge, columns // merge]])
        forms = [torch.randn(count // merge**2, merge * size, merge * size, channels)]
    return [{takes[0]: form, **rest} for form in forms]
