"""One forward of the model: what its attention functions have to know beside queries, keys and values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eigenclock.errors import ClockError, ShapeError
from eigenclock.integrations.huggingface.cache import Timed, with_times
from eigenclock.integrations.huggingface.visible import read_masks

Advance = Callable[[Tensor], Tensor]
"""From the last time of each row, (B,), to the next one."""


@dataclass(frozen=True)
class Call:
    """What one forward knows.

    positions (B|1, T): the integer positions of the new tokens. times (B|1, T): the times given for them. mask (B, S): real tokens among
    all keys. documents (B|1, T): run numbers of packed documents. holes: whether padding may stand between real tokens, where
    transformers counts it in windows.
    """

    positions: Tensor
    times: Tensor | None
    mask: Tensor | None
    documents: Tensor | None
    cache: Any
    holes: bool = False


@dataclass(frozen=True)
class Timing:
    """The times of a prompt, (T,) or (B, T), and the rule that gives the time of each token generated after it."""

    times: Tensor
    advance: Advance


def read_call(decoder: Any, kwargs: dict[str, Any], timing: Timing | None) -> dict[str, Any]:
    """The keywords of a forward with times taken out of them and the call put in.

    Raises: ShapeError or ClockError where mask, positions or times do not fit the tokens.
    """
    kwargs = dict(kwargs)
    tokens = next((x for x in (kwargs.get("input_ids"), kwargs.get("inputs_embeds")) if x is not None), None)
    if tokens is None:
        return kwargs  # the model says what is missing
    b, t = tokens.shape[:2]
    name = "past_key_values" if kwargs.get("past_key_values") is not None else "cache"
    cache = kwargs.get(name)
    use = kwargs.get("use_cache")
    if cache is not None or ((decoder.config.use_cache if use is None else use) and not _checkpoints(decoder)):
        cache = kwargs[name] = with_times(cache, decoder.config)
    past = cache.get_seq_length() if cache is not None else 0
    mask = kwargs["attention_mask"] = read_masks(kwargs.get("attention_mask"), b, past + t)
    positions = kwargs.get("position_ids")
    times = kwargs.pop("times", None)
    if times is None and positions is not None and positions.is_floating_point():
        times, positions = positions, None  # transformers would take a fractional step for a new document
    times = _timed(timing, cache, past, b, t) if times is None and timing is not None else times
    if times is not None:
        times = torch.as_tensor(times, device=tokens.device)
        times = times[None] if times.ndim == 1 else times
        if times.ndim != 2 or times.shape[0] not in (1, b) or times.shape[1] != t:
            raise ShapeError(f"got times of shape {tuple(times.shape)} for {b} rows of {t} tokens; expected ({t},) or ({b}, {t})")
    documents = None
    if positions is None:
        positions = torch.arange(past, past + t, device=tokens.device)[None]
        kwargs["position_ids"] = positions
    elif positions.ndim != 2 or positions.shape[0] not in (1, b) or positions.shape[1] != t:
        raise ShapeError(f"got position_ids of shape {tuple(positions.shape)} for {b} rows of {t} tokens; expected (1, {t}) or ({b}, {t})")
    elif mask is None and cache is None:  # with a cache transformers attends across, whatever positions say
        documents = _documents(positions)
    padding = _padding(mask)
    kwargs["eigenclock"] = Call(positions, times, padding, documents, cache, padding is not None and _holes(padding))
    return kwargs


def _padding(mask: Any) -> Tensor | None:
    """Which keys are real tokens, (B, S), None where all are; masks of four axes reach the attention function by themselves."""
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        return None
    return None if not torch.compiler.is_compiling() and bool(mask.all()) else mask.bool()


def _holes(mask: Tensor) -> bool:
    """Whether padding stands between real tokens of a row; a compiled call takes it for possible."""
    real = mask.long()
    between = (real.cummax(-1).values * real.flip(-1).cummax(-1).values.flip(-1)) > real
    return torch.compiler.is_compiling() or bool(between.any())


def _checkpoints(decoder: Any) -> bool:
    return bool(getattr(decoder, "gradient_checkpointing", False) and decoder.training and torch.is_grad_enabled())


def _documents(positions: Tensor) -> Tensor | None:
    """Run numbers where positions start again, as packed rows of transformers do; None for one document."""
    starts = positions.diff(dim=-1, prepend=positions[:, :1] - 1) != 1
    return starts.cumsum(-1) if torch.compiler.is_compiling() or bool(starts.any()) else None


def _timed(timing: Timing, cache: Any, past: int, b: int, t: int) -> Tensor:
    """The times of the new tokens of a generation: those of the prompt, then one step of the rule for each token."""
    if not past:
        times = timing.times if timing.times.ndim == 2 else timing.times[None]
        if times.shape[-1] != t:
            raise ShapeError(f"got times for {times.shape[-1]} tokens of a prompt of {t}; expected one each")
        # beams and samples repeat the rows of the prompt
        return times if times.shape[0] in (1, b) or b % times.shape[0] else times.repeat_interleave(b // times.shape[0], 0)
    layer = next((layer for layer in cache.layers if isinstance(layer, Timed) and layer.kept is not None), None)
    if layer is None or layer.kept is None or layer.kept.stamps is None:
        raise ClockError("got a cache whose tokens were given no times; expected times from the prompt on")
    last, steps = layer.kept.stamps[:, -1].expand(b), []
    for _ in range(t):
        last = torch.as_tensor(timing.advance(last), device=last.device)
        if last.shape != (b,):
            raise ShapeError(f"got {tuple(last.shape)} from the rule that advances time; expected the next time of each row, ({b},)")
        steps.append(last)
    return torch.stack(steps, -1)
