"""A longer context: what is written is transformers' own, with the numbers of the papers, and what is not portable is refused by name."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from config.shrunk import shrunk
from integrations.conftest import tiny
from torch import Tensor

from eigenclock.cli import main
from eigenclock.errors import ConfigError, UnknownNameError, UnsupportedError
from eigenclock.integrations.huggingface import extend, load
from eigenclock.integrations.huggingface.answers import right
from eigenclock.integrations.huggingface.evaluate import block_losses
from eigenclock.integrations.huggingface.study import run_study

pytestmark = pytest.mark.peer("transformers")

PORTABLE = ("linear", "ntk", "yarn", "llama3")


@pytest.mark.parametrize("method", PORTABLE)
@pytest.mark.parametrize("kind", ["llama", "gpt_neox", "gemma3_text", "qwen3"])
def test_a_portable_model_runs_in_plain_transformers(kind: str, method: str, tokens: Tensor, tmp_path: Path) -> None:
    import transformers

    model = tiny(kind)
    done = extend(model, to=2048, method=method)
    assert done.portable and model.config.max_position_embeddings == 2048
    with torch.no_grad():
        wanted = model(tokens).logits
        model.save_pretrained(tmp_path)
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
        assert torch.allclose(again(tokens).logits, wanted, atol=1e-6)
    assert "eigenclock" not in (tmp_path / "config.json").read_text()


def test_the_frequencies_are_those_of_the_papers() -> None:
    model, theta, d, s = tiny(), 10000.0, 16, 4.0
    base = theta ** (-torch.arange(0, d, 2).double() / d)

    def frequencies(method: str) -> Tensor:
        other = copy.deepcopy(model)
        extend(other, to=2048, method=method)
        return other.model.rotary_emb.inv_freq.double()

    assert torch.allclose(frequencies("linear"), base / s, rtol=1e-6)
    assert torch.allclose(frequencies("ntk"), (theta * s ** (d / (d - 2))) ** (-torch.arange(0, d, 2).double() / d), rtol=1e-6)
    turns = 512 * base / (2 * math.pi)
    mix = ((turns - 1) / 3).clamp(0, 1)
    assert torch.allclose(frequencies("llama3"), base / s * (1 - mix) + base * mix, rtol=1e-6)
    yarn = copy.deepcopy(model)
    done = extend(yarn, to=2048, method="yarn", attention_factor=0.1 * math.log(s) + 1)
    assert done.logits == pytest.approx((0.1 * math.log(s) + 1) ** 2) == pytest.approx(yarn.model.rotary_emb.attention_scaling**2)
    default = copy.deepcopy(model)
    assert extend(default, to=2048).logits == default.model.rotary_emb.attention_scaling == 1.0
    low, high = (d * math.log(512 / (2 * math.pi * r)) / (2 * math.log(theta)) for r in (32, 1))
    ramp = ((torch.arange(8) - max(math.floor(low), 0)) / (math.ceil(high) - max(math.floor(low), 0))).clamp(0, 1).double()
    assert torch.allclose(yarn.model.rotary_emb.inv_freq.double(), base * (1 - ramp) + base / s * ramp, rtol=1e-6)
    assert done.pairs == (int((ramp == 0).sum()), int(((ramp > 0) & (ramp < 1)).sum()), int((ramp == 1).sum()))


def test_sliding_layers_keep_their_frequencies() -> None:
    model = tiny("gemma3_text")
    before = copy.deepcopy(model.config.rope_parameters)
    extend(model, to=1024, method="linear")
    assert model.config.rope_parameters["sliding_attention"] == before["sliding_attention"]
    assert model.config.rope_parameters["full_attention"]["factor"] == 2.0


@pytest.mark.parametrize("method", ["damped", "recency", "removed"])
def test_experimental_methods_travel_with_the_project_only(method: str, tokens: Tensor, tmp_path: Path) -> None:
    import transformers

    model = tiny()
    done = extend(model, to=1024, method=method)
    assert not done.portable and "refuses" in str(done.table().markdown())
    model.save_pretrained(tmp_path)
    with pytest.raises(KeyError, match="eigenclock"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.allclose(load(tmp_path)(tokens).logits, model(tokens).logits, atol=1e-6)


def test_recency_is_a_bias_and_damping_a_gain(tokens: Tensor) -> None:
    """With equal logits a gain changes nothing and a bias halves the weight every half life."""
    models = {method: tiny(num_hidden_layers=1) for method in ("damped", "recency")}
    seen: dict[str, Tensor] = {}
    for method, model in models.items():
        attention = model.model.layers[0].self_attn
        attention.q_proj.weight.data.zero_()
        attention.v_proj.weight.data = torch.eye(32, 64)
        attention.o_proj.register_forward_pre_hook(lambda m, args, method=method: seen.update({method: args[0]}))
        attention.register_forward_pre_hook(lambda m, args, kwargs: seen.update(x=kwargs["hidden_states"]), with_kwargs=True)
        extend(model, to=1024, method=method, half_life=6.0)
        with torch.no_grad():
            model(tokens, use_cache=False)
    value = seen["x"][:, :, :16]  # of the first key head
    for method, weight in (("damped", torch.ones(24)), ("recency", 0.5 ** (torch.arange(23, -1, -1) / 6.0))):
        wanted = (weight[:, None] * value).sum(1) / weight.sum()
        assert torch.allclose(seen[method][:, -1, :16], wanted, atol=1e-5)


def test_block_losses_are_those_of_one_forward(tokens: Tensor) -> None:
    model = tiny()
    row = torch.randint(2, 100, (2101,))
    with torch.no_grad():
        logits = model(row[None], use_cache=False).logits[0]
        each = torch.nn.functional.cross_entropy(logits[:-1], row[1:], reduction="none")
    wanted = [float(each[i : i + 700].mean()) for i in (0, 700, 1400)]
    for piece in (1024, 500, 5000):
        assert block_losses(model, row, block=700, piece=piece) == pytest.approx(wanted, abs=1e-5)


def test_a_study_goes_on_where_it_stopped(tmp_path: Path) -> None:
    texts = {"a": torch.randint(2, 100, (90,)), "b": torch.randint(2, 100, (90,))}
    asked: dict[str, Any] = {"to": 1024, "methods": ("plain", "yarn"), "tokens": 80, "block": 40, "results": tmp_path / "r.json"}
    whole = run_study(tiny, texts, **asked)
    assert [len(row) for row in whole.losses["a"].values()] == [2, 2]
    kept = json.loads((tmp_path / "r.json").read_text())
    assert kept["unfinished"] is None
    del kept["losses"]["b"]["yarn"]
    kept["losses"]["a"]["plain"] = [7.0, 7.0]  # what is there is not measured again
    (tmp_path / "r.json").write_text(json.dumps(kept))
    again = run_study(tiny, texts, **asked)
    assert again.losses["a"]["plain"] == [7.0, 7.0]
    assert all(again.losses["b"][method] == pytest.approx(whole.losses["b"][method]) for method in ("plain", "yarn"))
    other: dict[str, Any] = asked | {"block": 20}
    with pytest.raises(ConfigError, match="another file"):
        run_study(tiny, texts, **other)
    (tmp_path / "r.json").write_text("[]")
    with pytest.raises(ConfigError, match="no study"):
        run_study(tiny, texts, **asked)


def test_the_last_block_is_what_is_left() -> None:
    model, row = tiny(), torch.randint(2, 100, (101,))
    with torch.no_grad():
        each = torch.nn.functional.cross_entropy(model(row[None], use_cache=False).logits[0, :-1], row[1:], reduction="none")
    wanted = [float(each[:40].mean()), float(each[40:80].mean()), float(each[80:].mean())]
    seen: list[tuple[list[float], int]] = []
    got = block_losses(model, row, block=40, piece=30, progress=lambda losses, done: seen.append((losses, done)))
    assert got == pytest.approx(wanted, abs=1e-5)
    assert [(len(losses), done) for losses, done in seen] == [(1, 60), (2, 90), (3, 100)]
    assert seen[1][0] == got[:2]
    study = run_study(tiny, {"a": row}, to=1024, methods=("plain",), tokens=1000, block=40)
    assert study.losses["a"]["plain"] == pytest.approx(wanted, abs=1e-5)
    assert study.tables()[0].columns[-1] == "80-100"


def test_a_study_stopped_in_a_text_keeps_its_blocks_and_reads_that_text_again(tmp_path: Path) -> None:
    texts: dict[str, Tensor] = {"a": torch.randint(2, 100, (81,))}
    lines: list[str] = []
    sizes: dict[str, Any] = {"to": 1024, "tokens": 80, "block": 20, "piece": 20}
    asked: dict[str, Any] = sizes | {"methods": ("plain", "yarn"), "results": tmp_path / "r.json"}

    def stop(line: str) -> None:
        lines.append(line)
        if line.startswith("yarn on a: block 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(tiny, texts, progress=stop, **asked)
    assert len(lines) == 6
    kept = json.loads((tmp_path / "r.json").read_text())
    assert (len(kept["losses"]["a"]["plain"]), len(kept["losses"]["a"]["yarn"]), kept["unfinished"]) == (4, 2, ["a", "yarn"])
    whole = run_study(tiny, texts, **asked)
    assert len(whole.losses["a"]["yarn"]) == 4 and whole.losses["a"]["yarn"][:2] == pytest.approx(kept["losses"]["a"]["yarn"])
    assert whole.unfinished is None


def test_refusals(tokens: Tensor) -> None:
    model = tiny()
    with pytest.raises(ConfigError, match="512"):
        extend(model, to=512)
    with pytest.raises(UnknownNameError, match="yarn"):
        extend(model, to=1024, method="yarm")
    extend(model, to=1024, method="linear")
    with pytest.raises(ConfigError, match="linear"):
        extend(model, to=4096)
    for number in ("attention_factor", "beta_fast", "beta_slow"):
        given: dict[str, Any] = {number: -1.0}
        with pytest.raises(ConfigError, match=f"{number}.*yarn"):
            extend(tiny(), to=1024, method="ntk", **given)
        with pytest.raises(ConfigError, match=f"{number}=-1"):
            extend(tiny(), to=1024, **given)
    with pytest.raises(ConfigError, match="beta_fast=2 and beta_slow=4"):
        extend(tiny(), to=1024, beta_fast=2.0, beta_slow=4.0)


def test_numbers_of_yarn_are_written_and_at_work() -> None:
    model, theta, d, s, fast, slow = tiny(), 10000.0, 16, 2.0, 20.0, 2.0
    done = extend(model, to=1024, attention_factor=1.05, beta_fast=fast, beta_slow=slow)
    said = {"attention_factor": 1.05, "beta_fast": fast, "beta_slow": slow}
    assert done.rope_parameters is not None and said.items() <= done.rope_parameters.items()
    low, high = (d * math.log(512 / (2 * math.pi * r)) / (2 * math.log(theta)) for r in (fast, slow))
    ramp = ((torch.arange(8) - max(math.floor(low), 0)) / (math.ceil(high) - max(math.floor(low), 0))).clamp(0, 1).double()
    base = theta ** (-torch.arange(0, d, 2).double() / d)
    assert torch.allclose(model.model.rotary_emb.inv_freq.double(), base * (1 - ramp) + base / s * ramp, rtol=1e-6)
    assert model.model.rotary_emb.attention_scaling == 1.05 and done.logits == pytest.approx(1.05**2)


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def test_llama3_goes_on_from_its_factor() -> None:
    """Twice the length is twice the factor, at the bounds that the model was trained with."""
    model = tiny(rope_parameters=dict(LLAMA3))
    done = extend(model, to=1024, method="llama3")
    assert done.rope_parameters == LLAMA3 | {"factor": 16.0}
    base = 5e5 ** (-torch.arange(0, 16, 2).double() / 16)
    mix = ((64 * base / (2 * math.pi) - 1) / 3).clamp(0, 1)
    assert torch.allclose(model.model.rotary_emb.inv_freq.double(), base / 16 * (1 - mix) + base * mix, rtol=1e-6)


def test_llama3_takes_a_larger_base_and_the_experimental_methods(tokens: Tensor) -> None:
    model = tiny(rope_parameters=dict(LLAMA3))
    before = model.model.rotary_emb.inv_freq.clone()
    extend(model, to=1024, method="ntk")
    after = model.model.rotary_emb.inv_freq
    assert after[0] == before[0] and after[-1] == pytest.approx(float(before[-1]) / 2, rel=1e-5)
    model, other = tiny(rope_parameters=dict(LLAMA3)), tiny(rope_parameters=dict(LLAMA3))
    extend(model, to=1024, method="damped", half_life=1e9)  # next to no fading: the model as it was
    with torch.no_grad():
        assert torch.allclose(model(tokens).logits, other(tokens).logits, atol=1e-4)
    for method in ("linear", "yarn"):
        with pytest.raises(ConfigError, match="method='llama3'"):
            extend(tiny(rope_parameters=dict(LLAMA3)), to=1024, method=method)


KINDS = ("cohere2", "deepseek_v3", "falcon", "gemma2", "glm4", "gpt_oss", "mixtral", "nemotron", "olmoe", "phi", "qwen3_moe", "stablelm")


@pytest.mark.parametrize("kind", KINDS)
def test_keys_are_written_for_types_without_a_seam(kind: str, tmp_path: Path) -> None:
    """Wherever transformers reads the keys: the live model and the one that plain transformers loads turn by the numbers of PI."""
    import transformers

    config = shrunk(kind)
    config.rope_parameters = {"rope_type": "default", "rope_theta": 1e4} | {
        key: value for key, value in (config.rope_parameters or {}).items() if key == "partial_rotary_factor"
    }
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    before = model.base_model.rotary_emb.inv_freq.clone()
    assert extend(model, to=2 * config.max_position_embeddings, method="linear").portable
    assert torch.allclose(model.base_model.rotary_emb.inv_freq, before / 2, rtol=1e-6)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.randint(3, 100, (1, 12))
    with torch.no_grad():
        assert torch.allclose(again(ids).logits, model(ids).logits, atol=1e-5)


def test_a_model_that_reads_no_keys_is_refused_and_left_alone() -> None:
    model = tiny()
    before = dict(model.config.rope_parameters)
    model.model.rotary_emb = torch.nn.Identity()
    with pytest.raises(UnsupportedError, match="rope_parameters"):
        extend(model, to=1024)
    assert (model.config.rope_parameters, model.config.max_position_embeddings) == (before, 512)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extend", "nowhere", "--out", str(tmp_path / "x")]) == 2
    assert "no model" in capsys.readouterr().err
    tiny().save_pretrained(tmp_path / "model")
    assert main(["extend", str(tmp_path / "model")]) == 2
    assert "--out" in capsys.readouterr().err


@pytest.mark.assets("smollm2")
def test_smollm2_is_written_and_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import transformers

    assert main(["extend", "smollm2", "--out", str(tmp_path / "long"), "--to", "16384", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["portable"] and said["rope_parameters"]["factor"] == 2.0
    config = transformers.AutoConfig.from_pretrained(tmp_path / "long")
    assert config.rope_parameters["rope_type"] == "yarn" and config.max_position_embeddings == 16384
    text = tmp_path / "text.txt"
    text.write_text("The cat sat on the mat, and the dog looked at the cat. " * 30)
    arguments = ["--text", str(text), "--methods", "plain", "yarn", "--tokens", "128", "--block", "64", "--json"]
    assert main(["extend", "smollm2", *arguments]) == 0
    said = json.loads(capsys.readouterr().out)
    assert sum(right(*pair) for pair in said["answers"]["plain"].items()) == 10
    assert right("What is the capital of France?", said["answers"]["yarn"]["What is the capital of France?"])
    losses = said["losses"]["text"]
    assert losses["plain"][1] < losses["plain"][0] < 5  # what comes again is predicted
    assert main(["extend", "smollm2", "--out", str(tmp_path / "long")]) == 2
    assert "exists already" in capsys.readouterr().err
