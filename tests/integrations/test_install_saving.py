"""A model with an installed encoding is copied, pickled, saved, loaded and compiled like any other."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from integrations.conftest import tiny
from torch import Tensor

from eigenclock.errors import ConfigError
from eigenclock.integrations.huggingface import install, installed, load

pytestmark = pytest.mark.peer("transformers")

SPECS = {
    "own": None, "damped": "damped_rope(half_life=16, learn='rate')", "learned clock": "fox(features=64)",
    "clock per channel": "wall(features=64)",
}  # fmt: skip


@torch.no_grad()
def logits(model: Any, tokens: Tensor, **options: Any) -> Tensor:
    return model(tokens, **options).logits


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_copies_and_pickles_are_whole(spec: str | None, tokens: Tensor, tmp_path: Path) -> None:
    """After a training step too: what a forward kept for its clock is gone. The way back is in the copy."""
    model = tiny()
    plain = logits(model, tokens)
    install(model, spec)
    model.train()
    model(tokens, labels=tokens, use_cache=False).loss.backward()
    model.eval()
    wanted = logits(model, tokens)
    torch.save(model, tmp_path / "model.pt")
    for other in (copy.deepcopy(model), torch.load(tmp_path / "model.pt", weights_only=False)):
        assert torch.equal(logits(other, tokens), wanted)
        assert installed(other).model is other and installed(other).encodings[0] is not installed(model).encodings[0]
        installed(other).uninstall()
        assert torch.equal(logits(other, tokens), plain)
        with pytest.raises(ConfigError, match="without an installed"):
            installed(other)
    assert torch.equal(logits(model, tokens), wanted)


def test_a_pickle_runs_in_another_process(tokens: Tensor, tmp_path: Path) -> None:
    model = tiny()
    install(model, "damped_rope(half_life=16)")
    torch.save((model, tokens, logits(model, tokens)), tmp_path / "model.pt")
    code = (
        "import sys, torch\n"
        "model, tokens, wanted = torch.load(sys.argv[1], weights_only=False)\n"
        "with torch.no_grad():\n"
        "    assert torch.allclose(model(tokens).logits, wanted, atol=1e-6)\n"
        "    assert model.generate(tokens, max_new_tokens=2).shape == (2, 26)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "model.pt")], check=True, capture_output=True)


def test_load_gives_the_model_in_the_dtype_asked_for(tokens: Tensor, tmp_path: Path) -> None:
    model = tiny()
    found = install(model, "damped_rope(half_life=16, learn='rate')")
    with torch.no_grad():
        found.encodings[1].values["rate"].raw.fill_(0.7001)  # a number that bfloat16 does not hold
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert type(again) is type(model) and again.dtype == torch.float32 and not again.training
    assert torch.equal(logits(again, tokens), logits(model, tokens))
    half = load(tmp_path, dtype=torch.bfloat16, device="cpu")
    assert half.dtype == half.model.layers[0].self_attn.q_proj.weight.dtype == torch.bfloat16
    assert torch.equal(installed(half).encodings[1].values["rate"].raw, found.encodings[1].values["rate"].raw)
    assert torch.allclose(logits(half, tokens).float(), logits(model, tokens), atol=0.02)
    assert load(tmp_path, dtype="float64").dtype == torch.float64
    assert load(tmp_path, device="meta").model.layers[0].self_attn.q_proj.weight.is_meta
    installed(again).uninstall()
    assert torch.equal(logits(again, tokens), logits(tiny(), tokens))


def test_load_makes_the_class_that_was_saved(tokens: Tensor, tmp_path: Path) -> None:
    model = tiny().model
    install(model, "fox(features=64)")
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert type(again) is type(model)
    with torch.no_grad():
        assert torch.equal(again(tokens)[0], model(tokens)[0])


def test_folders_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no config.json"):
        load(tmp_path / "nowhere")
    tiny().save_pretrained(tmp_path / "plain")
    with pytest.raises(ConfigError, match="no eigenclock encoding"):
        load(tmp_path / "plain")
    model = tiny().model
    install(model, "alibi").model.save_pretrained(tmp_path / "base")
    from transformers import LlamaForCausalLM

    with pytest.raises(ConfigError, match=r"without the weights \['lm_head"):
        load(tmp_path / "base", LlamaForCausalLM)


@pytest.mark.parametrize(
    ("kind", "spec", "ways"),
    [
        ("llama", None, ("whole", "packed", "four axes")),
        ("llama", "damped_rope(half_life=16)", ("padded", "packed")),
        ("llama", "fox(features=64)", ("padded",)),
        ("gemma3_text", None, ("whole",)),
    ],
    ids=["rotation", "decay", "learned clock", "windows"],
)
def test_one_graph(kind: str, spec: str | None, ways: tuple[str, ...], tokens: Tensor) -> None:
    """torch.compile(fullgraph=True), whole or as named, and decoded against a cache."""
    torch._dynamo.reset()
    types = {"layer_types": ["sliding_attention", "full_attention"]} if kind == "gemma3_text" else {}
    model = tiny(kind, num_hidden_layers=len(types.get("layer_types", "1")), **types)
    install(model, spec)
    graph = torch.compile(model, fullgraph=True, backend="eager")
    padding = torch.ones_like(tokens)
    padding[0, :5] = 0
    calls: dict[str, dict[str, Any]] = {
        "whole": {}, "padded": {"attention_mask": padding},
        "packed": {"position_ids": torch.cat([torch.arange(10), torch.arange(14)])[None]},
        "four axes": {"attention_mask": torch.ones(2, 1, 24, 24, dtype=torch.bool).tril().triu(-9)},
    }  # fmt: skip
    for name in ways:
        got, wanted = (logits(one, tokens, use_cache=False, **calls[name])[padding.bool()] for one in (graph, model))
        assert torch.allclose(got, wanted, atol=1e-5), name
    wanted = logits(model, tokens)
    with torch.no_grad():
        prompt = model(tokens[:, :20], use_cache=True)
        cache, parts = prompt.cache, [prompt.logits]
        for i in range(20, 24):
            step = graph(tokens[:, i : i + 1], cache=cache, use_cache=True)
            cache = step.cache
            parts.append(step.logits)
    assert torch.allclose(torch.cat(parts, 1), wanted, atol=1e-5)


def test_one_graph_trains(tokens: Tensor) -> None:
    torch._dynamo.reset()
    model = tiny(num_hidden_layers=1).train()
    install(model, "damped_rope(half_life=8, learn='rate')")
    tokens = torch.randint(2, 100, (1, 200))
    rate = model.model.layers[0].self_attn.eigenclock.encoding.values["rate"].raw
    model(tokens, labels=tokens, use_cache=False).loss.backward()
    wanted, rate.grad = rate.grad.clone(), None
    torch.compile(model, fullgraph=True, backend="aot_eager")(tokens, labels=tokens, use_cache=False).loss.backward()
    assert torch.allclose(rate.grad, wanted, rtol=1e-4, atol=1e-9)
