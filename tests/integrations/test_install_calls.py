"""A model's own encoding installed, under every way that a decoder is called: the logits are the plain model's."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from integrations.conftest import tiny
from torch import Tensor

from eigenclock.errors import ClockError, ShapeError, UnsupportedError
from eigenclock.integrations.huggingface import install

pytestmark = pytest.mark.peer("transformers")

T = 18
KINDS = ("llama", "gemma3_text", "mistral")


def ones(*hidden: tuple[int, slice]) -> Tensor:
    mask = torch.ones(2, T, dtype=torch.long)
    for row, part in hidden:
        mask[row, part] = 0
    return mask


def packed(*lengths: int) -> Tensor:
    return torch.cat([torch.arange(n) for n in lengths])[None]


MASKS: dict[str, Tensor | None] = {
    "no mask": None, "all": ones(), "left": ones((0, slice(0, 5))), "right": ones((0, slice(14, T))),
    "in between": ones((0, slice(6, 9)), (1, slice(11, 13))),
}  # fmt: skip
POSITIONS: dict[str, Tensor | None] = {
    "no positions": None, "from 40": torch.arange(T)[None] + 40, "packed": packed(10, 8).expand(2, -1),
    "packed by row": torch.cat([packed(10, 8), packed(5, 1, 12)]), "gaps": 3 * torch.arange(T)[None], "back": torch.arange(T).flip(0)[None],
    "ties": torch.arange(T)[None] // 3,
}  # fmt: skip
CUTS: dict[str, Sequence[int]] = {"no cache": (), "a new cache": (T,), "steps": (9, 10, 11, 12, T), "pieces": (4, 9, T)}


@torch.no_grad()
def logits(model: Any, tokens: Tensor, mask: Tensor | None, positions: Tensor | None, cuts: Sequence[int], **options: Any) -> Tensor:
    """The logits of all tokens, read in pieces against a cache or at once without one."""
    if not cuts:
        return model(tokens, attention_mask=mask, position_ids=positions, use_cache=False, **options).logits
    cache, parts, start = None, [], 0
    for stop in cuts:
        part = {
            "attention_mask": mask if mask is None else mask[:, :stop] if mask.ndim == 2 else mask[..., start:stop, :stop],
            "position_ids": None if positions is None else positions[:, start:stop],
        }
        out = model(tokens[:, start:stop], cache=cache, use_cache=True, **part, **options)
        cache, start = out.cache, stop
        parts.append(out.logits)
    return torch.cat(parts, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_mask_position_and_cache(kind: str, tokens: Tensor) -> None:
    """Positions turn, and never say who sees whom: but without mask and cache those that start again are packed documents."""
    tokens, model = tokens[:, :T], tiny(kind)
    ways = list(itertools.product(MASKS, POSITIONS, CUTS))
    calls = [(tokens, MASKS[mask], POSITIONS[positions], CUTS[cuts]) for mask, positions, cuts in ways]
    before = [logits(model, *call) for call in calls]
    install(model)
    for way, call, plain in zip(ways, calls, before, strict=True):
        real = torch.ones(2, T, dtype=torch.bool) if call[1] is None else call[1].bool()
        assert torch.allclose(logits(model, *call)[real], plain[real], atol=1e-5), way
    by_name = dict(zip(ways, before, strict=True))
    apart = by_name["no mask", "packed", "no cache"] - by_name["no mask", "packed", "a new cache"]
    assert apart.abs().max() > 0.1  # the two are different calls to transformers, and to the test


@pytest.mark.parametrize("form", ["booleans", "added"])
def test_masks_of_four_axes(form: str, tokens: Tensor) -> None:
    """A mask of four axes is all that says who sees whom: also later tokens, as in a prefix, and far ones on sliding layers."""
    tokens = tokens[:, :T]
    seen = torch.ones(T, T, dtype=torch.bool).tril()
    seen[:6, :6] = True
    seen[9:, 7] = False
    mask = seen[None, None].expand(2, 1, -1, -1)
    if form == "added":
        mask = torch.zeros(2, 1, T, T).masked_fill(~mask, torch.finfo(torch.float32).min)
    for kind, cuts in (("llama", ()), ("llama", (T,)), ("llama", (8, 9, T)), ("mistral", ())):
        for name in ("no positions", "packed by row", "back"):
            model = tiny(kind)
            plain = logits(model, tokens, mask, POSITIONS[name], cuts)
            install(model)
            assert torch.allclose(logits(model, tokens, mask, POSITIONS[name], cuts), plain, atol=1e-5), (kind, cuts, name)


def test_one_mask_for_each_layer_type(tokens: Tensor) -> None:
    tokens, model = tokens[:, :T], tiny("gemma3_text")
    seen = torch.ones(T, T, dtype=torch.bool).tril()[None, None]
    masks = {"full_attention": seen & (torch.arange(T) != 3), "sliding_attention": seen.triu(-4)}
    masks["full_attention"][..., 3, 3] = True
    with torch.no_grad():
        plain = model(tokens, attention_mask=masks, use_cache=False).logits
        install(model)
        assert torch.allclose(model(tokens, attention_mask=masks, use_cache=False).logits, plain, atol=1e-5)


def test_arguments_by_place(tokens: Tensor) -> None:
    """A decoder called with its mask and positions by place."""
    tokens, model = tokens[:, :T], tiny().model
    mask, positions = MASKS["left"], POSITIONS["gaps"]
    assert mask is not None
    with torch.no_grad():
        plain = model(tokens, mask, positions, use_cache=False)[0]
        install(model)
        assert torch.allclose(model(tokens, mask, positions, use_cache=False)[0][mask.bool()], plain[mask.bool()], atol=1e-5)


def test_assisted_generation_rolls_the_cache_back(tokens: Tensor) -> None:
    """Drafts that are refused leave the cache with their times, also on layers with a window."""
    for kind in ("llama", "gemma3_text"):
        model = tiny(kind, eos_token_id=None)
        prompt = torch.cat([tokens[:1, :8]] * 3, 1)
        call: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "prompt_lookup_num_tokens": 3}
        plain = model.generate(prompt, **call)
        install(model)
        assert torch.equal(model.generate(prompt, **call), plain), kind


@pytest.mark.parametrize("spec", ["alibi", "damped_rope(half_life=8)", "t5_bias(bidirectional=False)"])
def test_what_has_a_direction_is_never_turned_round(spec: str, tokens: Tensor) -> None:
    """Times that go back in a cache, and masks that look ahead, are refused in words where the law has nothing to say about them."""
    tokens, model = tokens[:, :T], tiny()
    install(model, spec)
    if spec != "t5_bias(bidirectional=False)":  # a table of lags needs no order
        for cuts in CUTS.values():
            if cuts:
                with pytest.raises(ClockError, match=r"go back at token"):
                    logits(model, tokens, None, POSITIONS["packed"], cuts)
    ahead = torch.ones(2, 1, T, T, dtype=torch.bool)
    with pytest.raises(UnsupportedError, match="later tokens"):
        logits(model, tokens, ahead, None, ())
    with pytest.raises(UnsupportedError, match="is_causal=False"):
        logits(model, tokens, None, None, (), is_causal=False)


def test_masks_and_positions_that_do_not_fit(tokens: Tensor) -> None:
    tokens, model = tokens[:, :T], tiny()
    install(model)
    for mask in (ones()[:, :-1], torch.ones(2, T, T), torch.ones(T), "causal"):
        with pytest.raises(ShapeError, match="attention_mask"):
            model(tokens, attention_mask=mask)
    with pytest.raises(ShapeError, match=r"attention_mask of shape \(2, 18\); expected \(2, 19\)"):
        model(tokens[:, :1], attention_mask=ones(), cache=model(tokens, use_cache=True).cache)
    with pytest.raises(ShapeError, match="position_ids"):
        model(tokens, position_ids=torch.arange(T))
    square = torch.ones(2, 1, T, T).tril()
    with pytest.raises(UnsupportedError, match="adds other numbers"):
        model(tokens, attention_mask=square * 0.5)
    with pytest.raises(UnsupportedError, match="int64"):
        model(tokens, attention_mask=square.long())
