"""nanoGPT and nanochat: the few lines of the patch on models of the same structure, compiled, trained, and with their optimisers' traps."""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from integrations.minimal import ChatCache, MuonAdamW, NanoChat, NanoGPT
from torch import Tensor, nn

import eigenclock as ec
from eigenclock.errors import ConfigError, ShapeError, UnsupportedError
from eigenclock.integrations import INTEGRATIONS, nanochat, nanogpt
from eigenclock.integrations.optimizers import exempt, positional_parameters

IDS = torch.randint(0, 50, (2, 20), generator=torch.Generator().manual_seed(1))
SPECS = {
    "rotation and bias": "rope * alibi", "learned rates": "damped_rope(half_life=8, learn='rate')", "learned clock": "fox(features=32)",
}  # fmt: skip


def test_every_integration_can_install() -> None:
    assert all(callable(import_module(module).install) for module in INTEGRATIONS.values())


def dense(model: NanoGPT, enc: ec.Encoding, idx: Tensor) -> Tensor:
    """nanoGPT's forward written out with the oracle's scores."""
    x = model.transformer.wte(idx)
    for block in model.transformer.h:
        q, k, v = (y.unflatten(-1, (4, -1)).transpose(1, 2) for y in block.attn.c_attn(block.ln_1(x)).chunk(3, -1))
        out = (ec.scores(q, k, enc).softmax(-1) @ v.double()).float()
        x = x + block.attn.c_proj(out.transpose(1, 2).flatten(-2))
        x = x + block.mlp(block.ln_2(x))
    return model.lm_head(model.transformer.ln_f(x))


def test_nanogpt_equals_the_dense_sum() -> None:
    model, enc = NanoGPT(), ec.damped_rope(8, heads=4, half_life=(2, 20)) * ec.alibi(8, heads=4)
    wanted = dense(model, enc, IDS)
    nanogpt.install(model, enc)
    got, loss = model(IDS, IDS)
    assert loss is not None and torch.allclose(got, wanted, atol=1e-6)


def test_nanogpt_has_no_absolute_positions_left() -> None:
    model = NanoGPT()
    before = model.get_num_params()
    nanogpt.install(model, "rope")
    assert model.get_num_params() == before
    assert not any("wpe" in name or "encoding" in name for name in model.state_dict())
    twice = torch.cat([IDS[:, :5], IDS[:, :5]], 1)
    shifted, _ = model(twice)
    assert (shifted[:, 5:] - shifted[:, :5]).abs().max() > 1e-3  # it does look back
    long = torch.randint(0, 50, (1, 200))  # far beyond the table it had
    assert torch.isfinite(model(long)[0]).all()
    model.crop_block_size(16)


@pytest.mark.parametrize("enc", [ec.gla(8, heads=4, features=32), ec.rope(8, heads=4, theta=[10.0, 100.0, 1e3, 1e4])], ids=["gate", "base"])
def test_nanochat_takes_a_law_per_query_head_on_shared_keys(enc: ec.Encoding) -> None:
    """The same as in a model with a key for each query head, whose rows are those of the shared keys repeated."""
    shared, own = NanoChat(kv_heads=2), NanoChat(kv_heads=4)
    state = shared.state_dict()
    for name, weight in state.items():
        if weight.shape != own.state_dict()[name].shape:
            axis = 1 if "value_embeds" in name else 0
            width = 1 if "ve_gate" in name else 8
            state[name] = weight.unflatten(axis, (2, width)).repeat_interleave(2, axis).flatten(axis, axis + 1)
    own.load_state_dict(state)
    for model in (shared, own):
        nanochat.install(model, enc)
    assert torch.allclose(shared(IDS), own(IDS), atol=1e-6)


def test_what_no_call_could_carry_is_refused_at_install() -> None:
    for install, model in ((nanogpt.install, NanoGPT), (nanochat.install, NanoChat)):
        with pytest.raises(UnsupportedError, match="linear_attention"):
            install(model(), "rwkv6(features=32)")
        with pytest.raises(ShapeError, match="activations"):
            install(model(), "fox(features=64)")


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_compiled_nanogpt_trains(spec: str) -> None:
    model = NanoGPT()
    nanogpt.install(model, spec)
    wanted = torch.autograd.grad(model(IDS, IDS)[1], list(model.parameters()), allow_unused=True)
    compiled = torch.compile(model)
    compiled(IDS, IDS)[1].backward()
    for p, w in zip(model.parameters(), wanted, strict=True):
        assert (p.grad is None and w is None) or torch.allclose(p.grad, w, atol=1e-5)


def test_nanogpts_optimiser_would_decay_tables_of_rates() -> None:
    def model() -> NanoGPT:
        torch.manual_seed(0)
        made = NanoGPT()
        nanogpt.install(made, "damped_rope(half_life=[4.0, 64.0], learn='rate')")
        return made

    trap, cured = model(), model()
    start = [p.detach().clone() for p in positional_parameters(trap)]
    assert all(p.dim() == 2 for p in start)
    optimizers = [m.configure_optimizers(weight_decay=0.5, learning_rate=0.1) for m in (trap, cured)]
    nanogpt.exempt(optimizers[1], cured)
    for optimizer in optimizers:  # no gradient at all: what moves is decay
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = torch.zeros_like(p)
        optimizer.step()
    assert all(not torch.equal(p, q) for p, q in zip(positional_parameters(trap), start, strict=True))
    assert all(torch.equal(p, q) for p, q in zip(positional_parameters(cured), start, strict=True))
    assert {id(p) for g in optimizers[1].param_groups for p in g["params"]} == {id(p) for p in cured.parameters()}


# --- nanochat -----------------------------------------------------------------------------------------------------------------------

OWN = "rope(theta=100000, pairing='half')"


def test_nanochats_own_rotation_is_reproduced() -> None:
    model = NanoChat()
    before = model(IDS)
    nanochat.install(model, nanochat.own(model))
    assert torch.allclose(model(IDS), before, atol=1e-5)
    swapped = NanoChat()
    swapped.load_state_dict(model.state_dict())
    nanochat.install(swapped, OWN)  # the other sign is another encoding for weights that are trained already
    assert (swapped(IDS) - before).abs().max() > 1e-2


@pytest.mark.parametrize("spec", [OWN, "rope(pairing='half') * alibi", "damped_rope(half_life=8)"])
def test_nanochat_decodes_against_its_own_cache(spec: str) -> None:
    model = NanoChat()
    nanochat.install(model, spec)
    cache = ChatCache(2, 2, 32, 2, 8)
    with torch.no_grad():
        whole = model(IDS)
        parts = [model(IDS[:, :7], kv_cache=cache), *(model(IDS[:, i : i + 1], kv_cache=cache) for i in range(7, 20))]
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-5)


def test_compiled_nanochat_trains() -> None:
    model = NanoChat()
    nanochat.install(model, "damped_rope(half_life=8, learn='rate')")
    wanted = torch.autograd.grad(model(IDS, IDS), list(model.parameters()))
    torch.compile(model)(IDS, IDS).backward()
    assert all(torch.allclose(p.grad, w, atol=1e-5) for p, w in zip(model.parameters(), wanted, strict=True) if p.grad is not None)


def test_muon_is_not_given_vectors_of_rates() -> None:
    model = NanoChat()
    nanochat.install(model, ec.damped_rope(8, heads=4, kv_heads=2, half_life=8, learn="rate"))
    model(IDS, IDS).backward()
    blocks = list(model.transformer.h.parameters())
    others = [p for p in model.parameters() if all(p is not q for q in blocks)]
    adamw = {"kind": "adamw", "params": others, "lr": 0.01, "weight_decay": 0.1, "initial_lr": 0.01}
    groups = [{"kind": "muon", "params": [p for p in blocks if p.shape == s], "lr": 0.02} for s in {p.shape for p in blocks}]
    optimizer = MuonAdamW([adamw, *groups])
    nanochat.exempt(optimizer, model, lr=0.005)
    optimizer.step()
    last = optimizer.param_groups[-1]
    assert (last["kind"], last["lr"], last["initial_lr"], last["weight_decay"]) == ("adamw", 0.005, 0.005, 0.0)
    assert {id(p) for g in optimizer.param_groups if g["kind"] == "adamw" for p in g["params"]} >= {
        id(p) for p in positional_parameters(model)
    }


# --- refusals, and the real thing -----------------------------------------------------------------------------------------------------


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match="nanoGPT"):
        nanogpt.install(nn.Linear(2, 2), "rope")
    with pytest.raises(UnsupportedError, match="nanochat"):
        nanochat.install(NanoGPT(), "rope")
    with pytest.raises(ShapeError, match="head_dim=8"):
        nanogpt.install(NanoGPT(), ec.rope(16))
    model = NanoGPT()
    for block in model.transformer.h:
        block.attn.dropout = 0.1
    with pytest.raises(UnsupportedError, match="dropout"):
        nanogpt.install(model, "rope")
    with torch.device("meta"):
        unborn = NanoChat()
    with pytest.raises(UnsupportedError, match="init_weights"):
        nanochat.install(unborn, "rope")
    learned = NanoGPT()
    optimizer = torch.optim.AdamW(learned.parameters())
    nanogpt.install(learned, "fox(features=32)")
    with pytest.raises(ConfigError, match="after install"):
        exempt(optimizer, learned)
    chat = NanoChat()
    nanochat.install(chat, "selective_rope(features=32)")
    with pytest.raises(UnsupportedError, match="cache"):
        chat(IDS, kv_cache=ChatCache(2, 2, 32, 2, 8))


def real(name: str) -> Path:
    """Where a checkout of the project lies, given by an environment variable; without one there is nothing to test."""
    path = os.environ.get(name)
    if not path:
        pytest.skip(f"missing: a checkout, whose path {name} names")
    return Path(path)


def loaded(monkeypatch: pytest.MonkeyPatch, folder: Path, module: str) -> Any:
    monkeypatch.syspath_prepend(str(folder))
    for name in [n for n in sys.modules if n == module.split(".")[0] or n.startswith(module.split(".")[0] + ".")]:
        monkeypatch.delitem(sys.modules, name)
    return import_module(module)


def test_real_nanogpt(monkeypatch: pytest.MonkeyPatch) -> None:
    module = loaded(monkeypatch, real("NANOGPT"), "model")
    config = module.GPTConfig(block_size=64, vocab_size=50, n_layer=2, n_head=4, n_embd=32, dropout=0.0)
    model = module.GPT(config)
    nanogpt.install(model, "damped_rope(half_life=16.0, learn='rate') * alibi")
    optimizer = model.configure_optimizers(0.1, 1e-2, (0.9, 0.95), "cpu")
    nanogpt.exempt(optimizer, model)
    compiled, losses = torch.compile(model), []
    for _ in range(8):
        _, loss = compiled(IDS, IDS.roll(-1, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < losses[0] - 0.3
    assert model.generate(IDS[:, :4], 5).shape == (2, 9)


def test_real_nanochat(monkeypatch: pytest.MonkeyPatch) -> None:
    module = loaded(monkeypatch, real("NANOCHAT"), "nanochat.gpt")
    config = module.GPTConfig(sequence_len=64, vocab_size=50, n_layer=2, n_head=4, n_kv_head=2, n_embd=64)
    model = module.GPT(config)
    model.init_weights()
    for block in model.transformer.h:  # zero projections would hide everything
        nn.init.normal_(block.attn.c_proj.weight, std=0.1)
    with torch.no_grad():
        before = model(IDS)
        nanochat.install(model, nanochat.own(model))
        assert torch.allclose(model(IDS), before, atol=2e-4)
    optimizer = model.setup_optimizer()
    nanochat.exempt(optimizer, model)
    assert torch.isfinite(model(IDS, IDS))
