"""What the audits of the cases share: their data, the usual code in which users have a rotation, and how a report is read."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import eigenclock as ec
from eigenclock.audit import Finding, Report

DATA = Path(__file__).parents[2] / "cases" / "data"
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "head_dim": 8,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 4096,
    "vocab_size": 16,
    "rope_theta": 1e4,
}
"""A config small enough to make a model of."""


def case(number: int) -> dict[str, Any]:
    """Inputs and right answers of a case: ``given`` and ``expect``."""
    return json.loads((DATA / f"{number:02d}.json").read_text())


def frequencies(width: int, theta: float = 1e4) -> Tensor:
    return theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def halves(x: Tensor, angle: Tensor) -> Tensor:
    """(.., T, D) turned in the half layout by angles (T, D/2)."""
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def neighbours(x: Tensor, angle: Tensor) -> Tensor:
    """The same on channels (2i, 2i + 1)."""
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def apply(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The function beside a table module: (B, H, T, D) with cos and sin (B, T, D)."""
    cos, sin = cos[:, None], sin[:, None]

    def turned(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    return turned(q), turned(k)


class Table(nn.Module):
    """The usual rotary module: inv_freq as a buffer, cos and sin (B, T, D) in the dtype of the vectors.

    The careless one makes positions in the dtype of its buffer, as every cast of the model changes it.
    """

    def __init__(self, width: int, theta: float = 1e4, careless: bool = False):
        super().__init__()
        self.inv_freq, self.careless = nn.Buffer(frequencies(width, theta).float(), persistent=False), careless

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        freq = self.inv_freq if self.careless else self.inv_freq.float()
        angle = position_ids[..., None].to(freq.dtype) * freq
        both = torch.cat([angle, angle], -1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)


def found(report: Report, rule: str, severity: str = "fault") -> Finding:
    """The first finding of a rule; it has to be there, with this severity."""
    assert not report.failed, report
    of_rule = [finding for finding in report.findings if finding.rule == rule]
    assert of_rule and of_rule[0].severity == severity, f"no {severity} of {rule}\n{report}"
    return of_rule[0]


def faults(report: Report) -> set[str]:
    """The rules that found a fault."""
    assert not report.failed, report
    return {finding.rule for finding in report.findings if finding.severity == "fault"}


def sound(report: Report) -> None:
    """No fault, and no rule that could not be asked for an error."""
    assert report.ok and not report.failed, report


PLAIN = {key: value for key, value in LLAMA.items() if key != "model_type"}


def scaled(scaling: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**LLAMA, "rope_scaling": scaling, **more}


def live(config: dict[str, Any], inv_freq: Tensor | None = None, amplitude: float | None = None) -> Any:
    """The rotary module of a tiny Llama, which keeps its config, with another table where one is given."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    given = json.loads(json.dumps({k: v for k, v in config.items() if k != "model_type"}))
    rotary: Any = LlamaRotaryEmbedding(LlamaConfig(**given))
    if inv_freq is not None:
        rotary.inv_freq = inv_freq.float()
        rotary.rope_type = "default"  # else some schedules make their own at every call
    rotary.attention_scaling = rotary.attention_scaling if amplitude is None else amplitude
    return rotary


def model_of(config: dict[str, Any]) -> Any:
    """The model itself."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**json.loads(json.dumps({k: v for k, v in config.items() if k != "model_type"}))))


def recovered(report: Report) -> Tensor:
    """The frequencies of the spec in a report."""
    return ec.encoding(report.spec).generator().split().turns[0].freq.detach().flatten().abs()


def near(got: Tensor, want: list[float], rel: float) -> bool:
    return bool(((got.double() / torch.tensor(want, dtype=torch.float64) - 1).abs() <= rel).all())
