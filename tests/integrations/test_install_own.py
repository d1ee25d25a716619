"""A model's own encoding installed through the project: the same model, and no farther from float64 than the original."""

import copy
from typing import Any

import pytest
import torch
from integrations.conftest import CLASSES, tiny
from torch import Tensor

from eigenclock.integrations.huggingface import MODEL_TYPES, install

pytestmark = pytest.mark.peer("transformers")


def test_every_family_is_tested() -> None:
    assert sorted(CLASSES) == sorted(MODEL_TYPES)


def padded(b: int, t: int) -> Tensor:
    mask = torch.ones(b, t, dtype=torch.long)
    mask[0, :5] = 0
    return mask


@torch.no_grad()
def ways(model: Any, tokens: Tensor) -> dict[str, Tensor]:
    """The logits of each way a model is called: whole, left padded, and decoded against a cache from token 15 on."""
    mask = padded(*tokens.shape)
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    out = {"whole": model(tokens).logits}
    out["padded"] = model(tokens, attention_mask=mask, position_ids=positions).logits[mask.bool()]
    prompt = model(tokens[:, :15], attention_mask=mask[:, :15], position_ids=positions[:, :15], use_cache=True)
    parts, cache = [], prompt.cache
    for i in range(15, tokens.shape[1]):
        step = model(
            tokens[:, i : i + 1], attention_mask=mask[:, : i + 1], position_ids=positions[:, i : i + 1], cache=cache, use_cache=True
        )
        parts.append(step.logits)
    out["decoded"] = torch.cat(parts, 1)
    return out


@pytest.mark.parametrize("kind", CLASSES)
def test_own_encoding_gives_the_same_logits(kind: str, tokens: Tensor) -> None:
    model = tiny(kind)
    before = ways(model, tokens)
    exact = ways(copy.deepcopy(model).double(), tokens)
    installed = install(model)
    after = ways(model, tokens)
    for name, original in before.items():
        top = original.abs().max()
        assert (after[name] - original).abs().max() <= 1e-5 * top, name
        original_error = (original - exact[name]).abs().max()
        assert (after[name] - exact[name]).abs().max() <= 1.1 * original_error + 4 * torch.finfo(torch.float32).eps * top, name
    installed.uninstall()
    again = ways(model, tokens)
    assert all(torch.equal(again[name], before[name]) for name in before)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_is_the_same(kind: str, beams: int, tokens: Tensor) -> None:
    model = tiny(kind)
    call: dict[str, Any] = {"attention_mask": padded(*tokens.shape), "max_new_tokens": 12, "num_beams": beams, "do_sample": False}
    before = model.generate(tokens, **call)
    install(model)
    assert torch.equal(model.generate(tokens, **call), before)


def test_packed_rows(tokens: Tensor) -> None:
    model = tiny()
    positions = torch.cat([torch.arange(10), torch.arange(14)])[None].expand(2, -1)
    with torch.no_grad():
        before = model(tokens, position_ids=positions, use_cache=False).logits
        install(model)
        after = model(tokens, position_ids=positions, use_cache=False).logits
        alone = model(tokens[:, 10:], use_cache=False).logits
    assert torch.allclose(after, before, atol=1e-6)
    assert torch.allclose(after[:, 10:], alone, atol=1e-6)


def test_a_mask_of_four_axes_passes_through(tokens: Tensor) -> None:
    model = tiny()
    allowed = torch.ones(24, 24, dtype=torch.bool).tril()[None, None].expand(2, 1, -1, -1).clone()
    allowed[..., 3] = False
    allowed[..., 3, 3] = True
    with torch.no_grad():
        before = model(tokens, attention_mask=allowed, use_cache=False).logits
        install(model)
        assert torch.allclose(model(tokens, attention_mask=allowed, use_cache=False).logits, before, atol=1e-6)


def test_gradients_and_checkpointing(tokens: Tensor) -> None:
    model = tiny().train()

    def gradients() -> list[Tensor]:
        model.zero_grad()
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    before = gradients()
    install(model)
    after = gradients()
    model.gradient_checkpointing_enable()
    checkpointed = gradients()
    for a, b, c in zip(before, after, checkpointed, strict=True):
        assert torch.allclose(a, b, atol=1e-6)
        assert torch.allclose(b, c, atol=1e-6)


def test_in_bfloat16_the_frequencies_stay_exact(tokens: Tensor) -> None:
    """The model's cast rounds transformers' own table; what is installed keeps its numbers."""
    model = tiny(max_position_embeddings=8192)
    exact = copy.deepcopy(model)
    install(model)
    model.bfloat16()
    positions = torch.arange(6000, 6024)[None]
    with torch.no_grad():
        wanted = exact(tokens, position_ids=positions, use_cache=False).logits
        got = model(tokens, position_ids=positions, use_cache=False).logits.float()
    assert (got - wanted).abs().max() < 0.03 * wanted.abs().max()
