"""What is installed fits the model: rotations stand where its projections expect them, and gates per query head on shared keys."""

from typing import Any

import pytest
import torch
from integrations.conftest import CLASSES, tiny
from torch import Tensor

import eigenclock as ec
from eigenclock.errors import ClockError, ShapeError, UnsupportedError
from eigenclock.integrations.huggingface import install

pytestmark = pytest.mark.peer("transformers")

PLAIN = [kind for kind in CLASSES if kind not in ("gemma3_text", "smollm3")]  # one law for all layers


@torch.no_grad()
def logits(model: Any, tokens: Tensor) -> Tensor:
    return model(tokens, use_cache=False).logits


@pytest.mark.parametrize("kind", PLAIN)
def test_a_text_takes_the_layout_of_the_model(kind: str, tokens: Tensor) -> None:
    """Interleaved in Cohere, a quarter of the head in GPT-NeoX, halves elsewhere: the base alone is enough to say the same model."""
    model = tiny(kind, initializer_range=0.1)  # attention that is far from uniform
    plain = logits(model, tokens)
    theta = model.config.rope_parameters["rope_theta"]
    installed = install(model, f"rope(theta={theta})")
    assert (logits(model, tokens) - plain).abs().max() <= 1e-5 * plain.abs().max()
    installed.uninstall()
    other = "half" if kind == "cohere" else "interleaved"
    install(model, f"rope(theta={theta}, pairing={other!r})")  # what is named is not touched
    assert (logits(model, tokens) - plain).abs().max() > 1e-2 * plain.abs().max()


def test_each_layer_takes_its_own_layout_and_parts_beside_others_keep_their_width() -> None:
    sliding = tiny("gemma3_text")
    found = install(sliding, {"sliding_attention": "rope(theta=10000)", "full_attention": "rope(theta=1000000) * alibi"}).encodings
    assert [str(one) for one in found[:2]] == [
        "rope(head_dim=16, heads=4, kv_heads=2, theta=10000, pairing='half')",
        "rope(head_dim=16, heads=4, kv_heads=2, theta=1000000, pairing='half') * alibi(head_dim=16, heads=4, kv_heads=2)",
    ]
    layers = install(tiny("smollm3"), ["rope", "nope", "rope(pairing='interleaved')", "damped_rope(half_life=8)"]).encodings
    assert [one.spec.get("pairing") for one in layers] == ["half", None, None, "half"]
    partial = tiny("gpt_neox", rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5})
    parts = install(partial, "rope(head_dim=4) + nope(head_dim=12)")
    assert str(parts.encodings[0]) == "rope(head_dim=4, heads=4, kv_heads=4, pairing='half') + nope(head_dim=12, heads=4, kv_heads=4)"
    assert [turn.width for turn in install(tiny(), "two_sided(rope)").encodings[0].generator().split().turns] == [16]


def test_an_encoding_is_taken_as_it_is() -> None:
    assert install(tiny(), ec.rope(16)).encodings[0].generator().split().turns[0].pairing == "interleaved"


PER_QUERY_HEAD = {
    "carope": ec.carope(16, heads=4, features=64), "gla": ec.gla(16, heads=4, features=64), "mamba2": ec.mamba2(16, heads=4, features=64),
    "wall": ec.wall(16, heads=4, features=64), "a clock per head": ec.rope(16, heads=4, clock=ec.Cumulative(64, per="head")),
    "rates": ec.damped_rope(16, heads=4, half_life=[[4.0] * 8, [8.0] * 8, [16.0] * 8, [32.0] * 8]),
    "phases": ec.pope(16, heads=4), "positions": ec.learned_absolute(16, heads=4, length=64),
    "slopes alone": ec.alibi(16, heads=4), "a forget gate": ec.fox(16, heads=4, features=64),
}  # fmt: skip


@pytest.mark.parametrize("enc", PER_QUERY_HEAD.values(), ids=PER_QUERY_HEAD)
def test_gates_per_query_head_on_shared_keys(enc: ec.Encoding, tokens: Tensor) -> None:
    """Two query heads share a key and each has its own law: the softmax over the oracle's scores with every key repeated."""
    model = tiny(num_hidden_layers=1)
    install(model, enc)
    attention, seen = model.model.layers[0].self_attn, {}
    attention.o_proj.register_forward_pre_hook(lambda module, args: seen.update(out=args[0]))
    attention.register_forward_pre_hook(lambda m, args, kwargs: seen.update(x=kwargs["hidden_states"]), with_kwargs=True)
    whole = logits(model, tokens)
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    with torch.no_grad():
        q, k, v = (project(seen["x"]).unflatten(-1, (-1, 16)).transpose(1, 2).double() for project in projections)
        k, v = (y.repeat_interleave(2, 1) for y in (k, v))
        scores = ec.scores(q, k, model.model.layers[0].self_attn.eigenclock.encoding, x=seen["x"] if enc.clock.sums else None)
        assert torch.allclose(seen["out"].double(), (scores.softmax(-1) @ v).transpose(1, 2).flatten(2), atol=1e-6)
        cache, parts = None, []
        for part in tokens.split([9, 1, 1, 13], 1):
            out = model(part, cache=cache, use_cache=True)
            cache = out.cache
            parts.append(out.logits)
    assert torch.allclose(torch.cat(parts, 1), whole, atol=2e-5)
    assert cache.layers[0].keys.shape[1] == 2  # the cache is as small as before


def test_absolute_positions_are_those_given(tokens: Tensor) -> None:
    """What sees where time begins sees the positions of the call, not their distance from the first."""
    model = tiny()
    install(model, "learned_absolute(length=64)")
    with torch.no_grad():
        first, later = (model(tokens, position_ids=torch.arange(24)[None] + start).logits for start in (0, 40))
    assert (first - later).abs().max() > 1e-3


def test_what_no_call_could_carry_is_refused_at_install() -> None:
    for given, error, words in (
        ("rwkv6(features=64)", UnsupportedError, "linear_attention"),
        ("fox(features=32)", ShapeError, "activations"),
        ("axial_rope", ClockError, "axes"),
        (ec.damped_rope(16, heads=4, kv_heads=1, half_life=8), ShapeError, "kv_heads=1"),
    ):
        model = tiny()
        with pytest.raises(error, match=words):
            install(model, given)
        assert not hasattr(model.model.layers[0].self_attn, "eigenclock")
