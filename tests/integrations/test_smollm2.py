"""A real pretrained model: its GGUF file read in the right layout, and its own rotation installed through the project."""

from pathlib import Path
from typing import Any

import pytest
import torch

from eigenclock.errors import ConfigError
from eigenclock.integrations.huggingface import from_gguf, install
from eigenclock.integrations.huggingface.files import Source, smollm2
from eigenclock.integrations.layout import convert

pytestmark = [pytest.mark.peer("transformers", "gguf"), pytest.mark.assets("smollm2")]


@pytest.fixture(scope="module")
def source() -> Source:
    return Source("smollm2")


@pytest.fixture
def model(source: Source) -> Any:
    return source.load()


def test_the_weights_are_those_of_transformers_own_loader(model: Any) -> None:
    from transformers import AutoModelForCausalLM

    path = smollm2()
    wanted = dict(AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name).named_parameters())
    got = dict(model.named_parameters())
    assert got.keys() == wanted.keys()
    assert all(torch.equal(got[name], wanted[name]) for name in wanted)


def test_greedy_generation_is_the_same_with_its_own_rotation_installed(model: Any, source: Source) -> None:
    tokenizer = source.tokenizer()
    prompts = ["The capital of France is", "Write one sentence about the sea and the people who live beside it:"]
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.pad_token or tokenizer.eos_token
    call = {**tokenizer(prompts, return_tensors="pt", padding=True), "max_new_tokens": 24, "do_sample": False}
    before = model.generate(**call)
    installed = install(model)
    assert torch.equal(model.generate(**call), before)
    assert "Paris" in tokenizer.decode(before[0])
    installed.uninstall()


def test_logits_are_no_farther_from_float64_than_the_original(model: Any, source: Source) -> None:
    tokens = source.tokens("english")[None, 400:528]
    with torch.no_grad():
        original = model(tokens, use_cache=False).logits
        installed = install(model)
        ours = model(tokens, use_cache=False).logits
        installed.uninstall()
        exact = model.double()(tokens, use_cache=False).logits
    top = original.abs().max()
    assert (ours - original).abs().max() <= 1e-5 * top
    # One token's rounding is luck, in either direction: the errors are compared as wholes.
    assert (ours - exact).square().mean().sqrt() <= 1.1 * (original - exact).square().mean().sqrt()


def test_the_layout_of_the_file_is_a_trap(model: Any, source: Source) -> None:
    """Rows as they lie in the file fit, and nothing fails: only the loss says that the pairs are others."""
    tokens = source.tokens("english")[None, :200]
    with torch.no_grad():
        right = model(tokens, labels=tokens).loss
        for layer in model.model.layers:
            for projection, heads in ((layer.self_attn.q_proj, 9), (layer.self_attn.k_proj, 3)):
                projection.weight.data = convert(projection.weight.data, heads=heads, to="interleaved")
        wrong = model(tokens, labels=tokens).loss
        install(
            model, f"rope(theta={model.config.rope_parameters['rope_theta']}, pairing='interleaved')"
        )  # eigenclock turns the file's pairs as they are
        turned = model(tokens, labels=tokens).loss
    assert wrong > right + 1
    assert turned == pytest.approx(float(right), abs=1e-4)


def test_what_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model at all, only some bytes")
    with pytest.raises(ConfigError, match=r"x\.gguf"):
        from_gguf(tmp_path / "x.gguf")
