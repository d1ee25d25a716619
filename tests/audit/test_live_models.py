"""Live models of transformers: every family is read through its attention and sound; faulty twins are found; a model stays as it was."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import eigenclock as ec
from audit.families import BIASED, OUTSIDE, ROTARY, counting, mixing_frequencies, sharing_rows, tiny
from eigenclock.audit import Report
from eigenclock.audit.rules import RULES
from eigenclock.audit.rules.weights import evidence, opposite
from eigenclock.audit.subjects import read
from eigenclock.audit.subjects.options import Options
from eigenclock.integrations.layout import convert

pytestmark = pytest.mark.peer("transformers")
LENGTH = 64


def faults(report: Report) -> set[str]:
    return {finding.rule for finding in report.findings if finding.severity == "fault"}


LIKE_OTHERS = {"mistral", "qwen2", "granite", "gemma2", "stablelm", "phi"}
"""Families that are read as another one is."""


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind in LIKE_OTHERS else []) for kind in ROTARY])
def test_a_family_is_read_through_its_attention_and_is_sound(kind: str) -> None:
    report = ec.audit(tiny(kind), length=LENGTH)
    assert report.ok and not report.failed, report
    assert {"cache", "rows", "shift_invariance"} <= set(report.checked)
    assert report.form is not None and "R" in report.form
    assert not [f for f in report.findings if f.rule in ("rows", "cache", "weights")], report
    probe = read(tiny(kind), Options(length=LENGTH))
    parts = probe.layers.values() or [probe]
    assert all(any("read where its attention is called" in note for note in part.notes) for part in parts)


@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_it_is_sound_in_bfloat16_too(kind: str) -> None:
    model = tiny(kind).to(torch.bfloat16)
    for module in model.modules():  # as loading does: tables stay in float32
        if type(module).__name__.endswith("RotaryEmbedding"):
            module.__init__(module.config)
    report = ec.audit(model, length=LENGTH)
    assert report.dtype == "bfloat16" and report.ok and not report.failed, report


TWINS = {
    "padding counted behind the prompt": (lambda: counting(None, 0), {"rows"}),
    "padding counted in the prompt": (lambda: counting(0, None), {"rows"}),
    "one row's positions for all": (sharing_rows, {"rows"}),
    "frequencies that follow the length": (mixing_frequencies, {"cache", "cache_length"}),
    "positions ignored behind the prompt": (lambda: counting(None, 1), {"cache"}),
    "positions ignored": (lambda: counting(0, 0), {"order"}),
}


@pytest.mark.parametrize("name", TWINS)
def test_a_faulty_twin_is_found(name: str) -> None:
    make, rules = TWINS[name]
    report = ec.audit(make(), length=LENGTH)
    assert rules <= faults(report), report


@pytest.mark.parametrize(("queries", "keys"), [(1, 0), (0, 1), (1, 2), (2, 2)])
def test_a_rotation_applied_twice_or_never_is_found(monkeypatch: pytest.MonkeyPatch, queries: int, keys: int) -> None:
    from transformers.models.llama import modeling_llama

    once = modeling_llama.apply_rotary_pos_emb

    def turned(q: Any, k: Any, cos: Any, sin: Any, **rest: Any) -> Any:
        first, second = q, k
        for _ in range(queries):
            first = once(first, k, cos, sin, **rest)[0]
        for _ in range(keys):
            second = once(q, second, cos, sin, **rest)[1]
        return first, second

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", turned)
    assert faults(ec.audit(tiny("llama"), length=LENGTH)), (queries, keys)


def state(model: Any) -> dict[str, Any]:
    return {
        "random": torch.get_rng_state(),
        "flags": [m.training for m in model.modules()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        "own": [sorted(vars(m)) for m in model.modules()],
        "tensors": {name: x.clone() for name, x in [*model.named_parameters(), *model.named_buffers()]},
        "grads": [p.requires_grad for p in model.parameters()],
        "attention": model.config._attn_implementation,
        "config": model.config.to_json_string(),
        "cached": [getattr(m, "max_seq_len_cached", None) for m in model.modules()],
        "modules": [id(m) for m in model.modules()],
    }


@pytest.mark.parametrize("make", [lambda: tiny("gemma3_text"), mixing_frequencies, lambda: tiny("bloom"), lambda: tiny("bert")])
def test_a_model_is_as_it_was(make: Any) -> None:
    model = make().train()
    next(model.children()).eval()  # flags that differ
    next(model.parameters()).requires_grad_(False)
    before = state(model)
    ec.audit(model, length=LENGTH)
    after = state(model)
    tensors, again = before.pop("tensors"), after.pop("tensors")
    assert torch.equal(before.pop("random"), after.pop("random")) and before == after
    assert tensors.keys() == again.keys() and all(torch.equal(tensors[name], again[name]) for name in tensors)


def test_a_model_that_fails_inside_is_as_it_was() -> None:
    model = tiny("llama")
    before = state(model)

    def broken(*args: Any) -> None:
        raise ValueError("broken")

    handle = model.model.layers[0].self_attn.o_proj.register_forward_hook(broken)
    ec.audit(model, length=LENGTH)
    handle.remove()
    after = state(model)
    assert before["hooks"] == after["hooks"] and before["attention"] == after["attention"] and before["own"] == after["own"]


# --- models without a rotation ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BIASED)
def test_the_slopes_of_a_live_model_are_measured(kind: str) -> None:
    report = ec.audit(tiny(kind), length=LENGTH)
    assert report.ok and not report.failed and report.form == "8Z + 1Z2", report
    assert report.spec is not None and "slopes" in report.checked
    divided = 8**0.5 if kind == "falcon" else 1.0  # Falcon divides content and bias together
    enc, zero = ec.encoding(report.spec), torch.zeros(1, 4, 2, 8)
    slopes = -ec.scores(zero, zero[:, : enc.kv_heads or 4], enc, scale=1.0)[0, :, 1, 0]
    assert slopes == pytest.approx((torch.tensor([0.25, 0.0625, 0.015625, 0.00390625]) / divided).double(), rel=1e-5)


def test_slopes_of_other_heads_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.bloom import modeling_bloom

    plain = modeling_bloom._get_alibi_slopes
    monkeypatch.setattr(modeling_bloom, "_get_alibi_slopes", lambda heads, device: plain(2 * heads, device)[:heads])
    assert "slopes" in faults(ec.audit(tiny("bloom"), length=LENGTH))


def test_a_bias_that_is_added_twice_is_a_fault() -> None:
    """The eager attention of Falcon adds its bias and a mask that holds it already; its other one adds the mask alone."""
    from transformers import AutoModelForCausalLM, FalconConfig

    model = AutoModelForCausalLM.from_config(FalconConfig(**BIASED["falcon"]), attn_implementation="eager")
    probe = read(model, Options(length=LENGTH))
    found = RULES["slopes"].check(probe)
    assert [f.severity for f in found] == ["fault"] and found[0].measured == pytest.approx(2 * float(str(found[0].limit)), rel=1e-4)


def test_weights_that_are_not_loaded_are_refused() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**ROTARY["llama"]))
    with pytest.raises(ec.ConfigError, match="meta"):
        ec.audit(model)


@pytest.mark.parametrize("kind", OUTSIDE)
def test_what_is_outside_the_group_is_said_to_be(kind: str) -> None:
    report = ec.audit(tiny(kind), length=LENGTH)
    assert report.ok is None and not report.failed and report.spec is None
    said = {"t5": "a learned bias per bucket", "mamba": "a recurrence", "rwkv": "a recurrence"}.get(kind, "learned absolute positions")
    assert report.witness is not None and report.witness.startswith(f"no relative encoding found: {said}"), report
    assert ("both moved by" in report.witness) == (said == "learned absolute positions")


def test_a_model_of_which_nothing_can_be_read_says_so() -> None:
    from transformers import ViTConfig, ViTModel

    model = ViTModel(
        ViTConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, image_size=8, patch_size=4)
    )
    report = ec.audit(model, length=LENGTH)
    assert report.ok is None and report.form is None and any("nothing was measured" in note for note in report.notes), report


def test_documents_that_see_each_other_are_advice() -> None:
    kinds = {"num_local_experts": 2, "num_experts_per_tok": 1, "layer_types": ["full_attention"] * 2}
    from transformers import GptOssConfig, GptOssForCausalLM

    rotary = {"rope_type": "default", "rope_theta": 1e4}
    report = ec.audit(GptOssForCausalLM(GptOssConfig(**ROTARY["mistral"], **kinds, rope_parameters=rotary)), length=LENGTH)
    assert report.ok and [f.severity for f in report.findings if f.rule == "rows"] == ["advice"], report


# --- weights ---------------------------------------------------------------------------------------------------------------------------


def trained(layout: str, rows: int = 8) -> Any:
    """A Llama of 12 layers whose W_q is in part a quarter turn of W_k on the pairs of a layout, as training makes it, the rest random."""
    model = tiny("llama", num_hidden_layers=12)
    random = torch.Generator().manual_seed(1)
    for layer in model.model.layers:
        q, k = layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight
        with torch.no_grad():
            for weight in (q, k):
                weight.copy_(torch.randn(weight.shape, generator=random))
            keys = k.unflatten(0, (-1, 2, rows // 2)).clone()  # halves: (G, 2, n, I)
            turn = torch.stack([-keys[:, 1], keys[:, 0]], 1).flatten(1, 2)  # J k
            q += 0.8 * turn.repeat_interleave(2, 0).reshape(q.shape)
            for weight, heads in ((q, 4), (k, 2)):
                weight.copy_(weight if layout == "half" else convert(weight, heads=heads, to="interleaved"))
    return model


def of_weights(subject: Any) -> list[str]:
    """The severities of what the rule says, which has to apply."""
    probe = read(subject, Options(length=LENGTH))
    assert RULES["weights"].applies(probe) is None
    return [finding.severity for finding in RULES["weights"].check(probe)]


def test_rows_of_another_layout_are_a_fault_and_those_of_its_own_and_random_ones_are_none() -> None:
    assert of_weights(trained("interleaved")) == ["fault"]
    assert of_weights(trained("half")) == of_weights(tiny("llama", num_hidden_layers=12)) == []


def test_few_heads_decide_nothing() -> None:
    model = trained("interleaved")
    model.model.layers, model.config.num_hidden_layers = model.model.layers[:2], 2
    assert of_weights(model) == [] and evidence(read(model, Options(length=LENGTH)), 8) is None


@pytest.mark.parametrize("turned", [4, 8])
def test_opposite_is_one_on_its_own_pairs_and_near_nothing_on_others(turned: int) -> None:
    random = torch.Generator().manual_seed(0)
    k = torch.randn(8, 64, generator=random)
    half = turned // 2
    q = torch.cat([-k[half:turned], k[:half], k[turned:]])  # J k
    assert opposite(q[None], k, "half", turned) > 0.8 > opposite(q[None], k, "interleaved", turned)


@pytest.mark.peer("safetensors")
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_checkpoint_is_judged_by_its_rows(tmp_path: Path, layout: str) -> None:
    model = trained(layout)
    model.save_pretrained(tmp_path)
    assert of_weights(tmp_path) == of_weights(tmp_path / "model.safetensors") == (["fault"] if layout == "interleaved" else [])
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_attention_heads": 8, "head_dim": 8, "num_key_value_heads": 8}))
    assert of_weights(tmp_path) == []  # rows that do not fit the sizes say nothing


# --- a pretrained model ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pretrained() -> Any:
    from eigenclock.integrations.huggingface import from_gguf
    from eigenclock.integrations.huggingface.files import smollm2

    return from_gguf(smollm2())


@pytest.mark.peer("gguf")
@pytest.mark.assets("smollm2")
def test_the_file_of_a_pretrained_model_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    from eigenclock.cli import main
    from eigenclock.integrations.huggingface.files import smollm2

    assert of_weights(smollm2()) == []
    assert main(["audit", str(smollm2()), "--json", "--length", "512"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["kind"], said["ok"], said["form"]) == ("checkpoint", True, "32R") and "weights" in said["checked"]


@pytest.mark.peer("gguf")
@pytest.mark.assets("smollm2")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pretrained_model_is_clean(pretrained: Any, dtype: torch.dtype) -> None:
    model = copy.deepcopy(pretrained)
    kept = model.model.rotary_emb.inv_freq.clone()
    model.to(dtype)
    model.model.rotary_emb.inv_freq = kept
    report = ec.audit(model)
    assert report.ok and not report.failed and report.dtype == str(dtype).removeprefix("torch."), report
    assert {"weights", "rows", "cache", "scaling", "layout"} <= set(report.checked) and report.form == "32R"
    if dtype == torch.bfloat16:
        model.model.rotary_emb.inv_freq = kept.bfloat16()
        assert {"table", "scaling"} & faults(ec.audit(model, length=512))


@pytest.mark.slow
@pytest.mark.peer("gguf")
@pytest.mark.assets("smollm2")
def test_faulty_variants_of_a_pretrained_model_are_found(pretrained: Any) -> None:
    model = copy.deepcopy(pretrained)
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": 10000.0}  # the table is of base 100000
    assert "scaling" in faults(ec.audit(model, length=512))
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": 100000.0}
    assert of_weights(model) == []
    for layer in model.model.layers:  # rows as they lie in the file
        for projection, heads in ((layer.self_attn.q_proj, 9), (layer.self_attn.k_proj, 3)):
            projection.weight.data = convert(projection.weight.data, heads=heads, to="interleaved")
    assert of_weights(model) == ["fault"]
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    assert of_weights(model) == []


@pytest.mark.peer("transformers")
def test_layers_turn_where_the_config_says_so():
    """SmolLM3 leaves every fourth layer without a position; read the other way round, or with one more layer left out, it is at fault."""
    from transformers import SmolLM3Config, SmolLM3ForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 40}
    config = SmolLM3Config(**sizes, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2)

    def said(change) -> list[str]:
        model: Any = SmolLM3ForCausalLM(config)
        for layer in model.model.layers:
            layer.self_attn.use_rope = change(layer.self_attn.layer_idx, layer.self_attn.use_rope)
        return [f.message for f in ec.audit(model, length=64).findings if f.severity == "fault" and f.rule == "layer_types"]

    assert said(lambda i, turns: turns) == []
    inverted, one = said(lambda i, turns: not turns), said(lambda i, turns: turns and i != 1)
    assert len(inverted) == 2 and "layers 0, 1, 2 are not turned" in inverted[0] and "layer 3 are turned" in inverted[1]
    assert len(one) == 1 and "layer 1 are not turned" in one[0]
