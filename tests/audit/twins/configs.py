"""Stand-ins of configs, tables, clocks and modules."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import eigenclock as ec
from audit.twins.kinds import LENGTH, D, H
from audit.twins.maps import base, by_maps, rotate, turner
from eigenclock.audit.probe import Probe, RotaryTable
from eigenclock.clocks.clock import Reading
from eigenclock.clocks.index import Index

LLAMA = {
    "model_type": "llama",
    "head_dim": D,
    "num_attention_heads": H,
    "num_hidden_layers": 2,
    "rope_theta": 1e4,
    "max_position_embeddings": 4096,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64, "truncate": False}
LAYERED: dict[str, Any] = {
    "model_type": "gemma3_text",
    "head_dim": D,
    "num_attention_heads": H,
    "num_key_value_heads": H,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}


def read(config: dict[str, Any]) -> Any:
    """The encodings of a config, without the warnings it comes with."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ec.encodings(config)


def of_config(config: dict[str, Any], tables: dict[str, RotaryTable] | None = None, length: int = LENGTH, **more: Any) -> Probe:
    """A config with the tables its model builds: those it asks for, or others."""
    asked = read(config)
    tables = tables or {name: table(enc) for name, enc in asked.items()}
    return Probe("twin", "config", D, H, H, length, torch.float32, tables=tables, encodings=asked, config=config, **more)


def table(enc: ec.Encoding, amplitude: float = 1.0) -> RotaryTable:
    turn = enc.generator().split().turns[0]
    return RotaryTable(turn.freq.float(), amplitude, turn.width, turn.pairing, "the model")


def rotary_table(freq: Tensor, amplitude: float = 1.0) -> dict[str, RotaryTable]:
    return {"full_attention": RotaryTable(freq.float(), amplitude, 2 * freq.numel(), "half", "the model")}


def yarn_nested(truncate: bool) -> Probe:
    """YaRN in a section of its own layer type; the faulty model looks for truncate outside of it."""
    config = {**LLAMA, "max_position_embeddings": 256, "layer_types": ["full_attention"] * 2, "rope_parameters": {"full_attention": YARN}}
    config.pop("rope_theta")
    wide = {**config, "rope_parameters": {"full_attention": {**YARN, "truncate": truncate}}}
    built = read(wide)["full_attention"]
    return of_config(config, {"full_attention": table(built, 0.1 * math.log(4) + 1)})


def with_rows(layout: str) -> Probe:
    """Rows of W_q that are in part a quarter turn of those of W_k on the pairs of a layout, as training with rotations makes them."""

    def rows(units: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        random = torch.Generator().manual_seed(0)
        for layer in range(units // H):
            q, k = (torch.randn(H, D, 64, generator=random) for _ in range(2))
            zero, one = torch.zeros(D // 2), torch.ones(D // 2)
            yield layer, q + rotate(k.mT, zero, one, layout).mT, k

    return replace(of_config(LLAMA), projections=rows)


class Remembered:
    """A table kept for each width. The faulty one forgets that it depends on the base as well."""

    def __init__(self, blind: bool):
        self.blind, self.kept = blind, {}

    def __call__(self, width: int, theta: float) -> Tensor:
        return self.kept.setdefault(width if self.blind else (width, theta), base(theta, width))


def remembered(blind: bool) -> Probe:
    tables = Remembered(blind)
    tables(D, 1e4)
    return of_config({**LLAMA, "rope_theta": 5e5}, rotary_table(tables(D, 5e5)))


def layered(swapped: bool) -> Probe:
    probe = of_config(LAYERED)
    names = list(probe.tables)
    return replace(probe, tables=dict(zip(names, (probe.tables[n] for n in reversed(names)), strict=True))) if swapped else probe


def turning_layers(inverted: bool) -> Probe:
    """A model of four layers of which the config says that the last one has no position, and what each of them does."""
    config = {**LLAMA, "model_type": "smollm3", "num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]}
    return of_config(config, rotary_table(base(1e4)), turns={i: (i < 3) != inverted for i in range(4)})


def scaled(amplitude: float) -> Probe:
    """A rotary model under YaRN, whose factor is on cos and sin of both sides."""
    config = {**LLAMA, "max_position_embeddings": 256, "rope_scaling": {k: v for k, v in YARN.items() if k != "rope_theta"}}
    asked = ec.encodings(config)
    freq = asked.only.generator().split().turns[0].freq
    maps = turner(freq, "half", amplitude)
    return by_maps(maps, maps, encodings=asked, config=config)


FACTOR = 0.1 * math.log(4) + 1


def laid_out(layout: str, claimed: str) -> Probe:
    maps = turner(base(1e4), layout)
    return by_maps(maps, maps, tables={"": RotaryTable(base(1e4).float(), 1.0, D, claimed, "the model")})


def partly(pairs: int) -> Probe:
    """Half of the channels should turn."""
    config = {**LLAMA, "partial_rotary_factor": 0.5, "model_type": "phi"}
    maps = turner(base(1e4, 2 * pairs), "half")
    return by_maps(maps, maps, encodings=ec.encodings(config), config=config)


def by_dynamic(length: int) -> Probe:
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    return of_config({**LLAMA, "max_position_embeddings": 512, "rope_scaling": scaling}, length=length)


class Single(Index):
    """A clock that takes differences after rounding to float32."""

    def forward(self, times: Any = None, **options: Any) -> Reading:
        reading = super().forward(times, **options)
        if times is None:
            return reading
        return reading._replace(ticks=torch.as_tensor(times).float().double())


def clocked(clock: ec.Index | None) -> Probe:
    return Probe("twin", "encoding", D, H, H, LENGTH, encoding=ec.rope(D, heads=H, clock=clock))


def of_encoding(enc: ec.Encoding) -> Probe:
    return Probe("twin", "encoding", D, 1, 1, LENGTH, encoding=enc)


class Rotary(nn.Module):
    """A module that keeps its fixed table as a parameter that trains, or as a buffer."""

    def __init__(self, trains: bool):
        super().__init__()
        if trains:
            self.inv_freq = nn.Parameter(base(1e4).float())
        else:
            self.register_buffer("inv_freq", base(1e4).float(), persistent=False)
            self.log_freq = nn.Parameter(base(1e4).float().log())


def in_module(trains: bool) -> Probe:
    return Probe("twin", "module", D, H, H, LENGTH, module=Rotary(trains))
