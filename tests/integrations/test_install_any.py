"""Any encoding in a transformers decoder: decoding equals the whole, times are real, what learns is saved, misuse is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from integrations.conftest import tiny
from torch import Tensor

import eigenclock as ec
from eigenclock.errors import ClockError, ConfigError, ShapeError, UnsupportedError
from eigenclock.integrations.huggingface import install, load

pytestmark = pytest.mark.peer("transformers")

SPECS = {
    "nope": "nope", "alibi": "alibi", "both": "rope(theta=500, pairing='half') * alibi", "damped": "damped_rope(half_life=[4, 64])",
    "learned rates": "damped_rope(half_life=16, learn='rate')", "bias": "decay_bias(half_life=16)", "jordan": "jordan_rope",
    "fox": "fox(features=64)", "wall": "wall(features=64)", "selective": "selective_rope(features=64)",
    "side by side": "rope(head_dim=8) + nope(head_dim=8)",
}  # fmt: skip


@torch.no_grad()
def decoded(model: Any, tokens: Tensor, cuts: list[int], **options: Any) -> Tensor:
    """The logits of a sequence read in pieces against a cache."""
    cache, parts, start = None, [], 0
    for stop in [*cuts, tokens.shape[1]]:
        given = {name: value[..., start:stop] if name == "times" else value[:, :stop] for name, value in options.items()}
        out = model(tokens[:, start:stop], cache=cache, use_cache=True, **given)
        cache, start = out.cache, stop
        parts.append(out.logits)
    return torch.cat(parts, 1)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_pieces_equal_the_whole(kind: str, spec: str, tokens: Tensor) -> None:
    model = tiny(kind)
    install(model, spec)
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0
    with torch.no_grad():
        whole = model(tokens, attention_mask=mask, use_cache=False).logits
    assert torch.allclose(decoded(model, tokens, list(range(9, 24)), attention_mask=mask)[mask.bool()], whole[mask.bool()], atol=2e-5)
    assert torch.allclose(decoded(model, tokens, [3, 4, 15], attention_mask=mask)[mask.bool()], whole[mask.bool()], atol=2e-5)


def test_one_layer_equals_the_dense_sum(tokens: Tensor) -> None:
    """What reaches the output projection is the softmax over the oracle's scores, written out."""
    model = tiny(num_hidden_layers=1)
    enc = ec.damped_rope(16, heads=4, kv_heads=2, half_life=(2, 20)) * ec.alibi(16, heads=4, kv_heads=2)
    install(model, enc)
    attention, seen = model.model.layers[0].self_attn, {}
    attention.o_proj.register_forward_pre_hook(lambda module, args: seen.update(out=args[0]))
    attention.register_forward_pre_hook(lambda m, args, kwargs: seen.update(x=kwargs["hidden_states"]), with_kwargs=True)
    with torch.no_grad():
        model(tokens)
        q, k, v = (
            p(seen["x"]).unflatten(-1, (-1, 16)).transpose(1, 2).double() for p in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        wanted = ec.scores(q, k, enc).softmax(-1) @ v.repeat_interleave(2, 1)
    assert torch.allclose(seen["out"].double(), wanted.transpose(1, 2).flatten(2), atol=1e-6)


@pytest.mark.parametrize("spec", ["alibi", "damped_rope(half_life=8)", "fox(features=64)", "wall(features=64)"])
def test_packed_documents_are_those_alone(spec: str, tokens: Tensor) -> None:
    """Positions that start again mark documents: every encoding, and every clock, starts again with them."""
    model = tiny()
    install(model, spec)
    positions = torch.cat([torch.arange(10), torch.arange(14)])[None]
    with torch.no_grad():
        packed = model(tokens, position_ids=positions, use_cache=False).logits
        for part in (slice(0, 10), slice(10, 24)):
            assert torch.allclose(packed[:, part], model(tokens[:, part], use_cache=False).logits, atol=1e-5)


@pytest.mark.parametrize("spec", ["damped_rope(half_life=8)", "fox(features=64)", "wall(features=64)"])
def test_beams_carry_their_own_times(spec: str, tokens: Tensor) -> None:
    """The probability that beam search accumulates against its reordered cache is that of one forward over what it returns."""
    model = tiny(eos_token_id=None)
    install(model, spec)
    mask = torch.ones_like(tokens)
    mask[0, :5] = 0
    call: dict[str, Any] = {"max_new_tokens": 6, "num_beams": 4, "length_penalty": 0.0, "do_sample": False}
    out = model.generate(tokens, attention_mask=mask, return_dict_in_generate=True, output_scores=True, **call)
    whole = torch.cat([mask, torch.ones(2, 6, dtype=torch.long)], 1)
    with torch.no_grad():
        logits = model(out.sequences, attention_mask=whole, use_cache=False).logits[:, 23:-1].log_softmax(-1)
    assert torch.allclose(logits.gather(-1, out.sequences[:, 24:, None]).sum((1, 2)), out.sequences_scores, atol=1e-4)


STAMPS = 1_700_000_000_000_000_000 + torch.tensor([0, 5, 5, 9, 30, 31, 31, 90, 400, 401, 500, 777]).cumsum(0) * 10**9
TIMED = "damped_rope(half_life='5min', clock=timestamps(unit='ns', per='s')) * alibi(clock=timestamps(unit='ns', per='s'))"


def test_irregular_times_in_pieces(tokens: Tensor) -> None:
    tokens, model = tokens[:, :12], tiny()
    install(model, TIMED)
    times = torch.stack([STAMPS, STAMPS + torch.arange(12) * 10**9])
    with torch.no_grad():
        whole = model(tokens, times=times, use_cache=False).logits
        moved = model(tokens, times=times + 10**15, use_cache=False).logits
        even = model(tokens, times=STAMPS[0] + torch.arange(12) * 10**9, use_cache=False).logits
    assert torch.allclose(decoded(model, tokens, [4, 5, 6, 9], times=times), whole, atol=2e-5)
    assert torch.allclose(moved, whole, atol=1e-6)
    assert (even - whole).abs().max() > 1e-2


@pytest.mark.parametrize("beams", [1, 2])
def test_times_advance_by_the_rule_while_generating(beams: int, tokens: Tensor) -> None:
    tokens, model = tokens[:, :12], tiny(eos_token_id=None)
    installed = install(model, TIMED)
    with installed.times(STAMPS, advance=lambda last: last + 60 * 10**9):
        out = model.generate(tokens, max_new_tokens=5, do_sample=False, num_beams=beams)
    later = STAMPS[-1] + torch.arange(1, 6) * 60 * 10**9
    with torch.no_grad():
        whole = model(out, times=torch.cat([STAMPS, later]), use_cache=False).logits
    if beams == 1:
        assert torch.equal(whole[:, 11:-1].argmax(-1), out[:, 12:])
    else:  # the best of two beams is at least as probable as the greedy sequence
        with installed.times(STAMPS, advance=lambda last: last + 60 * 10**9):
            greedy = model.generate(tokens, max_new_tokens=5, do_sample=False)
        with torch.no_grad():
            other = model(greedy, times=torch.cat([STAMPS, later]), use_cache=False).logits
        score = [x[:, 11:-1].log_softmax(-1).gather(-1, y[:, 12:, None]).sum((1, 2)) for x, y in ((whole, out), (other, greedy))]
        assert (score[0] >= score[1] - 1e-4).all()
    with pytest.raises(ClockError, match="times"):
        model(tokens)


def test_fractional_positions_are_times(tokens: Tensor) -> None:
    """transformers takes a fractional step for a new document; here it is a time."""
    model = tiny()
    install(model)
    positions = torch.arange(24)[None] * 0.5
    with torch.no_grad():
        got = model(tokens, position_ids=positions, use_cache=False).logits
        assert torch.allclose(model(tokens, times=positions, use_cache=False).logits, got)
        stretched = tiny()
        install(stretched, {"full_attention": ec.rope(16, pairing="half", freq=ec.rope(16).generator().freq / 2)})
        assert torch.allclose(stretched(tokens, use_cache=False).logits, got, atol=1e-5)


@pytest.mark.parametrize("spec", ["damped_rope(half_life=16, learn='rate')", "fox(features=64)"])
def test_what_learns_is_trained_saved_and_loaded(spec: str, tokens: Tensor, tmp_path: Path) -> None:
    model = tiny().train()
    installed = install(model, spec)
    learned = {name: p for name, p in model.named_parameters() if ".eigenclock." in name}
    assert learned and len({id(e) for e in installed.encodings}) == 2
    model(tokens, labels=tokens, use_cache=False).loss.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in learned.values())
    torch.optim.SGD(learned.values(), lr=10.0).step()
    model.eval().save_pretrained(tmp_path / "model")
    again = load(tmp_path / "model")
    with torch.no_grad():
        assert torch.allclose(again(tokens).logits, model(tokens).logits, atol=1e-6)
    assert str(again.model.layers[0].self_attn.eigenclock.encoding) == str(installed.encodings[0])


@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_plain_transformers_refuses_a_saved_model(kind: str, tokens: Tensor, tmp_path: Path) -> None:
    """Without the project a saved model fails with one line, and is never taken for one with plain RoPE."""
    import transformers

    model = tiny(kind)
    install(model, "alibi").model.save_pretrained(tmp_path)
    with pytest.raises(KeyError, match="pip install eigenclock"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.allclose(load(tmp_path)(tokens).logits, model(tokens).logits, atol=1e-6)


def test_uninstalling_gives_the_configuration_back() -> None:
    model = tiny()
    before = model.config.to_dict()
    installed = install(model, "fox(features=64)")
    assert any(".eigenclock." in name for name in model.state_dict())
    installed.uninstall()
    assert model.config.to_dict() == before
    assert not any("eigenclock" in name for name in model.state_dict())


def test_refusals(tokens: Tensor) -> None:
    from transformers import BertConfig, BertModel, StaticCache

    with pytest.raises(UnsupportedError, match=r"bert.*llama"):
        install(BertModel(BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=9)))
    with pytest.raises(UnsupportedError, match="Linear"):
        install(torch.nn.Linear(2, 2))
    model = tiny()
    with pytest.raises(ShapeError, match="head_dim=16"):
        install(model, ec.rope(32))
    with pytest.raises(ConfigError, match=r"3 encodings for 2 layers"):
        install(model, ["rope"] * 3)
    with pytest.raises(ConfigError, match="full_attention"):
        install(model, {"sliding_attention": "rope"})
    plain = model(tokens, use_cache=True).cache
    install(model, "alibi")
    with pytest.raises(ConfigError, match="uninstall"):
        install(model, "alibi")
    with pytest.raises(UnsupportedError, match="filled before"):
        model(tokens[:, :1], cache=plain)
    with pytest.raises(UnsupportedError, match="Static"):
        model(tokens, cache=StaticCache(config=model.config, max_cache_len=32))
    with pytest.raises(ShapeError, match="times"):
        model(tokens, times=torch.arange(5))
    model.train()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    with pytest.raises(UnsupportedError, match="dropout"):
        model(tokens, use_cache=False)
