"""nanoGPT's loop: resuming, the learning rate of what an encoding learns, longer contexts, generation with keys kept."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from integrations.minimal import NanoGPT
from torch import Tensor

import eigenclock as ec
from eigenclock.errors import ConfigError, EigenclockError, ShapeError, UnsupportedError
from eigenclock.integrations import nanogpt
from eigenclock.integrations.optimizers import positional_parameters

IDS = torch.randint(0, 50, (2, 20), generator=torch.Generator().manual_seed(1))
LEARNS = "damped_rope(half_life=[4.0, 64.0], learn='rate')"
PEAK = 1e-2


def made(spec: str = LEARNS, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = NanoGPT()
    nanogpt.install(model, spec)
    return model


def optimizer_of(model: NanoGPT, lr: float | None = None) -> torch.optim.AdamW:
    optimizer = model.configure_optimizers(weight_decay=0.1, learning_rate=PEAK)
    nanogpt.exempt(optimizer, model, lr=lr)
    return optimizer


def train(model: NanoGPT, optimizer: Any, steps: range) -> None:
    """The loop of train.py: one rate for all groups, then a step."""
    for i in steps:
        for group in optimizer.param_groups:
            group["lr"] = PEAK * (i + 1) / 8
        model(IDS, IDS.roll(-1, 1))[1].backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def test_a_resumed_run_is_the_run() -> None:
    whole, first = made(), made()
    straight, stopped = optimizer_of(whole, lr=0.3), optimizer_of(first, lr=0.3)
    train(whole, straight, range(8))
    train(first, stopped, range(4))
    saved = {"model": first.state_dict(), "optimizer": stopped.state_dict()}
    resumed = made(seed=9)
    resumed.load_state_dict(saved["model"])
    optimizer = optimizer_of(resumed, lr=0.3)
    optimizer.load_state_dict(saved["optimizer"])
    train(resumed, optimizer, range(4, 8))
    for p, q in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(p, q)
    without = resumed.configure_optimizers(weight_decay=0.1, learning_rate=PEAK)
    with pytest.raises(ValueError, match="parameter groups"):
        without.load_state_dict(saved["optimizer"])


def test_the_schedule_does_not_overwrite_the_rate() -> None:
    """Adam's first step moves each number by the learning rate: rates by theirs, weights by the schedule's."""
    model = made()
    optimizer = optimizer_of(model, lr=0.3)
    rates, weight = positional_parameters(model), model.transformer.h[0].attn.c_attn.bias
    before, bias = [p.detach().clone() for p in rates], weight.detach().clone()
    train(model, optimizer, range(1))
    for p, start in zip(rates, before, strict=True):  # the largest: tiny gradients move less
        assert abs(float((p - start).detach().abs().max()) - 0.3 / 8) < 1e-4
    assert float((weight - bias).detach().abs().max()) < 1.01 * PEAK / 8
    assert {group["lr"] for group in optimizer.param_groups} == {PEAK / 8}  # what the loop wrote is what it reads


def test_a_rate_that_is_none_is_refused() -> None:
    model = made()
    optimizer = model.configure_optimizers(weight_decay=0.1, learning_rate=PEAK)
    for lr in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="positive learning rate"):
            nanogpt.exempt(optimizer, model, lr=lr)


def again(model: NanoGPT, idx: Tensor, new: int, temperature: float, top_k: int | None) -> Tensor:
    """Sampling with the whole context for every token."""
    for _ in range(new):
        logits = model(idx)[0][:, -1] / temperature
        if top_k is not None:
            logits[logits < torch.topk(logits, top_k).values[:, [-1]]] = -float("inf")
        idx = torch.cat([idx, torch.multinomial(logits.softmax(-1), 1)], 1)
    return idx


@pytest.mark.parametrize(
    "spec", ["rope * alibi", LEARNS, "fox(features=32)", "mamba2(features=32)", "t5_bias", "kerple_log", "jordan_rope(half_life=9)"]
)
def test_generation_with_keys_kept_draws_the_same(spec: str) -> None:
    torch.manual_seed(0)
    model: Any = NanoGPT(block_size=64).double().eval()
    nanogpt.install(model, spec)
    lengths: list[int] = []
    model.transformer.wte.register_forward_hook(lambda module, args, out: lengths.append(args[0].shape[1]))
    for temperature, top_k in ((1.0, None), (0.7, 5)):
        torch.manual_seed(3)
        wanted = again(model, IDS[:, :7], 30, temperature, top_k)
        lengths.clear()
        torch.manual_seed(3)
        got = nanogpt.generate(model, IDS[:, :7], 30, temperature=temperature, top_k=top_k)
        assert torch.equal(got, wanted)
        assert lengths == [7] + [1] * 29
    assert all(block.attn.cache is None and not block.attn.keeps for block in model.transformer.h)
    assert torch.equal(model(IDS)[0], model(IDS)[0])


def test_keys_are_let_go_after_an_error() -> None:
    model = made("rope").eval()
    with pytest.raises(RuntimeError):
        nanogpt.generate(model, IDS[:, :7], 3, temperature=float("nan"))
    assert all(block.attn.cache is None and not block.attn.keeps for block in model.transformer.h)


def test_longer_contexts() -> None:
    model = made("rope(freq=yarn(4.0, original_length=64))")
    with pytest.raises(ShapeError, match="lengthen"):
        nanogpt.generate(model, IDS, 100)
    nanogpt.lengthen(model, 256)
    assert model.config.block_size == 256
    assert nanogpt.generate(model, IDS, 100).shape == (2, 120)
    with pytest.raises(ShapeError, match="crop_block_size"):
        nanogpt.lengthen(model, 128)


@pytest.mark.parametrize("call", [lambda m: nanogpt.lengthen(m, 99), lambda m: nanogpt.generate(m, IDS, 2)])
def test_a_model_without_an_encoding_is_refused(call: Callable[[NanoGPT], Any]) -> None:
    with pytest.raises(UnsupportedError, match="without an encoding"):
        call(NanoGPT())


def test_a_vector_for_each_position_ends_where_it_ends() -> None:
    model = NanoGPT()
    nanogpt.install(model, ec.learned_absolute(8, heads=4, length=80))
    nanogpt.lengthen(model, 80)
    with pytest.raises(EigenclockError, match="ends at position 80"):
        nanogpt.lengthen(model, 81)
