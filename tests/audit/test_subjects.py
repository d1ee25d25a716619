"""Every kind of subject: how it is read, what is said of that, and that a sound one has no fault."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import eigenclock as ec
from audit.stand_ins import BASE, Cached, Flash, Freqs, Nano, Offsets, frequencies, neighbours
from eigenclock.audit import SUBJECTS, Probe
from eigenclock.audit.subjects import read
from eigenclock.audit.subjects.options import Options

LENGTH = 128
TINY: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 40}


def halves(x: Tensor, positions: Tensor) -> Tensor:
    angle = positions[:, None].double() * frequencies(x.shape[-1]).double()
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def tokens_first(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The same on (B, T, H, D)."""
    q, k = (halves(x.transpose(1, 2), positions).transpose(1, 2) for x in (q, k))
    return q, k


def dots(q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
    return halves(q, positions_q) @ halves(k, positions_k).mT


def on_cos_and_sin(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    def turn(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat([-b, a], -1) * sin[:, None]

    return turn(q), turn(k)


class Table(nn.Module):
    """cos and sin (B, T, D), as transformers makes them."""

    def __init__(self, width: int, amplitude: float = 1.0):
        super().__init__()
        self.inv_freq, self.amplitude = nn.Buffer(frequencies(width)), amplitude

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angle = (position_ids[..., None].double() * self.inv_freq).repeat(1, 1, 2)
        return (angle.cos() * self.amplitude).to(x.dtype), (angle.sin() * self.amplitude).to(x.dtype)


def complex_table(x: Tensor, freqs_cis: Tensor) -> Tensor:
    """The shape of the original code: (B, T, H, D) with a table (T, D/2) of complex numbers."""
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * freqs_cis.view(1, x.shape[1], 1, -1)).flatten(-2).to(x.dtype)


def precomputed(dim: int, end: int) -> Tensor:
    angle = torch.arange(end).double()[:, None] * frequencies(dim).double()
    return torch.polar(torch.ones_like(angle), angle)


FUNCTIONS = {
    "f(x, positions)": (halves, "callable", "half"),
    "f(q, k, positions) on (B, T, H, D)": (tokens_first, "callable", "half"),
    "scores": (dots, "callable", "half"),
    "(f(q, k, cos, sin), module)": ((on_cos_and_sin, Table(8)), "table", "half"),
    "(f(x, freqs_cis), function)": ((complex_table, precomputed), "table", "interleaved"),
    "(f(x, freqs_cis), table)": ((complex_table, precomputed(8, 512)), "table", "interleaved"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_read_by_their_signature_and_the_way_of_calling_is_said(name):
    subject, kind, pairing = FUNCTIONS[name]
    report = ec.audit(subject, head_dim=8, length=LENGTH)
    layout = ", pairing='half'" if pairing == "half" else ""
    assert (report.kind, report.ok, report.nearest) == (kind, True, f"rope(theta={BASE:g}{layout})"), report
    assert any("signature" in note for note in report.notes) and any("vectors (" in note for note in report.notes)


def test_the_layout_of_vectors_is_found():
    probe = read(tokens_first, Options(8, 3, LENGTH))
    assert any("(B, T, H, D)" in note for note in probe.notes) and probe.heads == 3 and probe.fractional


def test_a_table_made_here_is_said_to_be():
    report = ec.audit(on_cos_and_sin, head_dim=8, length=LENGTH)
    assert report.ok and any("of base 10000 made here" in note for note in report.notes)


def test_a_table_by_length_takes_whole_positions_only():
    assert not read((complex_table, precomputed), Options(8, 2, LENGTH)).fractional


def test_an_amplitude_on_cos_and_sin_is_measured_and_the_spec_has_it():
    report = ec.audit((on_cos_and_sin, Table(8, 1.2)), head_dim=8, length=LENGTH)
    assert report.spec is not None
    q = torch.ones(1, 2, 1, 8, dtype=torch.float64)
    got = ec.scores(q, q, ec.encoding(report.spec), scale=1.0)
    assert float((got - 8 * 1.44).abs().max()) < 1e-5


MODULES = {
    "rotary-embedding-torch": (Offsets(8), f"rope(theta={BASE:g})"),
    "x-transformers": (Freqs(8), f"rope(theta={BASE:g})"),
    "torchtune": (Cached(8, 512), f"rope(theta={BASE:g})"),
    "flash-attn": (Flash(8, True), f"rope(theta={BASE:g})"),
    "flash-attn, halves": (Flash(8, False), f"rope(theta={BASE:g}, pairing='half')"),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_of_known_shapes_are_called_as_their_users_do(name):
    module, nearest = MODULES[name]
    report = ec.audit(module, length=LENGTH)
    assert (report.kind, report.ok, report.nearest) == ("module", True, nearest), report


def test_the_scales_of_x_transformers_stand_on_both_sides():
    report = ec.audit(Freqs(8, xpos=True), length=LENGTH)
    assert report.form == "4S" and report.spec is not None and report.ok, report


def test_nanochat_turns_by_minus_the_angle():
    report = ec.audit(Nano(8, 256), length=LENGTH)
    assert report.ok and report.spec is not None
    freq = ec.encoding(report.spec).generator().split().turns[0].freq.flatten()
    assert torch.allclose(freq, -frequencies(8).double(), rtol=1e-4)


def test_positions_in_the_dtype_of_the_input_are_a_fault_in_bfloat16_and_their_sound_twin_has_none():
    bad, good = (ec.audit(Offsets(8, exact), length=1024, dtype="bfloat16") for exact in (False, True))
    assert not bad.ok and good.ok, good
    assert ec.audit(Offsets(8, False), length=1024).ok


def test_a_module_whose_forward_is_a_function_is_read_as_one():
    class Turn(nn.Module):
        def forward(self, x: Tensor, positions: Tensor) -> Tensor:
            return neighbours(x, *(f(positions[:, None] * frequencies(x.shape[-1]).double()).to(x.dtype) for f in (torch.cos, torch.sin)))

    report = ec.audit(Turn(), head_dim=8, length=LENGTH)
    assert (report.kind, report.nearest) == ("module", f"rope(theta={BASE:g})")


def test_encodings_and_specs_have_a_cache_and_know_their_direction():
    probe = read(ec.alibi(8, heads=2), Options(length=LENGTH))
    assert probe.causal and probe.full and probe.decode and probe.dtype == torch.float64
    assert not read("rope", Options(8, 2, LENGTH)).causal
    v = torch.randn(2, 9, 3, dtype=torch.float64)
    q, k = probe.content(9)
    assert torch.allclose(probe.full(q, k, v, torch.arange(9)), probe.decode(q, k, v, torch.arange(9), (4, 5)), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_of_an_encoding_in_a_dtype_are_those_of_attention_in_it(dtype):
    enc = ec.rope(8, heads=4, kv_heads=2) * ec.alibi(8, heads=4)
    probe = read(enc, Options(length=LENGTH, dtype=dtype))
    q, k = probe.content(3, 5)
    at, of = torch.tensor([70.0, 80.0, 90.0]).double(), torch.tensor([0.0, 1.0, 2.0, 50.0, 60.0]).double()
    assert probe.scores and probe.exact
    got, exact = probe.scores(q, k, at, of), probe.exact(q.double(), k.double(), at, of)
    assert got.dtype == torch.float32 and float((got - exact).abs().max()) < 8 * torch.finfo(dtype).eps * float(exact.abs().max())


def test_a_clock_that_learns_is_set_aside_and_said_to_be():
    report = ec.audit(ec.fox(8, heads=2), length=LENGTH)
    assert report.ok and report.form == "8Z + 1Z2" and any("learns from activations" in note for note in report.notes)


def test_configs_come_as_dicts_files_and_folders(tmp_path):
    config = {"head_dim": 16, "num_attention_heads": 2, "rope_theta": 5e5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    reports = [ec.audit(subject, length=LENGTH) for subject in (config, tmp_path, str(tmp_path / "config.json"))]
    assert {(r.kind, r.ok, r.form) for r in reports} == {("config", True, "8R")}


def test_a_spec_comes_as_a_tree_and_as_a_file(tmp_path):
    (tmp_path / "spec.json").write_text(json.dumps(ec.alibi(8, heads=2).spec))
    for subject in (ec.alibi(8, heads=2).spec, str(tmp_path / "spec.json")):
        assert ec.audit(subject, length=LENGTH).nearest == "alibi"


def test_a_config_that_does_not_hold_together_is_a_fault_and_no_crash():
    report = ec.audit({"model_type": "llama", "head_dim": 16, "num_attention_heads": 2, "rope_theta": 1e4, "rope_scaling": {"type": "no"}})
    assert not report.ok and report.form is None and any("refused" in note for note in report.notes)


def test_sizes_that_a_config_leaves_out_are_no_fault():
    report = ec.audit({"rope_theta": 1e4}, length=LENGTH)
    assert report.ok and report.form == "32R"


UNREADABLE = [3, None, object(), lambda: 0, lambda a, b, c, d, e: 0, torch.zeros(2), nn.Linear(2, 2), {"foo": 1}]


@pytest.mark.parametrize("subject", [*UNREADABLE, "x.gguf", "", " ", "model.bin"])
def test_what_cannot_be_read_gives_one_clear_error(subject):
    with pytest.raises(ec.EigenclockError) as refused:
        ec.audit(subject)
    assert "\n" not in str(refused.value) and "expected" in str(refused.value)


@pytest.mark.parametrize("sizes", [{"head_dim": 32}, {"heads": 2}])
def test_sizes_that_contradict_a_config_are_refused(sizes):
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "rope_theta": 1e4}
    with pytest.raises(ec.ConfigError, match=f"got {next(iter(sizes))}={next(iter(sizes.values()))} .* leave it out"):
        ec.audit(config, length=LENGTH, **sizes)
    assert ec.audit(config, length=LENGTH, head_dim=16, heads=4).ok


def test_the_list_of_kinds_is_in_the_error():
    with pytest.raises(ec.ConfigError) as refused:
        ec.audit(3)
    for word in ("Encoding", "config", "gguf", "safetensors", "f(q, k, positions)", "rotary module"):
        assert word in str(refused.value)
    assert set(SUBJECTS) >= {"encoding", "spec", "config", "model", "checkpoint", "table", "module", "callable"}


# --- transformers --------------------------------------------------------------------------------------------------------------------


def llama(dtype: torch.dtype, cast: bool) -> Any:
    """A tiny Llama in a dtype; its frequencies stay in float32 unless they are cast with the rest."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**TINY, num_key_value_heads=2))
    kept = model.model.rotary_emb.inv_freq.clone()
    model = model.to(dtype)
    if not cast:
        model.model.rotary_emb.inv_freq = kept
    return model


@pytest.mark.peer("transformers")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_live_model_is_read_at_its_first_attention_and_its_cache_is_run(dtype):
    model = llama(dtype, cast=False)
    before = model.config._attn_implementation
    report = ec.audit(model, length=LENGTH)
    assert (report.kind, report.ok, report.form) == ("model", True, "4R"), report
    assert report.dtype == str(dtype).removeprefix("torch.")
    assert "cache" in report.checked and model.config._attn_implementation == before
    assert not any(m._forward_hooks for m in model.modules())


@pytest.mark.peer("transformers")
def test_a_live_model_whose_frequencies_were_cast_is_at_fault():
    near, far = (ec.audit(llama(torch.bfloat16, cast=True), length=length) for length in (LENGTH, 2048))
    scaling = next(f for f in near.findings if f.rule == "scaling")
    assert not near.ok and scaling.severity == "fault" and "rounded to bfloat16" in scaling.message, near
    assert [f.severity for report in (near, far) for f in report.findings if f.rule == "table"] == ["risk", "fault"]


@pytest.mark.peer("transformers")
def test_a_norm_before_the_action_is_no_part_of_it():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    report = ec.audit(Qwen3ForCausalLM(Qwen3Config(**TINY, head_dim=8, num_key_value_heads=2)), length=LENGTH)
    assert report.ok and report.form == "4R", report


@pytest.mark.peer("transformers")
def test_a_live_table_that_was_cast_is_audited_as_it_is():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(LlamaConfig(**TINY))
    assert ec.audit(rotary, length=LENGTH).ok
    rotary.inv_freq.data = torch.tensor([1.0, 0.3, 0.01, 0.001])
    report = ec.audit(rotary, length=LENGTH)
    assert report.spec is not None and abs(float(ec.encoding(report.spec).generator().split().turns[0].freq.flatten()[1]) - 0.3) < 1e-5


@pytest.mark.peer("transformers")
def test_layer_types_are_probed_each_with_its_table():
    from transformers import Gemma3TextConfig

    probe = read(
        Gemma3TextConfig(**TINY, head_dim=8, num_key_value_heads=2, layer_types=["sliding_attention", "full_attention"]), Options()
    )
    assert set(probe.layers) == set(probe.tables) == {"sliding_attention", "full_attention"}
    assert all(isinstance(part, Probe) and part.scores for part in probe.layers.values())


@pytest.mark.peer("transformers")
def test_a_random_bert_is_learned_absolute():
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(**TINY)
    for subject in (BertModel(config), config, config.to_dict()):
        report = ec.audit(subject, length=LENGTH)
        assert report.witness is not None and report.witness.startswith("no relative encoding found: learned absolute"), report
        assert report.spec is None and report.form is None
    assert "both moved by" in str(ec.audit(BertModel(config)).witness)


@pytest.mark.peer("rotary_embedding_torch")
def test_the_named_package_itself():
    from rotary_embedding_torch import RotaryEmbedding

    assert ec.audit(RotaryEmbedding(16), length=512).ok
    assert not ec.audit(RotaryEmbedding(16), length=1024, dtype="bfloat16").ok
    xpos = ec.audit(RotaryEmbedding(16, use_xpos=True), length=512)
    assert {f.rule for f in xpos.findings if f.severity == "fault"} == {"cache"}


@pytest.mark.peer("safetensors")
def test_a_checkpoint_is_read_with_the_config_beside_it(tmp_path):
    from safetensors.torch import save_file

    save_file({"model.layers.0.self_attn.q_proj.weight": torch.zeros(32, 32)}, str(tmp_path / "model.safetensors"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **TINY, "rope_theta": 1e4}))
    for subject in (tmp_path, tmp_path / "model.safetensors"):
        report = ec.audit(subject, length=LENGTH)
        assert (report.kind, report.form) == ("checkpoint", "4R")


@pytest.mark.peer("gguf")
def test_a_gguf_file_is_read_by_its_own_metadata(tmp_path):
    from gguf import GGUFWriter

    writer = GGUFWriter(str(tmp_path / "m.gguf"), "llama")
    for key, value in (
        ("embedding_length", 32),
        ("attention.head_count", 4),
        ("block_count", 2),
        ("context_length", 128),
        ("rope.dimension_count", 8),
    ):
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    report = ec.audit(str(tmp_path / "m.gguf"), length=LENGTH)
    assert (report.kind, report.form) == ("checkpoint", "4R") and report.nearest is not None and report.nearest.startswith("rope")
